//! State that maintenance keeps between calls.

use std::sync::Arc;

use buttress_tree::Geometry;
use buttress_txn::Engine;
use buttress_volume::Volume;

use crate::turn::Turn;

/// Maintenance of one open volume. Each [`Engine`] must have only one, because two would not share
/// one `Turn`, so a move and a drop could run at the same time.
#[derive(Debug)]
pub struct Maintenance {
    engine: Arc<Engine>,
    turn: Turn,
}

impl Maintenance {
    /// Maintenance of an engine's volume.
    #[must_use]
    pub fn new(engine: Arc<Engine>) -> Self {
        Self { engine, turn: Turn::default() }
    }

    /// Makes every call that moves block groups stop soon with
    /// [`Error::Stopped`](buttress_txn::Error::Stopped), until this method is called with `false`.
    pub fn stop_moving(&self, stop: bool) {
        self.turn.stop(stop);
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(crate) fn volume(&self) -> &Volume {
        self.engine.volume()
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        self.engine.store().geometry()
    }

    pub(crate) fn turn(&self) -> &Turn {
        &self.turn
    }
}
