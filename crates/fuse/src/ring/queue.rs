//! Entries of a ring: memory that the kernel puts requests into, and takes answers from.
//!
//! # Invariants
//!
//! - **R1** From the moment that an entry is given to the kernel until its completion arrives, its
//!   memory belongs to the kernel. At all other times the memory belongs to a single [`Taken`].
//! - **R2** Only the thread that drives the queue gives entries to the kernel. The kernel completes
//!   a request in the context of the thread that gave the entry, and only while that thread is not
//!   inside the kernel. So a thread that gives entries must never wait inside the kernel for
//!   another request.
//! - **R3** Memory that the kernel may still use is never freed.
//! - **R7** A request that waits for the kernel to send its data of a file has an [`EntryPermit`].
//!   At least one entry of each processor is never held by such a request. The data that the kernel
//!   sends needs an entry, too, and would otherwise wait for that request. A write that waits for
//!   space has an [`EntryPermit`] as well. The exception is space that comes with a `forget`, which
//!   needs no entry. Writes that wait for a `forget` may hold every entry, for some seconds at
//!   most. Commands of ioctl(2) leave a quarter of the permits unused, or half if the user is not
//!   root. A command may wait for a commit, and an fsync that waits for the same commit needs an
//!   entry, too.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use buttress_base::sync::{Mutex, MutexGuard};
use buttress_protocol::{Errno, Head, Parts, opcode};

use super::abi::{self, Header};
use super::driver_term::DriverTerm;
use super::entry_memory::Payload;
use super::moves::Moves;
use super::port::{Bell, Done, Given, Port};
use crate::device::PAYLOAD_LEN;
use crate::exchange::Exchange;
use crate::placement::{LOWERED_MAX, Policy, Thread};

/// Entries with one thread that drives them.
pub(super) struct Queue {
    slots: Box<[Slot]>,
    /// For each processor of the queue: how many more requests may wait for other requests of the
    /// kernel (R7).
    spare: Box<[AtomicUsize]>,
    /// The initial values of `spare`.
    spare_max: Box<[usize]>,
    /// Unranked: held while the driver waits for the kernel.
    driver: Mutex<DriverState>,
    /// Entries with answers that were not given to the kernel yet. Unranked: nothing is taken under
    /// it.
    answered: Mutex<Vec<Answered>>,
    bell: Box<dyn Bell>,
    /// Whether the driver waits for a completion, or is about to wait.
    is_asleep: AtomicBool,
    /// Entries that the kernel is done with for good.
    ended: AtomicUsize,
    /// The present term, and whether its driver is away at a request.
    pub(super) term: DriverTerm,
    /// The number of requests that drivers of this queue have finished. By this number the watch
    /// sees that a driver makes progress.
    pub(super) finished: AtomicU64,
    /// The policy of its driver.
    pub(super) policy: Policy,
    /// Programs that move between the processors of all queues.
    pub(super) moves: Arc<Moves>,
}

/// The state that only the driver of the queue touches. The thread that holds the lock of this
/// state drives the queue.
pub(super) struct DriverState {
    port: Box<dyn Port>,
    /// Entries with requests that no thread has taken yet.
    waiting: VecDeque<u16>,
    /// Whether answers were queued for the kernel and not submitted yet.
    pub(super) has_unsent: bool,
    /// How many of them wake a program.
    unsent: usize,
    /// The thread that drives.
    pub(super) thread: Thread,
}

impl DriverState {
    /// Whether more requests have arrived that no thread has taken.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// How many programs the answers wake that were queued and not submitted yet.
    #[cfg(test)]
    pub(super) fn unsent(&self) -> usize {
        self.unsent
    }
}

/// An entry with an answer.
struct Answered {
    index: u16,
    /// Whether the answer wakes a program.
    wakes: bool,
}

struct Slot {
    /// Requests of this processor come here.
    processor: u16,
    /// The index of that processor among the queue's processors.
    share: usize,
    memory: UnsafeCell<Memory>,
    /// Where the two areas of the entry are: `iovec`s.
    areas: Box<[[usize; 2]; abi::AREAS as usize]>,
}

struct Memory {
    header: Box<Header>,
    payload: Payload,
}

#[expect(unsafe_code, reason = "entries are handed to and fro between threads and the kernel")]
// SAFETY: the memory of a slot is reached through `Taken` alone, of which there is one at most
// (R1), on any thread.
unsafe impl Sync for Slot {}

/// A request that has arrived, in its entry. Nothing else accesses the entry's memory until this
/// value is dropped (R1).
pub(crate) struct Taken {
    queue: Arc<Queue>,
    index: u16,
    is_answered: bool,
    /// Whether a program waits for the answer.
    is_awaited: bool,
}

impl Queue {
    /// Makes the entries of a queue. `processors` has the number of each processor, and the number
    /// of its entries.
    pub(super) fn new(
        (port, bell): (Box<dyn Port>, Box<dyn Bell>),
        processors: &[(u16, usize)],
        moves: Arc<Moves>,
    ) -> io::Result<Self> {
        let slots = processors
            .iter()
            .enumerate()
            .flat_map(|(share, &(processor, depth))| std::iter::repeat_n((processor, share), depth))
            .map(|(processor, share)| Slot::new(processor, share));
        let spare_max: Box<[usize]> =
            processors.iter().map(|(_, depth)| depth.saturating_sub(1)).collect();
        Ok(Self {
            slots: slots.collect::<io::Result<_>>()?,
            spare: spare_max.iter().copied().map(AtomicUsize::new).collect(),
            spare_max,
            driver: Mutex::new(DriverState {
                port,
                waiting: VecDeque::new(),
                has_unsent: false,
                unsent: 0,
                thread: Thread::this(),
            }),
            answered: Mutex::default(),
            bell,
            is_asleep: AtomicBool::new(false),
            ended: AtomicUsize::new(0),
            term: DriverTerm::default(),
            finished: AtomicU64::new(0),
            policy: Policy::default(),
            moves,
        })
    }

    /// Takes the lock of the driver's state; waits while another thread has it.
    pub(super) fn lock_driver(&self) -> MutexGuard<'_, DriverState> {
        self.driver.lock()
    }

    /// Whether no request will come any more.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed) == self.slots.len()
    }

    /// Gives all entries to the kernel for the first time (R2).
    pub(super) fn register(&self) -> io::Result<()> {
        let mut driver = self.lock_driver();
        for index in 0..self.slots.len() {
            self.give(&mut driver, index as u16, abi::REGISTER, 0);
        }
        driver.port.submit()?;
        match self.reap(&mut driver) {
            Some(refused) => Err(io::Error::from_raw_os_error(refused)),
            None => Ok(()),
        }
    }

    /// Gives all answers to the kernel (R2), and returns the next request. Waits until a request
    /// comes. Returns `None` when no more requests will come.
    pub(super) fn next(self: &Arc<Self>, driver: &mut DriverState) -> Option<Taken> {
        loop {
            self.answer_all(driver);
            if let Some(index) = driver.waiting.pop_front() {
                return Some(Taken::new(self, index));
            }
            if self.has_ended() {
                return None;
            }
            // Of several programs, the one that is woken first would keep the others waiting.
            if driver.unsent == 1 && self.moves.should_lower() {
                self.send_lowered(driver);
                continue;
            }
            self.is_asleep.store(true, Ordering::SeqCst);
            // An answer that came before `is_asleep` was set has not rung the bell.
            if self.answered.lock().is_empty() {
                driver.has_unsent = false;
                driver.unsent = 0;
                driver.port.wait();
            }
            self.is_asleep.store(false, Ordering::SeqCst);
            self.reap(driver);
        }
    }

    /// Sends all finished answers, and does not wait.
    pub(super) fn send(&self, driver: &mut DriverState) {
        self.answer_all(driver);
        driver.has_unsent = false;
        driver.unsent = 0;
        // An answer that cannot be sent now is sent with the next submission.
        let _ = driver.port.submit();
        self.reap(driver);
    }

    /// As [`Self::send`], and leaves the programs on this processor (`placement`).
    fn send_lowered(&self, driver: &mut DriverState) {
        let is_watched = || !self.moves.watch_dozes.load(Ordering::SeqCst);
        let took = self.policy.lower_while(driver.thread, is_watched, || {
            // As in `send`.
            let _ = driver.port.submit();
        });
        driver.has_unsent = false;
        driver.unsent = 0;
        if took > LOWERED_MAX {
            self.moves.stop();
        }
        self.reap(driver);
    }

    pub(super) fn answer_all(&self, driver: &mut DriverState) {
        let answered = std::mem::take(&mut *self.answered.lock());
        for Answered { index, wakes } in answered {
            let commit_id = self.slots[usize::from(index)].commit_id();
            self.give(driver, index, abi::COMMIT_AND_FETCH, commit_id);
            driver.has_unsent = true;
            driver.unsent += usize::from(wakes);
        }
    }

    /// Takes all completions. If the kernel has ended one of the entries, returns the kernel's
    /// reason.
    fn reap(&self, driver: &mut DriverState) -> Option<i32> {
        let mut refused = None;
        while let Some(done) = driver.port.done() {
            match done {
                Done::Request(index) => driver.waiting.push_back(index),
                Done::Ended(errno) => {
                    refused = Some(errno);
                    self.ended.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        refused
    }

    /// Adds an entry to the next submission. The memory of the entry belongs to the kernel from now
    /// on (R1).
    #[expect(unsafe_code, reason = "the kernel writes behind the back of the borrow checker")]
    fn give(&self, driver: &mut DriverState, index: u16, command: u32, commit_id: u64) {
        let Slot { processor, areas, .. } = &self.slots[usize::from(index)];
        let given = Given { index, processor: *processor, command, commit_id, areas };
        // SAFETY: the memory lives until the kernel is done with it (R3), and no code touches it
        // until then: the `Taken` of this index is gone (R1), or the entry is given for the first
        // time.
        unsafe { driver.port.give(given) };
    }
}

impl Slot {
    fn new(processor: u16, share: usize) -> io::Result<Self> {
        let header = Box::new(Header::EMPTY);
        let payload = Payload::new()?;
        let areas = Box::new([
            [std::ptr::from_ref(&*header) as usize, size_of::<Header>()],
            [payload.start() as usize, PAYLOAD_LEN],
        ]);
        Ok(Self { processor, share, memory: UnsafeCell::new(Memory { header, payload }), areas })
    }

    /// The kernel's id of the request that was answered in this entry.
    #[expect(unsafe_code, reason = "R1")]
    fn commit_id(&self) -> u64 {
        // SAFETY: this is called for answered entries alone. Their `Taken` is gone, and the kernel
        // does not have the entries (R1).
        unsafe { (*self.memory.get()).header.commit_id() }
    }
}

/// Permission to hold an entry while its request waits for other requests of the kernel (R7).
pub(crate) struct EntryPermit {
    queue: Arc<Queue>,
    share: usize,
}

impl Drop for EntryPermit {
    fn drop(&mut self) {
        self.queue.spare[self.share].fetch_add(1, Ordering::Relaxed);
    }
}

impl Exchange for Taken {
    type HoldPermit = EntryPermit;

    fn head(&self) -> Head {
        self.memory().header.head()
    }

    fn parts(&self) -> Parts<'_> {
        let header = &self.memory().header;
        let bytes = self.bytes();
        let payload = &bytes[..header.payload_len().min(bytes.len())];
        Parts { fixed: header.fixed(), payload }
    }

    #[expect(unsafe_code, reason = "R1")]
    fn answer_buffer(&mut self) -> &mut [u8] {
        // SAFETY: nothing else has the memory of this entry (R1); the mapping has `PAYLOAD_LEN`
        // bytes.
        unsafe {
            let memory = &mut *self.slot().memory.get();
            std::slice::from_raw_parts_mut(memory.payload.start(), PAYLOAD_LEN)
        }
    }

    fn answer(mut self, answer: Result<usize, Errno>) {
        self.set(answer);
        self.is_answered = true;
    }

    /// An entry can only go back to the kernel with an answer.
    fn dismiss(self) {
        self.answer(Ok(0));
    }

    /// Returns `None` if only one entry of this processor is left for requests that do not wait.
    fn hold_permit(&self) -> Option<EntryPermit> {
        self.permit_that_leaves(0)
    }

    /// Commands of root leave a quarter of the permits. Commands of other users leave half.
    fn order_permit(&self, is_by_root: bool) -> Option<EntryPermit> {
        let most = self.queue.spare_max[self.slot().share];
        self.permit_that_leaves(if is_by_root { most.div_ceil(4).min(most / 2) } else { most / 2 })
    }
}

impl Taken {
    /// The request that has arrived in an entry.
    fn new(queue: &Arc<Queue>, index: u16) -> Self {
        let queue = Arc::clone(queue);
        let mut taken = Self { queue, index, is_answered: false, is_awaited: true };
        let opcode = taken.head().opcode;
        taken.is_awaited = !matches!(opcode, opcode::RELEASE | opcode::RELEASEDIR);
        taken
    }

    /// Returns `None` if fewer than `left` permits would remain for other requests.
    fn permit_that_leaves(&self, left: usize) -> Option<EntryPermit> {
        let share = self.slot().share;
        let one_less = |spare: usize| (spare > left).then(|| spare - 1);
        let spare = &self.queue.spare[share];
        spare.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).ok()?;
        Some(EntryPermit { queue: Arc::clone(&self.queue), share })
    }

    #[expect(unsafe_code, reason = "R1")]
    fn set(&mut self, answer: Result<usize, Errno>) {
        // SAFETY: nothing else has the memory of this entry (R1).
        let memory = unsafe { &mut *self.slot().memory.get() };
        let request_len = memory.header.payload_len();
        memory.header.answer(answer);
        memory.payload.request_done(request_len, answer.unwrap_or(0));
    }

    fn slot(&self) -> &Slot {
        &self.queue.slots[usize::from(self.index)]
    }

    #[expect(unsafe_code, reason = "R1")]
    fn memory(&self) -> &Memory {
        // SAFETY: nothing else has the memory of this entry (R1).
        unsafe { &*self.slot().memory.get() }
    }

    #[expect(unsafe_code, reason = "R1")]
    fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping has `PAYLOAD_LEN` bytes.
        unsafe { std::slice::from_raw_parts(self.memory().payload.start(), PAYLOAD_LEN) }
    }
}

impl Drop for Taken {
    /// Hands the entry back. A request that was not answered gets `EIO`.
    fn drop(&mut self) {
        if !self.is_answered {
            self.set(Err(Errno::EIO));
        }
        let answered = Answered { index: self.index, wakes: self.is_awaited };
        self.queue.answered.lock().push(answered);
        if self.queue.is_asleep.load(Ordering::SeqCst) {
            self.queue.bell.ring();
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if !self.has_ended() {
            // R3: the kernel may still use the memory of an entry that has not ended. So the memory
            // of all entries is leaked.
            std::mem::forget(std::mem::take(&mut self.slots));
        }
    }
}
