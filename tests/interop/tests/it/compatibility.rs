//! The table of features in `docs/format/compatibility.md` agrees with the code.

use std::path::Path;
use std::sync::Arc;

use buttress_block::{Device, MemoryDevice};
use buttress_format::limits::{SUPER_OFFSETS, SUPER_SIZE};
use buttress_format::{CompatRo, CsumType, Incompat};
use buttress_fs::{Filesystem, MakeOptions, MountOptions};

/// The treatment of a volume, in the words of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Yes,
    No,
    Refused,
}

#[derive(Debug)]
struct Row {
    names: Vec<String>,
    flag: String,
    read: Answer,
    written: Answer,
}

fn table() -> Vec<Row> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/format/compatibility.md");
    let text = std::fs::read_to_string(path).expect("the table");
    let mut rows = Vec::new();
    let lines = text.lines().skip_while(|line| !line.starts_with("| feature |")).skip(2);
    for line in lines.take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [names, flag, read, written] = cells[..] else { panic!("four cells, not {line}") };
        let answer = |cell: &str| match cell.split([' ', ',', ';']).next() {
            Some("yes") => Answer::Yes,
            Some("no") => Answer::No,
            Some("refused") => Answer::Refused,
            _ => panic!("{cell:?} of {line} is no answer"),
        };
        rows.push(Row {
            names: names.split(',').map(|name| name.trim().to_owned()).collect(),
            flag: flag.to_owned(),
            read: answer(read),
            written: answer(written),
        });
    }
    rows
}

/// Finds the row of a bit by its name. A bit without a name has the row for unknown bits.
fn row<'t>(table: &'t [Row], flag: &str, name: Option<&str>) -> &'t Row {
    let name = name.unwrap_or("unknown bits");
    let mut rows =
        table.iter().filter(|row| row.flag == flag && row.names.iter().any(|n| n == name));
    let row = rows.next().unwrap_or_else(|| panic!("no row for {flag} {name}"));
    assert!(rows.next().is_none(), "two rows for {flag} {name}");
    row
}

const COMPAT_RO_AT: usize = 180;
const INCOMPAT_AT: usize = 188;
const FSID_AT: usize = 32;
const METADATA_UUID_AT: usize = 571;

/// A new volume with one bit more in its superblock.
fn with_bit(at: usize, bit: u64) -> Arc<dyn Device> {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(128 << 20));
    let options = MakeOptions { nodesize: 4096, ..MakeOptions::default() };
    Filesystem::make(&*device, &options).expect("a volume");
    for offset in SUPER_OFFSETS.into_iter().take(2) {
        let mut bytes = vec![0; SUPER_SIZE];
        device.read_at(offset, &mut bytes).expect("memory");
        let mut field = [0; 8];
        field.copy_from_slice(&bytes[at..at + 8]);
        let flags = u64::from_le_bytes(field) | bit;
        bytes[at..at + 8].copy_from_slice(&flags.to_le_bytes());
        if at == INCOMPAT_AT && bit == Incompat::METADATA_UUID.0 {
            // Nodes carry the identifier that the volume had before it was changed.
            bytes.copy_within(FSID_AT..FSID_AT + 16, METADATA_UUID_AT);
        }
        let digest = CsumType::Crc32c.digest(&bytes[32..]);
        bytes[..32].copy_from_slice(&digest);
        device.write_at(offset, &bytes).expect("memory");
    }
    device
}

/// How a volume is read, and whether it is written.
fn outcome(device: &Arc<dyn Device>) -> (Answer, Answer) {
    let open = |options: &str| {
        let options = MountOptions::parse(options).expect("options");
        Filesystem::open(vec![Arc::clone(device)], options)
    };
    let read = match open("ro") {
        Ok(fs) => {
            assert!(fs.root().read_dir(0, |_| std::ops::ControlFlow::Continue(())).is_ok());
            fs.close().expect("an unmount");
            Answer::Yes
        }
        Err(_) => Answer::Refused,
    };
    let written = match open("rw") {
        Err(_) => Answer::Refused,
        Ok(fs) => {
            let wrote = fs.root().mkdir(b"new", 0o755, 0, 0).is_ok();
            assert_eq!(wrote, fs.read_only_reason().is_none());
            fs.close().expect("an unmount");
            if wrote { Answer::Yes } else { Answer::No }
        }
    };
    (read, written)
}

#[test]
fn the_table_is_what_the_code_does() {
    let table = table();
    let named = |names: Vec<String>| names.into_iter().next().filter(|n| !n.starts_with("unknown"));
    for shift in 0..64 {
        let bit = 1_u64 << shift;
        for (flag, at, name) in [
            ("incompat", INCOMPAT_AT, named(Incompat(bit).names())),
            ("compat_ro", COMPAT_RO_AT, named(CompatRo(bit).names())),
        ] {
            let row = row(&table, flag, name.as_deref());
            let (read, written) = outcome(&with_bit(at, bit));
            let mut expected = (row.read, row.written);
            if at == INCOMPAT_AT && bit == Incompat::MIXED_GROUPS.0 {
                // The block groups here are not mixed, so a writer refuses the flag. `features`
                // tests volumes with mixed groups.
                assert_eq!(row.written, Answer::Yes);
                expected.1 = Answer::Refused;
            }
            if at == INCOMPAT_AT && bit == Incompat::RAID_STRIPE_TREE.0 {
                // There is no stripe tree here, so the volume is only read. `stripe_tree` in the
                // tests of `fs` writes volumes with such a tree.
                assert_eq!(row.written, Answer::Yes);
                expected.1 = Answer::No;
            }
            assert_eq!((read, written), expected, "{flag} bit {shift}, {name:?}: {row:?}");
        }
    }
    // Conversely, no row names a bit that does not exist.
    let known: Vec<&str> = Incompat::NAMED
        .iter()
        .map(|(_, name)| *name)
        .chain(CompatRo::NAMED.iter().map(|(_, name)| *name))
        .chain(["unknown bits", "and zlib"])
        .collect();
    for name in table.iter().flat_map(|row| &row.names) {
        assert!(known.contains(&name.as_str()), "{name} of the table is no feature");
    }
}
