//! The faults W1 to W13 that dm-writecache has had, with a test for each.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use buttress_base::Rng;
use buttress_block::{Device, Error, Layer, MemoryDevice};
use buttress_cache::inspect::{self, Fate};
use buttress_cache::{CacheDevice, CacheOptions};
use buttress_sim::{FaultDevice, Faults, Log};

use crate::crash::{Run, work};
use crate::rig::{SECTOR, blank, by_hand, open, read, write};

/// W1: in this cache, a write with FUA is a write and a flush. In both modes, a crash at the
/// acknowledgement does not lose the write.
#[test]
fn fua_is_durable_when_acknowledged() {
    for list in ["", "mode=pmem"] {
        let mut run = Run::new(4096, 50, list);
        let cached = run.open();
        run.start();
        for step in 1..8 {
            let mut state = run.last();
            state[step * 8] = step as u32;
            run.began(state);
            write(&cached, step * 8, &[step as u32]).expect("memory");
            cached.flush().expect("memory");
            run.flushed();
        }
        std::mem::forget(cached);
        run.log.crashes(&mut Rng::new(1), 6, 1, |crash| {
            let recovered = run.recover(crash);
            run.check_prefix(crash, &read(&recovered));
            std::mem::forget(recovered);
        });
    }
}

/// W2: a flush that comes while the data of a block is on its way to the cache does not commit the
/// block. After any crash each committed block holds its own data.
#[test]
fn commit_waits_for_the_data() {
    let mut run = Run::new(4096, 50, "");
    let hooked = Hooked::new(Arc::clone(&run.cache) as _);
    let hooked_cache = Arc::clone(&hooked) as Arc<dyn Device>;
    let cached = open(Arc::clone(&run.origin) as _, hooked_cache, &run.options);
    run.start();
    let (begun, wait) = std::sync::mpsc::channel();
    for step in 1..12 {
        // This write gives the flush something to commit.
        let mut state = run.last();
        state[..8].fill(step as u32);
        run.began(state.clone());
        write(&cached, 0, &[step as u32; 8]).expect("memory");
        let at = step * 8;
        state[at..at + 8].fill(step as u32);
        run.began(state);
        let (cache, begun) = (Arc::clone(&run.cache), begun.clone());
        hooked.set(move |offset, _| {
            // The hook looks only at the data, since the table and the superblock are written by
            // the commit.
            if offset < 4096 {
                return;
            }
            begun.send(()).expect("it is waited for");
            std::thread::sleep(Duration::from_millis(20));
            let scan = inspect::scan(Arc::clone(&cache) as _, None, 0).expect("a cache");
            let mut kept = scan.entries.iter().filter(|(_, fate)| *fate == Fate::Kept);
            assert!(kept.all(|(entry, _)| entry.sector != at as u64), "W2: committed, no data");
        });
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| write(&cached, at, &[step as u32; 8]));
            wait.recv().expect("the data is on its way");
            cached.flush().expect("memory");
            writer.join().expect("no panic").expect("memory");
        });
        hooked.clear();
        cached.flush().expect("memory");
        run.flushed();
    }
    let shown = run.log.crashes(&mut Rng::new(2), 6, 1, |crash| {
        let recovered = run.recover(crash);
        run.check_prefix(crash, &read(&recovered));
        std::mem::forget(recovered);
    });
    assert!(shown > 200, "only {shown} states");
    std::mem::forget(cached);
}

/// W3: a cache that is opened again reads the device, not the stale memory of its first user.
#[test]
fn reopening_reads_the_latest_metadata() {
    let (origin, cache) = blank(4096, 50, 400);
    let (origin, cache) = (Arc::new(origin), Arc::new(cache));
    let again =
        |list: &str| open(Arc::clone(&origin) as _, Arc::clone(&cache) as _, &by_hand(list));
    let first = again("");
    write(&first, 0, &[1; 8]).expect("memory");
    first.flush().expect("memory");
    first.close().expect("memory");
    let second = again("writeback=lru");
    write(&second, 0, &[2; 8]).expect("memory");
    second.close().expect("memory");
    let third = again("cleaner");
    assert_eq!(read(&third)[..8], [2; 8]);
    third.drain(|_| {}).expect("memory");
    assert_eq!(read(&*origin)[..8], [2; 8]);
}

/// W4: discarded blocks are subtracted from the count of uncommitted blocks, which starts commits.
#[test]
fn discards_are_not_uncommitted() {
    let (origin, cache) = blank(4096, 50, 400);
    let (origin, cache) = (Arc::new(origin), Arc::new(cache));
    let options = by_hand("autocommit_blocks=3");
    let cached = open(Arc::clone(&origin) as _, Arc::clone(&cache) as _, &options);
    for round in 1..20 {
        write(&cached, 0, &[round; 16]).expect("memory");
        cached.discard(0, 8192).expect("memory");
        cached.discard(0, 8192).expect("memory");
        write(&cached, 8, &[round; 8]).expect("memory");
        write(&cached, 16, &[round; 8]).expect("memory");
    }
    let before = cached.status().committed;
    write(&cached, 24, &[99; 24]).expect("memory");
    assert!(cached.status().committed > before, "three blocks start a commit");
    std::mem::forget(cached);
    let cached = open(Arc::clone(&origin) as _, Arc::clone(&cache) as _, &options);
    assert_eq!(read(&cached)[8..16], [19; 8]);
    assert_eq!(read(&cached)[24..48], [99; 24]);
}

/// W5: a commit of one block writes one block, its page of entries and the superblock's page.
#[test]
fn commit_writes_little() {
    let (origin, cache) = blank(4096, 20_000, 80_000);
    let log = Log::new();
    let (origin, cache) = (log.device(&origin, 512), log.device(&cache, 512));
    let cached = open(Arc::clone(&origin) as _, Arc::clone(&cache) as _, &by_hand(""));
    log.start(&[&origin, &cache]);
    for round in 0..10 {
        let before = log.totals(cache.id());
        write(&cached, round * 800, &[1; 8]).expect("memory");
        cached.flush().expect("memory");
        let after = log.totals(cache.id());
        assert!(after.0 - before.0 <= 4096 + 2 * 4096, "W5: {} bytes", after.0 - before.0);
        assert_eq!(after.1 - before.1, 2, "two flushes a commit");
    }
}

/// W6: writes that bypass a full cache are durable after a flush, which flushes the origin too.
#[test]
fn writes_around_are_flushed() {
    let mut run = Run::new(4096, 2, "autocommit_time=100000");
    let cached = run.open();
    run.start();
    let mut state = run.last();
    state[..64].fill(7);
    run.began(state);
    write(&cached, 0, &[7; 64]).expect("memory");
    cached.flush().expect("memory");
    run.flushed();
    assert!(cached.status().writes_around > 0);
    std::mem::forget(cached);
    run.log.crashes(&mut Rng::new(3), 8, 1, |crash| {
        let recovered = run.recover(crash);
        run.check_sectors(crash, &read(&recovered));
        std::mem::forget(recovered);
    });
}

/// W7: a batch of write-back reads at most `writeback_jobs` blocks.
#[test]
fn write_back_in_flight_is_bounded() {
    let (origin, cache) = blank(4096, 2000, 16_000);
    let log = Log::new();
    let (origin, cache) = (log.device(&origin, 512), log.device(&cache, 512));
    let options = by_hand("writeback_jobs=16");
    let cached = open(Arc::clone(&origin) as _, Arc::clone(&cache) as _, &options);
    write(&cached, 0, &vec![1; 12_000]).expect("memory");
    log.start(&[&origin, &cache]);
    let mut batches = Vec::new();
    cached.drain(|blocks| batches.push(blocks)).expect("memory");
    assert!(batches.iter().all(|&blocks| blocks <= 16), "W7: {batches:?}");
    assert!(log.writes(origin.id()).iter().all(|&(_, len)| len <= 16 * 4096), "W7");
}

/// W8: a cache opened above its high watermark drains by itself.
#[test]
fn opening_above_the_mark_drains() {
    let (origin, cache) = blank(4096, 100, 1600);
    let (origin, cache) = (Arc::new(origin), Arc::new(cache));
    let cached = open(Arc::clone(&origin) as _, Arc::clone(&cache) as _, &by_hand(""));
    write(&cached, 0, &[4; 720]).expect("memory");
    cached.close().expect("memory");
    let options = CacheOptions::parse("high_watermark=50,low_watermark=20").expect("right");
    let cached = open(Arc::clone(&origin) as _, Arc::clone(&cache) as _, &options);
    let deadline = Instant::now() + Duration::from_secs(60);
    while cached.cached_blocks() > cached.status().blocks / 5 {
        assert!(Instant::now() < deadline, "W8");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(read(&cached)[..720], [4; 720]);
}

type Hook = Box<dyn FnMut(u64, &[u8]) + Send>;

/// A device that calls a hook before it writes.
pub(crate) struct Hooked {
    inner: Arc<dyn Device>,
    hook: Mutex<Option<Hook>>,
}

impl Hooked {
    pub(crate) fn new(inner: Arc<dyn Device>) -> Arc<Self> {
        Arc::new(Self { inner, hook: Mutex::new(None) })
    }

    pub(crate) fn set(&self, hook: impl FnMut(u64, &[u8]) + Send + 'static) {
        *self.hook.lock().expect("not poisoned") = Some(Box::new(hook));
    }

    pub(crate) fn clear(&self) {
        *self.hook.lock().expect("not poisoned") = None;
    }
}

impl std::fmt::Debug for Hooked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("hooked")
    }
}

impl Layer for Hooked {
    type Inner = dyn Device;

    fn inner(&self) -> &Self::Inner {
        &*self.inner
    }

    fn on_write(&self, offset: u64, buf: &[u8]) -> Result<(), Error> {
        // Takes the hook out, so that the hook itself may write to this device.
        let hook = self.hook.lock().expect("not poisoned").take();
        if let Some(mut hook) = hook {
            hook(offset, buf);
            *self.hook.lock().expect("not poisoned") = Some(hook);
        }
        self.inner.write_at(offset, buf)
    }
}

/// W9: blocks are rewritten, flushed and read during their write-back. After a crash at any point
/// the newest version is found.
#[test]
fn blocks_rewritten_during_write_back_stay_dirty() {
    for list in ["", "mode=pmem", "consistent_origin=on"] {
        let run = Arc::new(Mutex::new(Run::new(4096, 200, list)));
        let hooked = {
            let run = run.lock().expect("not poisoned");
            Hooked::new(Arc::clone(&run.origin) as _)
        };
        let cached = {
            let run = run.lock().expect("not poisoned");
            let cache = Arc::clone(&run.cache) as Arc<dyn Device>;
            Arc::new(open(Arc::clone(&hooked) as _, cache, &run.options))
        };
        {
            let mut run = run.lock().expect("not poisoned");
            run.start();
            let mut state = run.last();
            for at in (0..160).step_by(16) {
                state[at..at + 8].fill(1);
                run.began(state.clone());
                write(&*cached, at, &[1; 8]).expect("memory");
            }
            cached.flush().expect("memory");
            run.flushed();
        }
        let mut value = 1;
        let inside = (Arc::clone(&run), Arc::clone(&cached));
        hooked.set(move |offset, _| {
            let (run, cached) = &inside;
            let mut run = run.lock().expect("not poisoned");
            value += 1;
            let at = (offset as usize / SECTOR).min(144);
            let mut state = run.last();
            state[at..at + 8].fill(value);
            run.began(state.clone());
            write(&**cached, at, &[value; 8]).expect("memory");
            assert_eq!(read(&**cached), state, "W9");
            if value % 2 == 0 {
                cached.flush().expect("memory");
                run.flushed();
            }
        });
        cached.drain(|_| {}).expect("memory");
        hooked.clear();
        cached.drain(|_| {}).expect("memory");
        {
            let run = run.lock().expect("not poisoned");
            assert_eq!(read(&*run.origin), run.last());
            let shown = run.log.crashes(&mut Rng::new(9), 3, 1, |crash| {
                let recovered = run.recover(crash);
                run.check_prefix(crash, &read(&recovered));
                std::mem::forget(recovered);
            });
            assert!(shown > 100, "only {shown} states");
        }
        std::mem::forget(cached);
    }
}

/// W10: the requests of some work are recorded, and a crash is simulated after each request. The
/// content after the crash is the state after one of the writes, none older than the last flush,
/// and never a mixture. (`crash` tests this at length.)
#[test]
fn old_and_new_never_mix() {
    for list in ["", "mode=pmem", "fua"] {
        let mut rng = Rng::new(10);
        let mut run = Run::new(1024, 400, list);
        work(&mut run, &mut rng, 30, 24);
        let shown = run.log.crashes(&mut rng, 4, 1, |crash| {
            let recovered = run.recover(crash);
            run.check_prefix(crash, &read(&recovered));
            std::mem::forget(recovered);
        });
        assert!(shown > 100, "only {shown} states");
    }
}

/// W11: a sweep writes the origin in one direction. It joins blocks that are adjacent on the
/// origin, whatever their order in the cache.
#[test]
fn sweeps_go_one_way() {
    let (origin, cache) = blank(4096, 3000, 16_000);
    let log = Log::new();
    let (origin, cache) = (log.device(&origin, 512), log.device(&cache, 512));
    let cached = open(Arc::clone(&origin) as _, Arc::clone(&cache) as _, &by_hand(""));
    let mut blocks: Vec<usize> = (0..2000).collect();
    Rng::new(5).shuffle(&mut blocks);
    for &block in &blocks[..1500] {
        write(&cached, block * 8, &[block as u32; 8]).expect("memory");
    }
    blocks.truncate(1500);
    blocks.sort_unstable();
    let runs = 1 + blocks.windows(2).filter(|pair| pair[1] != pair[0] + 1).count();
    log.start(&[&origin, &cache]);
    cached.drain(|_| {}).expect("memory");
    let writes = log.writes(origin.id());
    assert!(writes.windows(2).all(|pair| pair[0].0 < pair[1].0), "W11");
    assert_eq!(writes.len(), runs, "one request a run");
}

/// W12: during each request of a sweep to the origin, other threads write, read, discard and flush
/// without waiting. (`buttress-bench foreground` measures the speed.)
#[test]
fn foreground_goes_on_during_a_sweep() {
    const TIMEOUT: Duration = Duration::from_secs(60);
    let (origin, cache) = blank(4096, 3000, 30_000);
    let hooked = Hooked::new(Arc::new(origin));
    let cached = Arc::new(open(Arc::clone(&hooked) as _, Arc::new(cache), &by_hand("")));
    for block in (0..2000).step_by(2) {
        write(&*cached, block * 8, &[7; 8]).expect("memory");
    }
    let (ask, asked) = std::sync::mpsc::channel::<usize>();
    let (answer, answered) = std::sync::mpsc::channel();
    let foreground = Arc::clone(&cached);
    let thread = std::thread::spawn(move || {
        for at in asked {
            write(&*foreground, at, &[8; 8]).expect("memory");
            let mut buf = [0; SECTOR];
            foreground.read_at((at * SECTOR) as u64, &mut buf).expect("memory");
            assert!(buf == crate::rig::sector(8));
            foreground.discard(28_000 * SECTOR as u64, 8192).expect("memory");
            foreground.flush().expect("memory");
            answer.send(()).expect("it is waited for");
        }
    });
    let mut count = 0;
    hooked.set(move |offset, _| {
        // The writes go to the blocks that are being written back, and to other blocks.
        count += 1;
        let at = if count % 2 == 0 { 20_000 } else { offset as usize / SECTOR };
        ask.send(at).expect("it listens");
        answered.recv_timeout(TIMEOUT).expect("W12: the foreground waits for the sweep");
    });
    assert!(cached.drain(|_| {}).expect("memory").blocks >= 1000);
    hooked.clear();
    thread.join().expect("no panic");
    assert_eq!(read(&*cached)[..8], [8; 8]);
}

/// W13: a failure of the origin is reported once, nothing is freed, and all blocks are written when
/// the origin works again.
#[test]
fn failing_origin_frees_nothing() {
    let (origin, cache) = blank(4096, 100, 800);
    let faults = Faults::none();
    let origin = Arc::new(origin);
    let failing = FaultDevice::new(Arc::clone(&origin) as _, &faults);
    let cached = open(failing, Arc::new(cache), &by_hand(""));
    write(&cached, 0, &[3; 400]).expect("memory");
    cached.flush().expect("memory");
    faults.fail(0, true);
    cached.drain(|_| {}).expect_err("the origin is gone");
    assert_eq!(cached.cached_blocks(), 50, "W13");
    assert_eq!(cached.status().error, 1);
    write(&cached, 0, &[4; 8]).expect("the cache still works");
    cached.flush().expect("what the cache holds is durable");
    faults.heal();
    cached.drain(|_| {}).expect("the origin is back");
    assert_eq!((cached.cached_blocks(), cached.status().error), (0, 0));
    assert_eq!(read(&*origin)[..16], [[4; 8], [3; 8]].concat());
    cached.close().expect("it was told once");
}

/// W13: a cache with blocks past the origin's end is refused; with `force` it drops only those
/// blocks.
#[test]
fn shrunken_origin_is_refused() {
    let (origin, cache) = blank(4096, 100, 800);
    let cache = Arc::new(cache);
    let cached = open(Arc::new(origin.fork()), Arc::clone(&cache) as _, &by_hand(""));
    write(&cached, 0, &[3; 800]).expect("memory");
    cached.close().expect("memory");
    let short = Arc::new(MemoryDevice::named("origin", 403 * SECTOR as u64));
    let opened = CacheDevice::open(Arc::clone(&short) as _, Arc::clone(&cache) as _, by_hand(""));
    let error = opened.expect_err("blocks lie past the end");
    assert!(matches!(error, buttress_cache::Error::PastOrigin { .. }), "{error}");
    let mut options = by_hand("");
    options.force = true;
    let cached = open(Arc::clone(&short) as _, cache, &options);
    cached.drain(|_| {}).expect("the last block is cut to what there is");
    assert_eq!(read(&*short), [3; 403]);
}
