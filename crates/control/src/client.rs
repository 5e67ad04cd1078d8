//! Gives an order to the process that has the volume open. If there is no such process, carries out
//! the order in this process.
//!
//! # Invariants
//!
//! - **C1** An order ends early when its client ends or gets a signal. A balance is then paused, so
//!   that it can be resumed.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::background;
use crate::closing;
use crate::execute;
use crate::exit::{Context, Result};
use crate::image::{self, Access, Devices};
use crate::interrupted;
use crate::live;
use crate::order::{Order, Step};
use crate::target::{Open, Stream};
use crate::ui::Ui;

/// Carries out an order and shows a progress bar. The process that has the volume open does the
/// work, or this process if there is none. Ctrl-C ends the order, and `balance pause` ends a
/// balance (C1).
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
    interrupted::pass_first();
    // Some orders tell nothing of their progress, and opening a large volume takes a while.
    let mut waiting = Some(ui.wait_bar(what));
    let (mut bar, mut shown) = (None, 0);
    let mut watch = |step: &Step| {
        drop(waiting.take());
        let has_caller = background::begun();
        let bar = bar.get_or_insert_with(|| ui.bytes_bar(what, step.total));
        if step.total > 0 {
            bar.set_total(step.total);
        }
        bar.add(step.done.saturating_sub(shown));
        shown = step.done;
        bar.set_message(&step.text);
        has_caller && !stop.load(Ordering::Relaxed)
    };
    if let Some((socket, _)) = live::find(image)? {
        return live::give(&socket, order, &stop, &mut watch);
    }
    let grows = matches!(order, Order::DeviceAdd { .. }) && image::is_seed(image);
    let access = if grows { Access::Read } else { execute::access(order) };
    let fs = image::open(image, devices, access)?;
    let open = Open { fs: &fs, name: &image.display().to_string(), kernel_sync: None };
    let done = execute::carry_out(order, &open, Stream::None, &mut watch)?;
    image::close(fs, image)?;
    Ok(done)
}

/// Carries out an order that reads or writes a stream. The process that has the volume open does
/// the work, or this process if there is none. Ctrl-C ends this process, and thereby the order.
pub fn stream(order: &Order, image: &Path, devices: &Devices, stream: Stream<'_>) -> Result<Value> {
    if let Some((socket, _)) = live::find(image)? {
        return live::give_with_stream(&socket, order, stream);
    }
    let fs = image::open(image, devices, execute::access(order))?;
    let open = Open { fs: &fs, name: &image.display().to_string(), kernel_sync: None };
    let done = execute::carry_out(order, &open, stream, &mut |_| true);
    // Closes the volume after a failure as well, so that earlier changes are kept, as in a mounted
    // volume.
    let closed = image::close(fs, image);
    let done = done?;
    closed?;
    Ok(done)
}

/// Asks the process that has the volume open to commit everything written so far. The calling verb
/// then reads the volume in spite of that process's lock. If the request fails, the verb reads an
/// older commit.
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
