//! Starts and stops the background threads of a writable mount.
//!
//! # Failure
//!
//! The engine latches a failed commit. Other failures are logged, since no caller waits for them.

use std::sync::Arc;
use std::time::Duration;

use buttress_base::{activity, clock};
use buttress_txn::{Flusher, Loader};

use crate::mount::Mount;
use crate::replace;
use crate::writeback::Writeback;

/// How often the loader checks for work without being called.
const LOAD_PERIOD: Duration = Duration::from_secs(1);

/// How often the committer asks the engine whether it wants a commit.
const COMMIT_PERIOD: Duration = Duration::from_millis(20);

/// Starts the threads of a writable mount.
pub(crate) fn start(mount: &Arc<Mount>) {
    let run = |name, work: fn(&Mount)| {
        let own = Arc::clone(mount);
        mount.threads.start(name, move || work(&own))
    };
    // Attach the flusher here, not in its thread. Otherwise a caller that reserves space before the
    // thread runs would find no flusher.
    let flusher = Flusher::attach(Arc::clone(&mount.engine));
    // Set the flag before the thread starts. From its first work on, `clean_all` must wait for the
    // thread.
    mount.cleaner.set_thread(true);
    let cleans = run("clean", |mount| mount.cleaner.run());
    mount.cleaner.set_thread(cleans);
    run("commit", commit_now_and_then);
    let own = Arc::clone(mount);
    mount.threads.start("space", move || own.space.serve_waiters(&own.stop, flusher));
    run("load", load);
    if mount.options.baselines.preempt.is_on() {
        run("preempt", |mount| mount.space.make_room_ahead(&mount.stop));
    }
    if mount.options.reclaim_below > 0 {
        run("reclaim", |mount| {
            let below = mount.options.reclaim_below;
            mount.upkeep.reclaim(&mount.stop, below, &mount.holders());
        });
    }
    if mount.options.resumes_replace && mount.engine.volume().target().is_some() {
        run("replace", replace::resume_at_mount);
    }
    for role in Writeback::roles() {
        let own = Arc::clone(mount);
        mount.threads.start("flush", move || own.writeback.run(role));
    }
}

/// Ends the threads. Each thread finishes its present work.
pub(crate) fn stop(mount: &Mount) {
    mount.files.reader().stop_helpers();
    mount.writeback.stop();
    mount.inodes.cleaning().stop();
    mount.stop.set();
    mount.engine.flushers().call();
    mount.engine.reservations().call_ahead();
    mount.engine.storage().stop_learning();
    mount.engine.storage().call_loader();
    mount.threads.join();
    mount.cleaner.set_thread(false);
}

/// Reads the block groups, if the mount did not read them when it was opened. Then reads the free
/// space of the groups that will be used.
fn load(mount: &Mount) {
    let loader = Loader::attach(Arc::clone(&mount.engine));
    let busy = activity::busy();
    if mount.engine.know_groups().is_err() {
        return;
    }
    drop(busy);
    while !mount.stop.is_set() {
        loader.work(LOAD_PERIOD);
    }
}

/// Commits when the interval has passed, or when the engine asks for a commit.
fn commit_now_and_then(mount: &Mount) {
    let mut last = clock::now();
    while !mount.stop.wait(COMMIT_PERIOD) {
        let _busy = activity::busy();
        mount.log.complete();
        if mount.times.is_due() {
            mount.times.put_all();
        }
        let due = clock::since(last) >= mount.options.commit_interval;
        if !due && !mount.engine.commits().is_wanted() {
            continue;
        }
        if due || mount.options.flushoncommit {
            mount.writeback.write_all();
        }
        mount.times.put_for_commit();
        if due && !mount.engine.commits().is_dirty() {
            last = clock::now();
            continue;
        }
        if let Err(error) = mount.engine.commit() {
            tracing::error!(%error, "the periodic commit failed");
            return;
        }
        last = clock::now();
    }
}
