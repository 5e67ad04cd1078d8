//! A hint that would make a mount faster, given once.
//!
//! # Invariants
//!
//! - **V1** The hint appears if requests could use io_uring but the administrator has not enabled
//!   it. It does not appear if a mount option decides about io_uring.
//! - **V2** A terminal gets the hint with each server. The journal gets it once after each boot,
//!   since an fstab or units may start many servers. Other output is for scripts: it gets the hint
//!   as an event, which a log shows at the level `info`.

use std::fs;
use std::io::IsTerminal;
use std::os::unix::fs::MetadataExt;

use buttress_fuse::{Options, Session};

use crate::sockets;
use crate::ui::Ui;

/// The kernel's switch, which exists since Linux 6.14.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// systemd names the device and inode of the journal's end of standard error in this variable.
const JOURNAL: &str = "JOURNAL_STREAM";

/// The name by which is remembered that the journal has the hint.
const GIVEN: &str = "io_uring.hint";

/// What reads standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reader {
    Terminal,
    Journal,
    Script,
}

/// Prints the hint (V1, V2).
pub(super) fn give(session: &Session, options: &Options, ui: &Ui) {
    let is_decided = options.io_uring.is_some() || options.submounts;
    if is_decided || session.is_over_io_uring() {
        return;
    }
    let Some(advice) = advice(fs::read_to_string(SWITCH).ok().as_deref()) else { return };
    match reader(ui.json()) {
        Reader::Terminal => ui.note(advice),
        Reader::Journal if sockets::is_first_since_boot(GIVEN) => ui.note(advice),
        Reader::Journal => {}
        Reader::Script => tracing::info!("{advice}"),
    }
}

/// Returns what reads the standard error of this process.
fn reader(is_json: bool) -> Reader {
    if is_json {
        return Reader::Script;
    }
    if std::io::stderr().is_terminal() {
        return Reader::Terminal;
    }
    let named = std::env::var(JOURNAL).unwrap_or_default();
    let own = fs::metadata("/proc/self/fd/2").map(|file| (file.dev(), file.ino()));
    if own.is_ok_and(|own| is_named(&named, own)) { Reader::Journal } else { Reader::Script }
}

/// Returns whether the text of the variable names this device and inode.
fn is_named(text: &str, (device, inode): (u64, u64)) -> bool {
    text.split_once(':')
        .is_some_and(|(first, second)| first.parse() == Ok(device) && second.parse() == Ok(inode))
}

/// Returns the hint for a position of the switch; `None` if the switch is on or does not exist.
fn advice(switch: Option<&str>) -> Option<String> {
    let is_off = switch?.trim() == "N";
    is_off.then(|| {
        format!("requests by io_uring are faster; root switches them on: echo Y > {SWITCH}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// V1: the hint is given only if the switch exists and is off.
    #[test]
    fn advice_is_given_where_the_switch_is_off() {
        let off = advice(Some("N\n")).expect("it is off");
        assert!(off.contains("echo Y > /sys/module/fuse/parameters/enable_uring"), "{off}");
        assert_eq!(advice(Some("Y\n")), None);
        assert_eq!(advice(None), None);
    }

    /// V2: standard error is the journal only if systemd has named this very file.
    #[test]
    fn journal_is_known_by_its_numbers() {
        assert!(is_named("8:1234", (8, 1234)));
        for other in ["8:1235", "9:1234", "8", "", "8:1234:1", ":"] {
            assert!(!is_named(other, (8, 1234)), "{other}");
        }
        assert_eq!(reader(true), Reader::Script);
    }
}
