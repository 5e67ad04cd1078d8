//! A log while it is worked out: what it starts from, and what was put into it.
//!
//! # Invariants
//!
//! - **D1** Two states are read: `base`, the committed trees alone, which replay starts from; and
//!   `view`, which the logged inodes shall have in the end. Both are of one moment.

use std::sync::Arc;

use buttress_format::{Key, TreeId};
use buttress_tree::{Overlay, Payload};
use buttress_txn::{Engine, View};

use crate::logs::Logs;

/// See the module.
pub(crate) struct Draft<'c> {
    pub(crate) engine: &'c Engine,
    pub(crate) logs: &'c mut Logs,
    pub(crate) view: Arc<View>,
    /// The committed trees alone.
    pub(crate) base: buttress_tree::View,
    /// The volume says nothing about holes.
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

    /// Whether anything was put.
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
