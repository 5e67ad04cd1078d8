//! A store of objects that is away for a while: programs that wait for it, and how they give up.
//!
//! The store is a folder. A pipe in the place of an object is a server that does not answer. A file
//! in the place of a folder is a server that fails.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::bench;
use crate::live::{Mounted, run};
use crate::unmounting::can_mount;

const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until a condition holds, and fails with `what` if that takes too long.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The data objects of a volume.
fn objects(volume: &Path) -> Vec<PathBuf> {
    let folders = fs::read_dir(volume.join("data")).expect("a volume");
    let folders = folders.map(|entry| entry.expect("a folder").path()).filter(|path| path.is_dir());
    let inside = |folder: PathBuf| fs::read_dir(folder).expect("a folder");
    folders.flat_map(inside).map(|entry| entry.expect("an object").path()).collect()
}

/// Reads of data get no answer from now on.
fn hide(volume: &Path) -> Vec<PathBuf> {
    let objects = objects(volume);
    for object in &objects {
        fs::rename(object, object.with_extension("hidden")).expect("renamed");
        run("mkfifo", &[object.to_str().expect("plain")]);
    }
    objects
}

fn show(objects: &[PathBuf]) {
    for object in objects {
        let kind = fs::symlink_metadata(object).expect("it is there").file_type();
        assert!(kind.is_fifo(), "the store was away all the time");
        fs::rename(object.with_extension("hidden"), object).expect("renamed");
    }
}

/// Whether a program waits in the kernel for the answer to a request.
fn waits_for_answer(child: &Child) -> bool {
    let place = fs::read_to_string(format!("/proc/{}/wchan", child.id())).unwrap_or_default();
    place.contains("request_wait_answer") || place.contains("fuse")
}

/// Programs read a file and the store does not answer. They end when they are killed, while the
/// store is still away. Afterwards another program reads the file, and no error was counted.
#[test]
fn a_program_that_waits_for_a_store_can_be_killed() {
    if !can_mount() {
        return;
    }
    let bench = bench();
    let folder = bench.path("volume");
    let volume = format!("file://{}", folder.display());
    bench.ok(&["mkfs", &volume, "--size", "1G"]);
    let content: Vec<u8> = (0..3_000_000_u32).map(|at| (at / 7) as u8).collect();
    fs::write(bench.path("note"), &content).expect("a file");
    bench.ok(&["cp", "note", &format!("{volume}:/")]);
    for options in ["rw", "ro"] {
        let mounted = Mounted::of(&bench, &volume, &["-o", options]);
        let note = bench.path("mnt/note");
        assert_eq!(fs::metadata(&note).expect("it is there").len(), content.len() as u64);
        let hidden = hide(&folder);
        let read = |more: &str| {
            let from = format!("if={}", note.display());
            let mut dd = Command::new("dd");
            dd.args([&from, "of=/dev/null", "bs=1M", "count=1", more]);
            dd.stderr(Stdio::null()).spawn().expect("it starts")
        };
        for (how, signal) in [("iflag=direct", "-KILL"), ("iflag=direct", "-TERM")] {
            let mut child = read(how);
            wait_until("it never waits", || waits_for_answer(&child));
            run("kill", &[signal, &child.id().to_string()]);
            wait_until("it does not die", || child.try_wait().expect("it is ours").is_some());
            assert!(child.wait().expect("it is ours").signal().is_some());
        }
        show(&hidden);
        assert!(fs::read(&note).expect("the store is back") == content);
        let stats = bench.ok(&["device", "stats", "mnt"]);
        let failed = stats.lines().find(|line| line.contains("errs") && !line.ends_with(" 0"));
        assert_eq!(failed, None, "{stats}");
        mounted.end();
    }
    bench.ok(&["check", "--check-data-csum", &volume]);
}
