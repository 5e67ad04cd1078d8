//! Tells the devices which space is free.

use buttress_format::Logical;
use buttress_fs::{Filesystem, TrimOptions, TrimProgress};
use serde_json::{Value, json};

use crate::exit::{Context, Result};
use crate::order::{Step, Watch};

/// Trims a volume that is open.
pub(super) fn carry_out(
    fs: &Filesystem,
    options: TrimOptions,
    name: &str,
    watch: Watch<'_>,
) -> Result<Value> {
    let mut told = |progress: &TrimProgress| {
        watch(&Step { done: progress.done, total: progress.total, text: String::new() })
    };
    let found = fs.trim(options, &mut told).context(|| name)?;
    Ok(json!({ "trimmed_bytes": found.trimmed, "left_bytes": found.left }))
}

/// Returns the options for an order.
pub(super) fn options(offset: u64, length: u64, minimum: u64) -> TrimOptions {
    TrimOptions { from: Logical(offset), len: length, least: minimum }
}
