//! btrfs-progs as a checker, where it is installed.

use std::path::Path;
use std::process::Command;

use crate::text;

/// Checks an image. Without btrfs-progs, the function only prints a note to standard error.
#[track_caller]
pub(crate) fn check(image: &Path) {
    let Some(output) = btrfs(&["check", "--check-data-csum", text(image)]) else { return };
    let report = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success() && report.contains("no error found"), "{report}");
}

fn btrfs(args: &[&str]) -> Option<std::process::Output> {
    match Command::new("btrfs").args(args).env("TZ", "UTC").output() {
        Ok(output) => Some(output),
        Err(error) => {
            eprintln!("btrfs-progs is not installed ({error}): not judged");
            None
        }
    }
}

/// `dump` prints the same lines as dump-tree and dump-super, except for the version in the first
/// line.
#[test]
fn dump_equals_dump_tree() {
    let bench = crate::bench();
    for (name, features) in [("a.img", ""), ("b.img", "^block-group-tree,^skinny-metadata")] {
        bench.ok(&["mkfs", name, "--size", "256M", "--label", "x", "--features", features]);
        let image = bench.path(name);
        let Some(theirs) = btrfs(&["inspect-internal", "dump-tree", text(&image)]) else { return };
        let theirs = String::from_utf8_lossy(&theirs.stdout).into_owned();
        let ours = bench.ok(&["dump", name]);
        let body = |text: &str| text.lines().skip(1).map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(body(&ours), body(&theirs));

        let theirs = btrfs(&["inspect-internal", "dump-super", "-fa", text(&image)]);
        let theirs = String::from_utf8_lossy(&theirs.expect("as before").stdout).into_owned();
        let ours = bench.ok(&["dump", "--super", "--all", text(&image)]);
        // Older btrfs-progs do not know the name of every flag.
        let known = |text: &str| {
            let lines = text.trim_end().lines().filter(|line| !line.starts_with("\t\t\t"));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(known(&ours), known(&theirs));
    }
}
