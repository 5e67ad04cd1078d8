//! The reference tool's opinion of what was written, where the tool is installed.

use std::process::Command;
use std::sync::Arc;

use buttress_block::Device;

use crate::volume;

/// Runs `btrfs check --check-data-csum` on a copy of a device.
///
/// # Panics
///
/// When the tool finds anything.
pub(crate) fn check(device: &Arc<dyn Device>) {
    if Command::new("btrfs").arg("--version").output().is_err() {
        eprintln!("SKIPPED: btrfs-progs is not installed, nobody else looks at this volume");
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("image");
    volume::save(device, &path);
    let run = Command::new("btrfs")
        .args(["check", "--check-data-csum", "--force"])
        .arg(&path)
        .output()
        .expect("the tool was there a moment ago");
    let text =
        format!("{}{}", String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    if !run.status.success()
        || text.contains("rror:")
        || text.contains("cache and super generation")
    {
        if let Ok(keep) = std::env::var("BUTTRESS_KEEP_IMAGE") {
            std::fs::copy(&path, &keep).expect("a place for the image");
        }
        panic!("the checker found something:\n{text}");
    }
}
