//! What the kernel and we write into each other's memory over a ring (`fuse_uring_*` of the kernel's
//! `include/uapi/linux/fuse.h`, protocol 7.42).
//!
//! Numbers are in the machine's byte order.

use fuser::Errno;

use crate::door::Caller;

/// Bytes that a request, or its answer, may carry behind its fixed parts.
pub(super) const PAYLOAD_LEN: usize = 1 << 20;
/// Takes part: `addr` of the submission has the two areas of an entry, its header and its payload.
pub(super) const REGISTER: u32 = 1;
/// Answers what is in an entry, and asks for the next to be put there.
pub(super) const COMMIT_AND_FETCH: u32 = 2;
/// Areas of an entry.
pub(super) const AREAS: u32 = 2;

/// Length of `fuse_in_header`, bytes.
pub(super) const IN_LEN: usize = 40;
/// Length of `fuse_out_header`, bytes.
pub(super) const OUT_LEN: usize = 16;

/// `fuse_uring_req_header`: the fixed parts of a request, and of an answer.
#[repr(C)]
pub(super) struct Header {
    /// `fuse_in_header`, then `fuse_out_header`.
    in_out: [u8; 128],
    /// What is fixed of this kind of request; how long it is follows from the lengths.
    op: [u8; 128],
    flags: u64,
    /// By which the kernel knows the request in `COMMIT_AND_FETCH`.
    commit_id: u64,
    /// Bytes of the payload that count.
    payload_len: u32,
    padding: u32,
    reserved: u64,
}

impl Header {
    /// One that says nothing.
    pub(super) const EMPTY: Self = Self {
        in_out: [0; 128],
        op: [0; 128],
        flags: 0,
        commit_id: 0,
        payload_len: 0,
        padding: 0,
        reserved: 0,
    };

    /// What the kernel calls the request.
    pub(super) fn commit_id(&self) -> u64 {
        self.commit_id
    }

    /// The fixed fields that all kinds have.
    pub(super) fn request(&self) -> Request {
        let head = Fields(&self.in_out);
        Request {
            len: head.u32(0),
            opcode: head.u32(4),
            unique: head.u64(8),
            node: head.u64(16),
            caller: Caller { uid: head.u32(24), gid: head.u32(28), task: head.u32(32) },
            task: head.u32(32),
            payload_len: self.payload_len,
        }
    }

    /// The fixed fields of this kind.
    pub(super) fn op(&self) -> Fields<'_> {
        Fields(&self.op)
    }

    /// The request as it would come without a ring, but for the payload: two parts in a row. None if the lengths
    /// contradict each other.
    pub(super) fn as_message(&self) -> Option<[&[u8]; 2]> {
        let request = self.request();
        let fixed = (request.len as usize).checked_sub(IN_LEN + request.payload_len as usize)?;
        Some([&self.in_out[..IN_LEN], self.op.get(..fixed)?])
    }

    /// Makes it an answer: how many bytes of payload there are, or why not.
    pub(super) fn answer(&mut self, answer: Result<usize, Errno>) {
        let (len, error) = match answer {
            Ok(len) => (len, 0),
            Err(errno) => (0, -errno.code()),
        };
        let len = u32::try_from(len).expect("a payload has less than 4 GiB");
        self.in_out[..4].copy_from_slice(&(OUT_LEN as u32 + len).to_ne_bytes());
        self.in_out[4..8].copy_from_slice(&error.to_ne_bytes());
        // The number of the request stays where it is: at byte 8 of either header.
        self.payload_len = len;
    }
}

/// What a kernel does with it.
#[cfg(test)]
impl Header {
    /// Makes it a request: its kind, its number, its node, and a length where reads and writes have theirs.
    pub(super) fn ask(&mut self, opcode: u32, unique: u64, node: u64, len: u32) {
        *self = Self { commit_id: unique, ..Self::EMPTY };
        let numbers: [&[u8]; 4] = [
            &(IN_LEN as u32).to_ne_bytes(),
            &opcode.to_ne_bytes(),
            &unique.to_ne_bytes(),
            &node.to_ne_bytes(),
        ];
        let head = numbers.concat();
        self.in_out[..head.len()].copy_from_slice(&head);
        self.op[16..20].copy_from_slice(&len.to_ne_bytes());
    }

    /// The number and the error of an answer, zero or less.
    pub(super) fn answered(&self) -> (u64, i32) {
        let head = Fields(&self.in_out);
        (head.u64(8), head.i32(4))
    }
}

/// What all requests say.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    len: u32,
    pub(super) opcode: u32,
    pub(super) unique: u64,
    pub(super) node: u64,
    pub(super) caller: Caller,
    /// The number of the thread that waits for the answer; zero where none does.
    pub(super) task: u32,
    pub(super) payload_len: u32,
}

/// Fixed fields, by their place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a>(pub(super) &'a [u8; 128]);

impl Fields<'_> {
    pub(super) fn u32(self, at: usize) -> u32 {
        u32::from_ne_bytes(self.0[at..at + 4].try_into().expect("four bytes"))
    }

    pub(super) fn i32(self, at: usize) -> i32 {
        self.u32(at).cast_signed()
    }

    pub(super) fn u64(self, at: usize) -> u64 {
        u64::from_ne_bytes(self.0[at..at + 8].try_into().expect("eight bytes"))
    }
}

/// What goes with a command: `fuse_uring_cmd_req` in the 80 bytes that it has.
pub(super) fn command(commit_id: u64, queue: u16) -> [u8; 80] {
    let mut bytes = [0; 80];
    bytes[8..16].copy_from_slice(&commit_id.to_ne_bytes());
    bytes[16..18].copy_from_slice(&queue.to_ne_bytes());
    bytes
}
