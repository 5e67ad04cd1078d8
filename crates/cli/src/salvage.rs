//! Code that `restore`, `undelete` and `rescue` share: it opens damaged volumes and shows progress.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_rescue::{Condition, Entry, Salvage, SalvageOptions, Step, Summary};
use parking_lot::Mutex;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::exit::{Context, Exit, Result};
use crate::image::{self, Access, Devices};
use crate::location::show;
use crate::memory::Memory;
use crate::size::human;
use crate::ui::{Progress, Tone, Ui};

/// Options for opening a damaged volume.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct Opening {
    /// Use metadata with wrong checksums if everything else in it is valid.
    #[arg(long)]
    ignore_metadata_checksums: bool,
    #[command(flatten)]
    memory: Memory,
}

/// Opens the devices for reading only. Lines are printed by [`Bars::above`].
pub(crate) fn open(
    volumes: &[PathBuf],
    opening: &Opening,
    ui: &Ui,
) -> Result<(Salvage, Arc<Bars>)> {
    let others = Devices { devices: volumes[1..].to_vec(), ..Devices::default() };
    let devices = image::open_devices(&volumes[0], &others, Access::Read)?;
    let mut options = SalvageOptions::default();
    options.ignore_meta_csums = opening.ignore_metadata_checksums;
    options.node_cache_bytes = opening.memory.nodes();
    let bars = progress(ui)?;
    let opened = Salvage::open(devices, options, Arc::clone(&bars) as _);
    Ok((opened.context(|| volumes[0].display().to_string())?, bars))
}

/// The bars of a rescue, which a signal ends.
pub(crate) fn progress(ui: &Ui) -> Result<Arc<Bars>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .context(|| "watching for signals")?;
    }
    Ok(Arc::new(Bars { ui: ui.again(), stop, bar: Mutex::new(None) }))
}

/// Prints a line about one file. Whole files are printed only if `all` is set.
pub(crate) fn print(entry: &Entry, all: bool, ui: &Ui) {
    let (tone, word) = match entry.condition {
        Condition::Whole => (Tone::Good, "whole"),
        Condition::Exists => (Tone::Dim, "exists"),
        Condition::Skipped => (Tone::Dim, "skipped"),
        Condition::Partly => (Tone::Heading, "partly"),
        Condition::Lost => (Tone::Bad, "lost"),
    };
    if !all && matches!(entry.condition, Condition::Whole | Condition::Exists) {
        return;
    }
    let reason = reason(entry);
    let unverified = if entry.unverified { " (without checksums)" } else { "" };
    let colon = if reason.is_empty() { "" } else { ": " };
    let word = ui.tint(tone, &format!("{word:<7}"));
    // If standard output is closed, the program reports this when it prints the summary.
    let _ = ui.line(format!("{word} /{}{unverified}{colon}{reason}", show(&entry.path)));
}

/// Prints the last line, with the counts.
pub(crate) fn print_summary(summary: &Summary, ui: &Ui) -> Result<()> {
    let mut parts = vec![format!("{} whole", summary.whole)];
    let others = [
        (summary.partly, "partly there"),
        (summary.lost, "lost"),
        (summary.exists, "there before"),
        (summary.skipped, "left out"),
    ];
    parts.extend(
        others.iter().filter(|(count, _)| *count > 0).map(|(n, what)| format!("{n} {what}")),
    );
    let stopped = if summary.stopped { "; stopped before the end" } else { "" };
    ui.line(format!("{}; {} of content{stopped}", parts.join(", "), human(summary.bytes)))
}

/// Returns the exit code.
pub(crate) fn exit(summary: &Summary) -> Exit {
    match summary {
        Summary { stopped: true, .. } => Exit::Failure,
        Summary { partly: 0, lost: 0, .. } => Exit::Success,
        _ => Exit::Corrupt,
    }
}

/// Shows a bar for each step, and ends the work at a signal.
pub(crate) struct Bars {
    ui: Ui,
    stop: Arc<AtomicBool>,
    /// Unranked: no other lock is taken under it, except the terminal's.
    bar: Mutex<Option<Progress>>,
}

impl Bars {
    /// Does something that prints, while the bar is out of its way.
    pub(crate) fn above<T>(&self, print: impl FnOnce() -> T) -> T {
        match &*self.bar.lock() {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    /// Removes the bar: the work is done.
    pub(crate) fn end(&self) {
        *self.bar.lock() = None;
    }
}

impl buttress_rescue::Progress for Bars {
    fn step(&self, step: Step, total_bytes: u64) {
        let mut bar = self.bar.lock();
        *bar = None;
        let new = match step {
            Step::Index => self.ui.wait_bar(step.title()),
            _ => self.ui.bytes_bar(step.title(), total_bytes),
        };
        new.tick();
        *bar = Some(new);
    }

    fn advance(&self, bytes: u64) {
        if let Some(bar) = &*self.bar.lock() {
            bar.add(bytes);
        }
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }
}

/// Returns the reason in the line of a file that is not whole.
fn reason(entry: &Entry) -> String {
    let lost: u64 = entry.lost.iter().map(|part| part.len).sum();
    let mut parts = Vec::new();
    if entry.condition == Condition::Partly && lost > 0 {
        parts.push(format!("{} of {} are lost", human(lost), human(entry.size)));
    }
    parts.extend(entry.notes.iter().cloned());
    if let Some(first) = entry.lost.first() {
        parts.push(first.why.clone());
    }
    parts.join("; ")
}
