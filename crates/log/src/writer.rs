//! The log of the running transaction: its trees in memory, and its nodes' places on disk.
//!
//! # Invariants
//!
//! - **W1** What is here is about one log. Once a commit has ended that log, it is begun anew.

use std::collections::BTreeSet;

use buttress_format::Logical;

use crate::logs::Logs;
use crate::owed::OtherCopies;

/// The log of the running transaction.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    /// How many logs had ended when this one began (W1).
    pub(crate) since: u64,
    pub(crate) logs: Logs,
    /// The log root tree's only node.
    pub(crate) root: Option<Logical>,
    /// The place that was allocated last.
    pub(crate) last: Option<Logical>,
    /// Places for nodes that no log on disk names.
    pub(crate) spare: BTreeSet<Logical>,
    /// Where the next node should lie: they go round, and those of one log lie side by side.
    pub(crate) next: Logical,
    /// What is on the copies that an fsync does not wait for.
    pub(crate) others: OtherCopies,
    /// A log was not finished: the next durable thing is a commit (`log::sync::S4`).
    pub(crate) broken: bool,
}

/// Where as many free places lie side by side as are wanted, so that each copy of a log goes out in
/// one request: from `next` on, where some are there.
pub(crate) fn neighbours(
    spare: &BTreeSet<Logical>,
    next: Logical,
    wanted: usize,
    len: u64,
) -> Option<Logical> {
    let search = |places: &mut dyn Iterator<Item = &Logical>| {
        let mut first = None;
        let mut count = 0;
        let mut end = None;
        for place in places {
            if end != Some(*place) {
                (first, count) = (Some(*place), 0);
            }
            count += 1;
            end = Some(place.end(len));
            if count >= wanted {
                return first;
            }
        }
        None
    };
    search(&mut spare.range(next..)).or_else(|| search(&mut spare.iter()))
}
