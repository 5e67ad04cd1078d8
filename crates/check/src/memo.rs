//! Results for nodes that snapshots share, kept so that each node is checked once.
//!
//! # Invariants
//!
//! - **O1** A result depends only on the bytes of the node, never on the tree in which it was
//!   found.
//! - **O2** The memory is bounded. A result that does not fit is computed again.

use std::collections::HashMap;

use buttress_base::{Rank, Ranked};
use buttress_format::Logical;
use buttress_tree::NodePtr;

use crate::inode::Span;

/// Spans of shared nodes.
pub(crate) struct Memo {
    spans: Ranked<HashMap<Logical, Box<(NodePtr, Span)>>>,
    spans_max: usize,
}

impl Memo {
    pub(crate) fn new(bytes: u64) -> Self {
        // A table that grows holds addresses alone, and is there twice meanwhile.
        let each = size_of::<(NodePtr, Span)>() / 8 * 9 + 5 * size_of::<(Logical, usize)>();
        let spans_max = bytes / each as u64;
        let spans = Ranked::new(Rank::Leaf, HashMap::new());
        Self { spans, spans_max: usize::try_from(spans_max).unwrap_or(usize::MAX) }
    }

    pub(crate) fn find(&self, at: &NodePtr) -> Option<Span> {
        let spans = self.spans.lock();
        spans.get(&at.logical).filter(|found| found.0 == *at).map(|found| found.1.clone())
    }

    pub(crate) fn keep(&self, at: NodePtr, span: &Span) {
        let mut spans = self.spans.lock();
        if spans.len() < self.spans_max {
            spans.insert(at.logical, Box::new((at, span.clone())));
        }
    }
}
