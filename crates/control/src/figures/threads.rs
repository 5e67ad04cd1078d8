//! Figures of the threads of this process: what they work on, and what they wait for.
//!
//! # What must hold
//!
//! - The threads are seen as they are. No figure here waits for a lock that a request may hold.

use std::collections::BTreeMap;
use std::time::Duration;

use buttress_base::activity::{self, Cause, Thread, Work};
use serde_json::{Value, json};

use super::Figures;

/// A function that makes the figures of a section.
type Part = fn() -> Figures;

/// The sections, by the names that scripts read.
pub const PARTS: [(&str, Part); 3] = [
    ("pools", || pools(&activity::threads())),
    ("waiting", || waiting(&activity::threads())),
    ("waiters", || waiters(&activity::threads())),
];

/// Requests in work, and waits, that are listed: those that take longer than most.
const LONG: Duration = Duration::from_millis(5);
/// The most entries of the list.
const LISTED_MAX: usize = 32;
/// The number that the kernel has for the top directory of a mount.
const TOP: u64 = 1;
/// The inode number of the top directory of a subvolume, as programs see it.
const TOP_INODE: u64 = 256;

/// How many threads each pool has, and how many of them are busy and wait. The threads of a pool
/// have one name, apart from a number at its end.
fn pools(threads: &[Thread]) -> Figures {
    let mut pools: BTreeMap<&str, [u64; 3]> = BTreeMap::new();
    for thread in threads {
        let name = thread.name.trim_end_matches(|c: char| c.is_ascii_digit());
        let [all, busy, waiting] = pools.entry(name.trim_end_matches('-')).or_default();
        *all += 1;
        *busy += u64::from(thread.work.is_some());
        *waiting += u64::from(thread.work.as_ref().is_some_and(|work| work.wait.is_some()));
    }
    pools.into_iter().map(|(name, counts)| (name.to_owned(), pool(counts))).collect()
}

fn pool([all, busy, waiting]: [u64; 3]) -> Value {
    json!({ "threads": all, "busy": busy, "waiting": waiting })
}

/// How many threads wait for each cause, and the longest of these waits.
fn waiting(threads: &[Thread]) -> Figures {
    let waits = |cause: Cause| {
        let waits = threads.iter().filter_map(|thread| thread.work.as_ref()?.wait);
        let waits = waits.filter(|(other, _)| *other == cause).map(|(_, since)| since);
        let (count, longest) = waits
            .fold((0_u64, Duration::ZERO), |(count, most), since| (count + 1, most.max(since)));
        let figures = json!({ "threads": count, "longest_ms": millis(longest) });
        (cause.name().to_owned(), figures)
    };
    Cause::ALL.into_iter().map(waits).collect()
}

/// The requests that are in work for long, and the threads with other work that wait for long. The
/// longest waits come first, then the oldest requests. The names of the figures are numbers.
fn waiters(threads: &[Thread]) -> Figures {
    let waited = |work: &Work| work.wait.map_or(Duration::ZERO, |(_, since)| since);
    let works = threads.iter().filter_map(|thread| Some((thread, thread.work.as_ref()?)));
    let mut listed: Vec<_> = works
        .filter(|(_, work)| match work.operation {
            Some(_) => work.since >= LONG,
            None => waited(work) >= LONG,
        })
        .collect();
    listed.sort_by_key(|(_, work)| std::cmp::Reverse((waited(work), work.since)));
    listed.truncate(LISTED_MAX);
    let numbered = listed.into_iter().enumerate();
    numbered.map(|(number, (thread, work))| (number.to_string(), waiter(thread, work))).collect()
}

fn waiter(thread: &Thread, work: &Work) -> Value {
    let inode = match work.subject {
        TOP => TOP_INODE,
        subject => subject,
    };
    json!({
        "thread": thread.name,
        "operation": work.operation.map(buttress_fuse::kind_name),
        "inode": work.operation.map(|_| inode),
        "since_ms": millis(work.since),
        "waits_for": work.wait.map(|(cause, _)| cause.name()),
        "waiting_ms": work.wait.map(|(_, since)| millis(since)),
    })
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: u32 = 15;

    fn thread(
        name: &str,
        since: u64,
        wait: Option<(Cause, u64)>,
        operation: Option<u32>,
    ) -> Thread {
        let wait = wait.map(|(cause, since)| (cause, Duration::from_millis(since)));
        let since = Duration::from_millis(since);
        Thread { name: name.to_owned(), work: Some(Work { operation, subject: 1, since, wait }) }
    }

    /// Pools are counted by name, and causes have all their names.
    #[test]
    fn threads_are_counted_by_pool_and_cause() {
        let threads = [
            thread("fuse-0", 30, Some((Cause::Room, 20)), Some(READ)),
            thread("fuse-11", 9, Some((Cause::Room, 7)), Some(READ)),
            Thread { name: "fuse-2".to_owned(), work: None },
            thread("buttress-flush", 1, None, None),
        ];
        let wanted = [("buttress-flush", [1, 1, 0]), ("fuse", [3, 2, 2])];
        assert_eq!(pools(&threads), wanted.map(|(name, counts)| (name.to_owned(), pool(counts))));
        let causes = waiting(&threads);
        assert_eq!(causes.len(), Cause::ALL.len());
        let room = json!({ "threads": 2, "longest_ms": 20 });
        assert_eq!(causes[0], ("room".to_owned(), room));
        assert_eq!(causes[1].1["threads"], 0);
    }

    /// Only what takes long is listed, the longest waits first. The list has an end.
    #[test]
    fn long_waits_are_listed_first() {
        let threads = [
            thread("new", 4, Some((Cause::Room, 4)), Some(READ)),
            thread("computes", 500, None, Some(READ)),
            thread("commits", 900, Some((Cause::DeviceFlush, 40)), None),
            thread("works", 900, Some((Cause::DeviceFlush, 4)), None),
            thread("waits", 90, Some((Cause::File, 80)), Some(READ)),
        ];
        let listed = waiters(&threads);
        let names: Vec<&str> =
            listed.iter().filter_map(|(_, one)| one["thread"].as_str()).collect();
        assert_eq!(names, ["waits", "commits", "computes"]);
        let wanted = json!({
            "thread": "waits", "operation": "read", "inode": 256,
            "since_ms": 90, "waits_for": "file_lock", "waiting_ms": 80,
        });
        assert_eq!(listed[0], ("0".to_owned(), wanted));
        assert_eq!(listed[1].1["operation"], Value::Null);
        assert_eq!(listed[2].1["waits_for"], Value::Null);
        let many: Vec<_> = (0..100).map(|since| thread("many", since, None, Some(READ))).collect();
        let listed = waiters(&many);
        assert_eq!(listed.len(), LISTED_MAX);
        assert_eq!(listed[0].1["since_ms"], 99);
    }
}
