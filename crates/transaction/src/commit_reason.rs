//! Why an fsync makes a commit where it could have written a log.

use std::fmt;

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident, $name:literal, $label:literal;)*) => {
        /// The reason why an fsync makes a commit, and not a log.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum CommitReason {
            $($(#[$doc])* $variant,)*
        }

        impl CommitReason {
            /// All reasons.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The name of the reason in `stats --json`. It never changes.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// The reason in words, for messages.
            #[must_use]
            pub fn label(self) -> &'static str {
                match self {
                    $(Self::$variant => $label,)*
                }
            }
        }
    };
}

reasons! {
    /// The last commit failed.
    FailedCommit, "failed_commit", "the last commit failed";
    /// The transaction makes a snapshot.
    Snapshot, "snapshot", "a snapshot is being made";
    /// The transaction adds, removes or changes a device.
    DeviceChange, "device_change", "a device is being added, removed or changed";
    /// The transaction moves nodes or data.
    Balance, "balance", "a balance is moving nodes or data";
    /// Names must become durable together.
    GroupedChanges, "grouped_changes", "changes must become durable together";
    /// The volume has a stripe tree. Linux cannot read the data of a log there.
    StripeTree, "stripe_tree", "the volume has a stripe tree";
    /// The transaction needs a feature that the superblock does not have yet.
    NewFeature, "new_feature", "the superblock lacks a feature that is needed";
    /// The running transaction does not follow the durable one.
    SkippedGeneration, "skipped_generation", "a generation was left out";
    /// The last log was not finished.
    UnfinishedLog, "unfinished_log", "the last log was not finished";
    /// Writing the log failed.
    FailedLog, "failed_log", "the log could not be written";
    /// There is no space for a log.
    NoLogSpace, "no_log_space", "there is no space for a log";
    /// Little metadata space is left for the next commit.
    LowMetadata, "low_metadata", "there is little space for metadata";
    /// The log would be longer than a log may be.
    LongLog, "long_log", "the log would be too long";
    /// More subvolumes changed than a log can have.
    ManySubvolumes, "many_subvolumes", "too many subvolumes changed";
    /// More inodes belong to the log than a log can have.
    ManyInodes, "many_inodes", "too many inodes belong together";
    /// A subvolume is newer than the last commit.
    NewSubvolume, "new_subvolume", "the subvolume is new";
    /// The name of a subvolume changed.
    SubvolumeName, "subvolume_name", "the name of a subvolume changed";
    /// A directory moved to another directory.
    MovedDirectory, "moved_directory", "a directory moved";
    /// A directory of the log was removed.
    RemovedDirectory, "removed_directory", "a directory in the log was removed";
    /// The name was in a directory that is gone.
    RemovedParent, "removed_parent", "the directory of a name was removed";
    /// A directory gives a name up that another entry takes.
    ReplacedDirectory, "replaced_directory", "a directory loses its name";
    /// The file has, or gets, a Merkle tree.
    Verity, "verity", "fs-verity of the file changed";
    /// The data is in a chunk that no commit has made durable.
    NewChunk, "new_chunk", "the data is in a new chunk";
    /// The data is in preallocated space of another file.
    SharedPreallocation, "shared_preallocation", "the data is in preallocated space of another file";
}

impl fmt::Display for CommitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_words_of_scripts() {
        for (at, reason) in CommitReason::ALL.iter().enumerate() {
            let is_word = |c: char| c.is_ascii_lowercase() || c == '_';
            assert!(reason.name().chars().all(is_word), "{reason:?}");
            let same = |other: &&CommitReason| other.name() == reason.name();
            assert_eq!(CommitReason::ALL.iter().position(|other| same(&other)), Some(at));
        }
    }
}
