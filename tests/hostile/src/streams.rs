//! Streams of subvolumes made to do harm, with every checksum right.

use std::sync::Arc;

use buttress_block::{Device, MemoryDevice};
use buttress_fs::{Filesystem, MountOptions, NewInode, TreeId};
use buttress_send::{SendOptions, Subvolumes, receive, send};

use crate::dice::Dice;
use crate::mutate::NUMBERS;

/// The lengths of the stream's header, and of the header of each command.
const MAGIC_LEN: usize = 17;
const HEADER_LEN: usize = 10;

/// Paths that a stream must not have.
const PATHS: [&[u8]; 12] = [
    b"..",
    b"../victim",
    b"/victim",
    b"a/../../victim",
    b"",
    b".",
    b"folder 0/away/../../victim",
    b"folder 0/away/x",
    b"a//b",
    b"folder 0/\0",
    b"folder 0",
    b"o257-8-0",
];

/// A stream with the whole content of a filled volume.
///
/// # Panics
///
/// If the stream cannot be made.
#[must_use]
pub fn good(base: &MemoryDevice) -> Vec<u8> {
    let fs = open(Arc::new(base.fork()));
    drop(fs.root().snapshot(b"sent", TreeId::FS, true).expect("room"));
    let tree = fs.root().lookup(b"sent").expect("it").id().tree;
    let stream = send(&fs, &SendOptions::new(tree), Vec::new()).expect("a stream");
    fs.close().expect("a good volume");
    stream
}

fn open(device: Arc<dyn Device>) -> Filesystem {
    let mut options = MountOptions::parse("rw,noatime").expect("known options");
    options.background = false;
    Filesystem::open(vec![device], options).expect("a good volume")
}

/// The commands of a stream, headers and all.
fn commands(stream: &[u8]) -> Vec<Vec<u8>> {
    let mut commands = Vec::new();
    let mut rest = stream.get(MAGIC_LEN..).unwrap_or_default();
    while let Some((len, _)) = rest.split_first_chunk::<4>() {
        let len = (HEADER_LEN + u32::from_le_bytes(*len) as usize).min(rest.len());
        let (command, after) = rest.split_at(len);
        commands.push(command.to_vec());
        rest = after;
    }
    commands
}

fn seal(command: &mut [u8]) {
    if command.len() < HEADER_LEN {
        return;
    }
    let len = (command.len() - HEADER_LEN) as u32;
    command[..4].copy_from_slice(&len.to_le_bytes());
    command[6..10].fill(0);
    let crc = buttress_format::crc32c_raw(0, command);
    command[6..10].copy_from_slice(&crc.to_le_bytes());
}

/// The attributes of a command: number, and bytes.
fn attributes(command: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let mut found = Vec::new();
    let mut rest = command.get(HEADER_LEN..).unwrap_or_default();
    while let Some(([n0, n1, l0, l1], after)) = rest.split_first_chunk::<4>() {
        let len = usize::from(u16::from_le_bytes([*l0, *l1])).min(after.len());
        let (bytes, after) = after.split_at(len);
        found.push((u16::from_le_bytes([*n0, *n1]), bytes.to_vec()));
        rest = after;
    }
    found
}

fn damage(command: &mut Vec<u8>, dice: &mut Dice<'_>) {
    let mut all = attributes(command);
    if all.is_empty() || command.len() < HEADER_LEN {
        return;
    }
    let at = dice.below(all.len());
    let (number, bytes) = &mut all[at];
    match dice.below(8) {
        0..=2 => *bytes = PATHS[dice.below(PATHS.len())].to_vec(),
        3 | 4 if bytes.len() >= 8 => {
            bytes[..8].copy_from_slice(&dice.one(&NUMBERS).to_le_bytes());
        }
        5 => *number = dice.below(40) as u16,
        6 => bytes.truncate(dice.below(bytes.len() + 1)),
        _ => {
            // The length of an attribute is now too large or too small.
            command.truncate(HEADER_LEN + dice.below(command.len() - HEADER_LEN + 1));
            return;
        }
    }
    command.truncate(HEADER_LEN);
    for (number, bytes) in all {
        command.extend(number.to_le_bytes());
        command.extend((bytes.len() as u16).to_le_bytes());
        command.extend(bytes);
    }
}

/// A stream is damaged as the bytes say, and received beside a file that must not change.
///
/// # Panics
///
/// If there is a bug.
pub fn stream(base: &MemoryDevice, good: &[u8], data: &[u8]) {
    let mut dice = Dice::new(data);
    let mut all = commands(good);
    for _ in 0..dice.below(6) {
        let at = dice.below(all.len());
        match dice.below(8) {
            0 => drop(all.remove(at)),
            1 => {
                let other = (at + 1 + dice.below(5)) % all.len();
                all.swap(at, other);
            }
            2 => {
                let again = all[dice.below(all.len())].clone();
                all.insert(at, again);
            }
            3 if all[at].len() > 5 => all[at][4] = dice.below(40) as u8,
            _ => damage(&mut all[at], &mut dice),
        }
        if all.is_empty() {
            break;
        }
    }
    let mut bytes = good[..MAGIC_LEN].to_vec();
    for mut command in all {
        seal(&mut command);
        bytes.extend(command);
    }
    let fs = open(Arc::new(base.fork()));
    let victim = fs.root().create(b"victim", NewInode::file(0o600)).expect("a new name");
    victim.write_at(0, b"untouched").expect("room");
    drop(victim);
    let dir = fs.root().mkdir(b"in", 0o755, 0, 0).expect("a new name");
    let _ = receive(&Subvolumes::new(&fs, dir), bytes.as_slice(), |_| {});
    let victim = fs.root().lookup(b"victim").expect("R1: it is not the stream's");
    let mut found = [0; 16];
    let len = victim.read_at(0, &mut found).expect("a good volume");
    assert_eq!(&found[..len], b"untouched", "R1: nothing outside is changed");
    assert_eq!(victim.attr().mode & 0o7777, 0o600, "R1");
    drop(victim);
    fs.close().expect("a good volume");
}
