//! Requests of FUSE made to do harm: requests that a kernel would never send, to a front end that
//! trusts the kernel.

use std::io::{IoSlice, Read};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use buttress_block::{Device, MemoryDevice};
use buttress_fs::{Filesystem, MountOptions};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::dice::Dice;
use crate::mutate::NUMBERS;

const INIT: u32 = 26;
const SETATTR: u32 = 4;
const WRITE: u32 = 16;
const SETXATTR: u32 = 21;
const IOCTL: u32 = 39;

/// Commands for flags, for extended flags, and commands that do not exist.
const COMMANDS: [u32; 6] = [0x8008_6601, 0x4008_6602, 0x801c_581f, 0x401c_5820, 0x9403, u32::MAX];

const LISTS: [[u8; 24]; 2] = [*b"system.posix_acl_access\0", *b"user.a-name-of-some-len\0"];

/// The most requests of one conversation.
const REQUESTS_MAX: usize = 64;

/// Opcodes of requests. Some of these opcodes do not exist.
const OPCODES: [u32; 52] = [
    1,
    2,
    3,
    4,
    5,
    6,
    8,
    9,
    10,
    11,
    12,
    13,
    14,
    15,
    16,
    17,
    18,
    20,
    21,
    22,
    23,
    24,
    25,
    26,
    27,
    28,
    29,
    30,
    31,
    32,
    33,
    34,
    35,
    36,
    37,
    38,
    39,
    40,
    41,
    42,
    43,
    44,
    45,
    46,
    47,
    48,
    49,
    50,
    51,
    52,
    4096,
    u32::MAX,
];

const NAMES: [&[u8]; 12] = [
    b"folder 0\0",
    b"file 1 with a name that is not the shortest\0",
    b"away\0",
    b".\0",
    b"..\0",
    b"\0",
    b"a/b\0",
    b"new\0",
    b"system.posix_acl_access\0",
    b"user.x\0",
    b"no end",
    b"trusted.y\0",
];

fn request(dice: &mut Dice<'_>, unique: u64) -> Vec<u8> {
    let opcode = *dice.one(&OPCODES);
    let node = match dice.below(4) {
        0 | 1 => 1 + dice.below(6) as u64,
        2 => 256 + dice.below(140) as u64,
        _ => *dice.one(&NUMBERS),
    };
    let mut body = Vec::new();
    // Most requests begin with a few numbers and end with names.
    for _ in 0..dice.below(9) {
        let number = if dice.below(3) == 0 { *dice.one(&NUMBERS) } else { dice.below(5) as u64 };
        match dice.below(2) {
            0 => body.extend(number.to_le_bytes()),
            _ => body.extend((number as u32).to_le_bytes()),
        }
    }
    for _ in 0..dice.below(3) {
        body.extend_from_slice(NAMES[dice.below(NAMES.len())]);
    }
    if dice.below(6) == 0 {
        body.resize(body.len() + dice.below(9000), b'x');
    }
    if let Some(framed) = counted(opcode, dice) {
        body = framed;
    }
    if opcode == SETATTR {
        possible_times(&mut body);
    }
    // The protocol library trusts the kernel in this length, too.
    let len = 40 + body.len() as u32;
    let user = *dice.one(&[0, 0, 1000, u32::MAX]);
    framed(len, opcode, unique, node, user, &body)
}

/// Makes requests with a count of the bytes that follow. The protocol library trusts the kernel in
/// this count.
fn counted(opcode: u32, dice: &mut Dice<'_>) -> Option<Vec<u8>> {
    let number = |dice: &mut Dice<'_>| *dice.one(&NUMBERS);
    let bytes = vec![b'w'; dice.below(10_000)];
    let mut body = Vec::new();
    match opcode {
        WRITE => {
            body.extend(number(dice).to_le_bytes());
            body.extend(number(dice).to_le_bytes());
            body.extend((bytes.len() as u32).to_le_bytes());
            body.extend((dice.below(8) as u32).to_le_bytes());
            body.extend([0; 16]);
        }
        SETXATTR => {
            let value = dice.below(300);
            body.extend((value as u32).to_le_bytes());
            body.extend((dice.below(4) as u32).to_le_bytes());
            body.extend_from_slice(&LISTS[dice.below(LISTS.len())]);
            body.resize(body.len() + value, 2);
            return Some(body);
        }
        IOCTL => {
            body.extend(number(dice).to_le_bytes());
            body.extend((dice.below(4) as u32).to_le_bytes());
            body.extend(dice.one(&COMMANDS).to_le_bytes());
            body.extend(number(dice).to_le_bytes());
            let given = dice.below(64).min(bytes.len());
            body.extend((given as u32).to_le_bytes());
            body.extend((dice.below(5000) as u32).to_le_bytes());
            body.extend_from_slice(&bytes[..given]);
            return Some(body);
        }
        _ => return None,
    }
    body.extend_from_slice(&bytes);
    Some(body)
}

/// Makes times that a kernel could send: nanoseconds below a second, and seconds within bounds. The
/// protocol library adds times up without a check.
fn possible_times(body: &mut [u8]) {
    const SECONDS: usize = 32;
    const NANOS: usize = 56;
    for time in 0..3 {
        let Some(nanos) = body.get_mut(NANOS + 4 * time..).and_then(<[u8]>::first_chunk_mut) else {
            return;
        };
        *nanos = (u32::from_le_bytes(*nanos) % 1_000_000_000).to_le_bytes();
        let seconds = body[SECONDS + 8 * time..].first_chunk_mut().expect("they come first");
        *seconds = i64::from_le_bytes(*seconds).max(i64::MIN + 1).to_le_bytes();
    }
}

fn framed(len: u32, opcode: u32, unique: u64, node: u64, user: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(40 + body.len());
    bytes.extend(len.to_le_bytes());
    bytes.extend(opcode.to_le_bytes());
    bytes.extend(unique.to_le_bytes());
    bytes.extend(node.to_le_bytes());
    for number in [user, user, 1, 0] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend_from_slice(body);
    bytes
}

fn greeting() -> Vec<u8> {
    let mut body = Vec::new();
    for number in [7_u32, 40, 128 << 10, 0x7fff_ffff] {
        body.extend(number.to_le_bytes());
    }
    body.resize(64, 0);
    framed(40 + body.len() as u32, INIT, 1, 0, 0, &body)
}

/// A conversation: a greeting, and then the requests that the bytes choose.
///
/// # Panics
///
/// If there is a bug.
pub fn fuse(base: &MemoryDevice, data: &[u8]) {
    let device: Arc<dyn Device> = Arc::new(base.fork());
    let mut options = MountOptions::parse("rw,noatime").expect("known options");
    options.background = false;
    let fs = Filesystem::open(vec![device], options).expect("a good volume");
    let mut dice = Dice::new(data);
    let mut requests = vec![greeting()];
    while !dice.is_empty() && requests.len() < REQUESTS_MAX {
        let unique = requests.len() as u64 + 1;
        requests.push(request(&mut dice, unique));
    }
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let (server, kernel) = pair.expect("two ends");
    let answers = kernel.try_clone().expect("another number for it");
    std::thread::scope(|scope| {
        scope.spawn(|| listen(answers));
        scope.spawn(move || {
            for request in requests {
                if rustix::io::writev(&kernel, &[IoSlice::new(&request)]).is_err() {
                    break;
                }
            }
            // No client sends any more, so the front end ends.
            let _ = rustix::net::shutdown(&kernel, rustix::net::Shutdown::Write);
        });
        // The result of the front end does not matter here.
        let _ =
            buttress_fuse::serve_connection(fs.clone(), server, &buttress_fuse::Options::default());
    });
    fs.close().expect("a good volume, whatever was asked for");
}

fn listen(answers: OwnedFd) {
    let mut answers = std::fs::File::from(answers);
    // A longer message is cut: each read takes a whole message.
    let mut buf = vec![0; 4 << 10];
    while answers.read(&mut buf).is_ok_and(|len| len > 0) {}
}
