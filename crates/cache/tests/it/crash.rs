//! Cuts the power at every request. Any part of the unflushed writes is lost, torn or reordered.

use std::collections::BTreeSet;
use std::sync::Arc;

use buttress_base::Rng;
use buttress_block::Device;
use buttress_cache::CacheOptions;
use buttress_sim::{Crash, Log, Recorder, campaign};

use crate::rig::{Model, blank, by_hand, open, place, read, write};

const SECTORS: usize = 160;

pub(crate) struct Run {
    pub(crate) log: Arc<Log>,
    pub(crate) origin: Arc<Recorder>,
    pub(crate) cache: Arc<Recorder>,
    pub(crate) options: CacheOptions,
    /// The state after each step.
    pub(crate) states: Vec<Model>,
    flushed: usize,
}

impl Run {
    pub(crate) fn new(block_size: u32, blocks: u64, list: &str) -> Self {
        Self::with_sectors(block_size, blocks, list, SECTORS)
    }

    fn with_sectors(block_size: u32, blocks: u64, list: &str, sectors: usize) -> Self {
        let (origin, cache) = blank(block_size, blocks, sectors as u64);
        let options = by_hand(list);
        let log = Log::new();
        // Persistent memory keeps eight bytes whole.
        let atom = if options.mode == buttress_cache::Mode::Pmem { 8 } else { 512 };
        let (origin, cache) = (log.device(&origin, 512), log.device(&cache, atom));
        Self { log, origin, cache, options, states: vec![vec![0; sectors]], flushed: 0 }
    }

    pub(crate) fn open(&self) -> buttress_cache::CacheDevice {
        open(Arc::clone(&self.origin) as _, Arc::clone(&self.cache) as _, &self.options)
    }

    pub(crate) fn start(&self) {
        self.log.start(&[&self.origin, &self.cache]);
        self.mark();
    }

    /// Adds a state that a crash may show from now on.
    pub(crate) fn began(&mut self, state: Model) {
        self.states.push(state);
        self.mark();
    }

    /// From now on a crash may not show anything older than the newest state.
    pub(crate) fn flushed(&mut self) {
        self.flushed = self.states.len() - 1;
        self.mark();
    }

    fn mark(&self) {
        self.log.mark(((self.states.len() as u64) << 32) | self.flushed as u64);
    }

    pub(crate) fn last(&self) -> Model {
        self.states.last().expect("there is a first").clone()
    }

    /// The states that a crash may show: from the last flush to the newest state that has begun.
    pub(crate) fn allowed(&self, crash: &Crash) -> &[Model] {
        let mark = crash.mark.expect("marked at the start");
        &self.states[(mark & 0xffff_ffff) as usize..(mark >> 32) as usize]
    }

    /// Opens the cache that a crash left.
    pub(crate) fn recover(&self, crash: &Crash) -> buttress_cache::CacheDevice {
        let device = |index: usize| Arc::new(crash.devices[index].fork()) as Arc<dyn Device>;
        open(device(0), device(1), &self.options)
    }

    /// Every sector holds its content of the last flush, or newer content.
    pub(crate) fn check_sectors(&self, crash: &Crash, found: &Model) {
        let allowed = self.allowed(crash);
        for (at, value) in found.iter().enumerate() {
            let known: BTreeSet<_> = allowed.iter().map(|state| state[at]).collect();
            let about = (crash.event, crash.draw);
            assert!(
                known.contains(value),
                "sector {at} holds {value}, not of {known:?}, {about:?}"
            );
        }
    }

    /// All sectors together are the state after one step.
    pub(crate) fn check_prefix(&self, crash: &Crash, found: &Model) {
        let about = (crash.event, crash.draw);
        assert!(self.allowed(crash).contains(found), "not a prefix at {about:?}");
    }
}

/// Random writes, flushes and sweeps.
pub(crate) fn work(run: &mut Run, rng: &mut Rng, steps: usize, longest: usize) {
    let cached = run.open();
    run.start();
    for step in 1..=steps {
        match rng.below(12) {
            0..8 => {
                let range = place(rng, SECTORS, longest);
                let mut state = run.last();
                state[range.clone()].fill(step as u32);
                let values = state[range.clone()].to_vec();
                run.began(state);
                write(&cached, range.start, &values).expect("memory");
            }
            8..10 => {
                cached.flush().expect("memory");
                run.flushed();
            }
            10 => drop(cached.drain_to_low().expect("memory")),
            _ => drop(cached.drain(|_| {}).expect("memory")),
        }
    }
    // The cache is not closed, since the power cut follows.
    std::mem::forget(cached);
}

/// Tests W1, W2, W9 and W10 at every crash point, with room for everything. A crash leaves the
/// state after one step, no older than the last flush. If the cache is drained after recovery, the
/// origin alone has that state.
#[test]
fn every_crash_leaves_a_prefix() {
    let mut shown = 0;
    let lists = ["", "mode=pmem", "writeback=lru", "consistent_origin=on", "autocommit_blocks=4"];
    for seed in campaign::seeds(0..10) {
        let mut rng = Rng::new(seed);
        let block_size = [512, 1024, 4096][seed as usize % 3];
        let mut run = Run::new(block_size, 400, lists[seed as usize % lists.len()]);
        work(&mut run, &mut rng, 50, 24);
        shown += run.log.crashes(&mut rng.clone(), 3, 1, |crash| {
            let recovered = run.recover(crash);
            let found = read(&recovered);
            run.check_prefix(crash, &found);
            if crash.event % 5 == 0 {
                recovered.drain(|_| {}).expect("memory");
                assert_eq!(read(&recovered), found, "write-back changes nothing");
            }
            std::mem::forget(recovered);
        });
    }
    campaign::count("states", shown);
    assert!(shown > 2000, "only {shown} states");
}

/// There is hardly any room, so writes bypass the cache, wait, and reuse slots all the time. No
/// acknowledged flush is lost.
#[test]
fn a_full_cache_loses_no_flush() {
    let mut shown = 0;
    let lists = ["", "mode=pmem", "writeback=fifo-unsorted", "consistent_origin=on", "cleaner"];
    for seed in campaign::seeds(20..30) {
        let mut rng = Rng::new(seed);
        let block_size = [512, 1024, 4096][seed as usize % 3];
        let mut run = Run::new(block_size, 6, lists[seed as usize % lists.len()]);
        work(&mut run, &mut rng, 50, 12);
        shown += run.log.crashes(&mut rng.clone(), 3, 1, |crash| {
            let recovered = run.recover(crash);
            let found = read(&recovered);
            run.check_sectors(crash, &found);
            std::mem::forget(recovered);
        });
    }
    campaign::count("states", shown);
    assert!(shown > 2000, "only {shown} states");
}

/// The cache crashes, recovers, continues, and crashes again. Blocks left uncommitted by the first
/// crash never come back, and no slot is used before its mark is durable.
#[test]
fn crashes_after_crashes() {
    let mut rng = Rng::new(77 + campaign::round());
    let mut run = Run::new(1024, 40, "");
    work(&mut run, &mut rng, 30, 16);
    let mut lefts = Vec::new();
    run.log.crashes(&mut rng.clone(), 2, 7, |crash| {
        lefts.push((crash.devices[0].fork(), crash.devices[1].fork()));
    });
    let mut shown = 0;
    for (origin, cache) in lefts {
        let log = Log::new();
        let mut second = Run {
            origin: log.device(&origin, 512),
            cache: log.device(&cache, 512),
            options: run.options.clone(),
            states: Vec::new(),
            flushed: 0,
            log,
        };
        let device = second.open();
        second.states.push(read(&device));
        std::mem::forget(device);
        work(&mut second, &mut rng, 8, 16);
        shown += second.log.crashes(&mut rng.clone(), 1, 1, |crash| {
            let recovered = second.recover(crash);
            let found = read(&recovered);
            second.check_sectors(crash, &found);
            std::mem::forget(recovered);
        });
    }
    campaign::count("states", shown);
    assert!(shown > 500, "only {shown} states");
}

/// Zeroes bypass the cache among writes and flushes. After a crash each sector has its content of
/// the last flush, or newer content.
#[test]
fn zeroes_lose_no_flush() {
    const MANY: usize = 4000;
    for seed in campaign::seeds(0..2) {
        let mut rng = Rng::new(seed);
        let mut run = Run::with_sectors(512, 60, "", MANY);
        let cached = run.open();
        run.start();
        for step in 1..14_u32 {
            let mut state = run.last();
            if step % 4 == 0 {
                let start = rng.below(200) as usize;
                state[start..start + 2200 + step as usize].fill(0);
                run.began(state);
                let (offset, len) = (start as u64 * 512, (2200 + u64::from(step)) * 512);
                cached
                    .write_zeroes(offset, len, buttress_block::device::Space::Keep)
                    .expect("memory");
            } else {
                let range = place(&mut rng, 400, 20);
                state[range.clone()].fill(step);
                let values = state[range.clone()].to_vec();
                run.began(state);
                write(&cached, range.start, &values).expect("memory");
            }
            if rng.chance(1, 2) {
                cached.flush().expect("memory");
                run.flushed();
            }
        }
        std::mem::forget(cached);
        let shown = run.log.crashes(&mut rng.clone(), 2, 1, |crash| {
            let recovered = run.recover(crash);
            run.check_sectors(crash, &read(&recovered));
            std::mem::forget(recovered);
        });
        campaign::count("states", shown);
        assert!(shown > 100);
    }
}
