//! The events of a mount about its space: they report the waits of requests with bytes and times,
//! the steps that made room, and all accounts when a request is refused. The counters of the mount
//! must agree with its events.
//!
//! A listener gets the events of all threads of the process, including those of the mount. But the
//! listener also gets the events of other tests. So the first test looks only at the waiting
//! requests of its own threads. The second test runs in a process of its own.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use buttress_base::Rng;
use buttress_fs::{
    ErrorKind, FallocateMode, Filesystem, FlushState, Reach, SetAttr, SpaceKind, SpaceStats,
    StepFigures, WaitingBytes,
};
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber, span};

use crate::volume::{file_with, memory, mount_with};

const BLOCK: u64 = 4096;

/// One event: its target, and its fields as text.
#[derive(Clone, Debug)]
struct Told {
    target: &'static str,
    thread: ThreadId,
    fields: BTreeMap<&'static str, String>,
}

impl Told {
    /// Checks that the event has all these fields.
    #[track_caller]
    fn expect(&self, names: &[&str]) {
        for name in names {
            assert!(self.fields.contains_key(name), "no {name} in {self:?}");
        }
    }

    #[track_caller]
    fn number(&self, name: &str) -> u64 {
        self.fields[name].parse().unwrap_or_else(|_| panic!("{name} is no number in {self:?}"))
    }
}

impl Visit for Told {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name(), value.to_owned());
    }
}

static LISTENS: AtomicBool = AtomicBool::new(false);
static HEARD: Mutex<Vec<Told>> = Mutex::new(Vec::new());

/// Records the events about space, and no others.
struct Listener;

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        matches!(metadata.target(), "buttress::reserve" | "buttress::flush" | "buttress::enospc")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        if !LISTENS.load(Ordering::Relaxed) {
            return;
        }
        let (target, thread) = (event.metadata().target(), std::thread::current().id());
        let mut told = Told { target, thread, fields: BTreeMap::new() };
        event.record(&mut told);
        HEARD.lock().unwrap_or_else(PoisonError::into_inner).push(told);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

fn heard(target: &str) -> Vec<Told> {
    let heard = HEARD.lock().unwrap_or_else(PoisonError::into_inner);
    heard.iter().filter(|told| told.target == target).cloned().collect()
}

/// Overwrites a file on a nearly full volume, where only commits give the old space back. So
/// writers wait, and room is made. Then a request exceeds all free space, and is refused.
fn crowd() {
    let device = memory(160);
    let fs = mount_with(&device, "dirty=8M");
    let filler = file_with(&fs.root(), "filler", b"");
    let allocate = FallocateMode::Allocate { keep_size: false };
    let mut at = 0;
    while filler.fallocate(at, 1 << 20, allocate).is_ok() {
        at += 1 << 20;
    }
    let cut = SetAttr { size: Some(at - (16 << 20)), ..SetAttr::default() };
    filler.set_attr(&cut).expect("shrinking always works");
    let file = file_with(&fs.root(), "file", b"");
    let mut rng = Rng::new(1);
    for i in 0..4000_u64 {
        file.write_at(rng.below(512) * BLOCK, &[i as u8; 4 * BLOCK as usize]).expect("room");
    }
    let refused = filler.fallocate(at, 100 << 20, allocate).expect_err("it is full");
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    fs.close().expect("it closes");
}

/// Makes blocks dirty, each of which reserves much metadata, until the mount makes room ahead.
fn hurry(fs: &Filesystem) {
    let root = fs.root();
    let filler = file_with(&root, "filler", b"");
    let allocate = FallocateMode::Allocate { keep_size: false };
    let mut at = 0;
    for piece in [64 << 20, 1 << 20] {
        while filler.fallocate(at, piece, allocate).is_ok() {
            at += piece;
        }
    }
    let cut = SetAttr { size: Some(at - (512 << 20)), ..SetAttr::default() };
    filler.set_attr(&cut).expect("shrinking always works");
    fs.sync().expect("a commit");
    let file = file_with(&root, "dirty", b"");
    let mut rng = Rng::new(2);
    for i in 0..20_000_u64 {
        file.write_at(rng.below(50_000) * BLOCK, &[i as u8; BLOCK as usize]).expect("room");
        if fs.space_stats().rounds > 0 {
            break;
        }
    }
    assert!(fs.space_stats().rounds > 0, "no room was made ahead: {:?}", fs.space_stats());
    // The event with the result of a round comes when the commit of the round is done.
    fs.sync().expect("a commit");
    let is_ahead = |told: &Told| told.fields["source"] != "tickets";
    for _ in 0..6000 {
        if heard("buttress::flush").iter().any(is_ahead) {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn space_says_what_happens_to_it() {
    tracing::subscriber::set_global_default(Listener).expect("no other test listens");
    LISTENS.store(true, Ordering::Relaxed);
    crowd();
    let fs = mount_with(&memory(8192), "reserve=levels,commit=300");
    hurry(&fs);
    fs.close().expect("it closes");
    LISTENS.store(false, Ordering::Relaxed);

    let me = std::thread::current().id();
    let waits: Vec<Told> =
        heard("buttress::reserve").into_iter().filter(|told| told.thread == me).collect();
    for told in &waits {
        told.expect(&["kind", "bytes", "reach", "waited_us", "granted"]);
        assert!(told.number("bytes") > 0, "{told:?}");
        told.number("waited_us");
    }
    for granted in ["true", "false"] {
        let is = |told: &&Told| told.fields["granted"] == granted && told.fields["kind"] == "data";
        assert!(waits.iter().any(|told| is(&told)), "no request waited with {granted}: {waits:?}");
    }

    let refusals = heard("buttress::enospc");
    let mine: Vec<_> = refusals.iter().filter(|told| told.thread == me).collect();
    assert!(!mine.is_empty(), "no request was refused");
    for told in mine {
        told.expect(&["kind", "bytes"]);
        for kind in ["data", "metadata", "system"] {
            let of = |part: &str| told.number(&format!("{kind}_{part}_bytes"));
            let parts = ["used", "reserved", "pinned", "read_only", "superblock"];
            assert!(parts.into_iter().map(of).sum::<u64>() <= of("total"), "{kind} of {told:?}");
            of("may_use");
        }
        for name in ["unallocated_bytes", "global_reserve_bytes", "waiting_for_data", "height"] {
            told.number(name);
        }
    }

    let rounds = heard("buttress::flush");
    let (steps, ahead): (Vec<&Told>, Vec<&Told>) =
        rounds.iter().partition(|told| told.fields["source"] == "tickets");
    assert!(!steps.is_empty() && !ahead.is_empty(), "{rounds:?}");
    for told in &steps {
        told.expect(&["kind", "step", "waiting", "gained", "served"]);
        let _ = (told.number("forecast"), told.number("yielded"));
    }
    let made = |told: &&&Told| told.fields["gained"] == "true" && told.number("yielded") > 0;
    assert!(steps.iter().any(|told| made(&told)), "no step gave anything back: {steps:?}");
    for told in ahead {
        told.expect(&["source", "pool"]);
        assert!(["dirty", "overlay"].contains(&&*told.fields["pool"]), "{told:?}");
        told.number("yielded");
    }
}

/// This variable is set in the process that runs only the second test.
const ALONE: &str = "BUTTRESS_TEST_ALONE";

/// Events of one target with these values of their fields, as text. Some fields exist only in some
/// events. An earlier field of the list must then select these events.
fn heard_with(target: &str, fields: &[(&str, String)]) -> Vec<Told> {
    let fits = |told: &Told| fields.iter().all(|(name, value)| told.fields[name] == *value);
    heard(target).into_iter().filter(fits).collect()
}

fn sum(told: &[Told], name: &str) -> u64 {
    told.iter().map(|told| told.number(name)).sum()
}

fn those_with(told: &[Told], name: &str) -> Vec<Told> {
    told.iter().filter(|told| told.fields[name] == "true").cloned().collect()
}

/// The difference between the events and the counters, in words.
fn difference(stats: &SpaceStats) -> Option<String> {
    let engine = &stats.engine;
    let mut found = Vec::new();
    let mut expect = |what: String, told: Vec<u64>, counted: Vec<u64>| {
        if told != counted {
            found.push(format!("{what}: told {told:?}, counted {counted:?}"));
        }
    };
    for kind in [SpaceKind::Metadata, SpaceKind::Data] {
        for step in FlushState::ALL {
            let fields = [
                ("source", "tickets".to_owned()),
                ("kind", kind.to_string()),
                ("step", step.name().to_owned()),
            ];
            let told = heard_with("buttress::flush", &fields);
            let StepFigures { times, gained, served, forecast, yielded } =
                engine.steps.of(kind, step);
            expect(
                format!("{kind} {step:?}"),
                vec![
                    told.len() as u64,
                    those_with(&told, "gained").len() as u64,
                    sum(&told, "served"),
                    sum(&told, "forecast"),
                    sum(&told, "yielded"),
                ],
                vec![times, gained, served, forecast, yielded],
            );
        }
        for reach in [Reach::All, Reach::Commit] {
            let fields =
                [("kind", kind.to_string()), ("reach", format!("{reach:?}").to_lowercase())];
            let told = heard_with("buttress::reserve", &fields);
            let granted = those_with(&told, "granted");
            let interrupted = those_with(&told, "interrupted");
            let waits = engine.waits.of(kind, reach);
            let (times, micros) = (told.len() as u64, sum(&told, "waited_us"));
            expect(
                format!("{kind} {reach:?}"),
                vec![
                    times,
                    sum(&told, "bytes"),
                    granted.len() as u64,
                    sum(&granted, "bytes"),
                    times - (granted.len() + interrupted.len()) as u64,
                    interrupted.len() as u64,
                    // Each event rounds its time down to whole microseconds.
                    u64::from((micros..=micros + times).contains(&(waits.nanos / 1000))),
                ],
                vec![
                    waits.count(),
                    waits.bytes,
                    waits.granted,
                    waits.granted_bytes,
                    waits.refused,
                    waits.interrupted,
                    1,
                ],
            );
        }
    }
    let ahead = heard_with("buttress::flush", &[("source", "clamp".to_owned())]);
    expect("ahead".to_owned(), vec![ahead.len() as u64], vec![stats.rounds]);
    let refusals = heard("buttress::enospc");
    expect("refused".to_owned(), vec![refusals.len() as u64], vec![engine.enospc]);
    (!found.is_empty()).then(|| found.join("\n"))
}

/// Writers on a full volume. Their dirty data reserves so much metadata that the writers wait for
/// metadata, until a request is refused.
fn wait_for_metadata(fs: &Filesystem) -> u64 {
    let filler = file_with(&fs.root(), "filler", b"");
    let allocate = FallocateMode::Allocate { keep_size: false };
    let mut at = 0;
    while filler.fallocate(at, 1 << 20, allocate).is_ok() {
        at += 1 << 20;
    }
    let cut = SetAttr { size: Some(at - (40 << 20)), ..SetAttr::default() };
    filler.set_attr(&cut).expect("shrinking always works");
    std::thread::scope(|scope| {
        for i in 0..4_u64 {
            let file = file_with(&fs.root(), &format!("file {i}"), b"");
            scope.spawn(move || {
                let mut rng = Rng::new(i);
                for _ in 0..1000 {
                    let at = rng.below(1000) * BLOCK * 2;
                    file.write_at(at, &[i as u8; BLOCK as usize]).expect("there is room");
                }
            });
        }
    });
    let refused = filler.fallocate(at, 100 << 20, allocate).expect_err("it is full");
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    100 << 20
}

#[test]
fn figures_are_what_was_told() {
    if std::env::var_os(ALONE).is_none() {
        let test = std::env::current_exe().expect("this program");
        let status = std::process::Command::new(test)
            .args(["--exact", "events::figures_are_what_was_told"])
            .env(ALONE, "1")
            .status();
        assert!(status.expect("it starts").success());
        return;
    }
    tracing::subscriber::set_global_default(Listener).expect("no other test runs");
    LISTENS.store(true, Ordering::Relaxed);
    let fs = mount_with(&memory(160), "reserve=levels,dirty=64M");
    let asked = wait_for_metadata(&fs);
    fs.sync().expect("durable");

    // The threads of the mount may still be at work for a moment.
    let mut differs = difference(&fs.space_stats());
    for _ in 0..1000 {
        if differs.is_none() {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
        differs = difference(&fs.space_stats());
    }
    let stats = fs.space_stats();
    assert_eq!(differs, None, "{stats:?}");

    let waits = stats.engine.waits.of(SpaceKind::Metadata, Reach::All);
    assert!(waits.granted > 0 && waits.granted_bytes > 0, "{waits:?}");
    let served: u64 = stats.engine.steps.rows().map(|(.., figures)| figures.served).sum();
    assert!(served > 0, "{:?}", stats.engine.steps);
    assert_eq!(stats.waiting_bytes, WaitingBytes::default());
    assert_eq!(stats.accounts.waiting, (0, 0));

    let refusal = stats.last_refusal.expect("a request was refused");
    let told = heard("buttress::enospc").pop().expect("it was told");
    assert_eq!((refusal.kind, refusal.bytes), (SpaceKind::Data, asked));
    assert_eq!(told.fields["kind"], refusal.kind.to_string());
    assert_eq!(told.number("bytes"), refusal.bytes);
    let accounts = &refusal.accounts;
    for account in [&accounts.data, &accounts.metadata, &accounts.system] {
        let of = |part: &str| told.number(&format!("{}_{part}_bytes", account.kind));
        let free = account.total - account.occupied();
        let parts = ["used", "reserved", "pinned", "read_only", "superblock"];
        assert_eq!(of("total") - parts.into_iter().map(of).sum::<u64>(), free, "{told:?}");
        assert_eq!((of("used"), of("may_use")), (account.used, account.may_use), "{told:?}");
    }
    assert_eq!(told.number("unallocated_bytes"), accounts.unallocated);
    assert_eq!(told.number("global_reserve_bytes"), accounts.metadata.global_reserve);
    assert_eq!(told.number("reserved_items"), accounts.outstanding.all_items());
    assert_eq!(told.number("running_bytes"), accounts.running.1);
    assert!(refusal.accounts.data.available() < asked, "{}", refusal.accounts);
    assert!(refusal.ago < Duration::from_secs(600), "{refusal:?}");
    fs.close().expect("it closes");
}
