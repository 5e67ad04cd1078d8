//! Loop devices that a page has left behind.
//!
//! Loop devices are no part of a namespace. The script of a page detaches its own at its end. When
//! the time of the page is over, the script is killed and detaches none.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

/// The folder that pages work in, as they see it.
const FOLDER: &str = "/home/guide/";

/// A device, and the file that it shows.
pub(super) type Loop = (String, String);

/// All loop devices with a file in the folder of a page.
pub(super) fn attached() -> BTreeSet<Loop> {
    let entries = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let found = entries.filter_map(|entry| {
        let file = fs::read_to_string(entry.path().join("loop/backing_file")).ok()?;
        let name = entry.file_name().into_string().ok()?;
        file.starts_with(FOLDER).then_some((name, file))
    });
    found.collect()
}

/// Detaches the devices that were not there before.
pub(super) fn detach_new(before: &BTreeSet<Loop>) {
    for (name, file) in attached().difference(before) {
        let detached = Command::new("losetup").args(["--detach", &format!("/dev/{name}")]).status();
        if !detached.is_ok_and(|status| status.success()) {
            eprintln!("guide: /dev/{name} still shows {}", file.trim());
        }
    }
}
