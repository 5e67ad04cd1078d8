//! The kept figures: how they are read, and how their numbers are written.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The figures of one release.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Release {
    pub(super) version: String,
    pub(super) measured: String,
    pub(super) machine: String,
    pub(super) method: String,
    pub(super) rows: Vec<Row>,
}

/// An experiment.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Row {
    pub(super) experiment: String,
    pub(super) unit: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) library: Option<Figure>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) library_on_loop_device: Option<Figure>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mount_by_device: Option<Figure>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mount_by_io_uring: Option<Figure>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) asked: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) shortfall: Option<String>,
}

/// What a subject reached.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Figure {
    pub(super) median: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) min: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) times_btrfs: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) times_ext4: Option<f64>,
}

/// The last file of a folder, by name.
pub(super) fn newest(folder: &Path) -> Result<PathBuf, String> {
    let show = |error| format!("{}: {error}", folder.display());
    let files = fs::read_dir(folder).map_err(show)?.flatten().map(|entry| entry.path());
    let is_json = |path: &PathBuf| path.extension().is_some_and(|found| found == "json");
    files.filter(is_json).max().ok_or(format!("{} has no figures", folder.display()))
}

/// Reads a document.
///
/// # Errors
///
/// In words: the file cannot be read, or is no such document.
pub(super) fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, String> {
    let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))
}

/// Rounds a number: two decimals below 100, none from 100 on.
pub(super) fn short(value: f64) -> f64 {
    let places = if value >= 100.0 { 1.0 } else { 100.0 };
    (value * places).round() / places
}

/// A number with separated thousands.
pub(super) fn number(value: f64) -> String {
    if value < 1000.0 {
        return format!("{value}");
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// An item of a list, in lines of at most 100 columns.
pub(super) fn item(text: &str) -> String {
    let (mut lines, mut width) = (String::from("-"), 1);
    for word in text.split(' ') {
        if width + 1 + word.len() > 100 {
            lines.push_str("\n ");
            width = 1;
        }
        lines.push(' ');
        lines.push_str(word);
        width += 1 + word.len();
    }
    lines + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_thousands_apart() {
        assert_eq!(number(1_590_000.0), "1,590,000");
        assert_eq!(number(416.0), "416");
        assert_eq!(number(1.6), "1.6");
    }
}
