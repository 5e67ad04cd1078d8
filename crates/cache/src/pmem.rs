//! Persistent memory as a device: a file mapped into memory.
//!
//! # Invariants
//!
//! - **P1** The mapping lives as long as the device and covers `len` bytes. All access to the
//!   mapping is atomic. A thread that reads while another one writes gets the old or the new value
//!   of each byte.
//! - **P2** Eight bytes at a multiple of eight are written by one store, so a crash keeps all of
//!   them or none.
//!
//! # Failure
//!
//! With DAX (`MAP_SYNC`) a flush writes back the CPU's caches. Without DAX, a flush is an `msync`.
//! If the file is truncated, the next access kills the process, as with every mapping. The lock on
//! the file keeps out other programs that take the lock.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use buttress_base::sync::Mutex;
use buttress_block::error::Operation;
use buttress_block::{Device, Error, FileDevice, OpenOptions};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};

const PAGE: usize = 4096;
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// A file in memory.
#[derive(Debug)]
pub struct PmemDevice {
    /// Holds the lock, and names the device.
    file: FileDevice,
    base: *mut u8,
    len: usize,
    /// Whether a store is durable once it has left the CPU's caches.
    is_dax: bool,
    /// One bit for each page, set if the page was written since the last flush.
    dirty: Box<[AtomicU64]>,
    /// Held during a flush, so that flushes run one after the other. A flush that finds no dirty
    /// page must still wait for an earlier flush, which makes the pages durable. Unranked: held
    /// across a flush of the device; no other lock is taken under it.
    flushing: Mutex<()>,
}

// SAFETY: the mapping belongs to no thread, and is reached through atomics only (P1).
#[expect(unsafe_code, reason = "a raw pointer is not Send by itself")]
unsafe impl Send for PmemDevice {}
// SAFETY: the mapping belongs to no thread, and is reached through atomics only (P1).
#[expect(unsafe_code, reason = "a raw pointer is not Sync by itself")]
unsafe impl Sync for PmemDevice {}

impl PmemDevice {
    /// Maps an existing file.
    ///
    /// # Errors
    ///
    /// Those of [`FileDevice::open`]; [`Error::Open`] if the file cannot be mapped.
    pub fn open(path: impl AsRef<Path>, options: OpenOptions) -> Result<Self, Error> {
        let path = path.as_ref();
        let file = FileDevice::open(path, options)?;
        let failed = |source| Error::Open { path: path.to_owned(), source };
        let mapped = File::options().read(true).write(options.write).open(path).map_err(failed)?;
        let len = usize::try_from(file.len())
            .map_err(|_| failed(std::io::ErrorKind::OutOfMemory.into()))?;
        let prot = if options.write { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        let map = |flags| {
            // SAFETY: the kernel chooses the address of the new mapping, so it replaces no existing
            // one.
            #[expect(unsafe_code, reason = "there is no safe call for this")]
            unsafe {
                rustix::mm::mmap(std::ptr::null_mut(), len, prot, flags, &mapped, 0)
            }
        };
        let dax = cfg!(target_arch = "x86_64")
            .then(|| map(MapFlags::SHARED_VALIDATE | MapFlags::SYNC).ok())
            .flatten();
        let (base, is_dax) = match dax {
            Some(base) => (base, true),
            None => (map(MapFlags::SHARED).map_err(|errno| failed(errno.into()))?, false),
        };
        let words = len.div_ceil(PAGE).div_ceil(64);
        Ok(Self {
            file,
            base: base.cast(),
            len,
            is_dax,
            dirty: (0..words).map(|_| AtomicU64::new(0)).collect(),
            flushing: Mutex::new(()),
        })
    }

    /// Says whether the file lies in real persistent memory.
    #[must_use]
    pub fn is_dax(&self) -> bool {
        self.is_dax
    }

    #[expect(unsafe_code, reason = "memory that is not Rust's")]
    fn bytes(&self) -> &[AtomicU8] {
        // SAFETY: P1; `AtomicU8` has the layout of a byte and no alignment to violate.
        unsafe { std::slice::from_raw_parts(self.base.cast::<AtomicU8>(), self.len) }
    }

    /// Splits a range at multiples of eight: bytes, words, bytes.
    #[expect(unsafe_code, reason = "eight bytes are stored at once only as a word")]
    fn parts(&self, offset: usize, len: usize) -> (&[AtomicU8], &[AtomicU64], &[AtomicU8]) {
        let bytes = &self.bytes()[offset..offset + len];
        // SAFETY: the words lie within the bytes of one mapping (P1); any bits are a value of both
        // types, and all access is atomic and relaxed.
        unsafe { bytes.align_to::<AtomicU64>() }
    }

    fn check(&self, operation: Operation, offset: u64, len: u64) -> Result<(), Error> {
        if operation != Operation::Read && !self.writable() {
            return Err(Error::ReadOnly { device: self.name(), operation });
        }
        let device_len = self.len as u64;
        if offset.checked_add(len).is_none_or(|end| end > device_len) {
            return Err(Error::PastEnd { device: self.name(), operation, offset, len, device_len });
        }
        Ok(())
    }

    fn write_back(&self, start: usize, len: usize) -> Result<(), Error> {
        #[cfg(target_arch = "x86_64")]
        if self.is_dax {
            for line in (start..start + len).step_by(LINE) {
                // SAFETY: the line lies in the mapping (P1), and every x86-64 has the instruction.
                #[expect(unsafe_code, reason = "an instruction")]
                unsafe {
                    std::arch::x86_64::_mm_clflush(self.base.add(line));
                }
            }
            return Ok(());
        }
        // SAFETY: the pages belong to our own mapping (P1), and the call changes no memory.
        #[expect(unsafe_code, reason = "there is no safe call for this")]
        let synced =
            unsafe { rustix::mm::msync(self.base.add(start).cast(), len, MsyncFlags::SYNC) };
        synced.map_err(|errno| Error::Io {
            device: self.name(),
            operation: Operation::Flush,
            offset: start as u64,
            len: len as u64,
            source: errno.into(),
        })
    }
}

impl Drop for PmemDevice {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing borrows from a device that is dropped (P1).
        #[expect(unsafe_code, reason = "there is no safe call for this")]
        // Nothing can be done about a failure, which would be a bug.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.len) };
    }
}

impl Device for PmemDevice {
    fn name(&self) -> String {
        self.file.name()
    }

    fn len(&self) -> u64 {
        self.len as u64
    }

    fn writable(&self) -> bool {
        self.file.writable()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        self.check(Operation::Read, offset, buf.len() as u64)?;
        let (head, words, tail) = self.parts(offset as usize, buf.len());
        let (first, rest) = buf.split_at_mut(head.len());
        let (middle, last) = rest.split_at_mut(words.len() * 8);
        for (to, from) in first.iter_mut().zip(head).chain(last.iter_mut().zip(tail)) {
            *to = from.load(Ordering::Relaxed);
        }
        for (to, from) in middle.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&from.load(Ordering::Relaxed).to_ne_bytes());
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), Error> {
        self.check(Operation::Write, offset, buf.len() as u64)?;
        let (head, words, tail) = self.parts(offset as usize, buf.len());
        let (first, rest) = buf.split_at(head.len());
        let (middle, last) = rest.split_at(words.len() * 8);
        for (from, to) in first.iter().zip(head).chain(last.iter().zip(tail)) {
            to.store(*from, Ordering::Relaxed);
        }
        for (from, to) in middle.chunks_exact(8).zip(words) {
            let word = u64::from_ne_bytes(from.try_into().expect("eight bytes"));
            to.store(word, Ordering::Relaxed);
        }
        if !buf.is_empty() {
            let start = offset as usize / PAGE;
            for page in start..=(offset as usize + buf.len() - 1) / PAGE {
                self.dirty[page / 64].fetch_or(1 << (page % 64), Ordering::AcqRel);
            }
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), Error> {
        let _one = self.flushing.lock();
        for (index, word) in self.dirty.iter().enumerate() {
            let mut bits = word.swap(0, Ordering::AcqRel);
            while bits != 0 {
                let first = bits.trailing_zeros();
                let count = (bits >> first).trailing_ones();
                let mask = if count == 64 { u64::MAX } else { ((1 << count) - 1) << first };
                let start = (index * 64 + first as usize) * PAGE;
                let len = (count as usize * PAGE).min(self.len - start);
                if let Err(error) = self.write_back(start, len) {
                    word.fetch_or(bits, Ordering::AcqRel);
                    return Err(error);
                }
                bits &= !mask;
            }
        }
        #[cfg(target_arch = "x86_64")]
        if self.is_dax {
            // SAFETY: a fence; every x86-64 has the instruction.
            #[expect(unsafe_code, reason = "an instruction")]
            unsafe {
                std::arch::x86_64::_mm_sfence();
            }
        }
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.check(Operation::Discard, offset, len)
    }
}
