//! Counters of file systems while they are measured. The library reports its own counters.
//! `buttress --json stats` reports the counters of our mounts, and `/sys` has the counters of
//! Linux's file systems.
//!
//! # Invariants
//!
//! - **T1** The library and a mount report the same figures for the same work, except that waiting
//!   times may differ by a factor of two.
//! - **T2** Each file system keeps its own counters. They are read before and after the
//!   measurement.

use std::{array, time::Duration};

use buttress_fs::{Filesystem, IoStats, SpaceKind, SpaceStats, Waits};
use serde_json::Value;

/// The number of commits of a volume, and their total time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Commits {
    pub(crate) count: u64,
    pub(crate) took: Duration,
}

impl Commits {
    /// Parses the `commit_stats` of Linux's btrfs, with a name and a number in each line.
    pub(crate) fn of_btrfs(text: &str) -> Option<Self> {
        let number = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(' '));
            lines.find(|(known, _)| *known == name)?.1.trim().parse().ok()
        };
        let took = Duration::from_millis(number("total_commit_ms")?);
        Some(Self { count: number("commits")?, took })
    }
}

/// Requests that moved bytes, and the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    pub(crate) count: u64,
    pub(crate) bytes: u64,
}

impl Moved {
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self { count: self.count - earlier.count, bytes: self.bytes - earlier.bytes }
    }

    pub(crate) fn and(self, other: Self) -> Self {
        Self { count: self.count + other.count, bytes: self.bytes + other.bytes }
    }

    pub(crate) fn mean_kib(self) -> f64 {
        self.bytes as f64 / self.count.max(1) as f64 / 1024.0
    }
}

/// The requests to a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Requests {
    pub(crate) reads: Moved,
    pub(crate) writes: Moved,
}

impl Requests {
    /// Parses the `stat` file of a block device.
    pub(crate) fn of_block(text: &str) -> Option<Self> {
        const SECTOR: u64 = 512;
        let field = |at| text.split_whitespace().nth(at)?.parse::<u64>().ok();
        let moved = |at| Some(Moved { count: field(at)?, bytes: field(at + 2)? * SECTOR });
        Some(Self { reads: moved(0)?, writes: moved(4)? })
    }

    pub(crate) fn since(self, earlier: Self) -> Self {
        Self { reads: self.reads.since(earlier.reads), writes: self.writes.since(earlier.writes) }
    }
}

impl From<IoStats> for Requests {
    fn from(stats: IoStats) -> Self {
        Self {
            reads: Moved { count: stats.reads, bytes: stats.read_bytes },
            writes: Moved { count: stats.writes, bytes: stats.write_bytes },
        }
    }
}

/// The counters of our space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// Requests that waited for metadata.
    pub(crate) metadata_waits: Waits,
    /// Requests that waited for data.
    pub(crate) data_waits: Waits,
    /// Rounds of preemptive flushing.
    pub(crate) rounds: u64,
    /// Bytes of metadata in use.
    pub(crate) used: u64,
    /// Bytes of all metadata space.
    pub(crate) total: u64,
}

/// All counters of a file system at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) commits: Option<Commits>,
    pub(crate) requests: Option<Requests>,
    pub(crate) room: Option<Room>,
}

impl Told {
    /// Takes the counters of the library.
    pub(crate) fn by_library(fs: &Filesystem) -> Self {
        let SpaceStats { accounts, engine, rounds, .. } = fs.space_stats();
        let took = Duration::from_nanos(engine.commit_nanos);
        Self {
            commits: Some(Commits { count: engine.commits, took }),
            requests: Some(fs.io_stats().into()),
            room: Some(Room {
                metadata_waits: engine.waits.of_kind(SpaceKind::Metadata),
                data_waits: engine.waits.of_kind(SpaceKind::Data),
                rounds,
                used: accounts.metadata.used,
                total: accounts.metadata.total,
            }),
        }
    }

    /// Parses the counters of a mount of ours from `buttress --json stats`. Counters that an older
    /// program lacks are left out.
    pub(crate) fn by_mount(text: &str) -> Self {
        let told: Value = serde_json::from_str(text).unwrap_or_default();
        let sections = &told["sections"];
        let (space, devices) = (&sections["space"], &sections["devices"]);
        let commits = || {
            let took = Duration::from_micros(space["commit_us"].as_u64()?);
            Some(Commits { count: space["commits"].as_u64()?, took })
        };
        let moved = |count: &str, bytes: &str| {
            Some(Moved { count: devices[count].as_u64()?, bytes: devices[bytes].as_u64()? })
        };
        let requests = || {
            let reads = moved("reads", "read_bytes")?;
            Some(Requests { reads, writes: moved("writes", "write_bytes")? })
        };
        let room = || {
            let number = |name: &str| space[name].as_u64();
            Some(Room {
                metadata_waits: waits(sections, "metadata")?,
                data_waits: waits(sections, "data")?,
                rounds: number("preempt_rounds")?,
                used: number("metadata_used_bytes")?,
                total: number("metadata_total_bytes")?,
            })
        };
        Self { commits: commits(), requests: requests(), room: room() }
    }
}

/// Requests that waited for a kind of space, in all classes of waiting times.
fn waits(sections: &Value, kind: &str) -> Option<Waits> {
    let mut all = Waits::default();
    for line in [format!("{kind}_all"), format!("{kind}_commit")] {
        let (row, times) = (&sections["waits"][&line], &sections["wait_times"]);
        let number = |name: &str| row[name].as_u64();
        let count = |(class, _)| times[Waits::name_of_class(class)][&line].as_u64();
        let counts: Option<Vec<u64>> = all.classes.iter().enumerate().map(count).collect();
        let counts = counts?;
        all = all.and(&Waits {
            classes: array::from_fn(|class| counts[class]),
            nanos: number("total_us")? * 1000,
            nanos_max: number("max_us")? * 1000,
            bytes: number("bytes")?,
            granted: number("granted")?,
            granted_bytes: number("granted_bytes")?,
            refused: number("refused")?,
            interrupted: number("interrupted")?,
        });
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;

    /// The counts of commits of Linux and of Buttress are parsed. Without these counts in the text,
    /// the result is `None`.
    #[test]
    fn commits_are_read() {
        let linux =
            "commits 3\ncur_commit_ms 0\nlast_commit_ms 5\nmax_commit_ms 9\ntotal_commit_ms 20\n";
        let same = Some(Commits { count: 3, took: Duration::from_millis(20) });
        assert_eq!(Commits::of_btrfs(linux), same);
        let own = r#"{"pid": 7, "sections": {"space": {"commit_us": 20000, "commits": 3}}}"#;
        assert_eq!(Told::by_mount(own), Told { commits: same, ..Told::default() });
        assert_eq!((Commits::of_btrfs(""), Told::by_mount("{}")), (None, Told::default()));
    }

    /// Requests of a block device and of a mount, with their mean size.
    #[test]
    fn requests_are_read() {
        let linux = "  10 0 160 3  4 1 64 2  0 5 5 0 0 0 0 0 0\n";
        let reads = Moved { count: 10, bytes: 160 * 512 };
        let same = Requests { reads, writes: Moved { count: 4, bytes: 64 * 512 } };
        assert_eq!(Requests::of_block(linux), Some(same));
        let devices =
            json!({ "reads": 10, "read_bytes": 81_920, "writes": 4, "write_bytes": 32_768 });
        let own = json!({ "sections": { "devices": devices } }).to_string();
        assert_eq!(Told::by_mount(&own).requests, Some(same));
        let both = same.reads.and(same.writes);
        assert_eq!(both.since(same.reads), same.writes);
        assert_eq!(both.mean_kib(), 8.0);
        assert_eq!(Requests::of_block("1 2 3"), None);
    }

    /// T1: a mount's waits are those that it counted, line by line, with the times that they took.
    #[test]
    fn waits_are_read() {
        let row = json!({
            "times": 4, "bytes": 400, "granted": 3, "granted_bytes": 300, "refused": 1, "interrupted": 0,
            "total_us": 60, "max_us": 50,
        });
        let lines = ["metadata_all", "metadata_commit", "data_all", "data_commit"];
        let waits: Map<_, _> =
            lines.map(|line| (line.to_owned(), row.clone())).into_iter().collect();
        let times = |class: usize| {
            let line = |at: usize| (lines[at].to_owned(), json!(4 * u64::from(class == 3 + at)));
            let row: Map<_, _> = (0..lines.len()).map(line).collect();
            (Waits::name_of_class(class), Value::Object(row))
        };
        let wait_times: Map<_, _> = (0..Waits::default().classes.len()).map(times).collect();
        let space =
            json!({ "preempt_rounds": 5, "metadata_used_bytes": 6, "metadata_total_bytes": 7 });
        let sections = json!({ "space": space, "waits": waits, "wait_times": wait_times });
        let room = Told::by_mount(&json!({ "sections": sections }).to_string()).room;
        let room = room.expect("all of it is there");
        assert_eq!((room.rounds, room.used, room.total), (5, 6, 7));
        let of = |waits: Waits| (waits.count(), waits.bytes, waits.refused, waits.nanos);
        assert_eq!([of(room.metadata_waits), of(room.data_waits)], [(8, 800, 2, 120_000); 2]);
        assert_eq!(room.metadata_waits.per_mille(500), Duration::from_micros(8));
        assert_eq!(room.metadata_waits.per_mille(999), Duration::from_micros(16));
        assert_eq!(room.data_waits.per_mille(999), Duration::from_micros(50));
    }
}
