//! Memory in pages of the processor's larger size, where the system has them to give.
//!
//! New memory is not free: each page of 4 KiB is a fault, and in a virtual machine often a second
//! one in its host. A buffer of 2 MiB is one fault where it is one page.
//!
//! # Invariants
//!
//! - **G1** It is one private mapping, zero bytes at first, of exactly `count` pages. Nothing else
//!   has its address, and it is unmapped once.

use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::Page;

/// Buffers of at least this many pages are worth it: 2 MiB, a large page where 4 KiB is a small
/// one.
const WORTH: usize = 512;

/// A mapping.
pub(super) struct Mapped {
    start: NonNull<Page>,
    count: usize,
}

// SAFETY: G1: the mapping belongs to this value, as a box belongs to its owner, and pages are
// bytes.
#[expect(unsafe_code, reason = "a pointer says nothing of who owns what is there")]
unsafe impl Send for Mapped {}
// SAFETY: as above; shared references only read.
#[expect(unsafe_code, reason = "a pointer says nothing of who owns what is there")]
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps so many pages, where that is worth it and the system agrees.
    pub(super) fn new(count: usize) -> Option<Self> {
        if count < WORTH {
            return None;
        }
        let len = count.checked_mul(size_of::<Page>())?;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: no address is asked for, so nothing that is mapped is replaced.
        #[expect(unsafe_code, reason = "memory of the system's")]
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), len, protection, flags) }.ok()?;
        let mapped = Self { start: NonNull::new(start.cast::<Page>())?, count };
        // SAFETY: the range is the mapping just made; the advice changes how it is backed, not what
        // is in it. A kernel without large pages refuses, and gives small ones.
        #[expect(unsafe_code, reason = "memory of the system's")]
        unsafe { madvise(start, len, Advice::LinuxHugepage) }.ok();
        Some(mapped)
    }

    pub(super) fn pages(&self) -> &[Page] {
        // SAFETY: G1: so many pages are mapped and initialised, and aligned, since mappings begin
        // on pages.
        #[expect(unsafe_code, reason = "memory of the system's")]
        unsafe {
            std::slice::from_raw_parts(self.start.as_ptr(), self.count)
        }
    }

    pub(super) fn pages_mut(&mut self) -> &mut [Page] {
        // SAFETY: as in `pages`; the exclusive borrow of `self` makes this the only view.
        #[expect(unsafe_code, reason = "memory of the system's")]
        unsafe {
            std::slice::from_raw_parts_mut(self.start.as_ptr(), self.count)
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let len = self.count * size_of::<Page>();
        // SAFETY: G1: the mapping is this value's alone, every borrow of it has ended, and it is
        // not used again.
        #[expect(unsafe_code, reason = "memory of the system's")]
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), len) };
        debug_assert!(unmapped.is_ok(), "G1: {unmapped:?}");
    }
}
