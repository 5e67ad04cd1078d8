//! Space that will soon be free: unlinked files that the kernel still has to release.
//!
//! On a local file system the last close of an unlinked file also frees it. With FUSE, the kernel
//! tells the server of the close later, in separate requests: `release` after the close, and
//! `forget` after the answer to `release`. A program that frees space and then writes can be faster
//! than these requests.
//!
//! # Invariants
//!
//! - **R1** A request for space (to write, allocate, copy or make something) is not refused while
//!   another unlinked file is expected to be freed. A closed file is expected to be freed within
//!   [`FORGOTTEN`] of the last unlink, an open file within [`CLOSED`] of that unlink. R3 has the
//!   exceptions.
//! - **R2** The wait ends: a request is tried again only after an unlinked file was freed, and for
//!   no longer than [`FORGOTTEN`].
//! - **R3** Requests that wait never occupy the last thread that reads, since only the kernel can
//!   end their wait. The kernel sends many writes before it sends a release, so waiting writes use
//!   a thread of their own. If too few threads would be left, the next request is refused.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use buttress_base::activity::{self, Cause};
use buttress_base::{clock, interrupt, thread};
use buttress_protocol::Errno;

use super::{FrontEnd, Node};
use crate::errno::Answer;
use crate::freed_files::FreedFiles;

/// How long after the last unlink a request waits for unlinked files that are still open. If such a
/// file stays open, the request waits in vain.
const CLOSED: Duration = Duration::from_secs(1);

/// How soon the kernel is expected to forget a closed file. The kernel forgets every closed file,
/// and this takes long only on a busy machine.
const FORGOTTEN: Duration = Duration::from_secs(10);

/// How often a waiting request checks.
const LOOK: Duration = Duration::from_millis(2);

/// How long a thread waits for forgets to gather if the thread has nothing else to read. The kernel
/// then sends many forgets in one request. No program waits for them.
const GATHER: Duration = Duration::from_millis(1);

/// How many writes, of at most a MiB each, may wait on the separate thread.
const ASIDE_MAX: usize = 256;

/// Whether space is expected to become free.
enum SpaceOutlook {
    /// Space became free since the last check.
    Freed,
    /// Space may become free, once the kernel has sent this request.
    MayBeFreed(AwaitedRequest),
    /// No space will become free.
    None,
}

/// The request that the kernel sends before space becomes free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AwaitedRequest {
    /// A forget of a closed file. It comes by `/dev/fuse`.
    Forget,
    /// A release of a file that is still open. It comes like any other request, and a forget
    /// follows it.
    Release,
}

/// Permission to wait on the separate thread, with the time of the first refusal.
#[derive(Debug)]
pub(crate) struct SpacePermit {
    front: Arc<FrontEnd>,
    refused: Instant,
    pub(crate) awaited: AwaitedRequest,
}

impl Drop for SpacePermit {
    fn drop(&mut self) {
        self.front.freed_files.waiting_writes.fetch_sub(1, Ordering::SeqCst);
    }
}

impl FrontEnd {
    /// Waits so that more forgets gather, unless a request waits for them.
    pub(crate) fn gather_forgets(&self) {
        let waiting = [&self.freed_files.waiting, &self.freed_files.waiting_writes];
        if waiting.iter().all(|count| count.load(Ordering::SeqCst) == 0) {
            thread::sleep(GATHER);
        }
    }

    /// Runs work that needs space for a node, and repeats it when space has become free (R1). A
    /// write to an unlinked file does not wait for that same file, since its close waits for the
    /// write.
    pub(super) fn with_space<T>(&self, id: u64, work: impl FnMut() -> Answer<T>) -> Answer<T> {
        self.retry_for_space(work, |freed, refused| {
            // One thread must be left to read requests, and one to serve them (R3).
            let others = self.freed_files.waiting.fetch_add(1, Ordering::SeqCst);
            let has_hope =
                others + 2 < self.options.thread_count() && self.wait_for_space(id, freed, refused);
            self.freed_files.waiting.fetch_sub(1, Ordering::SeqCst);
            has_hope
        })
    }

    /// As [`Self::with_space`], but never waits. If there is no space, returns the request for
    /// which the caller must wait on the separate thread.
    pub(super) fn with_space_now<T>(
        &self,
        id: u64,
        work: impl FnMut() -> Answer<T>,
    ) -> Result<Answer<T>, AwaitedRequest> {
        let mut awaited = None;
        let answer = self.retry_for_space(work, |freed, _| match self.space_outlook(id, freed) {
            SpaceOutlook::Freed => true,
            SpaceOutlook::None => false,
            SpaceOutlook::MayBeFreed(what) => {
                awaited = Some(what);
                false
            }
        });
        awaited.map_or(Ok(answer), Err)
    }

    /// As [`Self::with_space`], on a thread that no request waits for.
    pub(super) fn with_space_aside<T>(
        &self,
        id: u64,
        permit: &SpacePermit,
        work: impl FnMut() -> Answer<T>,
    ) -> Answer<T> {
        self.retry_for_space(work, |freed, _| self.wait_for_space(id, freed, permit.refused))
    }

    /// Returns permission for one more write to wait; `None` while very many wait.
    pub(super) fn space_permit(self: &Arc<Self>, awaited: AwaitedRequest) -> Option<SpacePermit> {
        let one_more = |count: usize| (count < ASIDE_MAX).then_some(count + 1);
        let waiting_writes = &self.freed_files.waiting_writes;
        waiting_writes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more).ok()?;
        Some(SpacePermit { front: Arc::clone(self), refused: clock::now(), awaited })
    }

    /// Repeats work that needs space, until it succeeds or `wait` returns false. `wait` gets the
    /// count of files freed before the last attempt, and the time of the first refusal.
    fn retry_for_space<T>(
        &self,
        mut work: impl FnMut() -> Answer<T>,
        mut wait: impl FnMut(u64, Instant) -> bool,
    ) -> Answer<T> {
        let mut refused = None;
        loop {
            let freed = self.freed_files.freed.load(Ordering::SeqCst);
            let answer = work();
            let is_full = matches!(&answer, Err(errno) if errno.code() == Errno::ENOSPC.code());
            if !is_full || !wait(freed, *refused.get_or_insert_with(clock::now)) {
                return answer;
            }
        }
    }

    /// Waits until an unlinked file other than `id` is freed, if there is one. Returns whether more
    /// than `freed` files were freed.
    fn wait_for_space(&self, id: u64, freed: u64, refused: Instant) -> bool {
        let _waiting = activity::wait(Cause::Release);
        while clock::since(refused) < FORGOTTEN && !interrupt::is_interrupted() {
            match self.space_outlook(id, freed) {
                SpaceOutlook::Freed => return true,
                SpaceOutlook::None => return false,
                SpaceOutlook::MayBeFreed(_) => thread::sleep(LOOK),
            }
        }
        false
    }

    /// Checks whether more than `freed` files were freed, or whether an unlinked file other than
    /// `id` is about to be freed.
    fn space_outlook(&self, id: u64, freed: u64) -> SpaceOutlook {
        let FreedFiles { forgetting, freed: now_freed, .. } = &self.freed_files;
        let is_forgetting = forgetting.load(Ordering::SeqCst) > 0;
        let nameless = |node: &Arc<Node>| node.inode.attr().nlink == 0;
        let closed = |node: &Arc<Node>| node.openers.load(Ordering::Relaxed) == 0 && nameless(node);
        let any = |which: &dyn Fn(&Arc<Node>) -> bool| {
            self.nodes.ids(which).iter().any(|other| *other != id)
        };
        let (forgets, closes) =
            (self.freed_files.is_recent(FORGOTTEN), self.freed_files.is_recent(CLOSED));
        let awaited = if is_forgetting || forgets && any(&closed) {
            Some(AwaitedRequest::Forget)
        } else {
            (closes && any(&nameless)).then_some(AwaitedRequest::Release)
        };
        // Check the count after the table: a file that is missing in the table was counted, or is
        // being forgotten.
        if now_freed.load(Ordering::SeqCst) != freed {
            return SpaceOutlook::Freed;
        }
        if let Some(awaited) = awaited {
            return SpaceOutlook::MayBeFreed(awaited);
        }
        if forgetting.load(Ordering::SeqCst) > 0 {
            return SpaceOutlook::MayBeFreed(AwaitedRequest::Forget);
        }
        match now_freed.load(Ordering::SeqCst) != freed {
            true => SpaceOutlook::Freed,
            false => SpaceOutlook::None,
        }
    }
}
