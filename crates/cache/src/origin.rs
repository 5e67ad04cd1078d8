//! Writes to the origin. Only the module `discard` writes zeroes to the origin without this module.
//! `discard` calls [`Core::record_zeroed_identity`] first.
//!
//! # Invariants
//!
//! - **O1** Before the identifier at the front of the origin changes, the cache has durably
//!   recorded both the old and the new identifier. So after a crash, too, the cache recognises its
//!   origin.

use std::sync::atomic::Ordering;

use crate::core::Core;
use crate::error::Error;
use crate::identity::{self, WINDOW};

impl Core {
    /// Writes bytes that lie within the origin.
    pub(crate) fn write_origin(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        if offset < WINDOW {
            self.record_next_identity(offset, bytes)?;
        }
        self.origin.write_at(offset, bytes)?;
        Ok(())
    }

    /// Writes bytes to the origin, bypassing the cache.
    pub(crate) fn write_around(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let now = self.started.elapsed().as_millis() as u64 + 1;
        self.bypassed_at.store(now, Ordering::Relaxed);
        self.counters.writes_around.add(1);
        let written = self.write_origin(offset, bytes);
        self.origin_dirty.store(true, Ordering::SeqCst);
        written
    }

    /// Records the identity that a write of zeroes will give the origin (O1).
    pub(crate) fn record_zeroed_identity(&self, from: u64, to: u64) -> Result<(), Error> {
        let zeroes = vec![0; (to.min(WINDOW) - from) as usize];
        self.record_next_identity(from, &zeroes)
    }

    fn record_next_identity(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let mut window = identity::read_window(&*self.origin)?;
        let now = identity::of_window(self.origin.len(), &window);
        let start = offset as usize;
        let len = bytes.len().min(window.len().saturating_sub(start));
        window[start..start + len].copy_from_slice(&bytes[..len]);
        let next = identity::of_window(self.origin.len(), &window);
        let Some(stamp) = self.header.lock().stamp else { return Ok(()) };
        if now == next && (stamp.origin == now || stamp.next == now) {
            return Ok(());
        }
        if stamp.next != stamp.origin {
            // The stamp has room for two identities. So the previous change must be durable before
            // the next change.
            self.origin.flush()?;
        }
        self.set_identity(now, next)
    }

    /// Records the present and the next identity of the origin, unless both are recorded.
    fn set_identity(&self, origin: u64, next: u64) -> Result<(), Error> {
        let known = self.header.lock().stamp.map(|stamp| (stamp.origin, stamp.next));
        if known.is_none_or(|known| known == (origin, next)) {
            return Ok(());
        }
        self.write_header(|superblock| {
            if let Some(stamp) = &mut superblock.stamp {
                (stamp.origin, stamp.next) = (origin, next);
            }
        })
    }

    /// Discards bytes of the origin, which may then read as zeroes or as before.
    pub(crate) fn discard_origin(&self, offset: u64, len: u64) -> Result<(), Error> {
        if offset >= WINDOW {
            self.origin.discard(offset, len)?;
            return Ok(());
        }
        let before = identity::of_device(&*self.origin)?;
        self.record_zeroed_identity(offset, offset + len)?;
        self.origin.discard(offset, len)?;
        if identity::of_device(&*self.origin)? == before {
            self.set_identity(before, before)?;
        }
        Ok(())
    }

    /// Makes all writes to the origin durable. Afterwards the recorded next identity is the
    /// origin's present identity.
    pub(crate) fn flush_origin(&self) -> Result<(), Error> {
        self.origin.flush()?;
        let mut header = self.header.lock();
        if let Some(stamp) = &mut header.stamp
            && stamp.origin != stamp.next
        {
            stamp.origin = stamp.next;
            self.table.mark_header_dirty();
        }
        Ok(())
    }
}
