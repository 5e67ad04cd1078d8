//! The two threads of an open cache: one commits at intervals, one writes back.
//!
//! # Failure
//!
//! The committing thread ends when the cache is stopped. After a failure of the origin the
//! write-back thread waits and tries again, since the origin may come back. Nothing is lost
//! meanwhile.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::core::Core;
use crate::options::Mode;

/// How often write-back checks its conditions by itself.
const TICK: Duration = Duration::from_millis(100);
/// How long write-back waits after a failure of the origin.
const BACK_OFF: Duration = Duration::from_secs(1);

/// Starts the threads.
pub(crate) fn start(core: &Arc<Core>) -> std::io::Result<Vec<JoinHandle<()>>> {
    let spawn = |name: &str, work: fn(&Core)| {
        let core = Arc::clone(core);
        std::thread::Builder::new().name(name.to_owned()).spawn(move || work(&core))
    };
    Ok(vec![spawn("cache-commit", commit)?, spawn("cache-drain", drain)?])
}

/// Tells the threads to end.
pub(crate) fn stop(core: &Core) {
    core.work.wanted.lock().stop = true;
    core.work.commit.notify_all();
    core.work.drain.notify_all();
}

fn commit(core: &Core) {
    loop {
        {
            let mut wanted = core.work.wanted.lock();
            if !wanted.stop && !wanted.commit {
                wanted.wait_for(&core.work.commit, core.options.autocommit_time);
            }
            if wanted.stop {
                return;
            }
            wanted.commit = false;
        }
        // The latch holds the cause, which was logged when the latch was set.
        if core.commit().is_err() {
            return;
        }
    }
}

fn drain(core: &Core) {
    let mut wait = TICK;
    loop {
        {
            let mut wanted = core.work.wanted.lock();
            if !wanted.stop && (!wanted.drain || wait > TICK) {
                wanted.wait_for(&core.work.drain, wait);
            }
            if wanted.stop {
                return;
            }
            wanted.drain = false;
        }
        if core.broken.is_set() {
            return;
        }
        wait = match drain_once(core) {
            Ok(()) => TICK,
            Err(error) => {
                // Log the failure once, until write-back succeeds again.
                if core.drain_error.lock().replace(error.clone()).is_none() {
                    tracing::error!(origin = %core.origin.name(), %error, "write-back failed");
                }
                BACK_OFF
            }
        };
    }
}

fn drain_once(core: &Core) -> Result<(), crate::error::Error> {
    let stop = || core.work.wanted.lock().stop;
    core.free_unread_slots();
    if core.cleaner.load(Ordering::Relaxed) {
        if core.used() > 0 {
            core.drain_all(&mut |_| {})?;
        }
        return Ok(());
    }
    let is_full = core.slots.free() == 0;
    if let Some(epoch) = core.aged(Instant::now())
        && core.used() > 0
    {
        core.drain_aged(epoch)?;
    }
    // The watermark is checked at every tick, not only after a write. So a cache that is above the
    // high watermark when it opens drains as well (test W8 in `known`).
    let is_above = core.used() > core.percent(core.options.high_watermark);
    if is_full || (is_above && !is_paused(core)) {
        if core.used() > core.percent(core.options.low_watermark) {
            core.drain_to_low(&stop)?;
        } else if is_full {
            core.drain_for_room()?;
        }
    }
    Ok(())
}

/// Whether write-back pauses, because writes recently went straight to the origin.
fn is_paused(core: &Core) -> bool {
    let at = core.bypassed_at.load(Ordering::Relaxed);
    if core.options.mode == Mode::Pmem || at == 0 {
        return false;
    }
    let now = core.started.elapsed().as_millis() as u64 + 1;
    now.saturating_sub(at) < core.options.pause_writeback.as_millis() as u64
}
