//! Checks whether this program can write a volume correctly. A volume with features that this
//! program cannot write yet is opened read-only.

use buttress_format::{BalanceItem, CompatRo, Incompat, QuotaStatus, Superblock, TreeId};
use buttress_tree::{Cursor, Roots, Store};
use buttress_volume::Volume;

use crate::{Result, quotas, replacement};

/// The first reason why the volume cannot be written, as text for the user.
pub(crate) fn obstacle(
    volume: &Volume,
    store: &Store,
    sb: &Superblock,
    roots: &Roots,
) -> Result<Option<String>> {
    if let Some(why) = volume.read_only_reason() {
        return Ok(Some(why));
    }
    let unknown = sb.incompat.without(Incompat::WRITABLE);
    if unknown.0 != 0 {
        let names = unknown.names().join(", ");
        return Ok(Some(format!("writing is not supported with {names}")));
    }
    let unknown = sb.compat_ro.without(CompatRo::WRITABLE);
    if unknown.0 != 0 {
        let names = unknown.names().join(", ");
        return Ok(Some(format!("writing is not supported with {names}")));
    }
    if sb.incompat.has(Incompat::MIXED_GROUPS) && sb.nodesize != sb.sectorsize {
        return Ok(Some("writing mixed block groups needs nodes of one sector".into()));
    }
    if let Some(what) = stripe_obstacle(sb, roots) {
        return Ok(Some(what.into()));
    }
    if let Some(what) = quota_obstacle(store, roots) {
        return Ok(Some(what));
    }
    if let Some(what) = replacement::obstacle(volume, store, roots) {
        return Ok(Some(what));
    }
    balance_obstacle(store, roots)
}

/// The reason why the stripe tree prevents writing, if there is one.
fn stripe_obstacle(sb: &Superblock, roots: &Roots) -> Option<&'static str> {
    if !sb.incompat.has(Incompat::RAID_STRIPE_TREE) {
        return None;
    }
    if sb.incompat.has(Incompat::RAID56) {
        // No released version of Linux says how items describe rows with parity.
        return Some("writing is not supported with a stripe tree and parity");
    }
    roots.find(TreeId::RAID_STRIPE).is_none().then_some("its stripe tree is missing")
}

/// The reason why quotas prevent writing, if there is one: they are unreadable or of an unknown
/// version.
fn quota_obstacle(store: &Store, roots: &Roots) -> Option<String> {
    match quotas::status(store, roots) {
        Err(error) => Some(format!("its quotas cannot be kept: {error}")),
        Ok(Some(status)) if status.version != QuotaStatus::VERSION => {
            Some(format!("writing is not supported with quotas of version {}", status.version))
        }
        Ok(_) => None,
    }
}

/// The reason why an interrupted balance prevents writing, if there is one. The item is looked up:
/// a walk over the root tree would make opening as slow as the number of subvolumes.
fn balance_obstacle(store: &Store, roots: &Roots) -> Result<Option<String>> {
    let root = roots.find(TreeId::ROOT).ok_or(buttress_tree::Error::NoTree(TreeId::ROOT))?;
    let first = BalanceItem::KEY;
    let cursor = Cursor::seek(store, TreeId::ROOT, root, &first)?;
    let key = cursor.key().filter(|key| (key.objectid, key.kind) == (first.objectid, first.kind));
    let is_senseless =
        key.is_some() && BalanceItem::parse(cursor.item().unwrap_or_default()).is_err();
    Ok(is_senseless
        .then(|| "writing is not supported with a balance that makes no sense".to_owned()))
}
