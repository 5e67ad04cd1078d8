//! Volumes inside disk images: in partitions, and at offsets. Nothing outside of the volumes is
//! written.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;

use buttress_interop::linux::{Images, Part, can_mount_fuse, has_linux_btrfs};
use buttress_interop::manifest::{Depth, Manifest};
use buttress_interop::program::{Mounted, buttress};
use buttress_interop::sample::{Folder, Scale, fill};

const MIB: u64 = 1 << 20;
const DISK: u64 = 420 * MIB;
/// The partitions: number, first byte and length. The second partition is for the volume.
const PARTS: [(u32, u64, u64); 3] =
    [(1, MIB, MIB), (2, 2 * MIB + 512, 400 * MIB), (3, 403 * MIB, MIB)];

fn put(file: &File, at: u64, bytes: &[u8]) {
    file.write_all_at(bytes, at).expect("written");
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |sum, &byte| {
        (0..8).fold(sum ^ u32::from(byte), |sum, _| {
            (sum >> 1) ^ (0xedb8_8320 & (sum & 1).wrapping_neg())
        })
    })
}

/// The bytes of a table with one entry for each partition.
fn record(entries: &[(u8, u64, u64)]) -> [u8; 512] {
    let mut bytes = [0; 512];
    for (slot, &(kind, start, len)) in entries.iter().enumerate() {
        let entry = &mut bytes[446 + 16 * slot..][..16];
        entry[4] = kind;
        entry[8..12].copy_from_slice(&((start / 512) as u32).to_le_bytes());
        entry[12..].copy_from_slice(&((len / 512).min(u64::from(u32::MAX)) as u32).to_le_bytes());
    }
    bytes[510..].copy_from_slice(&[0x55, 0xaa]);
    bytes
}

/// Writes both copies of a table of UEFI.
fn gpt(file: &File) {
    put(file, 0, &record(&[(0xee, 512, u64::MAX)]));
    let mut list = vec![0; 128 * 128];
    for (entry, (number, start, len)) in list.chunks_exact_mut(128).zip(PARTS) {
        // The type of Linux's file systems, in the byte order of the disk.
        let kind = [0xaf, 0x3d, 0xc6, 0x0f, 0x83, 0x84, 0x72, 0x47];
        entry[..8].copy_from_slice(&kind);
        entry[8..16].copy_from_slice(&[0x8e, 0x79, 0x3d, 0x69, 0xd8, 0x47, 0x7d, 0xe4]);
        entry[16] = number as u8;
        entry[32..40].copy_from_slice(&(start / 512).to_le_bytes());
        entry[40..48].copy_from_slice(&((start + len) / 512 - 1).to_le_bytes());
        let name = if number == 2 { "data" } else { "other" };
        for (to, unit) in entry[56..].chunks_exact_mut(2).zip(name.encode_utf16()) {
            to.copy_from_slice(&unit.to_le_bytes());
        }
    }
    let end = DISK / 512 - 1;
    for (at, other, list_at) in [(1, end, 2), (end, 1, end - 32)] {
        let mut header = vec![0; 92];
        header[..8].copy_from_slice(b"EFI PART");
        header[8..16].copy_from_slice(&[0, 0, 1, 0, 92, 0, 0, 0]);
        for (to, number) in [(24, at), (32, other), (40, 34), (48, end - 33), (72, list_at)] {
            header[to..to + 8].copy_from_slice(&u64::to_le_bytes(number));
        }
        header[56] = 7;
        for (to, number) in [(80, 128), (84, 128), (88, crc32(&list))] {
            header[to..to + 4].copy_from_slice(&u32::to_le_bytes(number));
        }
        let sum = crc32(&header);
        header[16..20].copy_from_slice(&sum.to_le_bytes());
        put(file, at * 512, &header);
        put(file, list_at * 512, &list);
    }
}

/// Writes a table of the older kind, with the volume's place in an extended partition. The
/// partition of the volume has the number 5.
fn mbr(file: &File) {
    let [(_, first, first_len), (_, start, len), (_, last, last_len)] = PARTS;
    let extended = first + first_len;
    put(
        file,
        0,
        &record(&[
            (0x0c, first, first_len),
            (0x0f, extended, start + len - extended),
            (0x83, last, last_len),
        ]),
    );
    put(file, extended, &record(&[(0x83, start - extended, len)]));
}

/// A disk with a table, and noise around the volume's place.
fn disk(table: fn(&File)) -> Images {
    let images = Images::new(1, DISK);
    let file = File::options().write(true).open(images.path()).expect("the disk");
    let noise: Vec<u8> = (0..MIB).map(|at| (at * 7 / 3) as u8).collect();
    for (_, start, len) in [PARTS[0], PARTS[2]] {
        put(&file, start, &noise[..len as usize]);
    }
    put(&file, PARTS[1].1 + PARTS[1].2, &noise[..4096]);
    table(&file);
    images
}

/// The bytes before and after the volume's place.
fn beside(path: &Path) -> (Vec<u8>, Vec<u8>) {
    let mut file = File::open(path).expect("the disk");
    let (_, start, len) = PARTS[1];
    let (mut before, mut behind) = (vec![0; start as usize], Vec::new());
    file.read_exact(&mut before).expect("the begin");
    file.seek(SeekFrom::Start(start + len)).expect("the end");
    file.read_to_end(&mut behind).expect("the end");
    (before, behind)
}

fn at(images: &Images, part: &str) -> String {
    format!("{}{part}", images.path().display())
}

fn scale() -> Scale {
    Scale { dirs: 6, files: 10, big_bytes: 2 << 20, ..Scale::default() }
}

/// Fills the volume through a mount of ours, and compares with Linux. The bytes beside the volume
/// must not change.
fn work(images: &Images, name: &str, folder: &str) {
    let part = Part::new(images.path(), PARTS[1].1, PARTS[1].2);
    let around = beside(images.path());
    let mount = Mounted::new(Path::new(name), "");
    mount.shell(&format!("mkdir {folder}"));
    fill(&Folder::new(&mount.path().join(folder)), &scale());
    std::fs::remove_file(mount.path().join(folder).join("holes/a tebibyte")).expect("a file");
    let here = Manifest::of_folder(mount.path());
    mount.unmount();
    buttress(["check", "--check-data-csum", name]);
    part.check();
    let mount = part.mount(images.scratch(), "ro");
    let linux = Manifest::of_folder(mount.path());
    mount.unmount();
    here.assert_same("here", &linux, "Linux", Depth::Copy);
    assert!(around == beside(images.path()), "what lies beside the volume changed");
}

/// A partition of a GPT, by its name: the volume is made and filled here, filled by Linux, and then
/// filled here again.
#[test]
pub(crate) fn a_partition_made_here_is_mounted_by_linux() {
    if !has_linux_btrfs() || !can_mount_fuse() {
        return;
    }
    let images = disk(gpt);
    assert_eq!(Part::all(images.path()), PARTS, "Linux sees the partitions");
    let around = beside(images.path());
    let name = at(&images, "#label=data");
    buttress(["mkfs", &name]);
    assert!(around == beside(images.path()), "mkfs wrote beside its partition");
    work(&images, &name, "one");
    let part = Part::new(images.path(), PARTS[1].1, PARTS[1].2);
    let mount = part.mount(images.scratch(), "");
    mount.shell("rm -rf one/big; cp -r one two");
    mount.unmount();
    work(&images, &at(&images, "#2"), "three");
}

/// A volume that Linux made in a logical partition of an MBR is written here, by the number and by
/// the place of the partition.
#[test]
pub(crate) fn a_partition_made_by_linux_is_written_here() {
    if !has_linux_btrfs() || !can_mount_fuse() {
        return;
    }
    let images = disk(mbr);
    let part = Part::new(images.path(), PARTS[1].1, PARTS[1].2);
    let numbers: Vec<u32> = Part::all(images.path()).iter().map(|found| found.0).collect();
    assert!(numbers.contains(&5), "{numbers:?}");
    part.mkfs();
    let mount = part.mount(images.scratch(), "");
    mount.shell("mkdir linux; echo hello > linux/file");
    mount.unmount();
    let name = at(&images, "#5");
    assert_eq!(buttress(["cat", &format!("{name}:/linux/file")]), "hello\n");
    work(&images, &name, "one");
    work(&images, &at(&images, &format!("@{}", PARTS[1].1)), "two");
}
