//! [`Reader`] reads files. It has the page cache, the unpacked extents, and the read-ahead threads.
//!
//! It changes no file. `docs/internals/reads.md` describes its caches.

use std::sync::Arc;

use buttress_txn::Engine;
use buttress_volume::Volume;

use crate::pages::Pages;
use crate::params::Params;

use self::helpers::{Helpers, Reading};
use self::unpacked::Unpacked;

mod ahead;
mod coming;
mod fresh;
mod helpers;
mod read;
mod read_compressed;
mod read_long;
mod read_plan;
mod seek;
mod unpacked;
mod verity;

pub use ahead::Ahead;
pub use read::DataMismatch;

/// Reads files of one volume.
#[derive(Debug)]
pub struct Reader {
    engine: Arc<Engine>,
    volume: Arc<Volume>,
    params: Arc<Params>,
    pages: Arc<Pages>,
    unpacked: Unpacked,
    helpers: Arc<Helpers>,
    reading: Reading,
    /// Whether a device gains by knowing what its readers will ask for.
    is_distant: bool,
}

impl Reader {
    pub(crate) fn new(
        engine: Arc<Engine>,
        volume: Arc<Volume>,
        params: Arc<Params>,
        pages: Arc<Pages>,
    ) -> Self {
        let helpers = Helpers::new();
        if !params.options.helpers {
            helpers.stop();
        }
        let (unpacked, reading) = (Unpacked::new(), Reading::default());
        let is_distant = volume.ahead_bytes() > 0;
        Self { engine, volume, params, pages, unpacked, helpers, reading, is_distant }
    }

    /// Drops the unpacked content that is cached for later readers.
    pub(crate) fn forget_unpacked(&self) {
        self.unpacked.clear();
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.helpers.stop();
    }
}
