//! Checks of a written volume: by our checker, and by the reference tool where it is installed.

use std::process::Command;
use std::sync::Arc;

use buttress_block::Device;
use buttress_check::Severity;

use crate::volume;

/// Runs our own checker on any device.
///
/// # Panics
///
/// When the checker finds a fault.
pub(crate) fn expect_sound(device: &Arc<dyn Device>) {
    find_faults(device).unwrap_or_else(|what| panic!("buttress check:\n{what}"));
}

/// The findings of our checker, in words.
pub(crate) fn find_faults(device: &Arc<dyn Device>) -> Result<(), String> {
    find_faults_of(vec![Arc::clone(device)])
}

/// The findings of our checker for a volume of several devices, in words.
pub(crate) fn find_faults_of(devices: Vec<Arc<dyn Device>>) -> Result<(), String> {
    let options = buttress_check::Options::thorough();
    let report = buttress_check::check_devices(devices, &options, &buttress_check::NoProgress);
    let report = report.map_err(|error| error.to_string())?;
    if report.is_clean() { Ok(()) } else { Err(report.to_text()) }
}

/// The findings of our checker after a power cut. A copy of a superblock may be torn, since the
/// next commit writes it again.
pub(crate) fn check_cut(device: &Arc<dyn Device>) -> Result<(), String> {
    let (devices, options) = (vec![Arc::clone(device)], buttress_check::Options::thorough());
    let report = buttress_check::check_devices(devices, &options, &buttress_check::NoProgress);
    let report = report.map_err(|error| error.to_string())?;
    let wrong = report.issues.iter().filter(|issue| {
        issue.severity() == Severity::Error && !issue.code().starts_with("super-copy")
    });
    if wrong.count() == 0 { Ok(()) } else { Err(report.to_text()) }
}

/// Runs [`check_cut`], which must find nothing.
#[track_caller]
pub(crate) fn expect_cut_sound(device: &Arc<dyn Device>, when: &str) {
    check_cut(device).unwrap_or_else(|what| panic!("{when}: {what}"));
}

/// Runs our checker, and `btrfs check --check-data-csum` on a copy of a device.
///
/// # Panics
///
/// When one of the two checkers finds a fault.
pub(crate) fn check(device: &Arc<dyn Device>) {
    expect_sound(device);
    if Command::new("btrfs").arg("--version").output().is_err() {
        eprintln!(
            "SKIPPED: btrfs-progs is not installed, so only our checker looks at this volume"
        );
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
    let said = [run.stdout, run.stderr].concat();
    let text = String::from_utf8_lossy(&said);
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
