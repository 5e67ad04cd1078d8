//! Orders about quotas.

use std::collections::BTreeMap;

use buttress_base::text;
use buttress_fs::{Filesystem, QuotaGroup, QuotaLimit, QuotaStatus, Quotas as Found};
use serde_json::Value;

use crate::exit::{Context, Result};
use crate::order::{Group, QuotaAct, Quotas, Spot};

/// Carries an order about quotas out.
pub(super) fn carry_out(fs: &Filesystem, act: &QuotaAct, name: &str) -> Result<Value> {
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
            fs.count_quotas().context(|| name)?;
        }
        Ok(counts)
    };
    match *act {
        QuotaAct::Enable { simple } => fs.enable_quotas(simple).context(|| name)?,
        QuotaAct::Disable => fs.disable_quotas().context(|| name)?,
        QuotaAct::Rescan => fs.count_quotas().context(|| name)?,
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

fn clear_stale(fs: &Filesystem, name: &str) -> Result<()> {
    let paths = paths(fs, name)?;
    let dying = fs.dying_subvolumes().context(|| name)?;
    let Some(found) = fs.quotas().context(|| name)? else { return Ok(()) };
    let is_kept = |group: QuotaGroup| {
        group.level() > 0
            || paths.contains_key(&group.0)
            || dying.iter().any(|tree| tree.0 == group.0)
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

fn show(fs: &Filesystem, at: Option<&Spot>, name: &str) -> Result<Value> {
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
        inconsistent: has(QuotaStatus::INCONSISTENT),
        rescan_running: has(QuotaStatus::RESCAN),
        subvolume,
        groups,
    };
    serde_json::to_value(document).context(|| "output")
}
