//! Each request of a workload fails once, in each way. The acknowledged state is never lost. A
//! failure inside of a commit makes the volume read-only with its cause. Reads go on, unmounting
//! works, and no thread panics.
//!
//! The workload runs from a seed ([`buttress_base::seeded`]), so that the n-th request is the same
//! in each run. Each round of the test campaign tries a part of all requests; `BUTTRESS_FAULTS=all`
//! tries all.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use buttress_base::seeded;
use buttress_block::error::Operation;
use buttress_block::{Device, MemoryDevice};
use buttress_fs::{
    ErrorKind, Filesystem, MakeOptions, MountOptions, NewInode, RenameFlags, Result, SetAttr,
};
use buttress_sim::{FaultDevice, FaultKind, Faults, campaign};

use crate::checker::check_cut;
use crate::volume::pattern;

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// The allowed results for one name: numbers of contents, or `None` if the name may be missing.
type Held = Vec<Option<u64>>;

/// The operations so far, and the allowed results.
#[derive(Clone, Debug)]
struct Model {
    names: BTreeMap<&'static str, Held>,
    /// Names with a failed operation. The file of such a name may have any mixture of contents.
    doubtful: Vec<&'static str>,
    failures: usize,
    acknowledged: usize,
}

fn bytes(version: u64) -> Vec<u8> {
    pattern(version, 2000 + (version as usize * 7919) % 60_000)
}

impl Model {
    fn may(&mut self, name: &'static str, what: Option<u64>) {
        self.names.entry(name).or_default().push(what);
    }

    fn now(&self, name: &str) -> Option<u64> {
        self.names[name].last().copied().flatten()
    }

    fn failed(&mut self, names: &[&'static str]) {
        self.failures += 1;
        self.doubtful.extend(names);
    }

    /// After an acknowledged sync, only the last content of each name is allowed.
    fn durable(&mut self, names: &[&'static str]) {
        for name in names {
            let held = self.names.entry(name).or_default();
            if let Some(last) = held.last().copied() {
                *held = vec![last];
            }
        }
        self.acknowledged += 1;
    }

    fn check(&self, fs: &Filesystem, lies: bool) -> std::result::Result<(), String> {
        for (name, held) in &self.names {
            let inode = match fs.root().lookup(name.as_bytes()) {
                Ok(inode) => inode,
                Err(error) => match error.kind() {
                    ErrorKind::Name(_) if lies || held.contains(&None) => continue,
                    ErrorKind::Name(_) if self.doubtful.contains(name) => continue,
                    ErrorKind::Io | ErrorKind::Corrupt if lies => continue,
                    _ => return Err(format!("{name}: {error}, of {held:?}")),
                },
            };
            let mut found = vec![0; inode.attr().size as usize];
            match inode.read_at(0, &mut found) {
                Ok(len) => found.truncate(len),
                Err(error)
                    if lies && matches!(error.kind(), ErrorKind::Io | ErrorKind::Corrupt) =>
                {
                    continue;
                }
                Err(error) => return Err(format!("{name}: {error}")),
            }
            let versions: Vec<_> = held.iter().flatten().map(|version| bytes(*version)).collect();
            if versions.contains(&found) {
                continue;
            }
            let mixed = lies || self.doubtful.contains(name) || held.len() > 1;
            let was = |(at, byte): (usize, &u8)| {
                *byte == 0 || versions.iter().any(|version| version.get(at) == Some(byte))
            };
            if !mixed
                || !found.iter().enumerate().all(was) && !self.doubtful.contains(name) && !lies
            {
                return Err(format!("{name} has {} bytes, not one of {held:?}", found.len()));
            }
        }
        Ok(())
    }
}

fn put(fs: &Filesystem, name: &str, version: u64) -> Result<()> {
    let root = fs.root();
    let inode = match root.lookup(name.as_bytes()) {
        Ok(inode) => inode,
        Err(_) => root.create(name.as_bytes(), NewInode::file(0o644))?,
    };
    inode.set_attr(&SetAttr { size: Some(0), ..SetAttr::default() })?;
    let bytes = bytes(version);
    let mut at = 0;
    while at < bytes.len() {
        at += inode.write_at(at as u64, &bytes[at..])?;
    }
    Ok(())
}

/// Runs the whole workload, whatever fails.
fn work(fs: &Filesystem, model: &mut Model) {
    for step in 0..36_u64 {
        let name = NAMES[(step * 7 % 5) as usize];
        let other = NAMES[(step * 3 % 5) as usize];
        match step % 9 {
            0 | 2 | 5 => {
                model.may(name, Some(step + 1));
                if put(fs, name, step + 1).is_err() {
                    model.failed(&[name]);
                }
            }
            1 | 3 => {
                let Ok(inode) = fs.root().lookup(name.as_bytes()) else { continue };
                match inode.sync() {
                    // After a failed write, the sync makes the present content durable.
                    Ok(()) => model.durable(&[name]),
                    // A sync reports lost data once. The data is lost from then on.
                    Err(_) => model.failed(&[name]),
                }
            }
            4 => match fs.sync() {
                Ok(()) => model.durable(&NAMES),
                Err(_) => model.failed(&NAMES),
            },
            6 if name != other => {
                let root = fs.root();
                let moved = model.now(name);
                if moved.is_none() {
                    continue;
                }
                let versions = model.names[name].clone();
                model.names.entry(other).or_default().extend(versions);
                model.may(other, moved);
                model.may(name, None);
                if model.doubtful.contains(&name) {
                    model.doubtful.push(other);
                }
                let flags = RenameFlags::default();
                if root.rename(name.as_bytes(), &root, other.as_bytes(), flags).is_err() {
                    model.failed(&[name, other]);
                }
            }
            7 => {
                if model.now(name).is_none() {
                    continue;
                }
                model.may(name, None);
                if fs.root().unlink(name.as_bytes()).is_err() {
                    model.failed(&[name]);
                }
            }
            8 => {
                let snapshot = format!("s{step}");
                let tree = fs.root().id().tree;
                let made = fs.root().snapshot(snapshot.as_bytes(), tree, true);
                model.failures += usize::from(made.is_err());
                if step > 20 && fs.root().delete_subvolume(snapshot.as_bytes()).is_err() {
                    model.failures += 1;
                }
            }
            _ => {}
        }
    }
}

/// The result of a run with one fault, or with none.
#[derive(Debug)]
struct Outcome {
    requests: u64,
    failures: usize,
    acknowledged: usize,
    latched: bool,
    problem: Option<String>,
}

#[derive(Clone, Copy, Debug)]
struct Fault {
    n: u64,
    only: Option<Operation>,
    what: FaultKind,
}

fn mount(device: Arc<dyn Device>, options: &str) -> Result<Filesystem> {
    let mut options = MountOptions::parse(options).expect("options");
    if options.page_cache_bytes == 0 {
        options.node_cache_bytes = Some(64 << 10);
        options.dirty_bytes_max = 64 << 10;
    }
    Filesystem::open(vec![device], options)
}

/// Runs the workload with one fault, then checks the content of the volume.
fn with_fault(base: &MemoryDevice, options: &'static str, fault: Option<Fault>) -> Outcome {
    let memory = Arc::new(base.fork());
    let left: Arc<dyn Device> = Arc::clone(&memory) as Arc<dyn Device>;
    let lies = fault.is_some_and(|fault| fault.what == FaultKind::Lies);
    let work = move || {
        let faults = Faults::none();
        let device = FaultDevice::new(Arc::clone(&memory) as Arc<dyn Device>, &faults);
        let mut model = Model {
            names: NAMES.iter().map(|name| (*name, vec![None])).collect(),
            doubtful: Vec::new(),
            failures: 0,
            acknowledged: 0,
        };
        match fault {
            Some(Fault { n, only, what }) => faults.strike(n, only, what),
            None => faults.strike(u64::MAX, None, FaultKind::Fails),
        }
        let mut outcome =
            Outcome { requests: 0, failures: 0, acknowledged: 0, latched: false, problem: None };
        match mount(device, options) {
            Err(_) if fault.is_some() => outcome.failures = 1,
            Err(error) => outcome.problem = Some(error.to_string()),
            Ok(fs) => {
                work(&fs, &mut model);
                outcome.requests = faults.count();
                faults.heal();
                outcome.latched = fs.read_only_reason().is_some();
                if outcome.latched {
                    // The volume refuses changes, and its content can be read.
                    let refused =
                        fs.root().create(b"late", NewInode::file(0o644)).err().map(|e| e.kind());
                    let committed = fs.commit().err().map(|error| error.kind());
                    assert_eq!(committed, Some(ErrorKind::Aborted), "no commit has everything");
                    if !matches!(refused, Some(ErrorKind::ReadOnly | ErrorKind::Aborted)) {
                        outcome.problem = Some(format!("read-only, and yet: {refused:?}"));
                    }
                }
                if let Err(what) = model.check(&fs, lies) {
                    outcome.problem.get_or_insert(format!("before unmounting: {what}"));
                }
                let closed = fs.close();
                if fault.is_none() && closed.is_err() {
                    outcome.problem = Some(format!("{closed:?}"));
                }
                if closed.is_ok() && !outcome.latched && !lies {
                    model.durable(&NAMES);
                }
                outcome.failures = model.failures;
                outcome.acknowledged = model.acknowledged;
            }
        }
        (outcome, model)
    };
    let ((mut outcome, model), _) = seeded::run(7, seeded::Options::default(), work)
        .unwrap_or_else(|stuck| panic!("{fault:?} with {options}: {stuck}"));
    // The checker runs outside of `seeded::run`, because `seeded::run` does not control the
    // checker's threads.
    if !lies && let Err(what) = check_cut(&left) {
        outcome.problem.get_or_insert(what);
    }
    match mount(left, "rw,noatime") {
        Err(error) if !lies => {
            outcome.problem.get_or_insert(format!("mounting again: {error}"));
        }
        Err(_) => {}
        Ok(fs) => {
            if let Err(what) = model.check(&fs, lies) {
                outcome.problem.get_or_insert(format!("mounted again: {what}"));
            }
            let _ = fs.close();
        }
    }
    outcome
}

/// The number of mount threads that panicked. No code joins these threads, so only this hook sees
/// the panics.
fn panics() -> &'static AtomicUsize {
    static PANICS: AtomicUsize = AtomicUsize::new(0);
    static HOOK: std::sync::Once = std::sync::Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if std::thread::current().name().is_some_and(|name| name.starts_with("buttress-")) {
                PANICS.fetch_add(1, Ordering::SeqCst);
            }
            usual(info);
        }));
    });
    &PANICS
}

#[test]
fn the_nth_request_goes_wrong() {
    let panics = panics();
    let all = std::env::var("BUTTRESS_FAULTS").is_ok_and(|text| text == "all");
    let base = MemoryDevice::new(192 << 20);
    let make = MakeOptions { nodesize: 4096, seed: Some(1), ..MakeOptions::default() };
    Filesystem::make(&base, &make).expect("a volume");
    let mounts = [
        "rw,noatime,commit=300",
        // This mount has very small caches, and commits instead of logs.
        "rw,noatime,notreelog,commit=1,page_cache=0",
    ];
    let kinds = [
        (None, FaultKind::Fails),
        (Some(Operation::Write), FaultKind::Fails),
        (Some(Operation::Flush), FaultKind::Fails),
        (Some(Operation::Read), FaultKind::Fails),
        (None, FaultKind::Gone),
        (None, FaultKind::Away(3)),
        (Some(Operation::Write), FaultKind::Lies),
        (Some(Operation::Flush), FaultKind::Lies),
        (None, FaultKind::Slow(Duration::from_secs(40))),
    ];
    let (mut tried, mut latched, mut problems) = (0, 0, Vec::new());
    for options in mounts {
        let clean = with_fault(&base, options, None);
        assert!(clean.problem.is_none() && clean.failures == 0, "{options}: {clean:?}");
        assert!(clean.requests > 100 && clean.acknowledged > 4, "{options}: {clean:?}");
        for (kind, (only, what)) in kinds.into_iter().enumerate() {
            // A fault that never strikes counts the requests of this kind. Faults with greater
            // numbers are not tried, because they would strike no request.
            let never = Fault { n: u64::MAX - 1, only, what };
            let requests = with_fault(&base, options, Some(never)).requests;
            let stride = if all { 1 } else { requests / 12 + 1 };
            let first = (campaign::round() + kind as u64) % stride;
            for n in (first..requests).step_by(stride as usize) {
                let fault = Fault { n, only, what };
                let outcome = with_fault(&base, options, Some(fault));
                tried += 1;
                latched += usize::from(outcome.latched);
                if let Some(problem) = outcome.problem {
                    problems.push(format!("{fault:?} with {options}: {problem}"));
                }
            }
        }
    }
    campaign::count("faults", tried);
    campaign::count("latched", latched);
    assert!(problems.is_empty(), "{} of {tried}:\n{}", problems.len(), problems.join("\n"));
    assert_eq!(panics.load(Ordering::SeqCst), 0, "a thread of a mount panicked");
    assert!(tried > 100 && latched > 0, "{tried} faults, {latched} times read-only");
}
