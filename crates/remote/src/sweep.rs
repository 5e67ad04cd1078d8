//! Finds objects of writers that ended before a commit named the objects, and deletes them.
//!
//! # Invariants
//!
//! - **Y1** Only objects of earlier epochs are deleted: the writers of these epochs can make no
//!   more commits. This writer's table has all objects of earlier epochs that a commit needs. The
//!   manifest names the objects of the table itself. So an object that neither the table nor the
//!   manifest has is not needed, even if the store's list is old.

use crate::chain::Chain;
use crate::collect::Collected;
use crate::core::Core;
use crate::error::Result;
use crate::names::Names;

/// The number of parts into which the names of objects are divided.
pub(crate) const PARTS: u32 = 256;

impl Core {
    /// Sweeps the next part of the names, unless all parts were swept since the opening.
    pub(crate) fn sweep_next(&self, chain: &Chain, done: &mut Collected) -> Result<()> {
        let part = {
            let mut state = self.state.lock();
            let part = state.swept;
            state.swept = (part + 1).min(PARTS);
            part
        };
        if part >= PARTS {
            return Ok(());
        }
        for kind in ["data", "map"] {
            self.sweep(chain, &chain.names.folder(&format!("{kind}/{part:02x}")), done)?;
        }
        Ok(())
    }

    /// Sweeps all parts at once.
    pub(crate) fn sweep_all(&self, chain: &Chain, done: &mut Collected) -> Result<()> {
        for kind in ["data", "map"] {
            self.sweep(chain, &chain.names.folder(kind), done)?;
        }
        self.state.lock().swept = PARTS;
        Ok(())
    }

    fn sweep(&self, chain: &Chain, folder: &str, done: &mut Collected) -> Result<()> {
        for meta in chain.store.list(folder)? {
            let Some((epoch, number)) = Names::object_of(&meta.name) else { continue };
            let is_needed = {
                let state = self.state.lock();
                if state.is_closing {
                    return Ok(());
                }
                let entry = state.map.table.get(number);
                let mut tables = state.tables.iter();
                entry.is_some_and(|entry| entry.epoch == epoch)
                    || tables.any(|part| part.at.object == number && part.epoch == epoch)
            };
            if epoch < self.epoch && !is_needed {
                chain.store.delete(&meta.name)?;
                done.orphans += 1;
                done.bytes += meta.len;
            }
        }
        Ok(())
    }
}
