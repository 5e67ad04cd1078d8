//! A mount that follows a volume which another process writes.

use std::fs::File;
use std::io::{Read, Seek};
use std::path::PathBuf;
use std::time::Duration;

use crate::live::{Mounted, run};
use crate::unmounting::can_mount;
use crate::{bench, text};

/// Waits until a condition is true. If the condition never becomes true, the test fails.
fn until(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..600 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("the follower never showed this: {what}");
}

fn names(dir: PathBuf) -> Vec<String> {
    let all = std::fs::read_dir(dir).expect("a folder");
    let mut all: Vec<_> = all.map(|e| e.expect("an entry").file_name()).collect();
    all.sort();
    all.into_iter().map(|name| name.into_string().expect("plain")).collect()
}

fn text_of(file: &mut File) -> String {
    let mut text = String::new();
    file.rewind().and_then(|()| file.read_to_string(&mut text)).expect("it can be read");
    text
}

/// A follower shows each change of content, lengths, names and attributes. A file that is open
/// keeps its commit until it is closed. The test runs with and without io_uring.
fn follows(option: &str) {
    if !can_mount() {
        return;
    }
    let (writer, reader) = (bench(), bench());
    let volume = format!("file://{}", writer.path("volume").display());
    writer.ok(&["mkfs", &volume, "--size", "1G"]);
    let written = Mounted::of(&writer, &volume, &[]);
    let (w, r) = (writer.path("mnt"), reader.path("mnt"));
    let commit = || run("sync", &[text(&w)]);
    let write = |name: &str, content: &str| std::fs::write(w.join(name), content).expect(name);
    std::fs::create_dir(w.join("dir")).expect("a folder");
    for name in ["same", "grown", "kept", "gone", "dir/gone"] {
        write(name, name);
    }
    commit();
    let options = format!("ro,follow=1,{option}");
    let followed = Mounted::of(&reader, &volume, &["-o", &options]);
    for name in ["same", "grown", "kept", "gone", "dir/gone"] {
        assert_eq!(std::fs::read_to_string(r.join(name)).expect(name), name);
    }
    assert!(!r.join("new").exists() && !r.join("dir/new").exists());
    assert_eq!(names(r.join("dir")), ["gone"]);
    let mut kept = File::open(r.join("kept")).expect("it is there");
    let mut gone = File::open(r.join("gone")).expect("it is there");

    write("same", "SAME");
    write("grown", "grown by some");
    write("kept", "kept no longer");
    for name in ["gone", "dir/gone"] {
        std::fs::remove_file(w.join(name)).expect(name);
    }
    write("new", "new");
    std::fs::create_dir(w.join("dir/new")).expect("a folder");
    commit();
    until("new content", || std::fs::read_to_string(r.join("new")).is_ok_and(|t| t == "new"));
    let read = |name: &str| std::fs::read_to_string(r.join(name)).expect(name);
    until("all of the commit", || read("grown") == "grown by some" && read("same") == "SAME");
    until("the folder", || names(r.join("dir")) == ["new"] && !r.join("gone").exists());
    assert_eq!(names(r.clone()), ["dir", "grown", "kept", "new", "same"]);
    assert_eq!(text_of(&mut kept), "kept", "it is open");
    assert_eq!(text_of(&mut gone), "gone", "it is open");
    drop((kept, gone));
    until("what was kept", || read("kept") == "kept no longer");

    // Many commits, each of which replaces one file by another and changes a third file in place.
    for round in 0..5 {
        write("other", &format!("{round}"));
        std::fs::rename(w.join("other"), w.join("same")).expect("a name");
        write("grown", &"x".repeat(5000 * (5 - round)));
        commit();
    }
    until("the last", || read("same") == "4" && read("grown").len() == 5000);
    let error = std::fs::write(r.join("x"), "x").expect_err("it is read-only");
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    followed.end();
    written.end();
    writer.ok(&["check", "--check-data-csum", &volume]);
}

#[test]
fn a_mount_follows_another_writer() {
    follows("noio_uring");
}

#[test]
fn a_mount_over_io_uring_follows_another_writer() {
    follows("defaults");
}

/// The message names the option that excludes following.
#[test]
fn following_needs_a_reader_of_the_newest_commit() {
    let bench = bench();
    let volume = format!("file://{}", bench.path("volume").display());
    bench.ok(&["mkfs", &volume, "--size", "1G"]);
    std::fs::create_dir(bench.path("mnt")).expect("a folder");
    let mount = |volume: &str, options: &str, exit: i32, word: &str| {
        let args = ["mount", volume, "mnt", "--foreground", "-o", options];
        bench.fails(&args, exit, &[word]);
    };
    mount(&volume, "follow=1", 2, "ro");
    mount(&volume, "ro,follow=0", 2, "second");
    mount(&volume, "ro,follow=soon", 2, "seconds");
    mount(&format!("{volume}?commit=1"), "ro,follow=1", 2, "newest");
    bench.fails(&["mkdir", &format!("{volume}?follow=1:/x")], 2, &["reading"]);
    bench.ok(&["ls", &format!("{volume}?follow=1:/")]);
}
