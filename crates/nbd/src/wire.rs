//! The numbers of the protocol, and fields as they lie on the wire: big-endian, without padding.
//!
//! Source: the protocol's own document, `doc/proto.md` of the NetworkBlockDevice project.

/// The first bytes of a server's greeting.
pub(crate) const SERVER_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Opens newstyle negotiation, and each option of the client.
pub(crate) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Opens each reply to an option.
pub(crate) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub(crate) const REQUEST_MAGIC: u32 = 0x2560_9513;
pub(crate) const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
pub(crate) const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Handshake flag that both sides send.
pub(crate) const FIXED_NEWSTYLE: u16 = 1 << 0;
/// Handshake flag: no padding after `NBD_OPT_EXPORT_NAME`.
pub(crate) const NO_ZEROES: u16 = 1 << 1;
/// Length of the padding without `NO_ZEROES`.
pub(crate) const EXPORT_NAME_PADDING: usize = 124;

/// Options that a client may send before it reads and writes.
pub(crate) mod option {
    pub(crate) const EXPORT_NAME: u32 = 1;
    pub(crate) const ABORT: u32 = 2;
    pub(crate) const LIST: u32 = 3;
    pub(crate) const STARTTLS: u32 = 5;
    pub(crate) const INFO: u32 = 6;
    pub(crate) const GO: u32 = 7;
    pub(crate) const STRUCTURED_REPLY: u32 = 8;
    pub(crate) const LIST_META_CONTEXT: u32 = 9;
    pub(crate) const SET_META_CONTEXT: u32 = 10;
}

/// Answers to options. The highest bit marks an error.
pub(crate) mod option_reply {
    pub(crate) const ACK: u32 = 1;
    pub(crate) const SERVER: u32 = 2;
    pub(crate) const INFO: u32 = 3;
    pub(crate) const META_CONTEXT: u32 = 4;
    pub(crate) const UNSUPPORTED: u32 = (1 << 31) + 1;
    pub(crate) const INVALID: u32 = (1 << 31) + 3;
    pub(crate) const UNKNOWN: u32 = (1 << 31) + 6;
    pub(crate) const TOO_BIG: u32 = (1 << 31) + 9;
}

/// Facts about an export.
pub(crate) mod info {
    pub(crate) const EXPORT: u16 = 0;
    pub(crate) const NAME: u16 = 1;
    pub(crate) const DESCRIPTION: u16 = 2;
    pub(crate) const BLOCK_SIZE: u16 = 3;
}

/// The features of an export.
pub(crate) mod export_flag {
    pub(crate) const HAS_FLAGS: u16 = 1 << 0;
    pub(crate) const READ_ONLY: u16 = 1 << 1;
    pub(crate) const SEND_FLUSH: u16 = 1 << 2;
    pub(crate) const SEND_FUA: u16 = 1 << 3;
    pub(crate) const SEND_TRIM: u16 = 1 << 5;
    pub(crate) const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub(crate) const SEND_DF: u16 = 1 << 7;
    pub(crate) const CAN_MULTI_CONN: u16 = 1 << 8;
}

pub(crate) mod command {
    pub(crate) const READ: u16 = 0;
    pub(crate) const WRITE: u16 = 1;
    pub(crate) const DISCONNECT: u16 = 2;
    pub(crate) const FLUSH: u16 = 3;
    pub(crate) const TRIM: u16 = 4;
    pub(crate) const WRITE_ZEROES: u16 = 6;
    pub(crate) const BLOCK_STATUS: u16 = 7;
}

pub(crate) mod command_flag {
    /// The change is durable when the request is answered.
    pub(crate) const FUA: u16 = 1 << 0;
    /// Writing zeroes must not deallocate.
    pub(crate) const NO_HOLE: u16 = 1 << 1;
    /// The reply has one chunk for all data of the read.
    pub(crate) const DF: u16 = 1 << 2;
    /// The reply describes one extent, within the range.
    pub(crate) const REQ_ONE: u16 = 1 << 3;
}

/// Parts of a structured reply.
pub(crate) mod chunk {
    /// Flag of the last chunk of a reply.
    pub(crate) const DONE: u16 = 1 << 0;

    pub(crate) const NONE: u16 = 0;
    pub(crate) const OFFSET_DATA: u16 = 1;
    pub(crate) const OFFSET_HOLE: u16 = 2;
    pub(crate) const BLOCK_STATUS: u16 = 5;
    pub(crate) const ERROR: u16 = (1 << 15) + 1;
}

/// The one kind of status that is served, and its flags for a run of bytes.
pub(crate) const ALLOCATION: &[u8] = b"base:allocation";
/// The number of that kind of status on a connection that selected it.
pub(crate) const ALLOCATION_ID: u32 = 1;
pub(crate) const STATE_HOLE: u32 = 1 << 0;
pub(crate) const STATE_ZERO: u32 = 1 << 1;

/// The longest name or query, in bytes.
pub(crate) const STRING_MAX: usize = 4096;

/// Takes fields off the front of received bytes; `None` if there are too few bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A string with its length before it.
    pub(crate) fn string(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.u32()?).ok()?;
        if len > STRING_MAX { None } else { self.bytes(len) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
