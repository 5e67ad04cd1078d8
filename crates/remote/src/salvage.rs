//! Salvage: copies the content of a local log to another device, if the log no longer fits its
//! volume.
//!
//! # Invariants
//!
//! - **X1** The result is the content at the log's last whole cut: the newest commit of the log's
//!   writer, with the log applied. Neither the volume nor the log changes.

use std::sync::Arc;

use buttress_block::{Device, Space};

use crate::cache::Cache;
use crate::copy::copy;
use crate::error::{Error, Result};
use crate::local::{Run, each_run};
use crate::log::record::Says;
use crate::log::scan;
use crate::log_base::base_of;
use crate::manifest::Writer;
use crate::open::Site;
use crate::options::Options;
use crate::units::SECTOR;
use crate::unsent::Unsent;

impl Site {
    /// Writes the last acknowledged content of the log in the options' `cache_dir` to a device.
    /// `target` makes this device, given its length. Returns the writes of the log that the newest
    /// commit of the log's writer lacks.
    ///
    /// # Errors
    ///
    /// [`Error::Cache`] if there is no such log, or the commit on which the log was written is
    /// gone.
    pub fn salvage(
        &self,
        target: impl FnOnce(u64) -> Result<Arc<dyn Device>>,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Unsent> {
        let dir = self.options.cache_dir.clone().unwrap_or_default();
        let wrong =
            |why: &str| Error::Cache { dir: dir.display().to_string(), why: why.to_owned() };
        let chain = self.chain();
        let none = || Error::NoVolume { place: self.place.clone() };
        let (volume, _) = chain.head()?.ok_or_else(none)?;
        if !dir.join("identity").exists() {
            return Err(wrong("is no cache"));
        }
        let seal = self.cache_seal(volume)?;
        let cache = Cache::open(&dir, volume, seal)?;
        let cache = cache.ok_or_else(|| wrong("another process has it"))?;
        let (log, epoch) = cache.held_log().ok_or_else(|| wrong("has no log"))?;
        let base = base_of(&chain, &log, epoch)?;
        let base = base.ok_or_else(|| wrong("the commit that its log was written on is gone"))?;
        let committed = base.marked(&log).unwrap_or(0);
        let found = cache.found(&base, committed)?.map(|(_, found)| found).unwrap_or_default();
        if found.begins > committed {
            return Err(wrong("its log begins after the newest commit of its writer"));
        }
        let may_be_plain = Cache::may_be_plain(&base);
        let options = Options { write: false, cache_dir: None, ..self.options.clone() };
        let reading = Self { options, ..self.clone() };
        let source = reading.open_at(chain, volume, base, Writer::this())?;
        let target = target(source.len())?;
        copy(&source, &*target, progress)?;
        let folder = cache.log_dir();
        let wanted = cache.wanted(&folder, &log, may_be_plain);
        let sectors = source.len() / SECTOR;
        scan::walk(wanted, &mut |whole| {
            let is_cut = matches!(whole.record.says, Says::Cut { .. });
            if is_cut || !found.adds(&whole.record, committed) {
                return Ok(());
            }
            each_run(whole, sectors, &mut |run| {
                match run {
                    Run::Data(first, content) => target.write_at(first.0 * SECTOR, content)?,
                    Run::Hole(first, count) => {
                        target.write_zeroes(first.0 * SECTOR, count * SECTOR, Space::Free)?;
                    }
                }
                Ok(())
            })
        })?;
        target.flush()?;
        Ok(found.unsent())
    }
}
