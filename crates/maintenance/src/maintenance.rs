//! State that maintenance keeps between calls.

use std::collections::BTreeMap;
use std::sync::Arc;

use buttress_base::sync::Mutex;
use buttress_format::TreeId;
use buttress_tree::Geometry;
use buttress_txn::Engine;
use buttress_volume::Volume;

use crate::LoopSteps;
use crate::bound::{Loops, Steps};
use crate::turn::Turn;

/// Maintenance of one open volume. Each [`Engine`] must have only one, because two would not share
/// one `Turn`, so a move and a drop could run at the same time.
#[derive(Debug)]
pub struct Maintenance {
    engine: Arc<Engine>,
    turn: Turn,
    loops: Loops,
    /// The steps of subvolumes that are being dropped. Unranked: held for a moment, and no other
    /// lock is taken under it.
    drops: Mutex<BTreeMap<TreeId, Steps>>,
}

impl Maintenance {
    /// Maintenance of an engine's volume.
    #[must_use]
    pub fn new(engine: Arc<Engine>) -> Self {
        let (loops, drops) = (Loops::default(), Mutex::default());
        Self { engine, turn: Turn::default(), loops, drops }
    }

    /// Makes every call that moves block groups stop soon with
    /// [`Error::Stopped`](buttress_txn::Error::Stopped), until this method is called with `false`.
    pub fn stop_moving(&self, stop: bool) {
        self.turn.stop(stop);
    }

    /// The steps of each loop since the mount, by the name of the loop.
    #[must_use]
    pub fn loop_steps(&self) -> BTreeMap<&'static str, LoopSteps> {
        self.loops.counts()
    }

    pub(crate) fn loops(&self) -> &Loops {
        &self.loops
    }

    pub(crate) fn drops(&self) -> &Mutex<BTreeMap<TreeId, Steps>> {
        &self.drops
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
