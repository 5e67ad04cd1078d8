//! The commit on which a local log was written is kept, so that the log can be salvaged.
//!
//! # Invariants
//!
//! - **B1** The base of a log is a commit of the log's writer. The base has every write up to one
//!   position of the log, and no later write.
//! - **B2** A base is pinned only while a log has acknowledged writes that its base lacks. The next
//!   opening that removes the log deletes the pin.

use crate::cache::Cache;
use crate::chain::Chain;
use crate::core::Core;
use crate::envelope::VolumeId;
use crate::error::{Error, Result};
use crate::manifest::Manifest;
use crate::pin;

/// The name of the pin that keeps the commit on which a log was written.
pub(crate) fn pin_of(log: &str) -> String {
    format!("salvage-{}", log.get(..16).unwrap_or(log))
}

/// Pins the commit that a log was written on, so that the log can be salvaged. A failure is only
/// logged.
pub(crate) fn keep_base(chain: &Chain, volume: VolumeId, log: &str, epoch: u32) {
    let kept = base_of(chain, log, epoch).and_then(|base| match base {
        Some(base) if pin::get(chain, &pin_of(log)).is_err() => {
            pin::create(chain, volume, &base, &pin_of(log), None)
        }
        _ => Ok(()),
    });
    if let Err(error) = kept {
        tracing::debug!(%error, "the commit under a stale log is kept for min-keep alone");
    }
}

/// Returns the newest commit of the writer of a log, from the chain or from a pin.
pub(crate) fn base_of(chain: &Chain, log: &str, epoch: u32) -> Result<Option<Manifest>> {
    let is_base = |manifest: &Manifest| manifest.epoch == epoch && manifest.marked(log).is_some();
    for &number in chain.listed()?.iter().rev() {
        match chain.get(number)? {
            Some((_, manifest)) if is_base(&manifest) => return Ok(Some(manifest)),
            Some((_, manifest)) if manifest.epoch < epoch => break,
            _ => {}
        }
    }
    let pinned = pin::all(chain)?.into_iter().map(|(_, manifest)| manifest);
    Ok(pinned.filter(is_base).max_by_key(|manifest| manifest.number))
}

impl Core {
    /// Pins this writer's newest commit after another writer has taken the volume, so that the log
    /// can be salvaged. Does nothing if that commit has all acknowledged writes (B2).
    pub(crate) fn keep_for_salvage(&self) {
        let is_behind = {
            let state = self.state.lock();
            // If a log was given up, its acknowledged writes are unknown.
            state.logging.as_ref().is_none_or(|logging| logging.durable > state.committed)
        };
        if is_behind && self.log.get().is_some() {
            keep_base(&self.chain.brief(), self.volume, &self.writer.id, self.epoch);
        }
    }

    /// Deletes the pin of the log's base, since the log in the folder is about to be removed (B2).
    /// A failure is only logged.
    pub(crate) fn release_base(&self) {
        let Some((log, _)) = self.cache.as_ref().and_then(Cache::held_log) else { return };
        match pin::delete(&self.chain.brief(), &pin_of(&log)) {
            Ok(()) | Err(Error::Pin { .. }) => {}
            Err(error) => tracing::warn!(%error, "the pin of a removed log stays"),
        }
    }
}
