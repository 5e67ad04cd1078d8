//! Writers show signs of life. A new writer checks for such a sign before it takes a volume over.
//!
//! # Invariants
//!
//! - **W1** Safety never depends on signs of life. The epoch in the chain of manifests decides
//!   which writer may write.
//! - **W2** Ages are differences between two times of the store's own clock.

use std::path::Path;

use buttress_base::thread;
use bytes::Bytes;
use rustix::process::{Pid, test_kill_process};

use crate::chain::Chain;
use crate::envelope::{Kind, VolumeId, unwrap, wrap};
use crate::error::{Error, Result};
use crate::manifest::{Manifest, Writer};
use crate::random;

/// A writer that was seen within this time counts as alive.
const ALIVE_MS: u64 = 30_000;

impl Writer {
    /// Describes this process.
    pub(crate) fn this() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let host = read("/proc/sys/kernel/hostname").trim().to_owned();
        // Process ids are unique within one boot and one PID namespace.
        let space = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        let boot =
            format!("{} {}", read("/proc/sys/kernel/random/boot_id").trim(), space.display());
        let pid = std::process::id();
        let start = Process::of(pid).map_or(0, |process| process.start);
        Self { id: random::hex(), host, boot, pid, start }
    }

    /// Whether the writer ran on this machine since its last boot.
    pub(crate) fn was_here(&self, this: &Self) -> bool {
        !self.boot.is_empty() && self.boot == this.boot
    }

    /// Whether the writer is a process of this machine that has ended.
    fn is_dead(&self, this: &Self) -> bool {
        if !self.was_here(this) {
            return false;
        }
        if let Some(process) = Process::of(self.pid) {
            return process.has_ended || process.start != self.start;
        }
        let raw = self.pid.try_into().ok().and_then(Pid::from_raw);
        raw.is_none_or(|pid| test_kill_process(pid) == Err(rustix::io::Errno::SRCH))
    }
}

/// A process as the kernel lists it.
#[derive(Debug, PartialEq, Eq)]
struct Process {
    /// Its start time in ticks since boot.
    start: u64,
    /// The process is a zombie: no thread of it runs, and its parent has not waited for it. In a
    /// container often no process waits for it.
    has_ended: bool,
}

impl Process {
    fn of(pid: u32) -> Option<Self> {
        Self::read(&Path::new("/proc").join(pid.to_string()))
    }

    /// Reads the folder of a process in `/proc`.
    fn read(folder: &Path) -> Option<Self> {
        let (has_ended, start) = state_of(folder)?;
        // The state of a process is that of its main thread, and other threads may outlive the main
        // thread.
        let has_ended = has_ended && !has_live_thread(folder);
        Some(Self { start, has_ended })
    }
}

/// Reads whether a process or thread has ended, and its start time.
fn state_of(folder: &Path) -> Option<(bool, u64)> {
    let stat = std::fs::read_to_string(folder.join("stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let has_ended = matches!(fields.next()?, "Z" | "X");
    Some((has_ended, fields.nth(18)?.parse().ok()?))
}

fn has_live_thread(folder: &Path) -> bool {
    let Ok(threads) = std::fs::read_dir(folder.join("task")) else { return false };
    let mut states = threads.flatten().filter_map(|thread| state_of(&thread.path()));
    states.any(|(has_ended, _)| !has_ended)
}

/// Writes the object that shows that a writer is alive.
pub(crate) fn show(chain: &Chain, volume: VolumeId, epoch: u32, writer: &Writer) -> Result<()> {
    let body = serde_json::to_vec(writer).unwrap_or_default();
    let bytes = Bytes::from(wrap(Kind::Writer, volume, 0, epoch, &body));
    chain.store.put(&chain.names.writer(epoch, &writer.id), &bytes)
}

/// Stops showing that a writer is alive.
pub(crate) fn end(chain: &Chain, epoch: u32, writer: &Writer) -> Result<()> {
    chain.store.delete(&chain.names.writer(epoch, &writer.id))
}

/// Refuses if the writer of the newest manifest seems to be alive. The caller has just written the
/// sign of life of `mine`.
///
/// # Errors
///
/// [`Error::Busy`], with the known facts about the other writer.
pub(crate) fn check(chain: &Chain, head: &Manifest, epoch: u32, mine: &Writer) -> Result<()> {
    let theirs = chain.names.writer(head.epoch, &head.writer.id);
    let (seen, shown) = thread::scope(|scope| {
        let shown = scope.spawn(|| chain.store.head(&chain.names.writer(epoch, &mine.id)));
        (chain.store.head(&theirs), shown.join())
    });
    let shown = shown.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    let Some(seen) = seen? else { return Ok(()) };
    let now_ms = shown.map_or(seen.modified_ms, |meta| meta.modified_ms);
    let age_ms = now_ms.saturating_sub(seen.modified_ms);
    let writer = chain
        .store
        .get(&theirs)?
        .and_then(|bytes| {
            let (_, body) = unwrap(&theirs, Kind::Writer, &bytes).ok()?;
            serde_json::from_slice(body).ok()
        })
        .unwrap_or_else(|| head.writer.clone());
    if age_ms >= ALIVE_MS || writer.is_dead(mine) {
        return Ok(());
    }
    Err(Error::Busy {
        place: chain.place.clone(),
        here: writer.was_here(mine),
        host: writer.host,
        pid: writer.pid,
        age_seconds: age_ms / 1000,
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// A killed writer counts as dead even before its parent has waited for it.
    #[test]
    fn a_writer_is_dead_once_it_has_ended() {
        let this = Writer::this();
        assert!(!this.is_dead(&this));
        let mut child = Command::new("sleep").arg("1000").spawn().expect("it starts");
        let start = Process::of(child.id()).expect("it runs").start;
        let writer = Writer { pid: child.id(), start, ..this.clone() };
        assert!(!writer.is_dead(&this));
        child.kill().expect("it is killed");
        while !writer.is_dead(&this) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        child.wait().expect("it has ended");
        assert!(writer.is_dead(&this));
        let elsewhere = Writer { boot: "another boot".to_owned(), ..writer };
        assert!(!elsewhere.is_dead(&this));
    }

    /// The state of a process is that of its main thread. Other threads may outlive the main
    /// thread.
    #[test]
    fn a_writer_lives_as_long_as_one_of_its_threads() {
        let dir = tempfile::tempdir().expect("tempdir");
        let put = |folder: &str, state: &str| {
            let folder = dir.path().join(folder);
            std::fs::create_dir_all(&folder).expect("a folder");
            let stat = format!("7 (a) b) {state} {}5 0 0", "1 ".repeat(18));
            std::fs::write(folder.join("stat"), stat).expect("a file");
        };
        put("7", "Z");
        put("7/task/7", "Z");
        let process = || Process::read(&dir.path().join("7"));
        assert_eq!(process(), Some(Process { start: 5, has_ended: true }));
        for (state, has_ended) in [("S", false), ("R", false), ("D", false), ("X", true)] {
            put("7/task/8", state);
            assert_eq!(process(), Some(Process { start: 5, has_ended }), "{state}");
        }
    }
}
