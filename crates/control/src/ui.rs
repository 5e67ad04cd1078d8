//! Everything the program says: lines, JSON, progress.
//!
//! # Invariants
//!
//! - **U1** Bars are drawn on standard error, and only when standard error is a terminal; standard
//!   output carries nothing but the answer.
//! - **U2** Colour appears on terminals only, and never when `NO_COLOR` is set.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use serde::Serialize;

use crate::exit::{Context, Result};

/// The form of the program's output.
pub struct Ui {
    json: bool,
    quiet: bool,
    silent: bool,
    colour: bool,
}

/// The colours in use, by their meaning.
#[derive(Clone, Copy)]
pub enum Tone {
    /// A heading.
    Heading,
    /// Names of directories.
    Directory,
    /// Success.
    Good,
    /// Needs attention.
    Bad,
    /// Something that matters less than the text beside it.
    Dim,
}

impl Ui {
    /// Creates the output, after one look at the terminal and the environment.
    pub fn new(json: bool) -> Self {
        let colour = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        Self { json, quiet: false, silent: false, colour }
    }

    /// With `quiet`, shows no bars and no notes. The answer, warnings and errors are printed as
    /// ever.
    #[must_use]
    pub fn quiet(self, quiet: bool) -> Self {
        Self { quiet, ..self }
    }

    /// With `silent`, the answer is not printed either. Warnings and errors are printed as ever.
    #[must_use]
    pub fn silent(self, silent: bool) -> Self {
        Self { silent, ..self }
    }

    /// The same output once more, for a thread or a value that outlives a borrow.
    #[must_use]
    pub fn again(&self) -> Self {
        Self { ..*self }
    }

    /// Returns whether the output is for a script.
    pub fn json(&self) -> bool {
        self.json
    }

    /// Prints one line of the answer.
    pub fn line(&self, text: impl AsRef<str>) -> Result<()> {
        if self.silent {
            return Ok(());
        }
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}", text.as_ref()).context(|| "standard output")
    }

    /// A writer for long answers; flushed by the caller.
    pub fn writer(&self) -> std::io::BufWriter<std::io::StdoutLock<'static>> {
        std::io::BufWriter::with_capacity(1 << 16, std::io::stdout().lock())
    }

    /// Prints one JSON document.
    pub fn document(&self, value: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string_pretty(value).context(|| "output")?;
        self.line(text)
    }

    /// Prints a note as [`note`] does, but not with `quiet`.
    pub fn note(&self, text: impl AsRef<str>) {
        if !self.quiet {
            note(text);
        }
    }

    /// Prints a line of btrfs-progs on standard error, unless the answer is silent, too.
    pub fn complain(&self, line: impl AsRef<str>) {
        if !self.silent {
            // Standard error may be closed.
            let _ = writeln!(std::io::stderr().lock(), "{}", line.as_ref());
        }
    }

    /// Colours a text (U2).
    pub fn tint(&self, tone: Tone, text: &str) -> String {
        if !self.colour {
            return text.to_owned();
        }
        let code = match tone {
            Tone::Heading => "1",
            Tone::Directory => "1;34",
            Tone::Good => "32",
            Tone::Bad => "31",
            Tone::Dim => "2",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }

    /// A bar over `total` bytes, or a count of bytes if `total` is 0: the end is not known.
    pub fn bytes_bar(&self, what: &str, total: u64) -> Progress {
        if total == 0 {
            return self.stream_bar(what);
        }
        let bar = self.bar(total);
        bar.set_style(style(
            "{prefix:<10} {bar:28} {bytes:>10}/{total_bytes} {binary_bytes_per_sec:>12} {left:>8} {msg}",
        ));
        bar.set_prefix(what.to_owned());
        Progress { bar }
    }

    /// A count of bytes with an unknown end.
    pub fn stream_bar(&self, what: &str) -> Progress {
        let bar = self.bar(0);
        bar.set_style(style("{prefix:<10} {bytes:>10} {binary_bytes_per_sec:>12} {msg}"));
        bar.set_prefix(what.to_owned());
        Progress { bar }
    }

    /// The time of work that tells nothing of its progress. Short work shows nothing.
    #[must_use]
    pub fn wait_bar(&self, what: &str) -> Progress {
        let (bar, what) = (self.bar(0), what.to_owned());
        let waited = move |state: &ProgressState, out: &mut dyn std::fmt::Write| {
            let seconds = state.elapsed().as_secs();
            // Writing into a string cannot fail.
            let _ = if seconds > 0 { write!(out, "{what:<10} {}", span(seconds)) } else { Ok(()) };
        };
        bar.set_style(style("{waited}").with_key("waited", waited));
        let progress = Progress { bar };
        if self.shows_bars() {
            progress.tick();
        }
        progress
    }

    /// A bar over `total` things.
    pub fn count_bar(&self, what: &str, total: u64) -> Progress {
        let bar = self.bar(total);
        bar.set_style(style("{prefix:<10} {bar:28} {pos:>10}/{len} {rate:>12} {left:>8} {msg}"));
        bar.set_prefix(what.to_owned());
        Progress { bar }
    }

    /// Whether bars are shown.
    #[must_use]
    pub fn shows_bars(&self) -> bool {
        !self.json && !self.quiet && std::io::stderr().is_terminal()
    }

    fn bar(&self, total: u64) -> ProgressBar {
        if !self.shows_bars() {
            return ProgressBar::hidden();
        }
        let target = ProgressDrawTarget::stderr_with_hz(12);
        ProgressBar::with_draw_target(Some(total), target)
    }
}

/// Prints a note for the user on standard error. It is not part of the answer.
pub fn note(text: impl AsRef<str>) {
    // Standard error may be closed.
    let _ = writeln!(std::io::stderr().lock(), "buttress: {}", text.as_ref());
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template)
        .expect("the templates of this file parse")
        .with_key("rate", |state: &ProgressState, out: &mut dyn std::fmt::Write| {
            // Writing into a string cannot fail.
            let _ = write!(out, "{:.0}/s", state.per_sec());
        })
        .with_key("left", |state: &ProgressState, out: &mut dyn std::fmt::Write| {
            // If the rate or the total is unknown, the estimate is zero. A user would think that
            // the work is done.
            let left = state.eta().as_secs();
            let is_known = left > 0 && state.len().is_some_and(|len| state.pos() < len);
            let _ = if is_known { write!(out, "{} left", span(left)) } else { Ok(()) };
        })
        .progress_chars("━╸─")
}

/// Prints a span of time, given in seconds, in its one or two largest units.
fn span(seconds: u64) -> String {
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{minutes}m{:02}", seconds % 60),
        _ => format!("{hours}h{:02}", minutes % 60),
    }
}

/// A progress bar. It disappears at its end.
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Creates a bar that shows nothing, for copies without a waiting user.
    #[must_use]
    pub fn hidden() -> Self {
        Self { bar: ProgressBar::hidden() }
    }

    /// Moves the bar by `amount`.
    pub fn add(&self, amount: u64) {
        self.bar.inc(amount);
    }

    /// Corrects the total, as far as it is known by now.
    pub fn set_total(&self, total: u64) {
        self.bar.set_length(total);
    }

    /// Prints a line above the bar, on standard error.
    pub fn print_above(&self, text: &str) {
        // Standard error may be closed.
        self.bar.suspend(|| _ = writeln!(std::io::stderr().lock(), "{text}"));
    }

    /// Does something that prints, while the bar is out of its way.
    pub fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bar.suspend(print)
    }

    /// Shows the name of the current object.
    pub fn set_message(&self, text: &str) {
        self.bar.set_message(text.to_owned());
    }

    /// Updates the rate regularly, so that the rate is right while the bar does not move.
    pub fn tick(&self) {
        self.bar.enable_steady_tick(Duration::from_millis(250));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_at_most_two_units() {
        let spans = [1, 59, 60, 3599, 3600, 90_061].map(span);
        assert_eq!(spans, ["1s", "59s", "1m00", "59m59", "1h00", "25h01"]);
    }
}
