//! Orders about quotas.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};

use buttress_base::text;
use buttress_fs::{Filesystem, QuotaGroup, QuotaLimit, QuotaStatus, Quotas as Found};
use serde_json::Value;

use crate::exit::{Context, Result};
use crate::order::{Group, PathInVolume, QuotaAct, Quotas, Step, Watch};

/// Bytes of nodes between two reports of a rescan.
const STEP_BYTES: u64 = 4 << 20;

/// The number of rescans that threads of this process run now. A process serves one volume.
static COUNTS: AtomicUsize = AtomicUsize::new(0);

/// A running rescan, which ends when this value is dropped.
struct Count;

impl Count {
    fn begin() -> Self {
        COUNTS.fetch_add(1, Ordering::Relaxed);
        Self
    }

    fn is_running() -> bool {
        COUNTS.load(Ordering::Relaxed) > 0
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        COUNTS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Carries an order about quotas out.
pub(super) fn carry_out(
    fs: &Filesystem,
    act: &QuotaAct,
    name: &str,
    watch: Watch<'_>,
) -> Result<Value> {
    let relate = |child, parent, rescan, joins| -> Result<bool> {
        let (child, parent) = (QuotaGroup(child), QuotaGroup(parent));
        let done = match joins {
            true => fs.join_quota_group(child, parent),
            false => fs.leave_quota_group(child, parent),
        };
        done.context(|| format!("{child} and {parent}"))?;
        let is_old = |found: &Found| found.status.flags & QuotaStatus::INCONSISTENT != 0;
        let counts = rescan && fs.quotas().context(|| name)?.as_ref().is_some_and(is_old);
        if counts {
            let _count = Count::begin();
            fs.count_quotas().context(|| name)?;
        }
        Ok(counts)
    };
    match *act {
        QuotaAct::Enable { simple } => {
            let _count = (!simple).then(Count::begin);
            fs.enable_quotas(simple).context(|| name)?;
        }
        QuotaAct::Disable => fs.disable_quotas().context(|| name)?,
        QuotaAct::Rescan => {
            let _count = Count::begin();
            rescan(fs, watch).context(|| name)?;
        }
        QuotaAct::Show => return show(fs, None, name),
        QuotaAct::ShowAt { ref at } => return show(fs, Some(at), name),
        QuotaAct::Create { group } => {
            let group = QuotaGroup(group);
            fs.make_quota_group(group).context(|| group.to_string())?;
        }
        QuotaAct::Destroy { group } => {
            let group = QuotaGroup(group);
            fs.remove_quota_group(group).context(|| group.to_string())?;
        }
        QuotaAct::ClearStale => clear_stale(fs, name)?,
        QuotaAct::Assign { child, parent, rescan } => {
            return relate(child, parent, rescan, true).map(Value::from);
        }
        QuotaAct::Remove { child, parent, rescan } => {
            return relate(child, parent, rescan, false).map(Value::from);
        }
        QuotaAct::Limit { group, ref at, size, exclusive } => {
            let group = match group {
                Some(group) => QuotaGroup(group),
                None => QuotaGroup::of(at.inode(fs)?.id().tree),
            };
            let set = |limit: &mut QuotaLimit| {
                let (flag, place) = match exclusive {
                    true => (QuotaLimit::EXCLUSIVE, &mut limit.exclusive),
                    false => (QuotaLimit::REFERENCED, &mut limit.referenced),
                };
                *place = size.unwrap_or(0);
                limit.flags = limit.flags & !flag | if size.is_some() { flag } else { 0 };
            };
            fs.limit_quota_group(group, set).context(|| group.to_string())?;
        }
    }
    Ok(Value::Null)
}

/// Counts everything again, and reports progress. A count that has begun goes on to its end.
fn rescan(fs: &Filesystem, watch: Watch<'_>) -> buttress_fs::Result<()> {
    // Nodes of trees without files are not counted, so the bar ends a little early.
    let total = fs.space_stats().accounts.metadata.used;
    let (mut done, mut shown) = (0, 0);
    fs.count_quotas_watched(&mut |bytes| {
        done += bytes;
        if done - shown >= STEP_BYTES {
            shown = done;
            watch(&Step { done: done.min(total), total, text: String::new() });
        }
    })
}

fn clear_stale(fs: &Filesystem, name: &str) -> Result<()> {
    let paths = paths(fs, name)?;
    let dying = fs.dying_subvolumes().context(|| name)?;
    let dying: BTreeSet<u64> = dying.into_iter().map(|tree| tree.0).collect();
    let Some(found) = fs.quotas().context(|| name)? else { return Ok(()) };
    let is_kept = |group: QuotaGroup| {
        group.level() > 0 || paths.contains_key(&group.0) || dying.contains(&group.0)
    };
    // With simple quotas, extents that a deleted subvolume made may live on in its snapshots.
    let is_used = |simple: bool, bytes: u64| simple && bytes > 0;
    let simple = found.status.is_simple();
    for known in &found.groups {
        if !is_kept(known.group) && !is_used(simple, known.info.referenced) {
            fs.remove_quota_group(known.group).context(|| known.group.to_string())?;
        }
    }
    Ok(())
}

/// The paths of all subvolumes from the top level.
fn paths(fs: &Filesystem, name: &str) -> Result<BTreeMap<u64, String>> {
    let all = fs.subvolumes().context(|| name)?;
    Ok(all.into_iter().map(|found| (found.tree.0, text::encode(&found.path))).collect())
}

fn show(fs: &Filesystem, at: Option<&PathInVolume>, name: &str) -> Result<Value> {
    let found = fs.quotas().context(|| name)?;
    let mut paths = paths(fs, name)?;
    let names = |groups: &[QuotaGroup]| groups.iter().map(ToString::to_string).collect();
    let has = |flag| found.as_ref().is_some_and(|found| found.status.flags & flag != 0);
    let groups = found.iter().flat_map(|found| &found.groups);
    let groups = groups.map(|known| Group {
        qgroupid: known.group.to_string(),
        referenced: known.info.referenced,
        exclusive: known.info.exclusive,
        max_referenced: known.limit.max_referenced(),
        max_exclusive: known.limit.max_exclusive(),
        parents: names(&known.parents),
        children: names(&known.children),
        path: paths.remove(&known.group.0),
    });
    let groups = groups.collect();
    let subvolume = at.map(|at| at.inode(fs).map(|inode| inode.id().tree.0)).transpose()?;
    let document = Quotas {
        enabled: found.is_some(),
        simple: has(QuotaStatus::SIMPLE),
        // A rescan that Linux began, and did not end, is not running.
        inconsistent: has(QuotaStatus::INCONSISTENT | QuotaStatus::RESCAN),
        rescan_running: found.is_some() && Count::is_running(),
        subvolume,
        groups,
    };
    serde_json::to_value(document).context(|| "output")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use buttress_block::{Device, MemoryDevice};
    use buttress_fs::{MakeOptions, MountOptions};

    use super::*;

    /// A rescan is shown as running until the rescan ends, and no longer.
    #[test]
    fn a_running_count_is_shown() {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(256 << 20));
        Filesystem::make(&*device, &MakeOptions::default()).expect("a volume");
        let fs = Filesystem::open(vec![device], MountOptions::default()).expect("open");
        let order = |act| carry_out(&fs, &act, "volume", &mut |_| true).expect("carried out");
        order(QuotaAct::Enable { simple: false });
        let is_running = || order(QuotaAct::Show)["rescan_running"] == true;
        assert!(!is_running(), "the count of the enabling has ended");
        let count = Count::begin();
        order(QuotaAct::Rescan);
        assert!(is_running(), "another count goes on");
        drop(count);
        assert!(!is_running());
        fs.close().expect("closed");
    }
}
