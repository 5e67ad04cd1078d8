//! The costs of servers and programs: processor time, sleeps, requests.
//!
//! # What must hold
//!
//! - Each server counts its own requests. The counts are read before and after a load.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use buttress_fuse::Options;
use serde_json::Value;

use crate::setup::Setup;
use crate::work::text;

/// Requests that no program waits for.
const BESIDE: [&str; 5] = ["forget", "batch_forget", "release", "releasedir", "interrupt"];

/// A server under measurement.
pub(super) struct Server<'a> {
    setup: &'a Setup,
    pid: u32,
}

/// The costs of a server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spent {
    /// Processor time.
    pub(crate) time: Duration,
    /// How often its threads gave a processor back to wait for something.
    pub(crate) sleeps: u64,
    /// Requests, by kind.
    pub(crate) requests: BTreeMap<String, u64>,
}

impl<'a> Server<'a> {
    /// The server of a file system. `None` if the kernel serves it.
    pub(super) fn of(setup: &'a Setup) -> Option<Self> {
        setup.server().map(|pid| Self { setup, pid })
    }

    /// The costs of the server so far.
    pub(super) fn look(&self) -> Result<Spent, String> {
        let requests = match self.setup.requests()? {
            Value::Object(counts) => counts,
            _ => serde_json::Map::new(),
        };
        let count = |(name, count): (String, Value)| Some((name, count.as_u64()?));
        let requests = requests.into_iter().filter_map(count).collect();
        let mut spent = Spent { requests, ..Spent::default() };
        for task in fs::read_dir(format!("/proc/{}/task", self.pid)).map_err(text)? {
            let task = task.map_err(text)?.path();
            // A thread that has ended meanwhile is not counted.
            let read = |name: &str| fs::read_to_string(task.join(name)).unwrap_or_default();
            let nanos = read("schedstat").split(' ').next().and_then(|word| word.parse().ok());
            spent.time += Duration::from_nanos(nanos.unwrap_or(0));
            let status = read("status");
            let mut lines = status.lines();
            let sleeps = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            spent.sleeps += sleeps.and_then(|word| word.trim().parse::<u64>().ok()).unwrap_or(0);
        }
        Ok(spent)
    }
}

impl Spent {
    pub(super) fn since(&self, before: &Self) -> Self {
        let earlier = |name: &str| before.requests.get(name).copied().unwrap_or(0);
        let fewer = |(name, count): (&String, &u64)| {
            let count = count.saturating_sub(earlier(name));
            (count > 0).then(|| (name.clone(), count))
        };
        Self {
            time: self.time.saturating_sub(before.time),
            sleeps: self.sleeps.saturating_sub(before.sleeps),
            requests: self.requests.iter().filter_map(fewer).collect(),
        }
    }

    /// The number of requests that a program waits for. Requests that write pages count, because
    /// closing a file waits for these pages.
    pub(super) fn awaited(&self) -> u64 {
        let awaited = |(name, count): (&String, &u64)| {
            if BESIDE.contains(&name.as_str()) { 0 } else { *count }
        };
        self.requests.iter().map(awaited).sum()
    }
}

/// Processor time of this program and of the programs that it waited for.
pub(super) fn programs_time() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name may have spaces; it ends with the last parenthesis.
    let fields = stat.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default();
    let ticks = fields.split_whitespace().skip(11).take(4);
    let ticks: u64 = ticks.filter_map(|word| word.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

/// Serves an empty server until it is unmounted. Prints a line when the mount is there, and answers
/// each line of standard input with the counts.
///
/// It serves from a session of its own, as a mounted volume does. The kernel balances the threads
/// of each session apart (`sched_autogroup_enabled`), and then moves programs more often.
pub(crate) fn serve_empty(dir: &Path, is_ring: bool) -> Result<(), String> {
    rustix::process::setsid().map_err(text)?;
    let options =
        Options { source: "empty".to_owned(), io_uring: Some(is_ring), ..Options::default() };
    let ready = || {
        println!("ready");
        std::thread::spawn(|| {
            for _ in std::io::stdin().lines() {
                let counts = buttress_fuse::requests().into_iter();
                let counts = counts.map(|(name, count)| (name.to_owned(), Value::from(count)));
                let mut out = std::io::stdout();
                let told = writeln!(out, "{}", Value::Object(counts.collect()));
                if told.and_then(|()| out.flush()).is_err() {
                    return;
                }
            }
        });
    };
    buttress_fuse::serve_empty(dir, &options, ready).map_err(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spent(requests: &[(&str, u64)]) -> Spent {
        let requests = requests.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect();
        Spent { requests, ..Spent::default() }
    }

    /// The counts of a load are those of the requests during the load. Programs do not wait for a
    /// release.
    #[test]
    fn requests_are_those_since() {
        let before = spent(&[("lookup", 2), ("open", 3)]);
        let after = spent(&[("lookup", 7), ("open", 3), ("release", 4)]);
        let since = after.since(&before);
        assert_eq!(since.requests, spent(&[("lookup", 5), ("release", 4)]).requests);
        assert_eq!(since.awaited(), 5);
    }
}
