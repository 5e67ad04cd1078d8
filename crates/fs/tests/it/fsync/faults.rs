//! A device that fails while a log is written. The log becomes a commit, or the volume becomes
//! read-only with the first cause. A power cut afterwards loses nothing that was acknowledged.

use std::sync::Arc;

use buttress_base::Rng;
use buttress_block::{Device, MemoryDevice};
use buttress_fs::{Filesystem, MakeOptions, NewInode};
use buttress_sim::{FaultDevice, Faults, Log, campaign};

use super::{number, open};
use crate::checker::expect_sound;
use crate::volume::{content, pattern};

/// With this variable, the test tries every crash state of each fault.
const ALL: &str = "BUTTRESS_FSYNC_FAULTS";

const LEN: usize = 12_288;

/// The result of one fault.
#[derive(Default)]
struct Tried {
    /// Whether the device reached request `n`, so that the fault happened.
    hit: bool,
    states: usize,
    latched: bool,
    committed: bool,
}

/// Runs some rounds of two fsyncs, of an old file and of a new file. Request `n` of these rounds
/// fails. With `sticky`, each later request fails, too.
fn fail(n: u64, sticky: bool, stride: usize) -> Tried {
    let base = MemoryDevice::new(128 << 20);
    Filesystem::make(&base, &MakeOptions { seed: Some(n), ..MakeOptions::default() })
        .expect("a volume");
    let log = Log::new();
    let recorder = log.device(&base, 512);
    let faults = Faults::none();
    let device = FaultDevice::new(Arc::clone(&recorder) as Arc<dyn Device>, &faults);
    let fs = open(device);
    let root = fs.root();
    let file = root.create(b"old", NewInode::file(0o644)).expect("a file");
    file.write_at(0, &pattern(0, LEN)).expect("a write");
    fs.sync().expect("sync");

    log.start(&[&recorder]);
    faults.fail(n, sticky);
    // From a mark on, the old file may hold the content that was acknowledged then, or any later
    // content.
    let mut tried = vec![pattern(0, LEN)];
    let mut acknowledged = vec![(0, 0)];
    let mut made = Vec::new();
    for round in 1..=4_u64 {
        let data = pattern(round, LEN);
        tried.push(data.clone());
        let wrote = file.write_at(0, &data).and_then(|_| file.sync());
        if wrote.is_ok() {
            acknowledged.push((round * 2, round as usize));
        }
        log.mark(round * 2);
        let name = format!("new{round}");
        let fresh = root.create(name.as_bytes(), NewInode::file(0o644)).and_then(|fresh| {
            fresh.write_at(0, &data)?;
            fresh.sync()
        });
        if fresh.is_ok() {
            made.push((round * 2 + 1, name, data));
        }
        log.mark(round * 2 + 1);
    }
    let hit = faults.count() > n;
    faults.heal();
    let latched = fs.read_only_reason();
    if let Some(why) = &latched {
        assert!(why.contains("a fault was asked for"), "request {n}: {why}");
        file.write_at(0, b"more").expect_err("it is read-only");
        assert_eq!(content(&file).len(), LEN, "reads go on");
    }
    let committed = !fs.sync_stats().commits.is_empty();
    drop((file, root));
    let mut states = 0;
    let mut rng = Rng::new(n + (campaign::round() << 32));
    let draws = &mut rng.clone();
    let shown = log.crashes(draws, 1, stride, |crash| {
        let mark = crash.mark.unwrap_or(0);
        let device: Arc<dyn Device> = Arc::new(crash.devices[0].fork());
        let fs = open(Arc::clone(&device));
        let found = content(&fs.resolve("/old").expect("it was synced"));
        let (_, last) = acknowledged.iter().rfind(|(at, _)| *at <= mark).expect("the first");
        assert!(tried[*last..].contains(&found), "request {n}, {sticky}, mark {mark}: lost");
        for (at, name, data) in &made {
            if *at <= mark {
                let found = fs.resolve(format!("/{name}")).map(|inode| content(&inode));
                assert_eq!(found.as_ref().ok(), Some(data), "request {n}, {sticky}: {name}");
            }
        }
        fs.close().expect("a clean end");
        if rng.chance(1, 30) {
            expect_sound(&device);
        }
        states += 1;
    });
    assert_eq!(states, shown);
    // The old mount may write when it closes, so the states are checked before.
    let _ = fs.close();
    Tried { hit, states, latched: latched.is_some(), committed }
}

#[test]
fn faults_in_logs_lose_nothing() {
    let all = number(ALL).is_some();
    let (mut states, mut latched, mut committed, mut faults) = (0, 0, 0, 0);
    for sticky in [false, true] {
        for n in 0.. {
            if !all && sticky && n % 4 != 0 {
                continue;
            }
            let tried = fail(n, sticky, if all { 1 } else { 7 });
            if !tried.hit {
                break;
            }
            faults += 1;
            states += tried.states;
            latched += usize::from(tried.latched);
            committed += usize::from(tried.committed);
        }
    }
    eprintln!(
        "crash states: {states} of {faults} faults in fsync, {latched} read-only, {committed} by commits"
    );
    campaign::count("states", states);
    campaign::count("faults", faults);
    assert!(faults > 20, "only {faults} requests were failed");
    assert!(latched > 0 && committed > 0, "{latched} latched, {committed} committed");
}
