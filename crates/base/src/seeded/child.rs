//! A thread of a run, from before it is started until it has been joined.

use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::points::{index, point};
use super::run::{MINE, Run, mine};
use super::turns::{Place, State, Task, Wait, Want};

/// A thread of a run, as its parent knows it.
#[derive(Clone, Debug)]
pub(crate) struct Child {
    pub(super) run: Arc<Run>,
    pub(super) index: usize,
}

/// Adds a thread that is about to start to the run of this thread. Returns `None` if this thread
/// belongs to no run.
pub(crate) fn child(name: &str) -> Option<Child> {
    let (run, mine) = mine()?;
    let mut turns = run.lock();
    turns.count_time(mine, false);
    turns.resume(mine);
    let index = turns.tasks.len();
    let name = name.to_owned();
    turns.tasks.push(Task { name, state: State::Ready, late: false, token: false, thread: None });
    turns.enter();
    drop(turns);
    Some(Child { run, index })
}

/// Returns this thread as a thread of its run, or `None` outside of a run.
pub(crate) fn myself() -> Option<Child> {
    mine().map(|(run, index)| Child { run, index })
}

impl Child {
    /// The place where threads wait to join this thread. No lock has this place.
    const PLACE: Place = Place(1);

    /// Runs the whole work of a thread, and ends the thread in its run.
    pub(crate) fn run<T>(child: Option<Self>, work: impl FnOnce() -> T) -> T {
        let Some(child) = child else { return work() };
        child.run.lock().tasks[child.index].thread = Some(thread::current());
        MINE.set(Some((Arc::clone(&child.run), child.index)));
        child.run.await_turn(child.index);
        let result = catch_unwind(AssertUnwindSafe(work));
        MINE.set(None);
        child.end();
        match result {
            Ok(value) => value,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    fn end(&self) {
        let mut turns = self.run.lock();
        turns.count_time(self.index, false);
        turns.tasks[self.index].state = State::Ended;
        turns.leave(self.index);
        turns.wake(Self::PLACE, |want| want == Want::Thread(self.index));
        let next = self.run.choose(&mut turns);
        self.run.hand_over(next, &turns);
    }

    /// Waits until the thread is unparked, for at most `limit`. Only the thread itself may call
    /// this.
    #[track_caller]
    pub(crate) fn park(&self, limit: Option<Duration>) {
        self.run.step(self.index, Location::caller());
        let token = std::mem::take(&mut self.run.lock().tasks[self.index].token);
        if !token {
            let (at, until) = (Location::caller(), self.run.deadline(limit));
            self.run.wait(self.index, Wait { want: Want::Park, place: Place(2), until, at });
        }
    }

    /// Ends the thread's wait in `park`, or lets its next `park` return at once.
    #[track_caller]
    pub(crate) fn unpark(&self) {
        {
            let mut turns = self.run.lock();
            // A caller that belongs to the run has the turn.
            let mine = index();
            mine.iter().for_each(|mine| turns.count_time(*mine, false));
            match turns.tasks[self.index].state {
                State::Waits(Wait { want: Want::Park, .. }) => {
                    turns.make_ready(self.index);
                    mine.iter().for_each(|mine| turns.pay_for_waking(*mine, 1));
                }
                _ => turns.tasks[self.index].token = true,
            }
            mine.iter().for_each(|mine| turns.resume(*mine));
        }
        point();
    }

    /// Ends the thread in its run, because the system refused to start it.
    pub(crate) fn forget(&self) {
        let mut turns = self.run.lock();
        turns.tasks[self.index].state = State::Ended;
        turns.leave(self.index);
    }

    /// Waits until the thread has ended.
    #[track_caller]
    pub(crate) fn wait(&self) {
        let Some((run, mine)) = mine() else { return };
        let at = Location::caller();
        while !matches!(run.lock().tasks[self.index].state, State::Ended) {
            run.wait(
                mine,
                Wait { want: Want::Thread(self.index), place: Self::PLACE, until: None, at },
            );
        }
    }
}
