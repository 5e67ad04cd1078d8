//! The order of the flush steps, and the point at which a caller gives up. This is a state machine
//! without side effects.
//!
//! # Invariants
//!
//! - **F1** The resources that a caller holds limit the steps that it gets. A caller with a file's
//!   writeback claim gets no step that writes data back. A caller with a handle gets no step at
//!   all, because a commit waits for that handle.
//! - **F2** The steps end after a fixed number of cycles in which no request was served.
//!
//! ```text
//! metadata:  count ▶ unpin ▶ dirty ▶ ordered ▶ commit ▶ readers ▶ chunk
//! again, or
//! crowded:   count ▶ unpin ▶ chunk ▶ clean ▶ all dirty ▶ ordered ▶ commit ▶ readers ▶ chunk
//! data:              unpin ▶ chunk ▶ clean ▶ all dirty ▶ ordered ▶ commit ▶ readers ▶ chunk
//! ```
//!
//! The steps for metadata are the first row once, and the second row in later cycles. If metadata
//! is crowded, the steps are the second row from the beginning. Crowded means that the trees
//! themselves fill their groups. The last step looks for a chunk once more, because the commit may
//! have returned a chunk to the devices. The step `count` gives back the part of the reservations
//! that the overlay and the delayed references will not use. Only a commit gives back the rest,
//! because it writes the overlay and the references.

use crate::SpaceKind;

/// A step that can make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushState {
    /// Count the nodes that the overlay and the delayed references will take. Their reservations
    /// are for the worst case.
    Count,
    /// Free the space that earlier commits left pinned.
    Unpin,
    /// Write a part of the dirty data back. The data then takes the metadata that it needs, and no
    /// longer a reservation for the worst case.
    Dirty,
    /// Write all dirty data back.
    AllDirty,
    /// Wait for ordered extents.
    Ordered,
    /// Let the cleaner finish with inodes that lost their last name.
    Clean,
    /// Take a chunk from the devices.
    Chunk,
    /// Commit: the overlay becomes trees, freed space becomes pinned.
    Commit,
    /// Wait for readers of the trees that the last commits replaced, then unpin.
    Readers,
}

impl FlushState {
    /// All steps.
    pub const ALL: [Self; 9] =
        [Count, Unpin, Dirty, AllDirty, Ordered, Clean, Chunk, Commit, Readers];

    /// The name of the step in messages and in `stats`.
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

    /// Whether the steps for that kind of space may include this step.
    #[must_use]
    pub fn is_for(self, kind: SpaceKind) -> bool {
        match kind {
            SpaceKind::Data => !matches!(self, Count | Dirty),
            SpaceKind::Metadata => true,
            SpaceKind::System => false,
        }
    }
}

/// The steps that a caller may wait for. They depend on the resources that the caller holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The caller holds a handle: a commit waits for it.
    Handle,
    /// The caller holds a file's writeback claim or a file's extents. Writeback may wait for this
    /// caller; a commit does not.
    Commit,
    /// The caller holds nothing that writeback needs.
    All,
}

/// The position in the flush steps of one caller that makes room.
#[derive(Debug)]
pub struct FlushStates {
    first: &'static [FlushState],
    later: &'static [FlushState],
    at: usize,
    cycle: u32,
    cycles: u32,
}

use FlushState::{AllDirty, Chunk, Clean, Commit, Count, Dirty, Ordered, Readers, Unpin};

const DATA_ALL: &[FlushState] = &[Unpin, Chunk, Clean, AllDirty, Ordered, Commit, Readers, Chunk];
const META_ALL: &[FlushState] = &[Count, Unpin, Dirty, Ordered, Commit, Readers, Chunk];
const META_ALL_LATER: &[FlushState] =
    &[Count, Unpin, Chunk, Clean, AllDirty, Ordered, Commit, Readers, Chunk];
const DATA_COMMIT: &[FlushState] = &[Unpin, Chunk, Commit, Readers, Chunk];
const META_COMMIT: &[FlushState] = &[Count, Unpin, Commit, Readers, Chunk];
const META_COMMIT_LATER: &[FlushState] = &[Count, Unpin, Chunk, Commit, Readers, Chunk];

impl FlushStates {
    /// Begins with the first step. `crowded` says that the trees themselves fill their groups, so
    /// that a chunk comes early.
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

    /// The next step; `None` after the last cycle (F2).
    pub fn next_state(&mut self) -> Option<FlushState> {
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

    /// Takes the result of the last step: whether it made room, and whether a request was served. A
    /// served request is progress: the steps begin again, and the count of cycles does not grow.
    pub fn note(&mut self, gained: bool, served: bool) {
        if served {
            self.at = 0;
            self.cycle = self.cycle.saturating_sub(1);
            return;
        }
        let steps = if self.cycle == 0 { self.first } else { self.later };
        // One chunk may be too little, so the step is repeated. The repetition ends when the
        // devices have no chunk left.
        if gained && self.at > 0 && steps[self.at - 1] == Chunk {
            self.at -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps_of(states: &mut FlushStates) -> Vec<FlushState> {
        std::iter::from_fn(|| states.next_state()).collect()
    }

    /// F1, E17: a caller with a handle gets no step at all. A caller with a claim gets no step that
    /// needs claims.
    #[test]
    fn handle_never_waits_for_a_commit() {
        for kind in [SpaceKind::Data, SpaceKind::Metadata] {
            for crowded in [false, true] {
                assert_eq!(steps_of(&mut FlushStates::new(kind, Reach::Handle, crowded)), []);
                let all = steps_of(&mut FlushStates::new(kind, Reach::All, crowded));
                assert!(all.iter().all(|step| step.is_for(kind)), "{kind}: {all:?}");
                let steps = steps_of(&mut FlushStates::new(kind, Reach::Commit, crowded));
                assert!(!steps.iter().any(|s| matches!(s, Dirty | AllDirty | Ordered | Clean)));
                assert!(steps.contains(&Commit) && steps.contains(&Chunk));
                assert_eq!(steps[0] == Count, kind == SpaceKind::Metadata);
            }
        }
    }

    /// F2: the steps end if no request is served, and go on as long as requests are served.
    #[test]
    fn ends_without_progress_only() {
        let mut states = FlushStates::new(SpaceKind::Metadata, Reach::All, false);
        let mut steps = 0;
        for _ in 0..100 {
            while let Some(step) = states.next_state() {
                steps += 1;
                let served = step == Commit;
                states.note(served, served);
                if served {
                    break;
                }
            }
        }
        assert!(steps >= 300, "{steps}");
        assert!(steps_of(&mut states).len() < 35);
    }

    /// If one chunk is too little, another follows, as long as the devices have chunks.
    #[test]
    fn chunks_as_many_as_it_takes() {
        let mut states = FlushStates::new(SpaceKind::Data, Reach::All, false);
        let mut left = 5;
        let mut made = 0;
        while let Some(step) = states.next_state() {
            let gained = step == Chunk && left > 0;
            if gained {
                left -= 1;
                made += 1;
            }
            states.note(gained, false);
        }
        assert_eq!(made, 5);
    }
}
