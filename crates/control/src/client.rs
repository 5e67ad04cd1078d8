//! Gives an order to the process that has the volume open, or carries it out in this one.
//!
//! # Invariants
//!
//! - **C1** An order ends early when the caller ends or gets a signal. A balance can be resumed, so
//!   it is then paused.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::closing;
use crate::execute;
use crate::exit::{Context, Result};
use crate::image::{self, Devices};
use crate::live;
use crate::order::{Order, Step};
use crate::target::{Open, Stream};
use crate::ui::Ui;

/// Carries out an order with a bar, in the process that has the volume open, or in this one. Ctrl-C
/// and `balance pause` end it (C1).
pub fn run(
    order: &Order,
    image: &Path,
    devices: &Devices,
    what: &'static str,
    ui: &Ui,
) -> Result<Value> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .context(|| "watching for signals")?;
    }
    let (mut bar, mut shown) = (None, 0);
    let mut watch = |step: &Step| {
        let bar = bar.get_or_insert_with(|| ui.bytes_bar(what, step.total));
        bar.add(step.done.saturating_sub(shown));
        shown = step.done;
        bar.set_message(&step.text);
        !stop.load(Ordering::Relaxed)
    };
    if let Some((socket, _)) = live::find(image)? {
        return live::give(&socket, order, &stop, &mut watch);
    }
    let fs = image::open(image, devices, execute::access(order))?;
    let open = Open { fs: &fs, name: &image.display().to_string(), kernel_sync: None };
    let done = execute::carry_out(order, &open, Stream::None, &mut watch)?;
    image::close(fs, image)?;
    Ok(done)
}

/// Carries out an order that takes or gives a stream, in the process that has the volume open, or
/// in this one. Ctrl-C ends this process, and the order with it.
pub fn stream(order: &Order, image: &Path, devices: &Devices, stream: Stream<'_>) -> Result<Value> {
    if let Some((socket, _)) = live::find(image)? {
        return live::give_with_stream(&socket, order, stream);
    }
    let fs = image::open(image, devices, execute::access(order))?;
    let open = Open { fs: &fs, name: &image.display().to_string(), kernel_sync: None };
    let done = execute::carry_out(order, &open, stream, &mut |_| true);
    // Changes from before a failure are kept, as in a mounted volume.
    let closed = image::close(fs, image);
    let done = done?;
    closed?;
    Ok(done)
}

/// Asks a process that has the volume open for a commit of everything written so far. The calling
/// verb then reads the volume despite its lock. Without this commit the verb sees the last one.
pub fn commit(image: &Path) {
    let ask = || match live::find(image)? {
        Some((socket, _)) => {
            let stop = AtomicBool::new(false);
            live::give(&socket, &Order::Commit, &stop, &mut |_| true).map(drop)
        }
        None => Ok(()),
    };
    if let Err(error) = ask() {
        tracing::debug!(%error, "no commit before a look");
    }
}

/// Returns the full path of a file that another process will open.
pub fn whole(path: &Path) -> Result<PathBuf> {
    closing::full_name(path).context(|| path.display().to_string())
}
