use proptest::prelude::*;

use super::*;
use crate::MemoryDevice;

const DISK: u64 = 8 << 20;
const LINUX: &str = "0FC63DAF-8483-4772-8E79-3D69D8477DE4";

fn put(disk: &MemoryDevice, at: u64, bytes: &[u8]) {
    disk.write_at(at, bytes).expect("memory");
}

/// Writes a record with entries of kind, first sector and number of sectors.
fn record(disk: &MemoryDevice, at: u64, entries: &[(u8, u32, u32)]) {
    let mut bytes = [0; 512];
    for (slot, &(kind, start, count)) in entries.iter().enumerate() {
        let entry = &mut bytes[446 + 16 * slot..][..16];
        entry[4] = kind;
        entry[8..12].copy_from_slice(&start.to_le_bytes());
        entry[12..].copy_from_slice(&count.to_le_bytes());
    }
    bytes[510..].copy_from_slice(&[0x55, 0xaa]);
    put(disk, at * 512, &bytes);
}

fn on_disk(text: &str) -> Vec<u8> {
    let digits: String = text.chars().filter(|&c| c != '-').collect();
    let byte = |at: usize| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).expect("hex");
    [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15].map(byte).to_vec()
}

/// Writes both copies of a GPT with partitions by name, first and last sector.
fn gpt(disk: &MemoryDevice, sector: u64, parts: &[(&str, u64, u64)]) {
    record(disk, 0, &[(0xee, 1, u32::MAX)]);
    let mut list = vec![0; 128 * 128];
    for (entry, &(name, first, last)) in list.chunks_exact_mut(128).zip(parts) {
        if last == 0 {
            continue;
        }
        entry[..16].copy_from_slice(&on_disk(LINUX));
        entry[16] = first as u8;
        entry[32..40].copy_from_slice(&first.to_le_bytes());
        entry[40..48].copy_from_slice(&last.to_le_bytes());
        for (to, unit) in entry[56..].chunks_exact_mut(2).zip(name.encode_utf16()) {
            to.copy_from_slice(&unit.to_le_bytes());
        }
    }
    let end = DISK / sector - 1;
    let list_len = list.len() as u64 / sector;
    for (at, list_at) in [(1, 2), (end, end - list_len)] {
        let mut header = vec![0; 92];
        header[..8].copy_from_slice(b"EFI PART");
        header[12..16].copy_from_slice(&92_u32.to_le_bytes());
        for (to, number) in [(24, at), (40, 40), (48, end - 40), (72, list_at)] {
            header[to..to + 8].copy_from_slice(&u64::to_le_bytes(number));
        }
        for (to, number) in [(80, 128), (84, 128), (88, gpt::crc32(&list))] {
            header[to..to + 4].copy_from_slice(&u32::to_le_bytes(number));
        }
        let sum = gpt::crc32(&header);
        header[16..20].copy_from_slice(&sum.to_le_bytes());
        put(disk, at * sector, &header);
        put(disk, list_at * sector, &list);
    }
}

fn found(disk: &MemoryDevice) -> Vec<(u32, u64, u64)> {
    let parts = read(disk).expect("whole").expect("a table");
    parts.iter().map(|part| (part.number, part.start, part.len)).collect()
}

fn refused(disk: &MemoryDevice) -> String {
    read(disk).expect_err("a broken table").to_string()
}

/// T4: partitions have the numbers of their entries. Names and kinds are read, in sectors of both
/// sizes.
#[test]
fn a_gpt_is_read_in_sectors_of_both_sizes() {
    for sector in [512, 4096] {
        let disk = MemoryDevice::new(DISK);
        gpt(&disk, sector, &[("boot", 64, 127), ("", 0, 0), ("äß root", 128, 255)]);
        let at = |first: u64| first * sector;
        assert_eq!(found(&disk), [(1, at(64), at(64)), (3, at(128), at(128))]);
        let parts = read(&disk).expect("whole").expect("a table");
        assert_eq!(parts[1].label, "äß root");
        let Kind::Gpt(kind) = parts[1].kind else { panic!("a GPT") };
        assert_eq!(kind[..4], [0x0f, 0xc6, 0x3d, 0xaf]);
    }
}

/// If the first copy is damaged, the second is read. If both are damaged, the result is an error.
#[test]
fn a_damaged_gpt_is_read_from_its_second_copy() {
    let disk = MemoryDevice::new(DISK);
    gpt(&disk, 512, &[("a", 64, 127)]);
    put(&disk, 2 * 512, &[0; 64]);
    assert_eq!(found(&disk), [(1, 64 * 512, 64 * 512)]);
    put(&disk, DISK - 512 + 40, &[1]);
    assert!(refused(&disk).contains("damaged"), "{}", refused(&disk));
}

/// T4: logical partitions are numbered from five. Records name the next record relative to the
/// start of the extended partition.
#[test]
fn logical_partitions_have_their_numbers() {
    let disk = MemoryDevice::new(DISK);
    record(&disk, 0, &[(0x83, 64, 64), (0x05, 1000, 3000), (0, 0, 0), (0x83, 5000, 100)]);
    record(&disk, 1000, &[(0x83, 10, 90), (0x05, 200, 300)]);
    record(&disk, 1200, &[(0x82, 10, 90)]);
    let at = |number, first: u64, count: u64| (number, first * 512, count * 512);
    let expected = [at(1, 64, 64), at(4, 5000, 100), at(5, 1010, 90), at(6, 1210, 90)];
    assert_eq!(found(&disk), expected);
}

/// T1, T2: tables that contradict themselves are errors, and reading a cyclic chain ends.
#[test]
fn broken_tables_are_errors() {
    let disk = MemoryDevice::new(DISK);
    assert_eq!(read(&disk).expect("zeroes"), None);
    record(&disk, 0, &[(0x83, 64, 64), (0x83, 100, 64)]);
    assert!(refused(&disk).contains("overlap"));
    record(&disk, 0, &[(0x05, 1000, 3000)]);
    record(&disk, 1000, &[(0x05, 200, 300)]);
    record(&disk, 1200, &[(0x05, 200, 300)]);
    assert!(refused(&disk).contains("no end"));
    record(&disk, 1200, &[(0x83, 10, 2900)]);
    assert!(refused(&disk).contains("leaves"));
    record(&disk, 0, &[(0xee, 1, 100)]);
    assert!(refused(&disk).contains("GPT"));
    record(&disk, 0, &[(0x83, 64, u32::MAX)]);
    let part = read(&disk).expect("whole").expect("a table").remove(0);
    assert!(part.within(&disk).is_err());
    gpt(&disk, 512, &[("a", 64, 12)]);
    assert!(refused(&disk).contains("bounds"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// T1 to T3: any bytes in a table give partitions that do not overlap, or an error, but no
    /// panic.
    #[test]
    fn any_bytes_are_taken(
        is_gpt: bool,
        sums_are_right: bool,
        damage in prop::collection::vec((0_usize..20_000, any::<u8>()), 0..12),
        entries in prop::collection::vec((0_usize..4, any::<u32>(), any::<u32>()), 0..4),
    ) {
        let disk = MemoryDevice::new(DISK);
        if is_gpt {
            gpt(&disk, 512, &[("a", 64, 127), ("b", 128, 4095)]);
        } else {
            record(&disk, 0, &[(0x83, 64, 64), (0x05, 16, 3000), (0x83, 5000, 100)]);
            record(&disk, 16, &[(0x83, 1, 10), (0x0f, 20, 300)]);
            record(&disk, 36, &[(0x83, 1, 10)]);
        }
        for (slot, start, count) in entries {
            put(&disk, 446 + 16 * slot as u64 + 8, &start.to_le_bytes());
            put(&disk, 446 + 16 * slot as u64 + 12, &count.to_le_bytes());
        }
        for (at, byte) in damage {
            put(&disk, at as u64, &[byte]);
        }
        if is_gpt && sums_are_right {
            let mut list = vec![0; 128 * 128];
            disk.read_at(1024, &mut list).expect("memory");
            put(&disk, 512 + 88, &gpt::crc32(&list).to_le_bytes());
            put(&disk, 512 + 16, &[0; 4]);
            let mut header = [0; 92];
            disk.read_at(512, &mut header).expect("memory");
            put(&disk, 512 + 16, &gpt::crc32(&header).to_le_bytes());
        }
        if let Ok(Some(parts)) = read(&disk) {
            for (at, part) in parts.iter().enumerate() {
                prop_assert!(part.len >= 512 && part.start >= 512);
                for other in &parts[at + 1..] {
                    let apart = |one: &Partition, two: &Partition| one.start + one.len <= two.start;
                    prop_assert!(apart(part, other) || apart(other, part));
                }
            }
        }
    }
}
