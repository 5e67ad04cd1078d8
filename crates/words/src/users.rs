//! What `btrfs check` prints of the users of extents: the counts of quota groups, and the extents
//! of a subvolume.

use std::sync::Arc;

use buttress_block::Device;
use buttress_check::{GroupCounts, Options, QuotaCounts, UsedExtent};
use buttress_format::{Superblock, TreeId};
use serde_json::{Value, json};

use crate::exit::{Context, Exit, Result};
use crate::ui::Ui;

/// What to print in place of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// The counts of all quota groups.
    Groups,
    /// The extents of this subvolume.
    Extents(TreeId),
}

/// What was found.
#[derive(Debug)]
pub enum Found {
    /// The counts of all quota groups.
    Groups(QuotaCounts),
    /// The extents of this subvolume.
    Extents(TreeId, Vec<UsedExtent>),
}

impl Asked {
    /// Reads the volume. `held` is the superblock of a commit that a server keeps meanwhile, if the
    /// volume is mounted. `name` is what the command line calls the volume.
    ///
    /// # Errors
    ///
    /// A volume that cannot be read, or users that are not known.
    pub fn find(
        self,
        devices: Vec<Arc<dyn Device>>,
        held: Option<&Superblock>,
        options: &Options,
        name: &str,
    ) -> Result<Found> {
        let found = match self {
            Self::Groups => buttress_check::quota_counts(devices, held, options).map(Found::Groups),
            Self::Extents(tree) => buttress_check::extents_of(devices, held, options, tree)
                .map(|extents| Found::Extents(tree, extents)),
        };
        found.context(|| name)
    }
}

impl Found {
    /// The facts of the JSON document.
    #[must_use]
    pub fn to_json(&self) -> Value {
        match self {
            Self::Groups(counts) => json!({
                "rescanning": counts.is_rescanning,
                "inconsistent": counts.is_inconsistent,
                "groups": counts.groups.iter().map(group_to_json).collect::<Vec<_>>(),
            }),
            Self::Extents(tree, extents) => {
                let to_json = |used: &UsedExtent| {
                    let users: Vec<u64> = used.users.iter().map(|user| user.0).collect();
                    json!({
                        "start": used.extent.start.0,
                        "bytes": used.extent.len,
                        "subvolumes": users,
                    })
                };
                let extents: Vec<Value> = extents.iter().map(to_json).collect();
                json!({ "subvolume": tree.0, "extents": extents })
            }
        }
    }

    /// Prints the lines of btrfs-progs.
    ///
    /// # Errors
    ///
    /// Standard output that cannot be written.
    pub fn print(&self, name: &str, uuid: &str, ui: &Ui) -> Result<()> {
        match self {
            Self::Groups(counts) => {
                ui.line(format!("Print quota groups for {name}\nUUID: {uuid}"))?;
                if counts.is_rescanning {
                    ui.line("Qgroup rescan is running, a difference in qgroup counts is expected")?;
                } else if counts.is_inconsistent {
                    // The word is misspelt in btrfs-progs, and scripts may look for it.
                    ui.line(
                        "Rescan hasn't been initialzied, a difference in qgroup accounting is \
                         expected",
                    )?;
                }
                counts.groups.iter().try_for_each(|group| print_group(group, ui))
            }
            Self::Extents(tree, extents) => {
                let tree = tree.0;
                ui.line(format!("Print extent state for subvolume {tree} on {name}"))?;
                ui.line(format!("UUID: {uuid}\nOffset\t\tLen\tRoot Refs\tRoots"))?;
                extents.iter().try_for_each(|used| {
                    let (at, len, count) = (used.extent.start.0, used.extent.len, used.users.len());
                    let users: String =
                        used.users.iter().map(|user| format!("{} ", user.0)).collect();
                    ui.line(format!("{at}\t{len}\t{count}\t{users}"))
                })
            }
        }
    }

    /// The exit code: 1 if counts are wrong.
    #[must_use]
    pub fn exit(&self) -> Exit {
        match self {
            Self::Groups(counts) if counts.are_wrong() => Exit::Failure,
            _ => Exit::Success,
        }
    }
}

fn group_to_json(group: &GroupCounts) -> Value {
    json!({
        "group": group.group.to_string(),
        "differs": group.differs(),
        "referenced_bytes": group.referenced,
        "exclusive_bytes": group.exclusive,
        "recorded_referenced_bytes": group.recorded.referenced,
        "recorded_exclusive_bytes": group.recorded.exclusive,
    })
}

/// The counted and the recorded bytes of a group, and their difference if there is one.
fn print_group(counts: &GroupCounts, ui: &Ui) -> Result<()> {
    let word = if counts.differs() { "are different" } else { "" };
    ui.line(format!("Counts for qgroup id: {} {word}", counts.group))?;
    let recorded = &counts.recorded;
    let fields = [
        ("referenced", counts.referenced, recorded.referenced, recorded.referenced_compressed),
        ("exclusive", counts.exclusive, recorded.exclusive, recorded.exclusive_compressed),
    ];
    for (name, ours, on_disk, compressed) in fields {
        let line = |what: &str, bytes: &str, compressed: &str| {
            format!("{what}:\t\t{name} {bytes} {name} compressed {compressed}")
        };
        let own = ours.to_string();
        ui.line(line("our", &own, &own))?;
        ui.line(line("disk", &on_disk.to_string(), &compressed.to_string()))?;
        if ours != on_disk {
            // A count below zero is recorded as a very large number.
            let difference = ours.wrapping_sub(on_disk).cast_signed().to_string();
            ui.line(line("diff", &difference, &difference))?;
        }
    }
    Ok(())
}
