//! In which order room is made, and when to give up: a state machine that does nothing itself.
//!
//! # Invariants
//!
//! - **F1** What a caller holds bounds which steps are ever named to him: who holds a file's writeback claim
//!   is never told to write data back, and who holds a handle is told nothing, since a commit waits for him.
//! - **F2** It ends: without anybody served, after a fixed number of cycles.
//!
//! ```text
//!            count ▶ unpin ▶ dirty ▶ ordered ▶ commit ▶ readers ▶ chunk         little is held by the trees themselves
//! again, or
//! crowded:   count ▶ unpin ▶ chunk ▶ clean ▶ all dirty ▶ ordered ▶ commit ▶ readers ▶ chunk
//! data:              unpin ▶ chunk ▶ clean ▶ all dirty ▶ ordered ▶ commit ▶ readers ▶ chunk
//! ```
//!
//! A chunk is looked for once more at the end: the commit may have given the devices one back.
//! What the overlay and the delayed references were promised and will not take is given back by counting them; what they will
//! take a commit alone gives back, by writing them.

use crate::SpaceKind;

/// What can be done to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Count the nodes that the overlay and the delayed references will take: they were promised for the worst.
    Count,
    /// Hand out what earlier commits freed.
    Unpin,
    /// Write a part of the dirty data back: what was promised for the worst is then known.
    Dirty,
    /// Write all of it back.
    AllDirty,
    /// Wait for data that is on its way.
    Ordered,
    /// Let the cleaner finish with inodes that lost their last name.
    Clean,
    /// Take a chunk from the devices.
    Chunk,
    /// Commit: the overlay becomes trees, what was freed becomes pinned.
    Commit,
    /// Wait for those who read what the last commits replaced, then unpin.
    Readers,
}

impl Step {
    /// All steps.
    pub const ALL: [Self; 9] =
        [Count, Unpin, Dirty, AllDirty, Ordered, Clean, Chunk, Commit, Readers];

    /// Its name in what is told to people and scripts.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Count => "count",
            Unpin => "unpin",
            Dirty => "dirty",
            AllDirty => "all_dirty",
            Ordered => "ordered",
            Clean => "clean",
            Chunk => "chunk",
            Commit => "commit",
            Readers => "readers",
        }
    }

    /// Whether a ladder for that kind of space may name it.
    #[must_use]
    pub fn is_for(self, kind: SpaceKind) -> bool {
        match kind {
            SpaceKind::Data => !matches!(self, Count | Dirty),
            SpaceKind::Metadata => true,
            SpaceKind::System => false,
        }
    }
}

/// What a caller may wait for, by what he holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// He holds a handle: a commit waits for him.
    Handle,
    /// He holds a file's writeback claim or its extents: dirty data may wait for him, a commit does not.
    Commit,
    /// He holds nothing that writeback needs.
    All,
}

/// Where somebody is who makes room.
#[derive(Debug)]
pub struct Ladder {
    first: &'static [Step],
    later: &'static [Step],
    at: usize,
    cycle: u32,
    cycles: u32,
}

use Step::{AllDirty, Chunk, Clean, Commit, Count, Dirty, Ordered, Readers, Unpin};

const DATA_ALL: &[Step] = &[Unpin, Chunk, Clean, AllDirty, Ordered, Commit, Readers, Chunk];
const META_ALL: &[Step] = &[Count, Unpin, Dirty, Ordered, Commit, Readers, Chunk];
const META_ALL_LATER: &[Step] =
    &[Count, Unpin, Chunk, Clean, AllDirty, Ordered, Commit, Readers, Chunk];
const DATA_COMMIT: &[Step] = &[Unpin, Chunk, Commit, Readers, Chunk];
const META_COMMIT: &[Step] = &[Count, Unpin, Commit, Readers, Chunk];
const META_COMMIT_LATER: &[Step] = &[Count, Unpin, Chunk, Commit, Readers, Chunk];

impl Ladder {
    /// Stands at the foot. `crowded` says that the trees themselves fill their groups, so that a chunk is
    /// the first answer.
    #[must_use]
    pub fn new(kind: SpaceKind, reach: Reach, crowded: bool) -> Self {
        let metadata = kind == SpaceKind::Metadata;
        let (first, later, cycles) = match reach {
            Reach::Handle => (&[][..], &[][..], 0),
            Reach::Commit if metadata && !crowded => (META_COMMIT, META_COMMIT_LATER, 4),
            Reach::Commit if metadata => (META_COMMIT_LATER, META_COMMIT_LATER, 3),
            Reach::Commit => (DATA_COMMIT, DATA_COMMIT, 3),
            Reach::All if metadata && !crowded => (META_ALL, META_ALL_LATER, 3),
            Reach::All if metadata => (META_ALL_LATER, META_ALL_LATER, 2),
            Reach::All => (DATA_ALL, DATA_ALL, 2),
        };
        Self { first, later, at: 0, cycle: 0, cycles }
    }

    /// The next step; nothing when all was tried in vain (F2).
    pub fn next_step(&mut self) -> Option<Step> {
        loop {
            if self.cycle >= self.cycles {
                return None;
            }
            let steps = if self.cycle == 0 { self.first } else { self.later };
            if let Some(step) = steps.get(self.at) {
                self.at += 1;
                return Some(*step);
            }
            self.at = 0;
            self.cycle += 1;
        }
    }

    /// Says what the last step came to: whether it made room, and whether anybody was served for it. Who
    /// was is progress: it goes on from the foot, and no nearer to giving up.
    pub fn note(&mut self, gained: bool, served: bool) {
        if served {
            self.at = 0;
            self.cycle = self.cycle.saturating_sub(1);
            return;
        }
        let steps = if self.cycle == 0 { self.first } else { self.later };
        // One chunk may be too little; there are only so many.
        if gained && self.at > 0 && steps[self.at - 1] == Chunk {
            self.at -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn climb(ladder: &mut Ladder) -> Vec<Step> {
        std::iter::from_fn(|| ladder.next_step()).collect()
    }

    /// F1, E17: a handle's holder is told no step at all, a claim's holder none that needs claims.
    #[test]
    fn e17_a_handle_never_waits_for_a_commit() {
        for kind in [SpaceKind::Data, SpaceKind::Metadata] {
            for crowded in [false, true] {
                assert_eq!(climb(&mut Ladder::new(kind, Reach::Handle, crowded)), []);
                let all = climb(&mut Ladder::new(kind, Reach::All, crowded));
                assert!(all.iter().all(|step| step.is_for(kind)), "{kind}: {all:?}");
                let steps = climb(&mut Ladder::new(kind, Reach::Commit, crowded));
                assert!(!steps.iter().any(|s| matches!(s, Dirty | AllDirty | Ordered | Clean)));
                assert!(steps.contains(&Commit) && steps.contains(&Chunk));
                assert_eq!(steps[0] == Count, kind == SpaceKind::Metadata);
            }
        }
    }

    /// F2: it ends without progress; with progress now and then it goes on as long as that comes.
    #[test]
    fn ends_without_progress_only() {
        let mut ladder = Ladder::new(SpaceKind::Metadata, Reach::All, false);
        let mut steps = 0;
        for _ in 0..100 {
            while let Some(step) = ladder.next_step() {
                steps += 1;
                let served = step == Commit;
                ladder.note(served, served);
                if served {
                    break;
                }
            }
        }
        assert!(steps >= 300, "{steps}");
        assert!(climb(&mut ladder).len() < 35);
    }

    /// A chunk that was not enough is followed by another, while there are any.
    #[test]
    fn chunks_as_many_as_it_takes() {
        let mut ladder = Ladder::new(SpaceKind::Data, Reach::All, false);
        let mut left = 5;
        let mut made = 0;
        while let Some(step) = ladder.next_step() {
            let gained = step == Chunk && left > 0;
            if gained {
                left -= 1;
                made += 1;
            }
            ladder.note(gained, false);
        }
        assert_eq!(made, 5);
    }
}
