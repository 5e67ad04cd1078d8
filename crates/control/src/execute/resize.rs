//! Gives a device another size.

use buttress_format::DeviceId;
use buttress_fs::{BalanceProgress, Filesystem};
use serde_json::{Value, json};

use crate::exit::{Context, Exit, Failure, Result};
use crate::size;

/// Resizes a device of a volume that is open.
pub(super) fn carry_out(
    fs: &Filesystem,
    wanted: &str,
    name: &str,
    watch: &mut dyn FnMut(&BalanceProgress) -> bool,
) -> Result<Value> {
    let usage = |what: String| Failure::new(Exit::Usage, format!("{wanted}: {what}"));
    let (id, text) = wanted.split_once(':').unwrap_or(("1", wanted));
    let id = DeviceId(id.parse().map_err(|_| usage(format!("{id:?} is no number of a device")))?);
    let device = fs.devices().into_iter().find(|device| device.id == id);
    let device = device.ok_or_else(|| usage(format!("there is no device {id} here")))?;
    let now = device.item.total_bytes;
    let bytes = |text: &str| size::parse(text).map_err(&usage);
    let to = match (text, text.as_bytes().first()) {
        ("max", _) => device.len,
        (_, Some(b'+')) => now.saturating_add(bytes(&text[1..])?),
        (_, Some(b'-')) => now.saturating_sub(bytes(&text[1..])?),
        _ => bytes(text)?,
    };
    if to < now && device.can_grow {
        let why = "a volume in a store of objects does not shrink: its free space takes no room";
        return Err(usage(why.to_owned()));
    }
    fs.resize_device(id, to, watch).context(|| name)?;
    Ok(json!({ "devid": id.0, "from": now, "to": to }))
}
