//! Ctrl-C in a verb that writes a volume in a store. The program says what it leaves, and ends.
//!
//! # Place
//!
//! `closing` opens all volumes of verbs, and calls [`opening`] and [`watch`]. So most verbs have no
//! code of their own for this. Verbs that work on a place as a whole say what is left
//! ([`leaving`]). Servers handle signals themselves ([`leave_to_server`]). Orders that stop in
//! order let the first signal pass ([`pass_first`]).
//!
//! # Invariants
//!
//! - **IN1** The exit code is 128 and the number of the signal, as shells have it: 130 for Ctrl-C.
//! - **IN2** The store is as after a crash of the program: the last commit is whole, and objects
//!   that no commit names are no part of the volume. The collector deletes them.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use buttress_block::Device;
use buttress_remote::{Behind, Opened, RemoteDevice, is_remote};
use parking_lot::Mutex;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::behind::if_left;
use crate::ui;

/// The volumes that this program writes. Unranked: a leaf; no other lock is taken under it.
static WRITTEN: Mutex<Vec<Weak<RemoteDevice>>> = Mutex::new(Vec::new());
/// What the present work on a place as a whole leaves, if it ends here. Unranked: a leaf.
static LEFT: Mutex<Option<String>> = Mutex::new(None);
static IS_STARTED: AtomicBool = AtomicBool::new(false);
static IS_SERVER: AtomicBool = AtomicBool::new(false);
static PASSES_FIRST: AtomicBool = AtomicBool::new(false);

/// Leaves signals to this process, which is a server.
pub fn leave_to_server() {
    IS_SERVER.store(true, Ordering::Relaxed);
}

/// Lets the first signal pass, because it makes an order stop in order. If its end waits for the
/// store, a second signal ends the program.
pub(crate) fn pass_first() {
    PASSES_FIRST.store(true, Ordering::Relaxed);
}

/// Says from now on, when a signal ends the program, what is left behind of a written volume.
pub fn watch(opened: &Opened) {
    let Opened::Remote(device) = opened else { return };
    if IS_SERVER.load(Ordering::Relaxed) || !device.writable() {
        return;
    }
    WRITTEN.lock().push(Arc::downgrade(device));
    start();
}

/// Runs work that opens no volume. A signal meanwhile ends the program with the words `left`.
pub fn leaving<R>(left: String, work: impl FnOnce() -> R) -> R {
    let outer = LEFT.lock().replace(left);
    start();
    let done = work();
    *LEFT.lock() = outer;
    done
}

/// Opens or makes a volume for writing. A signal meanwhile ends the program, which says what is
/// left: a new writer changes no content before the volume is open.
pub fn opening<R>(place: &Path, open: impl FnOnce() -> R) -> R {
    if !is_remote(place) || IS_SERVER.load(Ordering::Relaxed) {
        return open();
    }
    let place = place.display();
    let left = format!(
        "{place}: interrupted: it was not open yet, and its content is as before. Give the \
         command again. Other machines may wait for half a minute before they can write it. \
         `buttress remote gc {place}` deletes objects that no commit names"
    );
    leaving(left, open)
}

fn start() {
    if IS_STARTED.swap(true, Ordering::Relaxed) {
        return;
    }
    let started = Signals::new([SIGINT, SIGTERM]).and_then(|signals| {
        let work = move || end_at_signal(signals);
        std::thread::Builder::new().name("interrupted".to_owned()).spawn(work)
    });
    if let Err(error) = started {
        tracing::warn!(%error, "a signal ends the program without a word");
    }
}

fn end_at_signal(mut signals: Signals) {
    for signal in signals.forever() {
        if PASSES_FIRST.swap(false, Ordering::Relaxed) {
            continue;
        }
        for device in WRITTEN.lock().iter().filter_map(Weak::upgrade) {
            if !device.has_ended() {
                ui::note(left_behind(&device.behind()));
            }
        }
        if let Some(left) = LEFT.lock().take() {
            ui::note(left);
        }
        std::process::exit(128 + signal);
    }
}

/// Says what an ended program leaves behind in a store.
fn left_behind(behind: &Behind) -> String {
    let Behind { place, bytes, .. } = behind;
    let left = match bytes {
        0 => "the last commit has everything that was written".to_owned(),
        _ => format!("{bytes} bytes are in no commit: {}", if_left(behind)),
    };
    format!(
        "{place}: interrupted: {left}. Give the command again to finish its work. \
         `buttress remote gc {place}` deletes objects that no commit names"
    )
}
