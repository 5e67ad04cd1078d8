//! Tests running mounts and servers. They have caches, answer requests for figures, obey messages,
//! and serve clients of other projects.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use buttress_test_program::{is_met, unless_busy};
use serde_json::Value;

use crate::checker::check;
use crate::{Bench, text};

/// Whether the programs and the device are there. In CI they must be there.
pub(crate) fn has(programs: &[&str], device: Option<&str>) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_here =
        |program: &&&str| std::env::split_paths(&path).any(|folder| folder.join(program).exists());
    let lacking: Vec<_> = programs.iter().filter(|program| !is_here(program)).collect();
    let device = device.filter(|device| !Path::new(device).exists());
    let is_all = lacking.is_empty() && device.is_none();
    let what = format!("{lacking:?} {device:?}");
    assert!(is_all || std::env::var_os("BUTTRESS_REQUIRE_LINUX").is_none(), "lacking: {what}");
    if !is_all {
        eprintln!("SKIPPED: lacking: {what}");
    }
    is_all
}

/// Whether the test runs as root. In CI it must.
#[track_caller]
pub(crate) fn is_root() -> bool {
    is_met(rustix::process::geteuid().is_root(), "root")
}

pub(crate) fn run(program: &str, args: &[&str]) -> String {
    let run = || Command::new(program).args(args).output();
    let output = match program {
        "umount" => unless_busy(run),
        _ => run().expect("it starts"),
    };
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {said}{complained}");
    said
}

/// A mount in the foreground. Dropping this value unmounts it.
pub(crate) struct Mounted<'a> {
    bench: &'a Bench,
    child: Option<Child>,
}

impl<'a> Mounted<'a> {
    /// Mounts `image` on `mnt`.
    pub(crate) fn new(bench: &'a Bench, more: &[&str]) -> Self {
        Self::of(bench, "image", more)
    }

    /// Mounts another image on `mnt`.
    pub(crate) fn of(bench: &'a Bench, image: &str, more: &[&str]) -> Self {
        let mut args = vec!["mount", image, "mnt", "--foreground", "--announce"];
        args.extend(more);
        Self::start(bench, bench.command(&args))
    }

    /// Mounts `image` on `mnt`, with the sockets of another bench.
    pub(crate) fn sharing(bench: &'a Bench, with: &Bench) -> Self {
        let mut command = bench.command(&["mount", "image", "mnt", "--foreground", "--announce"]);
        command.env("BUTTRESS_RUNTIME_DIR", with.path("run"));
        Self::start(bench, command)
    }

    fn start(bench: &'a Bench, mut command: Command) -> Self {
        std::fs::create_dir_all(bench.path("mnt")).expect("a folder");
        let child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let mut mounted = Self { bench, child: Some(child) };
        let out = mounted.child.as_mut().and_then(|child| child.stdout.take()).expect("piped");
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line).expect("it says something");
        assert_eq!(line.trim(), "ready", "{command:?}");
        mounted
    }

    /// The process that serves the mount.
    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().expect("it serves until the end").id()
    }

    /// Unmounts, waits, and demands that all went well.
    pub(crate) fn end(self) {
        run("umount", &[text(&self.bench.path("mnt"))]);
        self.ends();
    }

    /// Waits for the end of a server after its unmount.
    pub(crate) fn ends(mut self) {
        let mut child = self.child.take().expect("it is ended once");
        assert!(child.wait().expect("it ends").success());
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = Command::new("umount").arg("-l").arg(self.bench.path("mnt")).status();
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// One figure of a section.
fn figure<'a>(document: &'a Value, section: &str, name: &str) -> &'a Value {
    let found = &document["sections"][section][name];
    assert!(!found.is_null(), "no {section}.{name} in {document}");
    found
}

/// The place of a file on a mount is that of the file in the volume.
#[test]
fn a_file_on_a_mount_is_told_by_its_path() {
    if !has(&["umount", "btrfs"], Some("/dev/fuse")) {
        return;
    }
    let bench = crate::bench();
    bench.ok(&["mkfs", "image", "--size", "300M"]);
    let mounted = Mounted::new(&bench, &[]);
    std::fs::write(bench.path("mnt/file"), "text").expect("it is written");
    let (file, top) = (bench.ok(&["stat", "mnt/file"]), bench.ok(&["stat", "mnt"]));
    mounted.end();
    let first = |said: &str| said.lines().next().unwrap_or_default().to_owned();
    assert!(first(&file).ends_with("/mnt:/file"), "{file}");
    assert!(first(&top).ends_with("/mnt:/"), "{top}");
    check(&bench.path("image"));
}

/// A cached mount shows the content of its cache and obeys messages. After a flush of the cache the
/// volume is whole, and the next mount finds everything.
#[test]
fn a_cached_mount_answers_and_takes_messages() {
    if !has(&["umount", "btrfs"], Some("/dev/fuse")) {
        return;
    }
    let bench = crate::bench();
    bench.ok(&["mkfs", "image", "--size", "300M"]);
    bench.ok(&["cache", "format", "cache", "--size", "24M", "--origin", "image"]);
    assert!(bench.ok(&["stats"]).contains("nothing is mounted"));
    bench.fails(&["stats", "image"], 1, &["image", "no mount or server"]);
    let options = ["--cache", "cache", "-o", "high_watermark=90,low_watermark=80,noatime"];
    let mounted = Mounted::new(&bench, &options);
    for number in 0..40 {
        let bytes = vec![number; 60_000];
        std::fs::write(bench.path(&format!("mnt/file-{number}")), bytes).expect("it is written");
    }
    for number in 0..40 {
        // Data that is only in memory is not in the cache yet, so the test syncs it.
        let file = std::fs::File::open(bench.path(&format!("mnt/file-{number}"))).expect("a file");
        file.sync_all().expect("it is durable");
    }
    let ask = |place: &str| -> Value {
        serde_json::from_str(&bench.ok(&["--json", "stats", place])).expect("JSON")
    };
    for place in ["mnt", "image", "cache"] {
        let document = ask(place);
        assert_eq!(
            figure(&document, "cache", "blocks"),
            &ask("mnt")["sections"]["cache"]["blocks"]
        );
        assert!(figure(&document, "cache", "dirty_bytes").as_u64().expect("bytes") > 2_000_000);
        let line = figure(&document, "cache", "status").as_str().expect("text").to_owned();
        assert_eq!(line.split(' ').count(), 14, "{line}");
    }
    let shown = bench.ok(&["stats"]);
    for word in ["image on ", "cached by", "dirty", "MiB", "writes allocated"] {
        assert!(shown.contains(word), "no {word:?} in {shown}");
    }
    let status = bench.ok(&["cache", "status", "cache"]);
    assert!(status.contains("In use by:") && status.contains("Status line:"), "{status}");

    // A commit: afterwards no thread of the mount has anything to write.
    let top = std::fs::File::open(bench.path("mnt")).expect("a folder");
    top.sync_all().expect("it is durable");
    drop(top);
    bench.ok(&["cache", "message", "mnt", "flush"]);
    let document = ask("mnt");
    assert_eq!(figure(&document, "cache", "free"), figure(&document, "cache", "blocks"));
    bench.ok(&["cache", "message", "cache", "clear_stats"]);
    assert_eq!(figure(&ask("mnt"), "cache", "writes_around").as_u64(), Some(0));
    bench.fails(&["cache", "message", "mnt", "hurry"], 1, &["hurry", "clear_stats"]);
    std::fs::write(bench.path("mnt/last"), "in the cache").expect("it is written");
    bench.ok(&["cache", "message", "mnt", "flush_on_suspend"]);
    mounted.end();
    assert!(bench.ok(&["stats"]).contains("nothing is mounted"));
    let status = bench.ok(&["cache", "status", "cache"]);
    assert!(status.contains("everything is in it"), "{status}");
    run("btrfs", &["check", "--check-data-csum", text(&bench.path("image"))]);

    let mounted = Mounted::new(&bench, &["--cache", "cache", "-o", "metadata_only,direct"]);
    for number in 0..40 {
        let bytes = std::fs::read(bench.path(&format!("mnt/file-{number}"))).expect("it is there");
        assert!(bytes == vec![number; 60_000], "file-{number}");
    }
    let bytes = vec![1; 8 << 20];
    std::fs::write(bench.path("mnt/big"), &bytes).expect("it is written");
    std::fs::File::open(bench.path("mnt/big")).and_then(|file| file.sync_all()).expect("durable");
    let document = ask("mnt");
    let dirty = figure(&document, "cache", "dirty_bytes").as_u64().expect("bytes");
    assert!((16384..4 << 20).contains(&dirty), "only what is metadata: {document}");
    mounted.end();
    bench.ok(&["cache", "flush", "cache", "--origin", "image"]);
    run("btrfs", &["check", "--check-data-csum", text(&bench.path("image"))]);
}

/// A mount shows its accounts of space, and how long requests waited. The output is one JSON
/// document, or a line for each interval.
#[test]
fn a_mount_tells_of_its_space() {
    if !has(&["umount"], Some("/dev/fuse")) {
        return;
    }
    let bench = crate::bench();
    bench.ok(&["mkfs", "image", "--size", "300M"]);
    let mounted = Mounted::new(&bench, &[]);
    let ask =
        || -> Value { serde_json::from_str(&bench.ok(&["--json", "stats", "mnt"])).expect("JSON") };
    let number = |document: &Value, name: &str| {
        let found = figure(document, "space", name).as_u64();
        found.unwrap_or_else(|| panic!("{name} is no number in {document}"))
    };
    let before = ask();
    for kind in ["data", "metadata", "system"] {
        let of = |what: &str| number(&before, &format!("{kind}_{what}_bytes"));
        let taken = of("used") + of("reserved") + of("pinned") + of("read_only");
        assert!(taken <= of("total"), "{kind} in {before}");
        of("may_use");
    }
    for name in
        ["global_reserve_bytes", "unallocated_bytes", "overlay_bytes", "wait_p999_us", "refused"]
    {
        number(&before, name);
    }
    for name in ["reads", "flushes", "io_failures"] {
        assert!(figure(&before, "devices", name).is_u64(), "{before}");
    }
    assert_eq!(figure(&before, "space", "preempt"), "clamp");
    std::fs::write(bench.path("mnt/file"), vec![7; 8 << 20]).expect("it is written");
    std::fs::File::open(bench.path("mnt/file")).and_then(|file| file.sync_all()).expect("durable");
    let after = ask();
    let used = |document: &Value| {
        number(document, "data_used_bytes") + number(document, "data_reserved_bytes")
    };
    assert!(used(&after) >= used(&before) + (8 << 20), "{before}, then {after}");
    let written = |document: &Value| figure(document, "devices", "write_bytes").as_u64();
    let (earlier, now) = (written(&before).expect("bytes"), written(&after).expect("bytes"));
    assert!(now >= earlier + (8 << 20), "{before}, then {after}");

    let mut command = bench.command(&["--json", "stats", "mnt", "--watch", "0.1"]);
    let mut watching = command.stdout(Stdio::piped()).spawn().expect("it starts");
    let lines = BufReader::new(watching.stdout.take().expect("piped")).lines();
    for line in lines.take(2) {
        let document: Value = serde_json::from_str(&line.expect("a line")).expect("JSON");
        assert_eq!(document["pid"], after["pid"]);
        assert!(used(&document) >= 8 << 20, "{document}");
    }
    watching.kill().expect("it runs until it is ended");
    watching.wait().expect("it ends");

    assert_eq!(after["sections"]["last_enospc"], serde_json::json!({}));
    assert!(!bench.ok(&["stats", "mnt"]).contains("last enospc"));
    let mut big = std::fs::File::create(bench.path("mnt/big")).expect("a file");
    let block = vec![1; 1 << 20];
    let refused = (0..400).find_map(|_| big.write_all(&block).and_then(|()| big.sync_all()).err());
    assert_eq!(refused.expect("it is full").kind(), std::io::ErrorKind::StorageFull);
    drop(big);
    let full = ask();
    let part = |section: &str, figure: &str, name: &str| {
        let found = full["sections"][section][figure][name].as_u64();
        found.unwrap_or_else(|| panic!("no {name} of {figure} in {full}"))
    };
    assert!(number(&full, "refused") > 0 && number(&full, "waited_bytes") > 0, "{full}");
    assert_eq!(figure(&full, "last_enospc", "kind"), "data");
    assert!(figure(&full, "last_enospc", "bytes").as_u64() > Some(0), "{full}");
    assert!(figure(&full, "last_enospc", "seconds_ago").as_f64() < Some(600.0), "{full}");
    assert!(part("last_enospc", "data", "used_bytes") >= 100 << 20, "{full}");
    assert!(part("flush_steps", "data_commit", "times") > 0, "{full}");
    for name in ["gained", "served", "forecast_bytes", "yielded_bytes"] {
        part("flush_steps", "metadata_dirty", name);
    }
    let waited = ["data_all", "data_commit"].map(|line| part("waits", line, "times"));
    assert_eq!(waited.iter().sum::<u64>(), number(&full, "waits_for_data"), "{full}");
    let times = full["sections"]["wait_times"].as_object().expect("a line for each time");
    let of_line = |line: &str| times.values().filter_map(|row| row[line].as_u64()).sum::<u64>();
    assert_eq!(["data_all", "data_commit"].map(of_line), waited, "{full}");
    let shown = bench.ok(&["stats", "mnt"]);
    for word in [
        "last enospc",
        "wait times",
        "devices",
        "flush steps",
        "data commit",
        " times",
        "seconds ago",
    ] {
        assert!(shown.contains(word), "no {word:?} in {shown}");
    }
    mounted.end();
}

/// A mount with the cache of another image is refused. The message has the option that permits this
/// cache.
#[test]
fn a_mount_refuses_the_cache_of_another() {
    if !has(&["umount"], Some("/dev/fuse")) {
        return;
    }
    let bench = crate::bench();
    for name in ["image", "other"] {
        bench.ok(&["mkfs", name, "--size", "300M"]);
    }
    bench.ok(&["cache", "format", "cache", "--size", "4M", "--origin", "other"]);
    std::fs::create_dir(bench.path("mnt")).expect("a folder");
    let refused = ["mount", "image", "mnt", "--cache", "cache"];
    bench.fails(&refused, 6, &["another origin", "--force-cache"]);
    Mounted::new(&bench, &["--cache", "cache", "-o", "force_cache"]).end();
    // After the forced mount, the cache belongs to `image`.
    Mounted::new(&bench, &["--cache", "cache"]).end();
    bench.fails(&["mount", "other", "mnt", "--cache", "cache"], 6, &["another origin"]);
    Mounted::new(&bench, &["--cache", "cache", "--force-cache"]).end();
}

/// The socket of a killed server gives no answer, and is removed.
#[test]
fn a_dead_mount_gives_no_answer() {
    let bench = crate::bench();
    std::fs::create_dir(bench.path("run")).expect("a folder");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(bench.path("run"), mode).expect("it is ours");
    drop(std::os::unix::net::UnixListener::bind(bench.path("run/1.sock")).expect("a socket"));
    assert!(bench.ok(&["stats"]).contains("nothing is mounted"));
    assert!(!bench.path("run/1.sock").exists());
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(bench.path("run"), mode).expect("it is ours");
    bench.fails(&["stats"], 1, &["not a folder of this user alone"]);
}

/// The clients of libnbd and QEMU use a cached device over NBD. After a flush the origin has all
/// that they wrote.
#[test]
fn clients_use_a_cached_device() {
    if !has(&["nbdinfo", "nbdcopy", "qemu-img", "qemu-io"], None) {
        return;
    }
    const LEN: usize = 24 << 20;
    let bench = crate::bench();
    std::fs::write(bench.path("image"), vec![0; LEN]).expect("a file");
    bench.ok(&["cache", "format", "cache", "--size", "8M", "-b", "512", "--origin", "image"]);
    let listen = format!("unix:{}", bench.path("socket").display());
    let args = ["nbd", "image", "--listen", &listen, "--cache", "cache", "--cache-options"];
    let options = "high_watermark=60,low_watermark=30,pause_writeback=0,autocommit_blocks=50";
    let mut command = bench.command(&args);
    let mut child = command.arg(options).stdout(Stdio::piped()).spawn().expect("it starts");
    let mut line = String::new();
    let out = child.stdout.take().expect("piped");
    BufReader::new(out).read_line(&mut line).expect("it says where");
    let uri = line.trim();
    let model: Vec<u8> = (0..LEN).map(|at| (at / 512 * 31 + at / (1 << 20)) as u8).collect();
    std::fs::write(bench.path("source"), &model).expect("a file");
    let source = bench.path("source");
    let source = text(&source);

    let facts = run("nbdinfo", &[uri]);
    assert!(facts.contains("can_fua: true") && facts.contains("can_multi_conn: true"), "{facts}");
    run("nbdcopy", &[source, uri, "--flush", "--connections=4"]);
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", source, uri]);
    let script = [
        "write -P 7 1000 100000",
        "write -f -P 8 5M 3M",
        "read -P 7 1000 100000",
        "write -z 2000 4096",
        "write -z -u 6M 1M",
        "discard 10M 1M",
        "aio_write -P 9 9M 64k",
        "aio_flush",
        "read -P 0 2000 4096",
        "read -P 0 6M 1M",
        "read -P 9 9M 64k",
        "flush",
    ];
    let mut arguments = vec!["-f", "raw"];
    arguments.extend(script.iter().flat_map(|command| ["-c", command]));
    arguments.push(uri);
    let said = run("qemu-io", &arguments);
    assert!(!said.contains("failed") && !said.contains("Pattern"), "{said}");
    let back = bench.path("back");
    run("qemu-img", &["convert", "-f", "raw", "-O", "raw", uri, text(&back)]);
    let document: Value =
        serde_json::from_str(&bench.ok(&["--json", "stats", "cache"])).expect("JSON");
    assert!(figure(&document, "cache", "writes").as_u64().expect("a number") > 10, "{document}");
    assert_eq!(document["uris"][0], uri);

    run("kill", &["-TERM", &child.id().to_string()]);
    assert!(child.wait().expect("it ends").success());
    bench.ok(&["cache", "check", "cache", "--origin", "image"]);
    bench.ok(&["cache", "flush", "cache", "--origin", "image"]);
    run("cmp", &[text(&bench.path("image")), text(&back)]);
}

/// Subvolumes of a mounted volume, by the paths that programs see. Snapshots have all written data,
/// and the kernel learns of names that are added or removed.
#[test]
fn subvolumes_of_a_mount() {
    if !has(&["umount", "btrfs"], Some("/dev/fuse")) {
        return;
    }
    let bench = crate::bench();
    bench.volume("image", "300M");
    let mounted = Mounted::new(&bench, &[]);
    let at = |name: &str| bench.path(name);
    // The name is looked up before it exists, so that the kernel remembers its absence.
    assert!(!at("mnt/live").exists());
    bench.ok(&["subvolume", "create", "mnt/live"]);
    assert!(at("mnt/live").is_dir());

    // This file stays open, and a part of its data is only in the kernel's cache.
    let mut file = std::fs::File::create(at("mnt/live/file")).expect("a file");
    let mut wanted = Vec::new();
    for round in 0..3_u8 {
        let bytes = vec![round + 1; 700_001];
        file.write_all(&bytes).expect("written");
        wanted.extend(bytes);
        let name = format!("mnt/snap{round}");
        assert!(!at(&name).exists());
        let said = bench.ok(&["subvolume", "snapshot", "-r", "mnt/live", &name]);
        assert_eq!(said, format!("Create readonly snapshot of 'mnt/live' in '{name}'\n"));
        assert!(std::fs::read(at(&format!("{name}/file"))).expect("it is there") == wanted);
    }
    let refused = std::fs::write(at("mnt/snap1/more"), "x").expect_err("it is read-only");
    assert_eq!(refused.raw_os_error(), Some(30), "{refused}");
    // The name of the image can be used, too, with a path from the top of the volume.
    bench.ok(&["subvolume", "snapshot", "image:/snap0", "image:/live"]);
    assert_eq!(std::fs::metadata(at("mnt/live/snap0/file")).expect("there").len(), 700_001);
    let list = bench.ok(&["subvolume", "list", "mnt"]);
    let paths: Vec<_> = list.lines().filter_map(|line| line.rsplit(' ').next()).collect();
    assert_eq!(paths, ["live", "snap0", "snap1", "snap2", "live/snap0"]);
    assert!(bench.ok(&["subvolume", "show", "mnt/snap2"]).contains("readonly"));
    bench.fails(&["subvolume", "create", "mnt/live"], 1, &["mnt/live", "exists"]);
    std::fs::create_dir(at("mnt/live/folder")).expect("a folder");
    bench.fails(&["subvolume", "delete", "mnt/live/folder"], 1, &["not a subvolume"]);
    bench.fails(&["subvolume", "snapshot", "mnt/live", "elsewhere"], 2, &["volume of its source"]);

    // A program that uses one of the subvolumes keeps the space, but does not hold up the command.
    let used = std::fs::File::open(at("mnt/live/snap0/file")).expect("it opens");
    let said = bench.ok(&["subvolume", "delete", "mnt/snap1", "mnt/live/snap0"]);
    assert_eq!(said.matches("when no program uses it").count(), 1, "{said}");
    drop(used);
    assert!(!at("mnt/snap1").exists() && !at("mnt/live/snap0").exists());
    let names = std::fs::read_dir(at("mnt")).expect("listed");
    let mut names: Vec<_> = names.map(|entry| entry.expect("an entry").file_name()).collect();
    names.sort();
    assert_eq!(names, ["live", "snap0", "snap2"]);
    drop(file);
    mounted.end();
    check(&bench.path("image"));
}

/// With the mount option `submounts`, each subvolume has a device number of its own, even a new
/// one. Programs that stay on one file system do not enter a subvolume.
#[test]
fn subvolumes_are_devices_of_their_own() {
    if !has(&["umount", "btrfs", "find"], Some("/dev/fuse")) {
        return;
    }
    let bench = crate::bench();
    bench.volume("image", "300M");
    for place in ["image:/a", "image:/a/within", "image:/b"] {
        bench.ok(&["subvolume", "create", place]);
    }
    let mounted = Mounted::new(&bench, &["-o", "submounts"]);
    let at = |name: &str| bench.path(name);
    let device = |name: &str| std::fs::metadata(at(name)).expect("it is there").dev();
    let distinct = |names: &[&str]| {
        let mut numbers: Vec<_> = names.iter().map(|name| device(name)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), names.len(), "{names:?}");
    };
    distinct(&["mnt", "mnt/a", "mnt/a/within", "mnt/b"]);
    assert_eq!(std::fs::metadata(at("mnt/a")).expect("there").ino(), 256);
    let mut file = std::fs::File::create(at("mnt/a/within/file")).expect("a file");
    file.write_all(&[7; 500_001]).expect("written");
    bench.ok(&["subvolume", "snapshot", "mnt/a/within", "mnt/a/snap"]);
    bench.ok(&["subvolume", "create", "mnt/b/new"]);
    distinct(&["mnt", "mnt/a", "mnt/a/within", "mnt/a/snap", "mnt/b", "mnt/b/new"]);
    assert!(std::fs::read(at("mnt/a/snap/file")).expect("it is there") == [7; 500_001]);
    let found = run("find", &[text(&at("mnt/a")), "-xdev", "-name", "file"]);
    assert_eq!(found, "");

    // A subvolume with another one in it cannot be deleted, and stays as it was.
    bench.fails(&["subvolume", "delete", "mnt/a"], 1, &["mnt/a"]);
    distinct(&["mnt", "mnt/a", "mnt/a/within", "mnt/a/snap", "mnt/b"]);
    bench.ok(&["subvolume", "delete", "mnt/a/snap", "mnt/b/new", "mnt/b"]);
    assert!(!at("mnt/a/snap").exists() && !at("mnt/b").exists());
    std::fs::write(at("mnt/a/last"), [1; 70_000]).expect("written");
    drop(file);
    run("umount", &["-R", text(&at("mnt"))]);
    mounted.ends();
    check(&at("image"));
    assert_eq!(bench.ok(&["ls", "image:/a"]).lines().count(), 2);

    // A signal unmounts all subvolumes.
    let mounted = Mounted::new(&bench, &["-o", "submounts"]);
    distinct(&["mnt", "mnt/a", "mnt/a/within"]);
    let pid = mounted.child.as_ref().expect("it runs").id().to_string();
    run("kill", &["-TERM", &pid]);
    mounted.ends();
    let mounts = std::fs::read_to_string("/proc/mounts").expect("mounts");
    assert!(!mounts.contains(text(&at("mnt"))), "{mounts}");
}

/// The server of a mount that was unmounted while in use still answers. A verb for its mount point,
/// or for the name of its image, works on the mount or file that is there now.
#[test]
fn a_mount_taken_away_gets_no_orders() {
    if !has(&["umount"], Some("/dev/fuse")) {
        return;
    }
    let bench = crate::bench();
    // The earlier mount comes first by name and by time, so a wrong search would find it first.
    for image in ["earlier", "image"] {
        bench.ok(&["mkfs", image, "--size", "200M"]);
    }
    let gone = Mounted::of(&bench, "earlier", &[]);
    std::fs::write(bench.path("mnt/used"), "by somebody").expect("it is written");
    let used = std::fs::File::open(bench.path("mnt/used")).expect("a file");
    run("umount", &["-l", text(&bench.path("mnt"))]);
    let mounted = Mounted::new(&bench, &[]);
    bench.ok(&["subvolume", "create", "mnt/made"]);
    assert!(bench.path("mnt/made").is_dir(), "it was made where it was to be");
    let document: Value =
        serde_json::from_str(&bench.ok(&["--json", "stats", "mnt"])).expect("JSON");
    assert_eq!(document["image"], text(&bench.path("image").canonicalize().expect("a path")));
    // A new image gets the name of the image that was moved.
    std::fs::rename(bench.path("earlier"), bench.path("moved")).expect("renamed");
    bench.ok(&["mkfs", "earlier", "--size", "200M"]);
    bench.ok(&["subvolume", "create", "earlier:/made"]);
    assert!(bench.ok(&["subvolume", "list", "earlier"]).contains("made"));
    drop(used);
    gone.ends();
    mounted.end();
    assert!(!bench.ok(&["subvolume", "list", "moved"]).contains("made"), "nothing was done to it");
}

/// After an unmount, a server may still write data back. During that time, verbs send no orders to
/// the server.
#[test]
fn a_closing_mount_gets_no_orders() {
    if !has(&["umount"], Some("/dev/fuse")) {
        return;
    }
    let bench = crate::bench();
    bench.ok(&["mkfs", "earlier", "--size", "700M"]);
    bench.ok(&["mkfs", "image", "--size", "200M"]);
    let closing = Mounted::of(&bench, "earlier", &["-o", "dirty=512M"]);
    // With this much data, closing takes about a second.
    for number in 0..100 {
        std::fs::write(bench.path(&format!("mnt/{number}")), vec![number; 3 << 20])
            .expect("it is written");
    }
    run("umount", &[text(&bench.path("mnt"))]);
    let mounted = Mounted::new(&bench, &[]);
    bench.ok(&["subvolume", "create", "mnt/made"]);
    assert!(bench.path("mnt/made").is_dir(), "it was made where it was to be");
    closing.ends();
    mounted.end();
    assert!(
        !bench.ok(&["subvolume", "list", "earlier"]).contains("made"),
        "nothing was done to it"
    );
}
