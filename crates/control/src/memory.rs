//! The memory budget of a server or a verb, and its parts.
//!
//! # Invariants
//!
//! - **B1** The default budget is a sixteenth of the machine's memory, at least 128 MiB. It is
//!   never above a quarter of the control group's limit.
//! - **B2** All parts together are within the budget. In a default budget, each part also has a
//!   limit, above which more memory would bring little. A requested budget is divided into four
//!   equal parts.

use std::fs;
use std::path::{Path, PathBuf};

use buttress_fs::MountOptions;

use crate::size;

const MIB: u64 = 1 << 20;

/// The smallest default budget, unless the limit of a control group demands less.
const LEAST: u64 = 128 * MIB;

/// Limits of the parts of a default budget, in bytes: nodes, pages of files, dirty data,
/// uncommitted changes.
const NODES_MAX: u64 = 256 * MIB;
const PAGES_MAX: u64 = 64 * MIB;
const DIRTY_MAX: u64 = 128 * MIB;
const CHANGES_MAX: u64 = 192 * MIB;

/// The most memory for inodes that the kernel knows.
const KNOWN_MAX: u64 = 64 * MIB;

/// The most memory of requests that is kept while no large request uses it.
const REQUESTS_MAX: u64 = 64 * MIB;

/// The budget of a verb that opens a volume in a way of its own.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct Memory {
    /// Memory for tree nodes, data and sorting. The default is a sixteenth of the machine, at least
    /// 128M, but at most a quarter of the limit of the control group.
    #[arg(long = "memory", value_name = "SIZE", value_parser = size::parse)]
    pub asked: Option<u64>,
}

impl Memory {
    /// The options of a volume within the budget.
    #[must_use]
    pub fn options(self) -> MountOptions {
        options(self.asked)
    }

    /// The whole budget, in bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.asked.unwrap_or_else(by_default)
    }

    /// The part of the budget for nodes of trees, in bytes.
    #[must_use]
    pub fn nodes(self) -> u64 {
        Parts::of(&self.options()).nodes
    }
}

/// Returns the options of a volume for a requested budget, or for the default budget (B1, B2).
#[must_use]
pub fn options(asked: Option<u64>) -> MountOptions {
    match asked {
        Some(bytes) => MountOptions::default().with_memory(bytes),
        None => within(MountOptions::default(), by_default()),
    }
}

/// Limits of the parts of a volume that is only filled, in bytes: nodes, dirty data, uncommitted
/// changes. The content of such a volume is not read again, and a commit frees the memory.
const FILLED_NODES_MAX: u64 = 16 * MIB;
const FILLED_DIRTY_MAX: u64 = 16 * MIB;
const FILLED_CHANGES_MAX: u64 = 12 * MIB;

/// Returns the options of a volume that is only filled. Such a volume needs little memory, however
/// much data comes in. If `is_fixed`, nothing depends on the machine, so each commit has the same
/// changes on every machine. The caller then runs no background threads. Without these threads, a
/// commit begins at twice the limit of changes, so the limit is halved.
#[must_use]
pub fn to_fill(is_fixed: bool) -> MountOptions {
    let (budget, parts) = if is_fixed { (LEAST, 2) } else { (by_default(), 1) };
    let mut options = within(MountOptions::default(), budget);
    options.node_cache_bytes = options.node_cache_bytes.map(|bytes| bytes.min(FILLED_NODES_MAX));
    options.overlay_bytes_max =
        options.overlay_bytes_max.map(|bytes| bytes.min(FILLED_CHANGES_MAX / parts));
    options.dirty_bytes_max = options.dirty_bytes_max.min(FILLED_DIRTY_MAX);
    options.page_cache_bytes = 0;
    options
}

/// Returns options within a budget of `bytes`, with the limits of the parts (B2).
fn within(options: MountOptions, bytes: u64) -> MountOptions {
    let mut options = options.with_memory(bytes);
    options.node_cache_bytes = options.node_cache_bytes.map(|bytes| bytes.min(NODES_MAX));
    options.overlay_bytes_max = options.overlay_bytes_max.map(|bytes| bytes.min(CHANGES_MAX));
    options.page_cache_bytes = options.page_cache_bytes.min(PAGES_MAX);
    options.dirty_bytes_max = options.dirty_bytes_max.min(DIRTY_MAX);
    options
}

/// The parts of a mount's budget, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// Nodes of trees.
    pub nodes: u64,
    /// Clean data of files. Zero unless the option `page_cache` asks for it.
    pub pages: u64,
    /// Written data that is on no device yet.
    pub dirty: u64,
    /// Changes that are not committed.
    pub changes: u64,
    /// Inodes that the kernel knows. This part has half as many bytes as the part for nodes, up to
    /// 64 MiB. A mount has no pages of files, so the memory for pages goes to these inodes, to
    /// requests, and to small objects.
    pub known: u64,
    /// Requests and their answers. This part has a quarter as many bytes as the part for nodes, up
    /// to 64 MiB.
    pub requests: u64,
}

impl Parts {
    /// Returns the parts according to options that [`options`] made.
    #[must_use]
    pub fn of(options: &MountOptions) -> Self {
        let nodes = options.node_cache_bytes.unwrap_or(NODES_MAX);
        Self {
            nodes,
            pages: options.page_cache_bytes,
            dirty: options.dirty_bytes_max,
            changes: options.overlay_bytes_max.unwrap_or(CHANGES_MAX),
            known: (nodes / 2).min(KNOWN_MAX),
            requests: (nodes / 4).min(REQUESTS_MAX),
        }
    }
}

/// The budget of this process in bytes (B1).
#[must_use]
pub fn by_default() -> u64 {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| total(&text));
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    budget(machine.unwrap_or(0), group_limit(Path::new("/sys/fs/cgroup"), &own))
}

fn budget(machine: u64, limit: Option<u64>) -> u64 {
    let share = (machine / 16).max(LEAST);
    limit.map_or(share, |limit| share.min(limit / 4))
}

/// The machine's memory in bytes, from the text of `/proc/meminfo`.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find(|line| line.starts_with("MemTotal:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
}

/// The smallest limit of the control groups that this process is in, of version 1 or 2. `own` is
/// the text of `/proc/self/cgroup`.
fn group_limit(root: &Path, own: &str) -> Option<u64> {
    let limits = own.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let (top, file) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            list if list.split(',').any(|name| name == "memory") => {
                (root.join("memory"), "memory.limit_in_bytes")
            }
            _ => return None,
        };
        let inner: PathBuf = path.trim_start_matches('/').into();
        // The limits of all groups above apply as well. Inside a container, some of these groups
        // are not visible.
        let groups = inner.ancestors().map(|group| top.join(group).join(file));
        groups.filter_map(|file| fs::read_to_string(file).ok()?.trim().parse::<u64>().ok()).min()
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// B1: the budget is a share of the machine's memory, within the limit of the control group.
    #[test]
    fn budget_is_a_share_of_the_machine_within_the_group() {
        assert_eq!(budget(32 << 30, None), 2 << 30);
        assert_eq!(budget(1 << 30, None), LEAST);
        assert_eq!(budget(32 << 30, Some(4 << 30)), 1 << 30);
        assert_eq!(budget(32 << 30, Some(256 * MIB)), 64 * MIB);
        assert_eq!(budget(32 << 30, Some(u64::MAX)), 2 << 30);
        assert_eq!(total("MemTotal:       24576 kB\nMemFree: 1 kB\n"), Some(24 * MIB));
    }

    /// Tests B1.
    /// Limits of both versions apply, and also those of the groups above.
    #[test]
    fn group_has_the_limits_of_those_above_it() {
        let root = tempfile::tempdir().expect("a folder");
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        };
        let limit = |own: &str| group_limit(root.path(), own);
        assert_eq!(limit("0::/a/b\n"), None);
        put("a/memory.max", "1000\n");
        put("a/b/memory.max", "max\n");
        assert_eq!(limit("0::/a/b\n"), Some(1000));
        assert_eq!(limit("0::/\n"), None);
        put("memory/x/memory.limit_in_bytes", "500\n");
        assert_eq!(limit("5:cpu:/x\n4:cpuset,memory:/x/y\n0::/a\n"), Some(500));
    }

    /// Tests B2.
    /// A requested budget bounds the nodes of a verb that opens a volume in its own way.
    #[test]
    fn asked_memory_has_a_part_for_nodes() {
        let asked = Memory { asked: Some(32 * MIB) };
        assert_eq!((asked.bytes(), asked.nodes()), (32 * MIB, 8 * MIB));
        assert_eq!(asked.options().dirty_bytes_max, 8 * MIB);
        let usual = Memory::default();
        assert_eq!(usual.bytes(), by_default());
        assert!(usual.nodes() <= NODES_MAX.min(usual.bytes() / 4));
    }

    /// B2: the parts are within the budget, and none is above its limit.
    #[test]
    fn parts_are_within_the_budget() {
        for budget in [16 * MIB, LEAST, 1 << 30, 64 << 30] {
            let options = within(MountOptions::default(), budget);
            let parts = Parts::of(&options);
            let Parts { nodes, pages, dirty, changes, known, requests } = parts;
            let last = (known + requests).max(pages);
            assert!(nodes + dirty + changes + last <= budget, "{budget}: {parts:?}");
            assert!(nodes <= NODES_MAX && dirty <= DIRTY_MAX, "{budget}: {parts:?}");
        }
        let asked = Parts::of(&options(Some(4 << 30)));
        assert_eq!((asked.nodes, asked.known), (1 << 30, KNOWN_MAX));
    }
}
