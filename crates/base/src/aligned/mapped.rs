//! Memory in large pages of the processor, if the system has them.
//!
//! Each new page of 4 KiB costs a page fault, and in a virtual machine often a second fault in the
//! host. A buffer of 2 MiB costs a single fault if it is one large page.
//!
//! # Invariants
//!
//! - **G1** The memory is one private mapping of exactly `count` pages, which are zero at first. No
//!   other value has the address of the mapping, and the mapping is unmapped once.

use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::Page;

/// The least number of pages for which a mapping is worth its cost. That is 2 MiB, the size of a
/// large page if small pages have 4 KiB.
const WORTH: usize = 512;

/// An owned mapping of pages (G1).
pub(super) struct Mapped {
    start: NonNull<Page>,
    count: usize,
}

// SAFETY: G1: this value owns the mapping, as a `Box` owns its memory, and pages are plain bytes.
#[expect(unsafe_code, reason = "a pointer says nothing of who owns what is there")]
unsafe impl Send for Mapped {}
// SAFETY: as above; shared references only read.
#[expect(unsafe_code, reason = "a pointer says nothing of who owns what is there")]
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps `count` pages. Returns `None` for a small count, or if the system refuses.
    pub(super) fn new(count: usize) -> Option<Self> {
        if count < WORTH {
            return None;
        }
        let len = count.checked_mul(size_of::<Page>())?;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: the call names no address, so it cannot replace an existing mapping.
        #[expect(unsafe_code, reason = "memory of the system's")]
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), len, protection, flags) }.ok()?;
        let mapped = Self { start: NonNull::new(start.cast::<Page>())?, count };
        // SAFETY: the range is the mapping made above. The advice changes the size of its pages,
        // not its content. A kernel without large pages refuses the advice and uses small pages.
        #[expect(unsafe_code, reason = "memory of the system's")]
        unsafe { madvise(start, len, Advice::LinuxHugepage) }.ok();
        Some(mapped)
    }

    pub(super) fn pages(&self) -> &[Page] {
        // SAFETY: G1: `count` pages are mapped and initialised. They are aligned, since mappings
        // begin at page boundaries.
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
        // SAFETY: G1: only this value has the mapping, all borrows of it have ended, and it is not
        // used again.
        #[expect(unsafe_code, reason = "memory of the system's")]
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), len) };
        debug_assert!(unmapped.is_ok(), "G1: {unmapped:?}");
    }
}
