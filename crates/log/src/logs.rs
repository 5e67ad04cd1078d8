//! The logs of one transaction, in memory.

use std::collections::BTreeMap;

use buttress_format::TreeId;
use buttress_txn::LoggedId;

use crate::tree::LogTree;

/// How much of an inode is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// Only the inode's changed names, and the items that replay needs to find the inode. For a
    /// directory, also the names that it lost.
    Exists,
    /// All items of the inode.
    Full,
}

/// The logs of one transaction.
#[derive(Debug, Default)]
pub(crate) struct Logs {
    pub(crate) trees: BTreeMap<TreeId, LogTree>,
    pub(crate) levels: BTreeMap<LoggedId, Level>,
}
