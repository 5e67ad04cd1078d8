//! Questions to the sockets of running mounts and servers, and their answers.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Subject;
use crate::exit::{Context, Result};
use crate::figures::Figures;
use crate::names;
use crate::sockets::{ask, folder};

/// Time limit for an answer that needs no work.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// One section of a process, with its present figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Section {
    /// Its name.
    pub name: String,
    /// Its present figures.
    pub figures: Figures,
}

/// The answer of one process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Answer {
    /// The process.
    pub pid: u32,
    /// The volume that it serves.
    pub subject: Subject,
    /// Its parts.
    pub sections: Vec<Section>,
    /// Whether the process has lost its mount and is making written data durable.
    #[serde(default)]
    pub is_closing: bool,
}

/// Asks all mounts and servers of this user. Sockets of processes that have ended are removed.
pub fn all() -> Result<Vec<(PathBuf, Answer)>> {
    let folder = folder().context(|| "the folder of running mounts")?;
    let mut answers = Vec::new();
    for entry in std::fs::read_dir(&folder).context(|| folder.display().to_string())? {
        let path = entry.context(|| folder.display().to_string())?.path();
        if path.extension().is_none_or(|extension| extension != "sock") {
            continue;
        }
        match ask(&path, "stats", Some(ANSWER_TIMEOUT)) {
            Ok(text) => {
                // A process that ended after the question gives no answer.
                if let Ok(answer) = serde_json::from_str(&text) {
                    answers.push((path, answer));
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                // Another process may have removed the socket already.
                let _ = std::fs::remove_file(&path);
            }
            Err(error) => tracing::debug!(socket = names::of_path(&path), %error, "no answer"),
        }
    }
    answers.sort_by(|(_, a): &(_, Answer), (_, b)| a.subject.image.cmp(&b.subject.image));
    Ok(answers)
}

/// Asks as [`all`] does, but returns an empty list if the folder is not available.
pub fn reachable() -> Vec<(PathBuf, Answer)> {
    all().unwrap_or_else(|error| {
        tracing::debug!(%error, "running mounts cannot be asked");
        Vec::new()
    })
}

/// Whether a read ended because it took long, or because of a signal.
pub(super) fn is_timeout(error: &std::io::Error) -> bool {
    use std::io::ErrorKind;
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}
