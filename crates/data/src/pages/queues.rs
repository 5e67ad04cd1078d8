//! The order in which cached runs leave memory.
//!
//! # Invariants
//!
//! - **Q1** The byte count of a queue is the sum of its entries, including entries that are being
//!   swept.
//! - **Q2** Entries of dropped runs take at most a sixteenth of the budget, plus the runs forgotten
//!   until the next run is entered. So runs that are overwritten while they are cached never take
//!   space permanently.
//!
//! No run leaves while entries are swept. So more than the budget may be kept until the next run is
//! entered.
//!
//! New runs enter `probation`. The oldest run of `probation` leaves memory, unless its start was
//! read once more. In that case the run moves to `main`, which checks its runs in turns. A run that
//! left `probation` is remembered until runs of half the budget have left memory after it. If it is
//! read again meanwhile, it enters `main` at once. If it is read ahead meanwhile, it enters `main`
//! when a reader uses it.
//!
//! So data in present use replaces data that was used once. A cycle of reads that is longer than
//! `probation` reaches `main` by way of the remembered runs. A cycle that is longer than the
//! remembered runs never enters `main`, so it evicts nothing there.

use std::collections::{HashMap, VecDeque};

use super::Purpose;

/// Divisor of the budget: the share of runs that were read once.
pub(super) const PROBATION: u64 = 8;

/// Divisor of the budget: the share that entries of dropped runs may take before a sweep removes
/// them.
const LITTER: u64 = 16;

/// Divisor of the budget: the share up to which runs are remembered after they left.
const REMEMBERED: u64 = 2;

/// An entry of a queue: a run and the memory that it takes. The run may be dropped already.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queued {
    pub(super) start: u64,
    pub(super) number: u64,
    pub(super) len: u64,
}

/// The decision about a run at its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The run was dropped before its turn.
    WasGone,
    /// The run was read ahead, and no reader used it: it leaves.
    EvictUnread,
    /// The run was not read again: it leaves.
    Evict,
    /// The run was read ahead, and its reader has not come to it yet: the run stays.
    Spare,
    /// The run was read again: it stays.
    Keep,
}

#[derive(Debug, Default)]
struct Queue {
    entries: VecDeque<Queued>,
    bytes: u64,
}

impl Queue {
    fn pop(&mut self) -> Option<Queued> {
        let oldest = self.entries.pop_front()?;
        self.bytes -= oldest.len;
        Some(oldest)
    }

    fn push(&mut self, new: Queued) {
        self.bytes += new.len;
        self.entries.push_back(new);
    }
}

/// Runs that left memory recently, by start address.
#[derive(Debug, Default)]
struct Remembered {
    order: VecDeque<Queued>,
    bytes: u64,
    numbers: HashMap<u64, u64>,
}

impl Remembered {
    fn note(&mut self, gone: Queued, most: u64) {
        self.bytes += gone.len;
        self.order.push_back(gone);
        self.numbers.insert(gone.start, gone.number);
        while self.bytes > most
            && let Some(oldest) = self.order.pop_front()
        {
            self.bytes -= oldest.len;
            if self.numbers.get(&oldest.start) == Some(&oldest.number) {
                self.numbers.remove(&oldest.start);
            }
        }
    }
}

/// The two queues, and the runs that left them.
#[derive(Debug)]
pub(super) struct Queues {
    budget: u64,
    probation: Queue,
    main: Queue,
    remembered: Remembered,
    /// Bytes of entries of dropped runs. The count is inexact while a run is being checked.
    litter: u64,
}

/// A run at its turn to leave.
pub(super) struct Turn {
    pub(super) victim: Queued,
    was_new: bool,
}

/// All entries of both queues, during a sweep.
pub(super) struct Sweep {
    probation: VecDeque<Queued>,
    main: VecDeque<Queued>,
}

impl Queues {
    pub(super) fn new(budget: u64) -> Self {
        let (probation, main) = (Queue::default(), Queue::default());
        Self { budget, probation, main, remembered: Remembered::default(), litter: 0 }
    }

    /// Bytes of the runs that are kept, about.
    pub(super) fn kept_bytes(&self) -> u64 {
        (self.probation.bytes + self.main.bytes).saturating_sub(self.litter)
    }

    /// Returns whether a run that begins at `start` is remembered, and forgets the run.
    pub(super) fn recall(&mut self, start: u64) -> bool {
        self.remembered.numbers.remove(&start).is_some()
    }

    /// Enters a new run. If it is remembered and has a reader now, it counts as read again.
    pub(super) fn enter(&mut self, new: Queued, purpose: Purpose) {
        if purpose == Purpose::Now && self.recall(new.start) {
            self.main.push(new);
        } else {
            self.probation.push(new);
        }
    }

    /// The run at its turn to leave, if more than `budget` is kept. [`settle`](Self::settle)
    /// carries out the decision about it.
    pub(super) fn next(&mut self, budget: u64) -> Option<Turn> {
        if self.probation.bytes + self.main.bytes <= budget {
            return None;
        }
        let was_new =
            self.probation.bytes > self.budget / PROBATION || self.main.entries.is_empty();
        let queue = if was_new { &mut self.probation } else { &mut self.main };
        Some(Turn { victim: queue.pop()?, was_new })
    }

    pub(super) fn settle(&mut self, Turn { victim, was_new }: Turn, verdict: Verdict) {
        match verdict {
            Verdict::WasGone => self.litter = self.litter.saturating_sub(victim.len),
            Verdict::Evict if was_new => {
                self.remembered.note(victim, self.budget / REMEMBERED);
            }
            Verdict::Evict | Verdict::EvictUnread => {}
            Verdict::Spare => self.probation.push(victim),
            Verdict::Keep => self.main.push(victim),
        }
    }

    /// Notes that runs of `bytes` bytes were dropped while their entries are still queued.
    pub(super) fn drop_litter(&mut self, bytes: u64) {
        self.litter += bytes;
    }

    /// Takes all entries for a sweep, if too many of them belong to dropped runs (Q2).
    pub(super) fn sweep(&mut self) -> Option<Sweep> {
        if self.litter <= self.budget / LITTER {
            return None;
        }
        self.litter = 0;
        let probation = std::mem::take(&mut self.probation.entries);
        let main = std::mem::take(&mut self.main.entries);
        Some(Sweep { probation, main })
    }

    /// Puts the remaining entries back, before the entries that came meanwhile.
    pub(super) fn swept(&mut self, mut sweep: Sweep, gone: (u64, u64)) {
        self.probation.bytes -= gone.0;
        self.main.bytes -= gone.1;
        sweep.probation.append(&mut self.probation.entries);
        sweep.main.append(&mut self.main.entries);
        self.probation.entries = sweep.probation;
        self.main.entries = sweep.main;
    }
}

#[cfg(test)]
impl Queues {
    /// Checks Q1. Returns the number of bytes.
    pub(super) fn audit(&self) -> u64 {
        for queue in [&self.probation, &self.main] {
            let bytes: u64 = queue.entries.iter().map(|entry| entry.len).sum();
            assert_eq!(bytes, queue.bytes, "Q1: bytes of a queue");
        }
        self.probation.bytes + self.main.bytes
    }
}

impl Sweep {
    /// Keeps the entries of existing runs. Returns the bytes of the other entries, by queue.
    pub(super) fn keep(&mut self, is_there: impl Fn(&Queued) -> bool) -> (u64, u64) {
        let keep = |entries: &mut VecDeque<Queued>| {
            let mut gone = 0;
            entries.retain(|entry| {
                let stays = is_there(entry);
                gone += if stays { 0 } else { entry.len };
                stays
            });
            gone
        };
        (keep(&mut self.probation), keep(&mut self.main))
    }
}
