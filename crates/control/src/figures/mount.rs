//! Figures that a mount reports to `buttress stats`: its space, requests that waited for space, the
//! flush states, and device requests.
//!
//! # Invariants
//!
//! - **T1** The figures add up the values of all `buttress::reserve` and `buttress::flush` events.
//!   The figures of a refusal are the values of the last `buttress::enospc` event.

use std::collections::BTreeMap;

use buttress_fs::{
    Account, Accounts, Filesystem, IoStats, Reach, SpaceKind, SpaceStats, SyncStats, Waits,
};
use buttress_fuse::KernelSync;
use serde_json::{Value, json};

use super::Figures;
use crate::memory::Parts;

/// A function that makes the figures of one part.
type Part = fn(&SpaceStats) -> Figures;

/// The parts of the figures of space, by the names that scripts read.
pub const PARTS: [(&str, Part); 5] = [
    ("space", figures),
    ("waits", wait_figures),
    ("wait_times", wait_time_figures),
    ("flush_steps", flush_figures),
    ("last_enospc", refusal_figures),
];

/// Figures of fsync: inodes, logs, and commits instead of logs, by reason.
pub fn sync_figures(stats: &SyncStats) -> Figures {
    let mut figures = vec![
        ("fsyncs".to_owned(), json!(stats.syncs)),
        ("logs".to_owned(), json!(stats.logs)),
        ("inodes_with_data".to_owned(), json!(stats.inodes_with_data)),
        ("deferred_log_copies".to_owned(), json!(stats.deferred_copies)),
        ("commits".to_owned(), json!(stats.commits.values().sum::<u64>())),
    ];
    for (why, times) in &stats.commits {
        figures.push((format!("commit_for_{}", why.name()), json!(times)));
    }
    figures
}

/// How much memory each part of a mount uses, and its limit. Memory of the kernel is not included.
/// `other_bytes` is the resident memory that belongs to no other part: small objects, stacks of
/// threads, unused ends of partly filled buffers, and free memory of the allocator.
/// `requests_bytes` counts the touched bytes of request buffers. `node_hits` and `node_misses`
/// count the lookups of tree nodes that the cache answered, and those that read a device.
/// `inode_handles` are those of open inodes, and of some that were used lately.
/// `known_inodes_max_bytes` limits these handles and the records of all known inodes together.
/// `page_hits` and `page_misses` do so for data of files, if the mount has a page cache of its own.
pub fn memory_figures(fs: &Filesystem, kernel_sync: &KernelSync, parts: Parts) -> Figures {
    let stats = fs.space_stats();
    let view = fs.view();
    let nodes = view.store().cached_nodes() as u64 * u64::from(view.store().geometry().nodesize);
    let known = kernel_sync.known();
    let resident = memory_of_process("VmRSS:");
    let program = memory_of_process("RssFile:");
    let messages = buttress_fuse::message_bytes();
    let (changes, walked) = (stats.engine.overlay_bytes, stats.engine.walked);
    let pages = stats.pages;
    let parts_held = [
        nodes,
        stats.dirty,
        stats.spare,
        pages.bytes,
        changes,
        known.record_bytes() as u64,
        known.handle_bytes() as u64,
        messages,
        program,
    ];
    let other = resident.saturating_sub(parts_held.iter().sum());
    let figures = [
        ("nodes_bytes", nodes),
        ("nodes_max_bytes", parts.nodes),
        ("node_hits", walked.nodes.saturating_sub(walked.nodes_read)),
        ("node_misses", walked.nodes_read),
        ("pages_bytes", pages.bytes),
        ("pages_max_bytes", parts.pages),
        ("page_hits", pages.hits),
        ("page_misses", pages.misses),
        ("dirty_bytes", stats.dirty),
        ("dirty_max_bytes", parts.dirty),
        ("spare_buffers_bytes", stats.spare),
        ("changes_bytes", changes),
        ("changes_max_bytes", parts.changes),
        ("known_inodes", known.inodes as u64),
        ("known_inodes_bytes", known.record_bytes() as u64),
        ("known_inodes_max_bytes", parts.known),
        ("inode_handles", known.handles as u64),
        ("inode_handles_bytes", known.handle_bytes() as u64),
        ("requests_bytes", messages),
        ("requests_max_bytes", parts.requests),
        ("program_bytes", program),
        ("other_bytes", other),
        ("resident_bytes", resident),
    ];
    figures.map(|(name, value)| (name.to_owned(), json!(value))).into()
}

/// The memory of this process on a line of its status, in bytes. Zero if the status has no such
/// line.
fn memory_of_process(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Requests to all devices of a volume, every copy counted.
pub fn device_figures(stats: &IoStats) -> Figures {
    let figures = [
        ("reads", stats.reads),
        ("read_bytes", stats.read_bytes),
        ("writes", stats.writes),
        ("write_bytes", stats.write_bytes),
        ("flushes", stats.flushes),
        ("discard_bytes", stats.discard_bytes),
        ("io_failures", stats.io_failures),
        ("csum_failures", stats.csum_failures),
        ("repairs", stats.repairs),
    ];
    figures.map(|(name, value)| (name.to_owned(), json!(value))).into()
}

/// Names and figures, in the order for human readers.
fn figures(stats: &SpaceStats) -> Figures {
    let mut figures = Figures::new();
    let mut add = |name: String, value: Value| figures.push((name, value));
    let accounts = &stats.accounts;
    for account in [&accounts.data, &accounts.metadata, &accounts.system] {
        let Account { kind, total, used, reserved, pinned, read_only, may_use, .. } = account;
        let of = [
            ("total", total),
            ("used", used),
            ("reserved", reserved),
            ("pinned", pinned),
            ("read_only", read_only),
            ("may_use", may_use),
        ];
        for (name, bytes) in of {
            add(format!("{kind}_{name}_bytes"), json!(bytes));
        }
    }
    let engine = &stats.engine;
    let (waits, data_waits) = (engine.waits.all(), engine.waits.of_kind(SpaceKind::Data));
    let micros = |share| json!(waits.per_mille(share).as_micros() as u64);
    let rest = [
        ("global_reserve_bytes", json!(accounts.metadata.global_reserve)),
        ("for_copies_bytes", json!(accounts.all_for_copies())),
        ("global_reserve_taken_max_bytes", json!(engine.reserve_taken_max)),
        ("unallocated_bytes", json!(accounts.unallocated)),
        ("chunks", json!(engine.chunks)),
        ("groups_known", json!(engine.groups_known)),
        ("unreserved_bytes", json!(accounts.unreserved)),
        ("dirty_bytes", json!(stats.dirty)),
        ("ordered_bytes", json!(stats.ordered)),
        ("overlay_bytes", json!(engine.overlay_bytes)),
        ("waiting_for_data", json!(accounts.waiting.0)),
        ("waiting_for_metadata", json!(accounts.waiting.1)),
        ("waiting_for_data_bytes", json!(stats.waiting_bytes.data)),
        ("waiting_for_metadata_bytes", json!(stats.waiting_bytes.metadata)),
        ("waits", json!(waits.count())),
        ("waits_for_data", json!(data_waits.count())),
        ("waited_bytes", json!(waits.bytes)),
        ("waited_for_data_bytes", json!(data_waits.bytes)),
        ("wait_p50_us", micros(500)),
        ("wait_p999_us", micros(999)),
        ("wait_max_us", json!(waits.nanos_max / 1000)),
        ("refused", json!(engine.enospc)),
        ("interrupted", json!(engine.interrupted)),
        ("preempt", json!(format!("{:?}", stats.preempt).to_lowercase())),
        ("flush_rounds", json!(stats.flush_runs)),
        ("preempt_rounds", json!(stats.rounds)),
        ("clamp", json!(stats.clamp)),
        ("flushed_bytes", json!(stats.flushed)),
        ("shortfalls", json!(stats.shortfalls)),
        ("drain_rate_bytes", json!(stats.drain_rate)),
        ("commits", json!(engine.commits)),
        ("commit_us", json!(engine.commit_nanos / 1000)),
    ];
    for (name, value) in rest {
        add(name.to_owned(), value);
    }
    figures
}

/// The queues of waiting requests, by the names that scripts read.
const LINES: [(&str, SpaceKind, Reach); 4] = [
    ("metadata_all", SpaceKind::Metadata, Reach::All),
    ("metadata_commit", SpaceKind::Metadata, Reach::Commit),
    ("data_all", SpaceKind::Data, Reach::All),
    ("data_commit", SpaceKind::Data, Reach::Commit),
];

/// Waits, for each kind of space and each reach. A request with reach `all` may wait until dirty
/// data is written. Other requests may wait only for commits.
fn wait_figures(stats: &SpaceStats) -> Figures {
    let row = |waits: Waits| {
        let micros = |share| waits.per_mille(share).as_micros() as u64;
        json!({
            "times": waits.count(),
            "bytes": waits.bytes,
            "granted": waits.granted,
            "granted_bytes": waits.granted_bytes,
            "refused": waits.refused,
            "interrupted": waits.interrupted,
            "total_us": waits.nanos / 1000,
            "p50_us": micros(500),
            "p999_us": micros(999),
            "max_us": waits.nanos_max / 1000,
        })
    };
    let waits = &stats.engine.waits;
    LINES.map(|(name, kind, reach)| (name.to_owned(), row(waits.of(kind, reach)))).into()
}

/// Histogram of wait times: less than 1 µs, less than 2 µs, 4 µs, and so on.
fn wait_time_figures(stats: &SpaceStats) -> Figures {
    let waits = &stats.engine.waits;
    let row = |class: usize| {
        let line = |(name, kind, reach)| (name, waits.of(kind, reach).classes[class]);
        (Waits::name_of_class(class), json!(BTreeMap::from(LINES.map(line))))
    };
    (0..Waits::default().classes.len()).map(row).collect()
}

/// The results of each flush state for the requests that waited.
fn flush_figures(stats: &SpaceStats) -> Figures {
    let steps = stats.engine.steps.rows().map(|(kind, step, figures)| {
        let row = json!({
            "times": figures.times,
            "gained": figures.gained,
            "served": figures.served,
            "forecast_bytes": figures.forecast,
            "yielded_bytes": figures.yielded,
        });
        (format!("{kind}_{}", step.name()), row)
    });
    steps.collect()
}

/// The last refusal of space, with all accounts at that time; empty if there was none.
fn refusal_figures(stats: &SpaceStats) -> Figures {
    let Some(refusal) = &stats.last_refusal else { return Figures::new() };
    let account = |account: &Account| {
        json!({
            "total_bytes": account.total,
            "used_bytes": account.used,
            "reserved_bytes": account.reserved,
            "pinned_bytes": account.pinned,
            "read_only_bytes": account.read_only,
            "superblock_bytes": account.super_bytes,
            "may_use_bytes": account.may_use,
            "global_reserve_bytes": account.global_reserve,
        })
    };
    let Accounts { data, metadata, system, outstanding, running, waiting, .. } = &refusal.accounts;
    let figures = [
        ("kind", json!(refusal.kind.to_string())),
        ("bytes", json!(refusal.bytes)),
        ("seconds_ago", json!(refusal.ago.as_millis() as f64 / 1000.0)),
        ("data", account(data)),
        ("metadata", account(metadata)),
        ("system", account(system)),
        ("for_copies_bytes", json!(refusal.accounts.all_for_copies())),
        ("unallocated_bytes", json!(refusal.accounts.unallocated)),
        ("unreserved_bytes", json!(refusal.accounts.unreserved)),
        ("reserved", json!({ "items": outstanding.all_items(), "bytes": outstanding.bytes })),
        ("running", json!({ "items": running.0, "bytes": running.1 })),
        ("frozen_bytes", json!(refusal.accounts.frozen)),
        ("height", json!(refusal.accounts.height)),
        ("waiting_for_data", json!(waiting.0)),
        ("waiting_for_metadata", json!(waiting.1)),
    ];
    figures.map(|(name, value)| (name.to_owned(), value)).into()
}
