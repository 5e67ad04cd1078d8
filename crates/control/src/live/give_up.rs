//! The end of a process that writes a volume in a store: what it waits for, and how to give up.
//!
//! # Invariants
//!
//! - **GU1** A process that waits for the store at its end says so after a second, and then every
//!   ten seconds: on standard error, and to all programs that wait for its end. It says what it
//!   waits for, how to give up, and what is lost then.
//! - **GU2** A process gives up only at its end. What the local log has stays there.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use buttress_remote::RemoteDevice;
use serde_json::{Value, json};

use super::ask::ANSWER_TIMEOUT;
use super::close_wait::CloseWait;
use super::{Live, reachable};
use crate::behind::{if_left, missing};
use crate::exit::{Context, Exit, Failure, Result};
use crate::sockets::ask;
use crate::{closing, ui};

/// The question that makes a process give up.
pub(super) const QUESTION: &str = "give-up";
const LOOK: Duration = Duration::from_millis(500);
const SILENCE: Duration = Duration::from_secs(1);
const AGAIN: Duration = Duration::from_secs(10);

/// Starts the thread that reports what the end waits for (GU1).
pub(super) fn watch(live: &Arc<Live>, store: &Arc<RemoteDevice>) {
    let (live, store) = (Arc::clone(live), Arc::clone(store));
    let work = move || {
        while !live.is_ending(&store) && !store.has_ended() {
            std::thread::sleep(LOOK);
        }
        let (begun, mut silence) = (Instant::now(), SILENCE);
        while !store.has_ended() {
            if begun.elapsed() >= silence {
                silence += AGAIN;
                let behind = store.behind();
                let (place, left) = (&behind.place, if_left(&behind));
                let missing = missing(&behind);
                let told = format!("{missing}. `buttress umount --force {place}` gives up: {left}");
                ui::note(&told);
                live.close_waiters.tell(&told);
            }
            std::thread::sleep(LOOK);
        }
    };
    if let Err(error) = std::thread::Builder::new().name("store-end".to_owned()).spawn(work) {
        tracing::warn!(%error, "the end of the mount waits for the store without a word");
    }
}

impl Live {
    /// Whether the process makes its last commit.
    fn is_ending(&self, store: &RemoteDevice) -> bool {
        self.is_closing() || store.is_ending()
    }

    /// Gives up waiting for the store, at the end only (GU2). Answers first, because the process
    /// ends soon after that.
    pub(super) fn give_up(&self, mut stream: &UnixStream) -> std::io::Result<()> {
        let Some(store) = self.store.as_ref().filter(|store| self.is_ending(store)) else {
            let what = "it does not wait for a store at its end";
            return writeln!(stream, "{}", json!({ "error": what, "exit": Exit::Failure as u8 }));
        };
        let behind = store.behind();
        let done =
            json!({ "done": format!("{}; given up: {}", missing(&behind), if_left(&behind)) });
        let told = writeln!(stream, "{done}");
        store.give_up();
        told
    }
}

/// Makes the process give up that wrote a volume in a store and now makes its last commit. Waits
/// until that process has ended. `None` if there is no such process.
///
/// # Errors
///
/// If the process does not answer, or does not wait for a store.
pub fn give_up(volume: &Path) -> Option<Result<()>> {
    let volume = closing::full_name(volume).ok()?;
    let bare = |name: &Path| name.to_string_lossy().split('?').next().map(str::to_owned);
    let is_it = |image: &Path| bare(image) == bare(&volume);
    let mut all = reachable().into_iter();
    let (socket, answer) = all.find(|(_, one)| one.is_closing && is_it(&one.subject.image))?;
    Some(end(&socket, answer.pid, &volume))
}

fn end(socket: &Path, pid: u32, volume: &Path) -> Result<()> {
    let name = volume.display().to_string();
    let wait = CloseWait::of(socket, pid).context(|| name.clone())?;
    let answer = ask(socket, QUESTION, Some(ANSWER_TIMEOUT)).context(|| name.clone())?;
    let answer: Value = serde_json::from_str(&answer).unwrap_or_default();
    match (answer["done"].as_str(), answer["error"].as_str()) {
        (Some(done), _) => ui::note(done),
        (None, error) => {
            let error = error.unwrap_or("its server is of an older version");
            return Err(Failure::new(Exit::Failure, format!("{name}: {error}")));
        }
    }
    // The server reports a failure, since it gave up.
    let _ = wait.wait(|told| ui::note(format!("{name}: {told}")));
    Ok(())
}
