//! Mount options of Linux's btrfs that have no effect here, and the words of `rescue=`.
//!
//! # Invariants
//!
//! - **L1** Every option of Linux's manual page has its effect, is in [`without_effect`], or is
//!   refused by name with the reason.
//! - **L2** A value that Linux refuses is refused here, even if the option has no effect.

use buttress_items::Result;

use super::{MountOptions, number, refuse};

/// Names of all options for users. Error messages about a misspelt option use them.
pub const OPTION_NAMES: &[&str] = &[
    "acl",
    "noacl",
    "autodefrag",
    "noautodefrag",
    "barrier",
    "nobarrier",
    "bg_reclaim_threshold",
    "check_int",
    "check_int_data",
    "check_int_print_mask",
    "clear_cache",
    "commit",
    "compress",
    "compress-force",
    "nocompress",
    "datacow",
    "nodatacow",
    "datasum",
    "nodatasum",
    "defaults",
    "degraded",
    "delete_room",
    "device",
    "dirty",
    "discard",
    "nodiscard",
    "enospc_debug",
    "noenospc_debug",
    "fatal_errors",
    "flushoncommit",
    "noflushoncommit",
    "fragment",
    "log_copies",
    "max_inline",
    "memory",
    "metadata_ratio",
    "nologreplay",
    "norecovery",
    "page_cache",
    "raid56",
    "recovery",
    "rescan_uuid_tree",
    "rescue",
    "skip_balance",
    "space_cache",
    "nospace_cache",
    "ssd",
    "nossd",
    "ssd_spread",
    "nossd_spread",
    "subvol",
    "subvolid",
    "thread_pool",
    "treelog",
    "notreelog",
    "usebackuproot",
    "user_subvol_rm_allowed",
    "atime",
    "noatime",
    "relatime",
    "strictatime",
    "nostrictatime",
    "diratime",
    "nodiratime",
    "lazytime",
    "nolazytime",
    "ro",
    "rw",
];

/// Options that have no effect here and need no report, because they request the usual behaviour.
const SO_ANYWAY: &[&str] = &[
    "acl",
    "barrier",
    "noautodefrag",
    "noenospc_debug",
    "nossd",
    "nossd_spread",
    "skip_balance",
    "atime",
    "norelatime",
    "nostrictatime",
    "iversion",
    "nomand",
    "loud",
    "silent",
];

/// Options that have an effect in Linux, but no effect here. The table in `docs/mount-options.md`
/// has the reasons.
const WITHOUT_EFFECT: &[&str] = &[
    "noacl",
    "autodefrag",
    "nobarrier",
    "check_int",
    "check_int_data",
    "enospc_debug",
    "inode_cache",
    "noinode_cache",
    "rescan_uuid_tree",
    "ref_verify",
    "ssd",
    "ssd_spread",
    "user_subvol_rm_allowed",
    "noiversion",
    "mand",
];

/// Accepts an option that has no effect here. Returns false for any other option.
///
/// # Errors
///
/// A value that Linux also refuses (L2).
pub(super) fn without_effect(options: &mut MountOptions, option: &str) -> Result<bool> {
    let (name, value) = match option.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (option, None),
    };
    match (name, value) {
        (name, None) if SO_ANYWAY.contains(&name) => return Ok(true),
        (name, None) if WITHOUT_EFFECT.contains(&name) => {}
        ("thread_pool", Some(_)) => {
            if number(option, value)? == 0 {
                return Err(refuse(option, "from 1 on"));
            }
        }
        ("metadata_ratio" | "check_int_print_mask" | "alloc_start", Some(_)) => {
            number(option, value)?;
        }
        ("remount", None) => {
            return Err(refuse(option, "changes a mount that is there, and this makes a new one"));
        }
        ("fatal_errors", Some("bug" | "panic")) => {}
        ("fatal_errors", _) => return Err(refuse(option, "is bug or panic")),
        ("fragment", Some("all" | "data" | "metadata")) => {}
        ("fragment", _) => return Err(refuse(option, "is all, data or metadata")),
        _ => return Ok(false),
    }
    let text = option.to_owned();
    if !options.without_effect.contains(&text) {
        options.without_effect.push(text);
    }
    Ok(true)
}

/// Applies the words of `rescue=`, separated by colons.
///
/// # Errors
///
/// An unknown word.
pub(super) fn rescue(options: &mut MountOptions, option: &str, words: &str) -> Result<()> {
    for word in words.split(':') {
        match word {
            "nologreplay" => options.nologreplay = true,
            "usebackuproot" => options.use_backup_root = true,
            "ignorebadroots" | "ibadroots" => options.ignore_bad_roots = true,
            "ignoredatacsums" | "idatacsums" => options.ignore_data_csums = true,
            "ignoremetacsums" | "imetacsums" => options.ignore_meta_csums = true,
            // Unknown superblock flags forbid only writing here, so a read-only mount needs no
            // option.
            "ignoresuperflags" | "isuperflags" => {}
            "all" => {
                options.nologreplay = true;
                options.use_backup_root = true;
                options.ignore_bad_roots = true;
                options.ignore_data_csums = true;
                options.ignore_meta_csums = true;
            }
            _ => {
                let words = "usebackuproot, nologreplay, ignorebadroots, ignoredatacsums, \
                     ignoremetacsums, ignoresuperflags or all";
                return Err(refuse(option, &format!("is {words}")));
            }
        }
    }
    Ok(())
}
