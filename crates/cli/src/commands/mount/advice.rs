//! A hint that would make a mount faster, printed once for the user.
//!
//! # Invariants
//!
//! - **V1** The hint appears if requests could use io_uring but the administrator has not enabled
//!   it. It does not appear if a mount option decides about io_uring, or if the output is for
//!   scripts.

use std::fs;
use std::io::IsTerminal;

use buttress_fuse::{Options, Session};

use crate::ui::Ui;

/// The kernel's switch, which exists since Linux 6.14.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Prints the hint (V1).
pub(super) fn give(session: &Session, options: &Options, ui: &Ui) {
    let is_script = ui.json() || !std::io::stderr().is_terminal();
    let is_decided = options.io_uring.is_some() || options.submounts;
    if is_script || is_decided || session.is_over_io_uring() {
        return;
    }
    if let Some(advice) = advice(fs::read_to_string(SWITCH).ok().as_deref()) {
        ui.note(advice);
    }
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
    fn v1_advice_is_given_where_the_switch_is_off() {
        let off = advice(Some("N\n")).expect("it is off");
        assert!(off.contains("echo Y > /sys/module/fuse/parameters/enable_uring"), "{off}");
        assert_eq!(advice(Some("Y\n")), None);
        assert_eq!(advice(None), None);
    }
}
