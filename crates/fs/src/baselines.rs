//! Mount options that replace mechanisms of Buttress by published ones, for comparison.
//!
//! In the shipped program each option has only one value, fixed at build time. The other values
//! exist with the feature `baselines`, for benches and tests.

use buttress_data::{NocowCheck, ReadBatch};
use buttress_txn::{AllocPolicy, GroupsRead, LookupPolicy, Preempt, ReservePolicy};

/// The mechanisms that a mount uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Baselines {
    /// Choice of the block group for an allocation (`alloc=`).
    pub alloc: AllocPolicy,
    /// Lookup of the block group of an address (`bg_lookup=`).
    pub bg_lookup: LookupPolicy,
    /// Whether block groups are read before the mount is usable (`bg_read=`).
    pub bg_read: GroupsRead,
    /// Which writes in place check that their extent is not shared (`nocow_check=`).
    pub nocow_check: NocowCheck,
    /// How much a reader reads at once when data is not in memory (`read_batch=`).
    pub read_batch: ReadBatch,
    /// When preemptive flushing starts (`preempt=`).
    pub preempt: Preempt,
    /// The rule for the metadata reservation of an item (`reserve=`).
    pub reserve: ReservePolicy,
}

impl Baselines {
    /// Applies an option. Returns false if the option selects none of these mechanisms.
    ///
    /// # Errors
    ///
    /// A text with the allowed values.
    #[cfg(feature = "baselines")]
    pub(crate) fn accept(&mut self, name: &str, value: &str) -> Result<bool, String> {
        match (name, value) {
            ("alloc", _) => self.alloc = value.parse()?,
            ("bg_lookup", _) => self.bg_lookup = value.parse()?,
            ("bg_read", _) => self.bg_read = value.parse()?,
            ("nocow_check", "always") => self.nocow_check = NocowCheck::Always,
            ("nocow_check", "remembered") => self.nocow_check = NocowCheck::Remembered,
            ("read_batch", "1") => self.read_batch = ReadBatch::One,
            ("read_batch", "16") => self.read_batch = ReadBatch::Sixteen,
            ("read_batch", "run") => self.read_batch = ReadBatch::Run,
            ("preempt", _) => {
                self.preempt = Preempt::parse(value).ok_or("is off or clamp")?;
            }
            ("reserve", "counted") => self.reserve = ReservePolicy::Counted,
            ("reserve", "levels") => self.reserve = ReservePolicy::Levels,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Without the feature `baselines` there are no such options.
    #[cfg(not(feature = "baselines"))]
    #[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "as the other")]
    pub(crate) fn accept(&mut self, _: &str, _: &str) -> Result<bool, String> {
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use crate::MountOptions;

    use super::*;

    /// Options select mechanisms and their baselines by name.
    #[test]
    fn mechanisms_parse() {
        let list = "alloc=linear-trylock,bg_lookup=rwlock-single,bg_read=behind,nocow_check=always";
        let options = MountOptions::parse(list).expect("list").baselines;
        assert_eq!(options.alloc, AllocPolicy::LinearTrylock);
        assert_eq!(options.bg_lookup, LookupPolicy::RwlockSingle);
        assert_eq!(options.bg_read, GroupsRead::Behind);
        assert_eq!(options.nocow_check, NocowCheck::Always);
        let text = MountOptions::parse("alloc=best").expect_err("no such").to_string();
        assert!(text.contains("index-goals"), "{text}");
    }
}
