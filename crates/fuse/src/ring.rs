//! Requests by io_uring, where the kernel offers io_uring (`fuse.enable_uring`, Linux 6.14).
//!
//! # Why
//!
//! A request that is read from the device and answered by a write costs two calls. The request also
//! wakes the reader on the processor on which the reader slept. Over a ring, one call sends an
//! answer and fetches the next request, or sends many answers at once. Each processor has a queue.
//! The driver of the queue mostly runs on that processor, so an answer wakes no other processor.
//!
//! # How
//!
//! ```text
//!   kernel ──► queue of a processor ──► its driver ──┬─► works it out (dispatch) ──────┐
//!                                                    └─► a helper, if that takes long ─┤
//!   kernel ◄───────── the driver, with the next call ◄──────────────────────────────────┘
//! ```
//!
//! Messages that need no answer (forgetting, interrupts) come by `/dev/fuse`, not by a ring.
//!
//! # Invariants
//!
//! - **R4** If a driver waits while it works on a request, a helper takes over its queue within two
//!   ticks. The exception is a driver that waits inside the kernel where no signal reaches it. Such
//!   a wait is for a device, and ends.
//! - **R5** Threads that give entries to the kernel live until all queues have ended. When a thread
//!   dies, the kernel cancels the entries that it gave, and aborts the connection.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

mod abi;
mod driver_term;
mod entry_memory;
mod helpers;
mod moves;
mod port;
mod queue;
#[cfg(all(test, debug_assertions))]
mod seeded;
#[cfg(test)]
mod unsent;

pub(crate) use entry_memory::{set_limit, touched_bytes};
pub(crate) use helpers::RequestHandler;
use helpers::Shared;
use moves::Moves;
use port::{Uring, UringPort};
use queue::Queue;
pub(crate) use queue::Taken;

use crate::dispatch;
use crate::exchange::Exchange;
use crate::front_end::FrontEnd;
use crate::placement::note_processors;
use crate::pool::Kind;

/// Rings for all processors, made before the kernel learns that it may use them.
pub(crate) struct Rings {
    made: Vec<(Uring, Vec<(u16, usize)>)>,
}

/// A connection that is served by rings.
#[derive(Debug)]
pub(crate) struct Ring {
    shared: Arc<Shared>,
}

impl Rings {
    /// Makes rings with `depth` entries for each processor.
    ///
    /// # Errors
    ///
    /// Where io_uring is forbidden or too old.
    pub(crate) fn new(depth: usize) -> io::Result<Self> {
        let (possible, online) = (processors("possible")?, processors("online")?);
        // The kernel wants a queue for each possible processor, by number. A processor that is
        // offline has one entry, and shares the driver of an online processor.
        let mut shares: Vec<Vec<(u16, usize)>> =
            online.iter().map(|&processor| vec![(processor, depth)]).collect();
        if shares.is_empty() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let count = shares.len();
        let absent = (0..possible.len() as u16).filter(|number| !online.contains(number));
        for (at, processor) in absent.enumerate() {
            shares[at % count].push((processor, 1));
        }
        let made = shares.into_iter().map(|share| {
            let entries: usize = share.iter().map(|(_, depth)| depth).sum();
            // One more entry is for the eventfd that wakes the driver.
            let entries = u32::try_from(entries + 1).map_err(io::Error::other)?;
            Ok((Uring::builder().build(entries.next_power_of_two())?, share))
        });
        Ok(Self { made: made.collect::<io::Result<_>>()? })
    }

    /// Serves a connection that has agreed to rings. The kernel holds all requests back until this
    /// function has returned.
    ///
    /// # Errors
    ///
    /// When the kernel refuses the entries. In that case no request can be served.
    pub(crate) fn start(
        self,
        device: &OwnedFd,
        handler: Box<dyn RequestHandler>,
        helpers: usize,
    ) -> io::Result<Ring> {
        let device = Arc::new(device.as_fd().try_clone_to_owned()?);
        note_processors();
        let moves = Arc::new(Moves::new());
        let queues = self.made.into_iter().map(|(ring, share)| {
            let at = share[0].0;
            let way = UringPort::open(ring, Arc::clone(&device))?;
            Ok((at, Arc::new(Queue::new(way, &share, Arc::clone(&moves))?)))
        });
        let queues = queues.collect::<io::Result<Vec<_>>>()?;
        let shared = Shared::new(handler, queues, helpers);
        let ring = Ring { shared };
        ring.shared.start()?;
        Ok(ring)
    }
}

/// Handles the requests of a mount.
pub(crate) struct RingHandler(pub(crate) Arc<FrontEnd>);

impl RequestHandler for RingHandler {
    fn kind(&self, taken: &Taken) -> Kind {
        dispatch::kind(&taken.head(), taken.parts())
    }

    fn work(&self, taken: Taken) {
        dispatch::serve(&self.0, taken);
    }
}

impl Ring {
    /// Waits until all queues have ended, and with them all threads.
    pub(crate) fn join(self) {
        self.shared.join();
    }
}

/// Whether the kernel has rings for FUSE, and its administrator switched them on.
pub(crate) fn is_offered() -> bool {
    let switch = std::fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
    switch.is_ok_and(|text| text.trim() == "Y")
}

/// The numbers in one of the kernel's lists of processors, which look like `0-3,8`.
fn processors(which: &str) -> io::Result<Vec<u16>> {
    let text = std::fs::read_to_string(format!("/sys/devices/system/cpu/{which}"))?;
    numbers(text.trim()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn numbers(list: &str) -> Option<Vec<u16>> {
    let mut all = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        all.extend(first.parse::<u16>().ok()?..=last.parse().ok()?);
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lists of processors have ranges and single numbers.
    #[test]
    fn lists_of_processors() {
        assert_eq!(numbers("0"), Some(vec![0]));
        assert_eq!(numbers("0-2,5,7-8"), Some(vec![0, 1, 2, 5, 7, 8]));
        assert_eq!(numbers("x"), None);
    }
}
