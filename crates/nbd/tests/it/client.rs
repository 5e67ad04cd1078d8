//! A small client with its own implementation of the protocol. It can also send requests that break
//! the protocol.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

pub(crate) const READ: u16 = 0;
pub(crate) const WRITE: u16 = 1;
pub(crate) const DISCONNECT: u16 = 2;
pub(crate) const FLUSH: u16 = 3;
pub(crate) const TRIM: u16 = 4;
pub(crate) const WRITE_ZEROES: u16 = 6;
pub(crate) const BLOCK_STATUS: u16 = 7;

pub(crate) const FUA: u16 = 1;
pub(crate) const NO_HOLE: u16 = 2;
pub(crate) const DF: u16 = 4;
pub(crate) const REQ_ONE: u16 = 8;

const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;

pub(crate) struct Client {
    pub(crate) stream: UnixStream,
    structured: bool,
    /// Reads that are under way: the offset and the length of each.
    reads: HashMap<u64, (u64, usize)>,
    partial: HashMap<u64, Answer>,
    next_cookie: u64,
}

/// The whole answer to one request.
#[derive(Debug, Default, Clone)]
pub(crate) struct Answer {
    pub(crate) error: u32,
    pub(crate) data: Vec<u8>,
    /// Length and flags of runs.
    pub(crate) runs: Vec<(u32, u32)>,
    pub(crate) chunks: usize,
    pub(crate) hole_bytes: usize,
}

impl Client {
    /// Connects with all features of the protocol.
    pub(crate) fn connect(socket: &Path) -> Self {
        Self::negotiate(socket, true)
    }

    pub(crate) fn negotiate(socket: &Path, structured: bool) -> Self {
        let mut stream = UnixStream::connect(socket).expect("the server listens");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket");
        let mut hello = [0; 18];
        stream.read_exact(&mut hello).expect("the server speaks first");
        assert_eq!(&hello[..16], b"NBDMAGICIHAVEOPT");
        stream.write_all(&3_u32.to_be_bytes()).expect("it listens");
        let mut client = Self {
            stream,
            structured,
            reads: HashMap::new(),
            partial: HashMap::new(),
            next_cookie: 1,
        };
        if structured {
            client.option(8, b"");
            client.option(10, b"\0\0\0\0\0\0\0\x01\0\0\0\x0fbase:allocation");
        }
        client.option(7, b"\0\0\0\0\0\0");
        client
    }

    fn option(&mut self, option: u32, data: &[u8]) {
        let mut message = OPTION_MAGIC.to_be_bytes().to_vec();
        message.extend_from_slice(&option.to_be_bytes());
        message.extend_from_slice(&(data.len() as u32).to_be_bytes());
        message.extend_from_slice(data);
        self.stream.write_all(&message).expect("it listens");
        loop {
            let header = self.take(20);
            let kind = u32::from_be_bytes(header[12..16].try_into().expect("four"));
            let len = u32::from_be_bytes(header[16..].try_into().expect("four"));
            self.take(len as usize);
            assert!(kind < 1 << 31, "option {option} was refused");
            if kind == 1 {
                return;
            }
        }
    }

    fn take(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).expect("it answers");
        bytes
    }

    /// Sends a request. [`Client::next`] returns the answer.
    pub(crate) fn send(&mut self, command: u16, flags: u16, offset: u64, body: Body<'_>) -> u64 {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        let (len, payload) = match body {
            Body::Len(len) => (len, &[][..]),
            Body::Bytes(bytes) => (bytes.len() as u32, bytes),
        };
        if command == READ {
            self.reads.insert(cookie, (offset, len as usize));
        }
        let mut message = header(command, flags, cookie, offset, len);
        message.extend_from_slice(payload);
        self.stream.write_all(&message).expect("it listens");
        cookie
    }

    /// The next whole answer, to any request.
    pub(crate) fn next(&mut self) -> (u64, Answer) {
        loop {
            let magic = self.take(4);
            match u32::from_be_bytes(magic.try_into().expect("four")) {
                0x6744_6698 => return self.simple(),
                0x668e_33ef => {
                    if let Some(answer) = self.chunk() {
                        return answer;
                    }
                }
                other => panic!("an answer begins with {other:#x}"),
            }
        }
    }

    fn simple(&mut self) -> (u64, Answer) {
        let rest = self.take(12);
        let error = u32::from_be_bytes(rest[..4].try_into().expect("four"));
        let cookie = u64::from_be_bytes(rest[4..].try_into().expect("eight"));
        let read = self.reads.remove(&cookie);
        assert!(read.is_none() || !self.structured, "reads are answered in chunks");
        let data = match read {
            Some((_, len)) if error == 0 => self.take(len),
            _ => Vec::new(),
        };
        (cookie, Answer { error, data, ..Answer::default() })
    }

    fn chunk(&mut self) -> Option<(u64, Answer)> {
        assert!(self.structured);
        let rest = self.take(16);
        let flags = u16::from_be_bytes([rest[0], rest[1]]);
        let kind = u16::from_be_bytes([rest[2], rest[3]]);
        let cookie = u64::from_be_bytes(rest[4..12].try_into().expect("eight"));
        let len = u32::from_be_bytes(rest[12..].try_into().expect("four"));
        let body = self.take(len as usize);
        let answer = self.partial.entry(cookie).or_default();
        answer.chunks += 1;
        let word = |at: usize| u32::from_be_bytes(body[at..at + 4].try_into().expect("four"));
        let read = self.reads.get(&cookie);
        let place = || {
            let at = u64::from_be_bytes(body[..8].try_into().expect("eight"));
            (at - read.expect("a read").0) as usize
        };
        if let Some((_, len)) = read {
            answer.data.resize(*len, 0xee);
        }
        match kind {
            0 => {}
            1 => answer.data[place()..place() + body.len() - 8].copy_from_slice(&body[8..]),
            2 => {
                let len = word(8) as usize;
                answer.data[place()..place() + len].fill(0);
                answer.hole_bytes += len;
            }
            5 => {
                answer.runs =
                    (4..body.len()).step_by(8).map(|at| (word(at), word(at + 4))).collect();
            }
            0x8001 => {
                answer.error = word(0);
                assert_eq!(usize::from(u16::from_be_bytes([body[4], body[5]])), body.len() - 6);
            }
            other => panic!("a chunk of kind {other}"),
        }
        if flags & 1 == 0 {
            return None;
        }
        self.reads.remove(&cookie);
        self.partial.remove(&cookie).map(|answer| (cookie, answer))
    }

    /// One request and its answer, with nothing else under way.
    pub(crate) fn call(&mut self, command: u16, flags: u16, offset: u64, body: Body<'_>) -> Answer {
        let cookie = self.send(command, flags, offset, body);
        let (answered, answer) = self.next();
        assert_eq!(answered, cookie);
        answer
    }
}

/// The part of a request after its offset.
#[derive(Clone, Copy)]
pub(crate) enum Body<'a> {
    Len(u32),
    Bytes(&'a [u8]),
}

pub(crate) fn header(command: u16, flags: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let mut message = 0x2560_9513_u32.to_be_bytes().to_vec();
    message.extend_from_slice(&flags.to_be_bytes());
    message.extend_from_slice(&command.to_be_bytes());
    message.extend_from_slice(&cookie.to_be_bytes());
    message.extend_from_slice(&offset.to_be_bytes());
    message.extend_from_slice(&len.to_be_bytes());
    message
}
