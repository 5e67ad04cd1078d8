//! Prints events on standard error, as text or as one JSON object a line.
//!
//! `BUTTRESS_LOG` selects the events (`info`, `buttress_txn=debug`, `buttress::enospc=debug`).
//! `--json` or `BUTTRESS_LOG_FORMAT` selects the form. For a mount in the background, standard
//! error is its log file. Events are lost where standard error is closed; the program goes on.

use std::env::VarError;
use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::exit::{Exit, Failure, Result};

/// The variable that chooses the events.
const FILTER: &str = "BUTTRESS_LOG";
/// The variable that chooses the form, unless `--json` is given.
const FORMAT: &str = "BUTTRESS_LOG_FORMAT";

/// Shows events from now on. By default a server logs warnings, and a verb prints only its one line
/// at the end.
pub fn start(speaks_by_log: bool, json: bool) -> Result<()> {
    let default = if speaks_by_log { "warn" } else { "off" };
    let filter = variable(FILTER)?.unwrap_or_else(|| default.to_owned());
    let filter = EnvFilter::try_new(&filter).map_err(|error| {
        let what = format!("{FILTER}={filter}: not as in info or buttress::enospc=debug");
        Failure::with_source(Exit::Usage, what, error)
    })?;
    // A report of a failed write would go to standard error, too, and panic if that is closed.
    let events = tracing_subscriber::fmt().log_internal_errors(false);
    let events = events.with_env_filter(filter).with_writer(std::io::stderr);
    if is_json(json)? {
        events.json().with_current_span(false).with_span_list(false).init();
    } else {
        events.with_ansi(std::io::stderr().is_terminal()).init();
    }
    Ok(())
}

fn is_json(json: bool) -> Result<bool> {
    match variable(FORMAT)?.as_deref() {
        None => Ok(json),
        Some("json") => Ok(true),
        Some("text") => Ok(false),
        Some(other) => {
            Err(Failure::new(Exit::Usage, format!("{FORMAT}={other}: there are json and text")))
        }
    }
}

/// Returns a variable of the environment, or `None` if it is unset or empty.
fn variable(name: &str) -> Result<Option<String>> {
    match std::env::var(name) {
        Ok(value) => Ok(Some(value).filter(|value| !value.is_empty())),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => {
            Err(Failure::new(Exit::Usage, format!("{name}: is no text")))
        }
    }
}
