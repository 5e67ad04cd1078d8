//! A consistent state of the volume as operations see it.

use std::{ops::Deref, sync::Arc};

use buttress_format::{Extent, Generation, Logical};
use buttress_tree::{Overlay, Roots, Store};

use crate::tracked::Tracked;
use crate::transaction::Transaction;

/// The trees of [`buttress_tree::View`], with the delayed references and checksums that belong to
/// the same transactions. A reader holds a view: as long as the view lives, nothing that its
/// committed trees reach is overwritten.
#[derive(Clone, Debug)]
pub struct View {
    trees: buttress_tree::View,
    running: Arc<Transaction>,
    frozen: Option<Arc<Transaction>>,
}

impl View {
    /// Joins the trees of `roots` with the transactions above them that are not durable yet.
    pub fn new(
        store: Arc<Store>,
        running: Arc<Transaction>,
        frozen: Option<Arc<Transaction>>,
        roots: Arc<Roots>,
    ) -> Self {
        let trees = buttress_tree::View::new(
            store,
            Arc::clone(&running.overlay),
            frozen.as_ref().map(|f| Arc::clone(&f.overlay)),
            roots,
        );
        Self { trees, running, frozen }
    }

    /// The generation of the running transaction, to which all changes made now belong.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.running.generation
    }

    /// The inodes and extents of the running transaction that are in the log on disk, and the
    /// changes of those inodes.
    #[must_use]
    pub fn tracked(&self) -> &Tracked {
        &self.running.tracked
    }

    /// Items that the running transaction has set or deleted.
    #[must_use]
    pub fn running_overlay(&self) -> &Overlay {
        &self.running.overlay
    }

    /// The checksums of the running transaction that touch a range: whole runs, ascending.
    #[must_use]
    pub fn new_csums(&self, range: Extent) -> Vec<(Extent, Arc<[u8]>)> {
        self.running.sums.touching(range)
    }

    /// Whether the running transaction changed the users of an extent that is older than the
    /// transaction.
    #[must_use]
    pub fn has_other_users(&self, start: Logical) -> bool {
        self.running.refs.look(start, |change| change.born) == Some(false)
    }

    /// The running transaction itself.
    pub fn running(&self) -> &Arc<Transaction> {
        &self.running
    }

    /// The frozen transaction, while a commit is under way.
    pub fn frozen(&self) -> Option<&Arc<Transaction>> {
        self.frozen.as_ref()
    }
}

impl Deref for View {
    type Target = buttress_tree::View;

    fn deref(&self) -> &buttress_tree::View {
        &self.trees
    }
}
