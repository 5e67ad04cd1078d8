//! The handshake (`FUSE_INIT`): the features that the kernel offers and the server requests.

use zerocopy::{FromBytes, IntoBytes};

use crate::layout::{InitIn, InitOut};
use crate::{Errno, InitFlags};

/// The protocol version of this crate.
const MAJOR: u32 = 7;
const MINOR: u32 = 45;
/// The oldest minor version with the layouts of this crate (Linux 3.15).
const MINOR_MIN: u32 = 23;
/// The length of an old INIT in bytes, without the fields that newer kernels have added.
const OLD_LEN: usize = 16;
const PAGE: u32 = 4096;

/// The offer of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    major: u32,
    minor: u32,
    max_readahead: u32,
    flags: InitFlags,
}

/// The settings that a server requests.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Features that the server wants. The kernel may offer only some of them.
    pub wanted: InitFlags,
    /// Bytes of a write, and of any other payload; whole pages.
    pub max_write: u32,
    /// Bytes that the kernel may read ahead.
    pub max_readahead: u32,
    /// Requests in the background at once.
    pub max_background: u16,
    /// Background requests at which the kernel counts the connection as congested.
    pub congestion_threshold: u16,
}

impl Offer {
    /// Checks the fixed fields of an INIT.
    ///
    /// # Errors
    ///
    /// `EINVAL` where the fields are too short, `EPROTO` where the kernel is too old.
    pub fn decode(fixed: &[u8]) -> Result<Self, Errno> {
        if fixed.len() < OLD_LEN {
            return Err(Errno::EINVAL);
        }
        let mut whole = [0; size_of::<InitIn>()];
        let len = fixed.len().min(whole.len());
        whole[..len].copy_from_slice(&fixed[..len]);
        let init = InitIn::read_from_bytes(&whole).map_err(|_| Errno::EINVAL)?;
        let InitIn { major, minor, max_readahead, flags, flags2, .. } = init;
        if major < MAJOR || major == MAJOR && minor < MINOR_MIN {
            return Err(Errno::EPROTO);
        }
        let low = InitFlags::from_bits(flags.into());
        let high = if low.contains(InitFlags::INIT_EXT) { u64::from(flags2) << 32 } else { 0 };
        Ok(Self { major, minor, max_readahead, flags: InitFlags::from_bits(low.bits() | high) })
    }

    /// Whether the kernel has a newer major version. The answer then names the version of this
    /// crate, and the kernel sends INIT again.
    #[must_use]
    pub fn is_newer(&self) -> bool {
        self.major > MAJOR
    }

    /// Version of the protocol.
    #[must_use]
    pub fn version(&self) -> (u32, u32) {
        (self.major, self.minor)
    }

    /// The features that the kernel offers.
    #[must_use]
    pub fn flags(&self) -> InitFlags {
        self.flags
    }

    /// The features that both sides support.
    #[must_use]
    pub fn agreed(&self, terms: &Terms) -> InitFlags {
        let wanted = terms.wanted.with(InitFlags::INIT_EXT).with(InitFlags::MAX_PAGES);
        InitFlags::from_bits(wanted.bits() & self.flags.bits())
    }

    /// The answer to INIT, as the bytes after the header.
    #[must_use]
    pub fn answer(&self, terms: &Terms) -> Vec<u8> {
        let agreed = self.agreed(terms).bits();
        let out = InitOut {
            major: MAJOR,
            minor: MINOR,
            max_readahead: terms.max_readahead.min(self.max_readahead),
            flags: agreed as u32,
            flags2: (agreed >> 32) as u32,
            max_background: terms.max_background,
            congestion_threshold: terms.congestion_threshold,
            max_write: terms.max_write,
            time_gran: 1,
            max_pages: u16::try_from(terms.max_write.div_ceil(PAGE)).unwrap_or(u16::MAX),
            ..InitOut::default()
        };
        out.as_bytes().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(minor: u32, flags: u64) -> Result<Offer, Errno> {
        let numbers = [7, minor, 128 << 10, flags as u32, (flags >> 32) as u32];
        let fixed: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
        Offer::decode(&fixed)
    }

    #[test]
    fn old_kernels_are_refused() {
        assert_eq!(offer(22, 0).err(), Some(Errno::EPROTO));
        assert!(offer(23, 0).is_ok());
        assert_eq!(Offer::decode(&[0; 15]).err(), Some(Errno::EINVAL));
    }

    /// Flags above bit 31 are valid only if the kernel sets `INIT_EXT`.
    #[test]
    fn only_what_both_can_is_agreed_upon() {
        let ring = InitFlags::OVER_IO_URING;
        let wanted = ring.with(InitFlags::ASYNC_READ);
        let terms = Terms {
            wanted,
            max_write: 1 << 20,
            max_readahead: 1 << 20,
            max_background: 8,
            congestion_threshold: 4,
        };
        let without = offer(42, wanted.bits()).expect("a good offer");
        assert_eq!(without.agreed(&terms), InitFlags::ASYNC_READ);
        let with = offer(42, wanted.with(InitFlags::INIT_EXT).bits()).expect("a good offer");
        assert!(with.agreed(&terms).contains(ring));
        assert_eq!(with.answer(&terms).len(), 64);
    }
}
