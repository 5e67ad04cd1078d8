//! The state of a log while its items are collected: its starting point and its changes.
//!
//! # Invariants
//!
//! - **D1** Two states are read: `base`, the committed trees that replay starts from, and `view`,
//!   the state of the logged inodes after replay. Both states are of the same moment.

use std::sync::Arc;

use buttress_format::{Key, TreeId};
use buttress_tree::{Overlay, Payload};
use buttress_txn::{Engine, View};

use crate::logs::Logs;

/// The draft of one log.
pub(crate) struct Draft<'c> {
    pub(crate) engine: &'c Engine,
    pub(crate) logs: &'c mut Logs,
    pub(crate) view: Arc<View>,
    /// The committed trees alone.
    pub(crate) base: buttress_tree::View,
    /// Whether the volume has no items for holes (`NO_HOLES`).
    pub(crate) no_holes: bool,
    changed: bool,
}

impl<'c> Draft<'c> {
    pub(crate) fn new(engine: &'c Engine, logs: &'c mut Logs, no_holes: bool) -> Self {
        let view = engine.view();
        let roots = Arc::clone(view.roots());
        let nothing = Arc::new(Overlay::default());
        let base = buttress_tree::View::new(Arc::clone(view.store()), nothing, None, roots);
        Self { engine, logs, view, base, no_holes, changed: false }
    }

    /// Whether the draft has any changes.
    pub(crate) fn is_changed(&self) -> bool {
        self.changed
    }

    pub(crate) fn set(&mut self, tree: TreeId, key: Key, payload: Option<&[u8]>) {
        self.changed = true;
        let geometry = self.view.store().geometry();
        self.logs.trees.entry(tree).or_default().set(geometry, key, payload);
    }

    pub(crate) fn logged(&self, tree: TreeId, key: &Key) -> Option<&[u8]> {
        self.logs.trees.get(&tree).and_then(|log| log.get(key))
    }

    /// The last item in `low..=high`.
    pub(crate) fn logged_before(
        &self,
        tree: TreeId,
        low: Key,
        high: Key,
    ) -> Option<(Key, Payload)> {
        self.logs.trees.get(&tree)?.last_in(low, high)
    }

    pub(crate) fn logged_range(&self, tree: TreeId, low: Key, high: Key) -> Vec<(Key, Payload)> {
        self.logs.trees.get(&tree).map_or_else(Vec::new, |log| log.range(low, high))
    }
}
