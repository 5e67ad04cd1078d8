//! Checks whether this program can write a volume correctly. A volume with features that this
//! program cannot write yet is opened read-only.

use buttress_format::{
    BalanceItem, CompatRo, Incompat, Key, Kind, QuotaStatus, Superblock, TreeId, ids,
};
use buttress_tree::{Cursor, Roots, Store};
use buttress_volume::Volume;

use crate::{Result, commit::quota_status, replacement};

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
    roots_obstacle(store, roots)
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
    match quota_status(store, roots) {
        Err(error) => Some(format!("its quotas cannot be kept: {error}")),
        Ok(Some(status)) if status.version != QuotaStatus::VERSION => {
            Some(format!("writing is not supported with quotas of version {}", status.version))
        }
        Ok(_) => None,
    }
}

/// The reason, found in the root tree, why the volume cannot be written. The check is one walk over
/// subvolumes.
fn roots_obstacle(store: &Store, roots: &Roots) -> Result<Option<String>> {
    let root = roots.find(TreeId::ROOT).ok_or(buttress_tree::Error::NoTree(TreeId::ROOT))?;
    let mut cursor = Cursor::seek(store, TreeId::ROOT, root, &Key::MIN)?;
    while let Some(key) = cursor.key() {
        let found = match key.kind {
            Kind::TEMPORARY_ITEM if key.objectid == ids::BALANCE => {
                let item = cursor.item().unwrap_or_default();
                BalanceItem::parse(item).is_err().then_some("a balance that makes no sense")
            }
            _ => None,
        };
        if let Some(what) = found {
            return Ok(Some(format!("writing is not supported with {what}")));
        }
        cursor.advance()?;
    }
    Ok(None)
}
