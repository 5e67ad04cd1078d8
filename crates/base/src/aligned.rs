//! Buffers that begin on a page boundary. Direct I/O takes them without a copy.
//!
//! # Place
//!
//! `block` uses these buffers for direct I/O. All crates above `block` use them to read whole nodes
//! or pages. The memory of large buffers is made by `mapped`. Besides `mapped`, this is the only
//! file of the crate with `unsafe`: two casts from pages to bytes.
//!
//! # Invariants
//!
//! - **A1** The first byte lies on a multiple of [`AlignedBuf::ALIGN`].
//! - **A2** There are enough pages for `len` bytes, and every one of their bytes is initialised.

use std::fmt;
use std::ops::{Deref, DerefMut};

use self::mapped::Mapped;

mod mapped;

/// A byte buffer of fixed length, aligned to 4096.
///
/// The engine uses this type instead of `Box<[u8]>` wherever the bytes may go to a device.
pub struct AlignedBuf {
    memory: Memory,
    len: usize,
}

enum Memory {
    Boxed(Box<[Page]>),
    Mapped(Mapped),
}

impl Memory {
    fn zeroed(count: usize) -> Self {
        Mapped::new(count).map_or_else(
            || Self::Boxed(vec![Page([0; AlignedBuf::ALIGN]); count].into_boxed_slice()),
            Self::Mapped,
        )
    }

    fn pages(&self) -> &[Page] {
        match self {
            Self::Boxed(pages) => pages,
            Self::Mapped(mapped) => mapped.pages(),
        }
    }

    fn pages_mut(&mut self) -> &mut [Page] {
        match self {
            Self::Boxed(pages) => pages,
            Self::Mapped(mapped) => mapped.pages_mut(),
        }
    }
}

#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct Page([u8; AlignedBuf::ALIGN]);

// The casts below require that a page has no padding.
const _: () = assert!(size_of::<Page>() == AlignedBuf::ALIGN);
const _: () = assert!(align_of::<Page>() == AlignedBuf::ALIGN);

impl AlignedBuf {
    /// The alignment of the first byte, in bytes.
    pub const ALIGN: usize = 4096;

    /// Creates a buffer of `len` zero bytes.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        Self { memory: Memory::zeroed(len.div_ceil(Self::ALIGN)), len }
    }

    /// Creates a buffer of `len` bytes that can be made `capacity` long.
    #[must_use]
    pub fn with_capacity(len: usize, capacity: usize) -> Self {
        Self { len, ..Self::zeroed(capacity.max(len)) }
    }

    /// Returns the largest length that [`set_len`](Self::set_len) accepts, in bytes.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.memory.pages().len() * Self::ALIGN
    }

    /// Changes the length. Added bytes are not cleared: they have the old content of the buffer's
    /// memory.
    ///
    /// # Panics
    ///
    /// If the capacity is smaller than `len`.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity(), "A2: {len} bytes in {}", self.capacity());
        self.len = len;
    }

    /// Creates a buffer with a copy of `bytes`.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut buf = Self::zeroed(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    #[expect(unsafe_code, reason = "pages are bytes with an alignment; no safe cast says so")]
    fn deref(&self) -> &[u8] {
        debug_assert!(self.len <= self.capacity(), "A2");
        let pages = self.memory.pages();
        // SAFETY: A2: the pages hold at least `len` initialised bytes in one allocation. `Page` has
        // no padding, as asserted above, and `u8` has no alignment to violate. The borrow of `self`
        // keeps the pages alive and unwritten for as long as the slice lives.
        unsafe { std::slice::from_raw_parts(pages.as_ptr().cast::<u8>(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    #[expect(unsafe_code, reason = "pages are bytes with an alignment; no safe cast says so")]
    fn deref_mut(&mut self) -> &mut [u8] {
        debug_assert!(self.len <= self.capacity(), "A2");
        let pages = self.memory.pages_mut();
        // SAFETY: as in `deref`; the exclusive borrow of `self` makes this the only view.
        unsafe { std::slice::from_raw_parts_mut(pages.as_mut_ptr().cast::<u8>(), self.len) }
    }
}

impl Clone for AlignedBuf {
    fn clone(&self) -> Self {
        let mut memory = Memory::zeroed(self.memory.pages().len());
        memory.pages_mut().copy_from_slice(self.memory.pages());
        Self { memory, len: self.len }
    }
}

impl Default for AlignedBuf {
    fn default() -> Self {
        Self::zeroed(0)
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for AlignedBuf {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl From<&[u8]> for AlignedBuf {
    fn from(bytes: &[u8]) -> Self {
        Self::copy_of(bytes)
    }
}

impl PartialEq for AlignedBuf {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for AlignedBuf {}

impl fmt::Debug for AlignedBuf {
    /// Prints only the length: 16 KiB of bytes do not help in a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlignedBuf").field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A1: the first byte is aligned, for lengths around the page size.
    #[test]
    fn begins_on_a_page() {
        for len in [1, 511, 4095, 4096, 4097, 16384] {
            let buf = AlignedBuf::zeroed(len);
            assert_eq!(buf.as_ptr() as usize % AlignedBuf::ALIGN, 0, "A1 at {len}");
            assert_eq!(buf.len(), len);
            assert!(buf.iter().all(|&byte| byte == 0), "A2");
        }
    }

    /// A2: an empty buffer is valid too.
    #[test]
    fn may_be_empty() {
        let mut buf = AlignedBuf::zeroed(0);
        assert!(buf.is_empty());
        buf.fill(1);
        assert_eq!(buf, AlignedBuf::default());
    }

    /// A clone has bytes of its own.
    #[test]
    fn clones_deeply() {
        let first = AlignedBuf::copy_of(b"one");
        let mut second = first.clone();
        second[0] = b'O';
        assert_eq!(&*first, b"one");
        assert_eq!(&*second, b"One");
    }

    /// A2: a buffer that becomes shorter keeps its memory, and may become longer again.
    #[test]
    fn lengths_within_its_memory() {
        let mut buf = AlignedBuf::with_capacity(5000, 9000);
        assert_eq!((buf.len(), buf.capacity()), (5000, 12_288));
        buf.fill(9);
        buf.set_len(100);
        assert_eq!(buf.len(), 100);
        buf.set_len(12_288);
        assert_eq!((buf[4999], buf[12_287]), (9, 0));
    }

    /// A1, A2, G1: the invariants hold for large buffers, too, which are mapped from the system and
    /// unmapped again.
    #[test]
    fn large_ones() {
        for len in [(2 << 20) - 1, 2 << 20, (2 << 20) + 1, 5 << 20] {
            let mut buf = AlignedBuf::with_capacity(7, len);
            buf.set_len(buf.capacity());
            assert_eq!(buf.as_ptr() as usize % AlignedBuf::ALIGN, 0, "A1 at {len}");
            assert_eq!(buf.len(), len.next_multiple_of(AlignedBuf::ALIGN));
            assert!(buf.iter().all(|&byte| byte == 0), "A2");
            let last = buf.len() - 1;
            buf[last] = 3;
            let second = std::thread::spawn(move || {
                let second = buf.clone();
                assert_ne!(buf.as_ptr(), second.as_ptr());
                second
            });
            let second = second.join().expect("a buffer may go to another thread");
            assert_eq!((second[0], second[last]), (0, 3));
        }
    }

    /// A2: a length beyond the memory panics.
    #[test]
    #[should_panic(expected = "A2")]
    fn buffers_stay_within_their_memory() {
        AlignedBuf::zeroed(1).set_len(4097);
    }
}
