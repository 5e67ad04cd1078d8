//! How full a volume is, in bytes.

use buttress_fs::Filesystem;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::exit::{Context, Result};

/// The JSON document for scripts, in bytes.
#[derive(Serialize, Deserialize)]
pub struct Room {
    /// Bytes of the volume.
    pub size: u64,
    /// Bytes in use.
    pub used: u64,
    /// Bytes that a program can still write.
    pub available: u64,
}

/// Returns the sizes of an open volume.
pub(super) fn document(fs: &Filesystem) -> buttress_fs::Result<Result<Value>> {
    let stat = fs.statfs()?;
    let unit = u64::from(stat.block_size);
    let room = Room {
        size: stat.blocks.saturating_mul(unit),
        used: stat.blocks.saturating_sub(stat.blocks_free).saturating_mul(unit),
        available: stat.blocks_available.saturating_mul(unit),
    };
    Ok(serde_json::to_value(room).context(|| "the answer"))
}
