//! The structures that the kernel and the server exchange over a ring (`fuse_uring_*` of the
//! kernel's `include/uapi/linux/fuse.h`, protocol 7.42).
//!
//! Numbers are in the machine's byte order.

use buttress_protocol::{Errno, Head, OutHead};

/// Registers an entry. `addr` of the submission points to its two areas, header and payload.
pub(super) const REGISTER: u32 = 1;
/// Sends the answer that is in an entry, and asks for the next request in the same entry.
pub(super) const COMMIT_AND_FETCH: u32 = 2;
/// The number of areas of an entry.
pub(super) const AREAS: u32 = 2;

/// `fuse_uring_req_header`: the fixed parts of a request, and of an answer.
#[repr(C)]
pub(super) struct Header {
    /// `fuse_in_header`, then `fuse_out_header`.
    in_out: [u8; 128],
    /// The fixed fields of the request. Their number depends on its kind.
    op: [u8; 128],
    flags: u64,
    /// The kernel's id of the request, for `COMMIT_AND_FETCH`.
    commit_id: u64,
    /// How many bytes of the payload are in use.
    payload_len: u32,
    padding: u32,
    reserved: u64,
}

impl Header {
    /// An empty header.
    pub(super) const EMPTY: Self = Self {
        in_out: [0; 128],
        op: [0; 128],
        flags: 0,
        commit_id: 0,
        payload_len: 0,
        padding: 0,
        reserved: 0,
    };

    /// Returns the kernel's id of the request.
    pub(super) fn commit_id(&self) -> u64 {
        self.commit_id
    }

    /// Returns the header that all requests have.
    pub(super) fn head(&self) -> Head {
        Head::read(&self.in_out).unwrap_or_default()
    }

    /// Returns the area of the fixed fields. Their number depends on the kind.
    pub(super) fn fixed(&self) -> &[u8] {
        &self.op
    }

    /// How many bytes of the payload are in use.
    pub(super) fn payload_len(&self) -> usize {
        self.payload_len as usize
    }

    /// Turns the header into an answer, with the payload's length or an error.
    pub(super) fn answer(&mut self, answer: Result<usize, Errno>) {
        // The number of the request stays where it is: at byte 8 of either header.
        OutHead::new(self.head().unique, answer).write(&mut self.in_out);
        self.payload_len = answer.map_or(0, |len| u32::try_from(len).unwrap_or(0));
    }
}

/// The kernel's side, for tests.
#[cfg(test)]
impl Header {
    /// Makes this header a request with a kind, a number, a node and a length. The length is at the
    /// offset at which READ and WRITE have their length.
    pub(super) fn ask(&mut self, opcode: u32, unique: u64, node: u64, len: u32) {
        *self = Self { commit_id: unique, ..Self::EMPTY };
        let numbers: [&[u8]; 4] = [
            &(buttress_protocol::IN_LEN as u32).to_ne_bytes(),
            &opcode.to_ne_bytes(),
            &unique.to_ne_bytes(),
            &node.to_ne_bytes(),
        ];
        let head = numbers.concat();
        self.in_out[..head.len()].copy_from_slice(&head);
        self.op[16..20].copy_from_slice(&len.to_ne_bytes());
    }

    /// Returns the number and the error of an answer; the error is zero or negative.
    pub(super) fn answered(&self) -> (u64, i32) {
        let head = OutHead::read(&self.in_out);
        (head.unique, head.error)
    }
}

/// The 80 command bytes of a submission, with `fuse_uring_cmd_req` at their start.
pub(super) fn command(commit_id: u64, queue: u16) -> [u8; 80] {
    let mut bytes = [0; 80];
    bytes[8..16].copy_from_slice(&commit_id.to_ne_bytes());
    bytes[16..18].copy_from_slice(&queue.to_ne_bytes());
    bytes
}
