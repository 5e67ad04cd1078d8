//! Compares the space that logs use with the extents of the last commit.
//!
//! # Invariants
//!
//! - **LS1** A log uses an extent of data that is recorded, as a whole, or space that is free. No
//!   two logs use extents that overlap, unless it is the same extent. Nodes of logs lie in free
//!   space. Everything lies in one block group of its kind.
//! - **LS2** Extents arrive in address order, and the uses of logs are sorted. So memory is needed
//!   for one of each.

use std::io;

use buttress_base::RangeSet;
use buttress_format::{BlockGroupFlags, Extent, Logical};
use buttress_sorter::{Merge, Sorter};

use crate::context::Context;
use crate::facts::Group;
use crate::log_items::DATA_WORDS;
use buttress_issue::Issue;

/// Space in use, by a log or as the extent tree has it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Use {
    extent: Extent,
    is_node: bool,
}

/// Compares the uses of the logs with each extent that arrives.
pub(crate) struct LogSpace<'s, 'c> {
    context: &'s Context<'c>,
    groups: &'s [Group],
    data: Merge<DATA_WORDS>,
    nodes: Vec<Extent>,
    /// The next use of data, and the error that ended the reading.
    next_data: Option<Extent>,
    outcome: io::Result<()>,
    /// The use, and the extent, that reach furthest so far.
    last_use: Option<Use>,
    last_extent: Option<Use>,
}

impl<'s, 'c> LogSpace<'s, 'c> {
    pub(crate) fn new(
        context: &'s Context<'c>,
        groups: &'s [Group],
        data: Sorter<DATA_WORDS>,
        nodes: &RangeSet,
    ) -> io::Result<Self> {
        let nodesize = context.nodesize();
        let each = |range: std::ops::Range<u64>| {
            // Nodes that touch are one range.
            let starts = (range.start..range.end).step_by(nodesize.max(1) as usize);
            starts.map(move |start| Extent::new(Logical(start), nodesize))
        };
        let mut nodes: Vec<Extent> = nodes.iter().flat_map(each).collect();
        nodes.reverse();
        let (data, outcome) = (data.merge()?, Ok(()));
        let (next_data, last_use, last_extent) = (None, None, None);
        let mut new =
            Self { context, groups, data, nodes, next_data, outcome, last_use, last_extent };
        new.read_data();
        Ok(new)
    }

    fn read_data(&mut self) {
        self.next_data = match self.data.next_record() {
            Ok(next) => next.map(|[start, len]| Extent::new(Logical(start), len)),
            Err(error) => {
                self.outcome = Err(error);
                None
            }
        };
    }

    /// Takes the next use that begins before an address.
    fn take(&mut self, before: Option<Logical>) -> Option<Use> {
        let is_due = |extent: &&Extent| before.is_none_or(|before| extent.start < before);
        let node = self.nodes.last().filter(is_due).copied();
        let data = self.next_data.as_ref().filter(is_due).copied();
        match (node, data) {
            (Some(node), data) if data.is_none_or(|data| node.start <= data.start) => {
                self.nodes.pop();
                Some(Use { extent: node, is_node: true })
            }
            (_, Some(data)) => {
                self.read_data();
                Some(Use { extent: data, is_node: false })
            }
            _ => None,
        }
    }

    /// Compares with the next recorded extent.
    pub(crate) fn used(&mut self, extent: Extent, is_node: bool) {
        self.uses_before(Some(extent.start));
        let new = Use { extent, is_node };
        if let Some(last) = self.last_use.filter(|last| last.extent.end() > extent.start) {
            self.overlaps(last, new);
        }
        if self.last_extent.is_none_or(|last| last.extent.end() < extent.end()) {
            self.last_extent = Some(new);
        }
    }

    /// Compares what lies behind the last extent.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.uses_before(None);
        self.outcome
    }

    fn uses_before(&mut self, before: Option<Logical>) {
        while let Some(new) = self.take(before) {
            let Use { extent, is_node } = new;
            if let Some(last) = self.last_extent.filter(|last| last.extent.end() > extent.start) {
                self.overlaps(new, last);
            }
            if let Some(last) = self.last_use.filter(|last| last.extent.end() > extent.start)
                && (last != new || is_node)
            {
                let why = "another extent of a log overlaps it";
                self.context.add(Issue::LogExtent { extent, why });
            }
            if self.last_use.is_none_or(|last| last.extent.end() < extent.end()) {
                self.last_use = Some(new);
            }
            self.in_group(new);
        }
    }

    /// A use and a recorded extent share bytes.
    fn overlaps(&self, used: Use, recorded: Use) {
        if used == recorded && !used.is_node {
            return;
        }
        let why = match (used.is_node, recorded.is_node) {
            (true, _) => "there is a recorded extent, and a node of a log needs free space",
            (false, true) => "there is a node of a tree",
            (false, false) => "the recorded extent there has other bounds",
        };
        self.context.add(Issue::LogExtent { extent: used.extent, why });
    }

    fn in_group(&self, Use { extent, is_node }: Use) {
        let after = self.groups.partition_point(|group| group.extent.start <= extent.start);
        let group = after.checked_sub(1).and_then(|index| self.groups.get(index));
        let wanted = if is_node { BlockGroupFlags::METADATA } else { BlockGroupFlags::DATA };
        let fits = group.is_some_and(|group| {
            let has_kind = group.flags.0 & wanted.0 != 0;
            has_kind && extent.end() <= group.extent.end() && extent.start < group.extent.end()
        });
        if !fits {
            let why = "it does not lie in one block group of its kind";
            self.context.add(Issue::LogExtent { extent, why });
        }
    }
}
