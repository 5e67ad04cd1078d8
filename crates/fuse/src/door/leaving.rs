//! Room that is about to come: files without names that the kernel has yet to let go of.
//!
//! On a local file system a file that lost its last name is gone by the time that its last user has
//! closed it. Here the kernel says so later, in a request of its own: `release` behind the close,
//! and `forget` behind the answer to that. A program that makes room and then writes can be faster
//! than those.
//!
//! # Invariants
//!
//! - **R1** A request for space (to write, allocate, copy or make something) is not refused while
//!   another file without a name is about to go. That is a file that no program has open, or that
//!   lost its name within [`CLOSED`]. R3 has the exceptions.
//! - **R2** It ends: a request is tried again only after some such file went, and for no longer
//!   than [`FORGOTTEN`].
//! - **R3** A request that waits never keeps the last thread from reading: what all of them wait
//!   for comes from the kernel. The kernel sends many writes before it tells, so those wait on a
//!   thread of their own. Where so many others wait that too few threads would be left, the next
//!   request is refused.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use buttress_base::{clock, interrupt, thread};
use buttress_protocol::Errno;

use super::{Door, Node};
use crate::errno::Answer;
use crate::leaving::Leaving;

/// How long after a name was removed its file is expected to be closed, if it is to go. One that is
/// truly open stays, and a request that needs room at that moment waits in vain.
const CLOSED: Duration = Duration::from_secs(1);

/// How long one that no program has open is expected to be forgotten: it always is, and only a busy
/// machine takes long.
const FORGOTTEN: Duration = Duration::from_secs(10);

/// How often it is looked.
const LOOK: Duration = Duration::from_millis(2);

/// How long a thread that has nothing to read but what the kernel forgets lets that gather: the
/// kernel then tells many in one request. No program waits for it.
const GATHER: Duration = Duration::from_millis(1);

/// How many writes may wait aside, of a MiB each at most.
const ASIDE_MAX: usize = 256;

/// What is to be expected of room.
enum Outlook {
    /// Some came since it was looked last.
    Came,
    /// Some may come, once the kernel has said this.
    MayCome(Awaited),
    /// None will come.
    None,
}

/// What the kernel says before there is room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// That it forgets a file, which comes by the device.
    Forget,
    /// Before that, that a file is closed: a request like all others.
    Release,
}

/// Leave to wait aside, since when nothing was free.
#[derive(Debug)]
pub(crate) struct Patience {
    door: Arc<Door>,
    refused: Instant,
    pub(crate) awaited: Awaited,
}

impl Drop for Patience {
    fn drop(&mut self) {
        self.door.leaving.aside.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Door {
    /// Lets more gather of what the kernel forgets, unless a request waits for that.
    pub(crate) fn gather_forgets(&self) {
        let waiting = [&self.leaving.waiting, &self.leaving.aside];
        if waiting.iter().all(|count| count.load(Ordering::SeqCst) == 0) {
            thread::sleep(GATHER);
        }
    }

    /// Does what needs room for a node, again if there was none and some came (R1). What is written
    /// to a file that goes does not wait for that file: closing it waits for what is written.
    pub(super) fn with_room<T>(&self, id: u64, work: impl FnMut() -> Answer<T>) -> Answer<T> {
        self.until_room(work, |gone, refused| {
            // One reads, and one works out what it reads (R3).
            let others = self.leaving.waiting.fetch_add(1, Ordering::SeqCst);
            let has_hope =
                others + 2 < self.options.thread_count() && self.room_comes(id, gone, refused);
            self.leaving.waiting.fetch_sub(1, Ordering::SeqCst);
            has_hope
        })
    }

    /// As [`Self::with_room`], but waits for nothing: says what is to be waited for aside.
    pub(super) fn with_room_now<T>(
        &self,
        id: u64,
        work: impl FnMut() -> Answer<T>,
    ) -> Result<Answer<T>, Awaited> {
        let mut awaited = None;
        let answer = self.until_room(work, |gone, _| match self.outlook(id, gone) {
            Outlook::Came => true,
            Outlook::None => false,
            Outlook::MayCome(what) => {
                awaited = Some(what);
                false
            }
        });
        awaited.map_or(Ok(answer), Err)
    }

    /// As [`Self::with_room`], on a thread that no request waits for.
    pub(super) fn with_room_aside<T>(
        &self,
        id: u64,
        patience: &Patience,
        work: impl FnMut() -> Answer<T>,
    ) -> Answer<T> {
        self.until_room(work, |gone, _| self.room_comes(id, gone, patience.refused))
    }

    /// Leave for one more to wait aside; none while very many do.
    pub(super) fn patience(self: &Arc<Self>, awaited: Awaited) -> Option<Patience> {
        let one_more = |count: usize| (count < ASIDE_MAX).then_some(count + 1);
        let aside = &self.leaving.aside;
        aside.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more).ok()?;
        Some(Patience { door: Arc::clone(self), refused: clock::now(), awaited })
    }

    /// Does what needs room, until there is some or no hope of it: `comes` is told how many files
    /// had gone before the last attempt and when the first was refused.
    fn until_room<T>(
        &self,
        mut work: impl FnMut() -> Answer<T>,
        mut comes: impl FnMut(u64, Instant) -> bool,
    ) -> Answer<T> {
        let mut refused = None;
        loop {
            let gone = self.leaving.gone.load(Ordering::SeqCst);
            let answer = work();
            let is_full = matches!(&answer, Err(errno) if errno.code() == Errno::ENOSPC.code());
            if !is_full || !comes(gone, *refused.get_or_insert_with(clock::now)) {
                return answer;
            }
        }
    }

    /// Waits for a file without a name to go, another than `id`, if one may; says whether more went
    /// than `gone`.
    fn room_comes(&self, id: u64, gone: u64, refused: Instant) -> bool {
        while clock::since(refused) < FORGOTTEN && !interrupt::is_interrupted() {
            match self.outlook(id, gone) {
                Outlook::Came => return true,
                Outlook::None => return false,
                Outlook::MayCome(_) => thread::sleep(LOOK),
            }
        }
        false
    }

    /// Looks whether more went than `gone`, or a file without a name, another than `id`, is about
    /// to.
    fn outlook(&self, id: u64, gone: u64) -> Outlook {
        let Leaving { forgetting, gone: now_gone, .. } = &self.leaving;
        let is_forgetting = forgetting.load(Ordering::SeqCst) > 0;
        let nameless = |node: &Arc<Node>| node.inode.attr().nlink == 0;
        let closed = |node: &Arc<Node>| node.openers.load(Ordering::Relaxed) == 0 && nameless(node);
        let any = |which: &dyn Fn(&Arc<Node>) -> bool| {
            self.nodes.ids(which).iter().any(|other| *other != id)
        };
        let (forgets, closes) = (self.leaving.is_recent(FORGOTTEN), self.leaving.is_recent(CLOSED));
        let awaited = if is_forgetting || forgets && any(&closed) {
            Some(Awaited::Forget)
        } else {
            (closes && any(&nameless)).then_some(Awaited::Release)
        };
        // After the table: a file that is not in it any more was counted, or is being forgotten.
        if now_gone.load(Ordering::SeqCst) != gone {
            return Outlook::Came;
        }
        if let Some(awaited) = awaited {
            return Outlook::MayCome(awaited);
        }
        if forgetting.load(Ordering::SeqCst) > 0 {
            return Outlook::MayCome(Awaited::Forget);
        }
        match now_gone.load(Ordering::SeqCst) != gone {
            true => Outlook::Came,
            false => Outlook::None,
        }
    }
}
