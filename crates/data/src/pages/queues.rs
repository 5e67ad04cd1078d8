//! In which order kept runs leave memory.
//!
//! # Invariants
//!
//! - **Q1** The bytes of a queue are those of its entries, in it or being swept.
//! - **Q2** Entries of runs that are gone take at most a sixteenth of the budget, plus what is
//!   forgotten until the next run is entered. So runs that are overwritten while they are kept take
//!   no space for good.
//!
//! While entries are swept no run leaves: more than the budget may be kept until the next run is
//! entered.
//!
//! New runs stand in `probation`, and leave memory from its end unless their start was read once
//! more. Those move to `main`, which is gone through in turns. A run that left `probation` is
//! remembered for as long as half of the budget leaves behind it. If it is read again meanwhile, it
//! enters `main` at once; if it is read ahead, as soon as a reader comes for it. So what is used
//! now takes the place of what was used once. This also holds for a cycle of reads that is longer
//! than `probation`, and a still longer cycle takes nothing.

use std::collections::{HashMap, VecDeque};

use super::Purpose;

/// The part of the budget that is for runs which were read once.
pub(super) const PROBATION: u64 = 8;

/// The part of the budget that entries of runs which are gone may take before they are cleared
/// away.
const LITTER: u64 = 16;

/// Runs that left are remembered up to the budget divided by this.
const REMEMBERED: u64 = 2;

/// A run in a queue, and the memory it takes; it may be gone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queued {
    pub(super) start: u64,
    pub(super) number: u64,
    pub(super) len: u64,
}

/// What becomes of a run when its turn comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It was kept no more.
    WasGone,
    /// It was read ahead, and no reader came for it.
    Unread,
    /// It was read, and not again.
    Goes,
    /// The reader that it was read for is still to come.
    Waits,
    /// It was read again.
    Stays,
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

/// Runs that left not long ago, by where they began.
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

/// Both queues, and the runs that left them.
#[derive(Debug)]
pub(super) struct Queues {
    budget: u64,
    probation: Queue,
    main: Queue,
    remembered: Remembered,
    /// Bytes of entries of runs that are gone; a little wrong while a run is being checked.
    litter: u64,
}

/// A run that has its turn.
pub(super) struct Turn {
    pub(super) victim: Queued,
    was_new: bool,
}

/// All entries, while they are looked through.
pub(super) struct Sweep {
    probation: VecDeque<Queued>,
    main: VecDeque<Queued>,
}

impl Queues {
    pub(super) fn new(budget: u64) -> Self {
        let (probation, main) = (Queue::default(), Queue::default());
        Self { budget, probation, main, remembered: Remembered::default(), litter: 0 }
    }

    /// Whether a run that begins there is remembered. Forgets it.
    pub(super) fn recall(&mut self, start: u64) -> bool {
        self.remembered.numbers.remove(&start).is_some()
    }

    /// Enters a new run. A remembered one that is taken now counts as read again.
    pub(super) fn enter(&mut self, new: Queued, purpose: Purpose) {
        if purpose == Purpose::Now && self.recall(new.start) {
            self.main.push(new);
        } else {
            self.probation.push(new);
        }
    }

    /// The run that has its turn to leave, if more than `budget` is kept. [`settle`](Self::settle)
    /// says whether it leaves.
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
            Verdict::Goes if was_new => {
                self.remembered.note(victim, self.budget / REMEMBERED);
            }
            Verdict::Goes | Verdict::Unread => {}
            Verdict::Waits => self.probation.push(victim),
            Verdict::Stays => self.main.push(victim),
        }
    }

    /// Notes that runs of so many bytes are gone, while their entries are still here.
    pub(super) fn drop_litter(&mut self, bytes: u64) {
        self.litter += bytes;
    }

    /// All entries, when too many are of runs that are gone (Q2).
    pub(super) fn sweep(&mut self) -> Option<Sweep> {
        if self.litter <= self.budget / LITTER {
            return None;
        }
        self.litter = 0;
        let probation = std::mem::take(&mut self.probation.entries);
        let main = std::mem::take(&mut self.main.entries);
        Some(Sweep { probation, main })
    }

    /// Puts back what was found to be there, before what came meanwhile.
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
    /// Looks whether Q1 holds; says how many bytes there are.
    pub(super) fn audit(&self) -> u64 {
        for queue in [&self.probation, &self.main] {
            let bytes: u64 = queue.entries.iter().map(|entry| entry.len).sum();
            assert_eq!(bytes, queue.bytes, "Q1: bytes of a queue");
        }
        self.probation.bytes + self.main.bytes
    }
}

impl Sweep {
    /// Leaves what is there; says how many bytes of each queue are not.
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
