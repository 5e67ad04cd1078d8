//! Requests about quotas, and their results: plain data.

use serde::{Deserialize, Serialize};

use super::PathInVolume;

/// An action on quotas. A group is one number, as on disk: the level in the upper 16 bits, and the
/// number in the lower 48 bits ([`group`]).
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QuotaAct {
    /// Begin to keep quotas.
    Enable {
        /// Whether an extent counts for the subvolume that made it, and for no other.
        simple: bool,
    },
    /// Stop keeping quotas.
    Disable,
    /// Count everything anew.
    Rescan,
    /// Say how quotas are kept, and list all groups.
    Show,
    /// Say which subvolume a place belongs to, and list all groups.
    ShowAt {
        /// The place.
        at: PathInVolume,
    },
    /// Make a group.
    Create {
        /// The group.
        group: u64,
    },
    /// Remove a group.
    Destroy {
        /// The group.
        group: u64,
    },
    /// Remove the groups of subvolumes that are gone.
    ClearStale,
    /// Make a group a member of another.
    Assign {
        /// The member.
        child: u64,
        /// The group that it joins.
        parent: u64,
        /// Whether to count anew if the counts become inconsistent.
        rescan: bool,
    },
    /// End a membership.
    Remove {
        /// The member.
        child: u64,
        /// The group that it leaves.
        parent: u64,
        /// Whether to count anew if the counts become inconsistent.
        rescan: bool,
    },
    /// Set or remove a limit.
    Limit {
        /// The group. `None` means the group of the subvolume at `at`.
        group: Option<u64>,
        /// A place in a subvolume.
        at: PathInVolume,
        /// The most bytes. `None` removes the limit.
        size: Option<u64>,
        /// Whether only bytes that no other group uses are limited.
        exclusive: bool,
    },
}

/// Quotas as they are shown.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Quotas {
    /// Whether quotas are kept at all.
    pub enabled: bool,
    /// Whether quotas are simple.
    pub simple: bool,
    /// Whether the counts are wrong until the next rescan.
    pub inconsistent: bool,
    /// Whether the process that has the volume open runs a rescan now.
    pub rescan_running: bool,
    /// The subvolume that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subvolume: Option<u64>,
    /// All groups, by number.
    pub groups: Vec<Group>,
}

/// One group as it is shown.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Group {
    /// Its level and number, as in `1/100`.
    pub qgroupid: String,
    /// Bytes that its members use.
    pub referenced: u64,
    /// Bytes that no other group uses.
    pub exclusive: u64,
    /// The limit of `referenced`, if there is one.
    pub max_referenced: Option<u64>,
    /// The limit of `exclusive`, if there is one.
    pub max_exclusive: Option<u64>,
    /// Groups that it is a member of.
    pub parents: Vec<String>,
    /// Its members.
    pub children: Vec<String>,
    /// The path of its subvolume from the top level; `None` for a group of a higher level, and if
    /// the subvolume is gone.
    pub path: Option<String>,
}

/// Reads `LEVEL/NUMBER`, or the number of a subvolume.
///
/// # Errors
///
/// A sentence about the expected form.
pub fn group(text: &str) -> Result<u64, String> {
    let (level, number) = text.split_once('/').unwrap_or(("0", text));
    let parsed = level.parse::<u16>().ok().zip(number.parse::<u64>().ok());
    let parsed = parsed.filter(|(_, number)| *number < 1 << 48);
    parsed
        .map(|(level, number)| u64::from(level) << 48 | number)
        .ok_or_else(|| format!("{text:?} is no group such as 1/100, and no number of a subvolume"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_levels_and_numbers() {
        assert_eq!(group("0/256"), Ok(256));
        assert_eq!(group("256"), Ok(256));
        assert_eq!(group("1/7"), Ok(1 << 48 | 7));
        for wrong in ["", "/", "1/", "a/1", "70000/1", "1/281474976710656", "1/2/3"] {
            group(wrong).expect_err(wrong);
        }
    }
}
