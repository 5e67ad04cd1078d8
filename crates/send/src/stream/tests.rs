//! Streams survive a round trip, and damage is found.

use buttress_base::Rng;
use buttress_format::Timespec;

use super::*;

fn path(text: &'static str) -> StreamPath<'static> {
    StreamPath::new(text.as_bytes()).expect("a path")
}

fn samples() -> Vec<Command<'static>> {
    let source = Source { uuid: [7; 16], ctransid: 42 };
    let parent = Source { uuid: [9; 16], ctransid: 41 };
    let time = Timespec { sec: -5, nsec: 999_999_999 };
    let stamps = Stamps { atime: time, mtime: time, ctime: time, otime: None };
    let (a, b) = (path("dir/a file"), path("b"));
    let encoded =
        Encoded { file_len: 4096, ram_bytes: 8192, offset: 4096, compression: 2, encryption: 0 };
    vec![
        Command::Subvol { name: b, source },
        Command::Snapshot { name: b, source, parent },
        Command::MkFile { path: a, ino: 257 },
        Command::MkDir { path: b, ino: 258 },
        Command::MkNod { path: a, ino: 259, mode: 0o20644, rdev: 0x507 },
        Command::MkFifo { path: a, ino: 260 },
        Command::MkSock { path: a, ino: 261 },
        Command::Symlink { path: a, ino: 262, target: b"../some where" },
        Command::Rename { path: a, to: b },
        Command::Link { path: a, existing: b },
        Command::Unlink { path: a },
        Command::Rmdir { path: b },
        Command::SetXattr { path: StreamPath::TOP, name: b"user.x", value: b"\0\x01" },
        Command::RemoveXattr { path: a, name: b"user.x" },
        Command::Write { path: a, offset: 4096, data: b"content" },
        Command::Clone {
            path: a,
            offset: 0,
            len: 4096,
            source: parent,
            source_path: b,
            source_offset: 8192,
        },
        Command::Truncate { path: a, size: 77 },
        Command::Chmod { path: StreamPath::TOP, mode: 0o755 },
        Command::Chown { path: a, uid: 1000, gid: 100 },
        Command::Utimes { path: a, stamps },
        Command::UpdateExtent { path: a, offset: 0, len: 12 },
        Command::Fallocate { path: a, mode: 3, offset: 0, len: 4096 },
        Command::FileAttr { path: a, flags: 16 },
        Command::EncodedWrite { path: a, offset: 0, encoded, data: b"packed" },
        Command::EnableVerity {
            path: a,
            algorithm: 1,
            block_size: 4096,
            salt: b"salt",
            signature: b"",
        },
    ]
}

fn written(version: Version) -> Vec<u8> {
    let mut writer = StreamWriter::new(Vec::new(), version);
    for command in samples() {
        writer.command(&command).expect("memory takes everything");
    }
    writer.finish().expect("memory takes everything")
}

/// Reads to the end or to the first error; returns the number of commands.
fn read(bytes: &[u8]) -> Result<usize, StreamError> {
    let mut reader = StreamReader::open(bytes)?.ok_or(StreamError::Empty)?;
    let mut count = 0;
    while reader.command()? != Command::End {
        count += 1;
    }
    Ok(count)
}

/// Every command of all versions is read as it was written.
#[test]
fn commands_survive_a_round_trip() {
    for version in [Version::One, Version::Two, Version::Three] {
        let bytes = written(version);
        let mut reader = StreamReader::open(&bytes[..]).expect("a stream").expect("not empty");
        assert_eq!(reader.version(), version as u32);
        for command in samples() {
            assert_eq!(reader.command().expect("a command"), command);
        }
        assert_eq!(reader.command().expect("the end"), Command::End);
        assert_eq!(reader.position(), bytes.len() as u64);
    }
}

/// A stream that is cut anywhere gives an error, never a regular end.
#[test]
fn every_cut_is_found() {
    let bytes = written(Version::Two);
    for len in 0..bytes.len() {
        let cut = read(&bytes[..len]);
        assert!(
            matches!(cut, Err(StreamError::Truncated { .. } | StreamError::Empty)),
            "{len}: {cut:?}"
        );
    }
}

/// S1: a flipped bit is found, wherever it is.
#[test]
fn every_flipped_bit_is_found() {
    let bytes = written(Version::One);
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        // No checksum covers the version, and no reader can see that 1 became 3.
        let is_version_three = bit == MAGIC.len() * 8 + 1;
        assert!(is_version_three || read(&damaged).is_err(), "bit {bit}");
    }
}

/// S1, S2: random commands with right checksums are read or refused, without a panic.
#[test]
fn random_commands_are_read_or_refused() {
    let mut rng = Rng::new(11);
    let mut accepted = 0;
    for _ in 0..20_000 {
        let mut command = Vec::new();
        let samples = samples();
        let picked = &samples[rng.below(samples.len() as u64) as usize];
        let version = 1 + rng.below(3) as u32;
        picked.encode(version, &mut command).expect("samples are short");
        for _ in 0..rng.below(4) {
            let at = HEADER_LEN + rng.below((command.len() - HEADER_LEN) as u64) as usize;
            match rng.below(3) {
                0 => command[at] = rng.next_u64() as u8,
                1 => command.truncate(at),
                _ => command.insert(at, rng.next_u64() as u8),
            }
            if command.len() == HEADER_LEN {
                break;
            }
        }
        if rng.below(8) == 0 {
            command[4] = rng.below(30) as u8;
        }
        let len = (command.len() - HEADER_LEN) as u32;
        command[..4].copy_from_slice(&len.to_le_bytes());
        command[6..HEADER_LEN].fill(0);
        let crc = buttress_format::crc32c_raw(0, &command);
        command[6..HEADER_LEN].copy_from_slice(&crc.to_le_bytes());
        let mut stream = MAGIC.to_vec();
        stream.extend_from_slice(&version.to_le_bytes());
        stream.extend_from_slice(&command);
        let mut reader = StreamReader::open(&stream[..]).expect("a head").expect("not empty");
        if let Ok(command) = reader.command() {
            accepted += 1;
            let _ = Dump::default().line(&command);
        }
    }
    assert!((2000..20_000).contains(&accepted), "{accepted}");
}

/// S2: a length out of all proportion is refused before anything is allocated.
#[test]
fn monstrous_commands_are_refused() {
    let mut stream = written(Version::One);
    stream[17..21].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(matches!(read(&stream), Err(StreamError::TooLong { at: 17, len: u32::MAX })));
}

/// A field longer than its length field can express, and a command longer than receivers accept,
/// are refused. Nothing is written.
#[test]
fn stream_refuses_fields_that_do_not_fit() {
    let long = vec![b'x'; 1 << 16];
    let at = path("a");
    let unsayable = [
        (1, Command::SetXattr { path: at, name: b"user.x", value: &long }),
        (2, Command::SetXattr { path: at, name: &long, value: b"" }),
        (2, Command::RemoveXattr { path: at, name: &long }),
        (2, Command::Symlink { path: at, ino: 1, target: &long }),
        (1, Command::Write { path: at, offset: 0, data: &long }),
        // Each field fits, but both fields together do not.
        (1, Command::SetXattr { path: at, name: &long[..1000], value: &long[..65_000] }),
    ];
    for (version, command) in unsayable {
        let mut out = b"before".to_vec();
        let refused = command.encode(version, &mut out);
        assert!(matches!(refused, Err(StreamError::DoesNotFit { .. })), "{refused:?}");
        assert_eq!(out, b"before");
    }
    let mut out = Vec::new();
    let command = Command::Write { path: at, offset: 0, data: &long };
    command.encode(2, &mut out).expect("version 2 has no length there");
    let whole = vec![0; 1 << 18];
    let command = Command::Write { path: at, offset: 0, data: &whole };
    command.encode(2, &mut out).expect_err("no receiver takes it");
}

/// A file that is no stream is refused with an error that says so.
#[test]
fn other_files_are_refused() {
    assert!(matches!(read(b"#!/bin/sh\necho hello world\n"), Err(StreamError::Magic)));
    assert!(matches!(read(b"btrfs"), Err(StreamError::Truncated { at: 5 })));
    assert!(matches!(read(b"btrfs-stream\0\x09\0\0\0"), Err(StreamError::Version(9))));
    assert!(StreamReader::open(&b""[..]).expect("nothing").is_none());
}
