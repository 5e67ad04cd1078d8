//! What `btrfs scrub` tells: of each device, of a scrub that runs, and of one that was stopped.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::checker::check;
use crate::live::{Mounted, has, run};
use crate::words::{bench_of_words, said};
use crate::{Bench, text};

/// The state file of the scrubs of a volume, as this user has it.
fn state_file(bench: &Bench) -> PathBuf {
    let facts = bench.ok(&["info", "image"]);
    let uuid = facts.lines().find_map(|line| line.trim().strip_prefix("uuid"));
    let uuid = uuid.expect("an identifier").trim();
    let folder = match rustix::process::geteuid().is_root() {
        true => PathBuf::from("/var/lib"),
        false => PathBuf::from(std::env::var("HOME").expect("a home")).join(".local/state"),
    };
    folder.join("buttress").join(format!("scrub.status.{uuid}"))
}

/// The lines about each device, with the first line of each.
fn by_device(text: &str) -> Vec<Vec<&str>> {
    let parts = text.split("\nScrub device ").skip(1);
    parts.map(|part| part.lines().collect()).collect()
}

/// Damage of one device is counted at that device. Of a scrub that runs, the time left is told. A
/// scrub with a process that is gone was interrupted.
#[test]
fn scrubs_are_told_by_device() {
    let Some((bench, ours)) = bench_of_words() else { return };
    let second = bench.path("second");
    File::create(&second).expect("a file").set_len(300 << 20).expect("a size");
    let image = bench.path("image");
    // Data that is there is converted; without data, there would be no group to convert.
    let needle = [&b"a needle in one copy"[..], &[7; 8172]].concat();
    std::fs::write(bench.path("file"), needle.repeat(40)).expect("a file");
    bench.ok(&["cp", "file", "image:/"]);
    let words = ["device", "add", text(&second), text(&image)];
    assert_eq!(said(&bench, &ours, &words).1, Some(0));
    let both = ["--device", text(&second)];
    let start = ["balance", "start", "-dconvert=raid1", "-mconvert=raid1"];
    bench.ok(&[&start[..], &both, &["image"]].concat());

    let bytes = std::fs::read(&second).expect("the device");
    let is_it = |at: &usize| bytes[*at..].starts_with(b"a needle");
    let at = (0..bytes.len()).step_by(4096).find(is_it).expect("a copy of the file") as u64;
    let device = OpenOptions::new().write(true).open(&second).expect("the device");
    for sector in 0..3 {
        device.write_all_at(b"another", at + sector * 4096).expect("damage");
    }

    // The scrub of the mount names the devices as they were given to it.
    let option = format!("device={}", text(&second));
    let mounted = Mounted::new(&bench, &["-o", &option]);
    let top = bench.path("mnt");
    let (told, code) = said(&bench, &ours, &["scrub", "start", "-B", "-d", text(&top)]);
    assert_eq!(code, Some(0), "{told}");
    let devices = by_device(&told);
    assert_eq!(devices.len(), 2, "{told}");
    assert!(devices[0][0].ends_with("image (id 1) done"), "{told}");
    assert!(devices[0].contains(&"Error summary:    no errors found"), "{told}");
    assert!(devices[1][0].ends_with("second (id 2) done"), "{told}");
    assert!(devices[1].contains(&"Error summary:    csum=3"), "{told}");
    assert!(devices[1].contains(&"  Corrected:      3"), "{told}");
    assert!(devices[1].contains(&"  Uncorrectable:  0"), "{told}");

    let (told, _) = said(&bench, &ours, &["scrub", "status", "-d", "-R", text(&top)]);
    let devices = by_device(&told);
    let count = |device: &[&str], name: &str| -> u64 {
        let line = device.iter().find_map(|line| line.trim().strip_prefix(name));
        line.unwrap_or_else(|| panic!("{name}: {told}")).parse().expect("a number")
    };
    let names = ["data_bytes_scrubbed: ", "tree_bytes_scrubbed: ", "csum_errors: "];
    let [first, other] = [&devices[0], &devices[1]].map(|device| names.map(|n| count(device, n)));
    assert!(first[0] >= 40 * 8192 && first[1] > 0 && first[2] == 0, "{told}");
    assert_eq!(first[..2], other[..2], "both devices have a copy of everything: {told}");
    assert!(count(&devices[1], "last_physical: ") > 1 << 20, "{told}");
    // The counts of the volume are those of both devices.
    let (whole, _) = said(&bench, &ours, &["scrub", "status", "-R", text(&top)]);
    assert!(whole.contains(&format!("data_bytes_scrubbed: {}\n", 2 * first[0])), "{whole}");

    let file = state_file(&bench);
    let mut state: Value =
        serde_json::from_slice(&std::fs::read(&file).expect("the state")).expect("JSON");
    let process = std::fs::read_to_string("/proc/self/stat").expect("this process");
    let began = process.rsplit_once(')').expect("a name").1.split_whitespace().nth(19);
    let began: u64 = began.expect("a time").parse().expect("a number");
    state["status"] = json!("running");
    state["process"] = json!([std::process::id(), began]);
    state["duration"] = json!(100);
    state["data_bytes_scrubbed"] = json!(100 << 20);
    state["tree_bytes_scrubbed"] = json!(0);
    state["bytes_total_copies"] = json!(400 << 20);
    let with = |state: &Value| {
        std::fs::write(&file, state.to_string()).expect("written");
        said(&bench, &ours, &["scrub", "status", text(&top)]).0
    };
    let told = with(&state);
    let lines: Vec<_> = told.lines().map(|line| line.split(':').next().unwrap_or(line)).collect();
    let wanted = [
        "UUID",
        "Scrub started",
        "Status",
        "Duration",
        "Time left",
        "ETA",
        "Total to scrub",
        "Bytes scrubbed",
        "Rate",
        "Error summary",
    ];
    assert_eq!(lines[..wanted.len()], wanted, "{told}");
    for line in [
        "Status:           running",
        "Duration:         0:01:40",
        "Time left:        0:05:00",
        "Total to scrub:   400.00MiB",
        "Bytes scrubbed:   100.00MiB  (25.00%)",
        "Rate:             1.00MiB/s",
    ] {
        assert!(told.lines().any(|found| found == line), "{line}: {told}");
    }
    let (refused, code) = said(&bench, &ours, &["scrub", "start", "-B", text(&top)]);
    assert!(code == Some(1) && refused.contains("Scrub is already running."), "{refused}");
    state["process"][1] = json!(began + 1);
    assert!(with(&state).contains("Status:           interrupted\n"));
    state["status"] = json!("interrupted");
    (state["canceled"], state["resumed"]) = (json!(true), json!(1_700_000_000));
    let told = with(&state);
    assert!(told.contains("Status:           aborted\n") && told.contains("Scrub resumed:"));
    // The scrub goes on behind what was scrubbed, and adds to its counts.
    state["last_logical"] = json!(0);
    let before = state["devices"][1]["data_bytes_scrubbed"].as_u64().expect("a count");
    std::fs::write(&file, state.to_string()).expect("written");
    let (told, code) = said(&bench, &ours, &["scrub", "resume", "-B", "-d", "-R", text(&top)]);
    assert_eq!(code, Some(0), "{told}");
    let devices = by_device(&told);
    let line = format!("\tdata_bytes_scrubbed: {}", 2 * before);
    assert!(devices[1].contains(&line.as_str()) && told.contains("Scrub resumed:"), "{told}");
    let state: Value =
        serde_json::from_slice(&std::fs::read(&file).expect("the state")).expect("JSON");
    let count = |name: &str| state[name].as_u64().expect("a count");
    let scrubbed = count("data_bytes_scrubbed") + count("tree_bytes_scrubbed");
    assert_eq!(count("bytes_total_copies"), scrubbed, "the total is that of all runs");
    mounted.end();
    std::fs::remove_file(&file).expect("removed");
    bench.ok(&[&["check", "--check-data-csum"][..], &both, &["image"]].concat());
    if has(&["losetup", "btrfs"], None) && crate::live::is_root() {
        let attach = |path: &PathBuf| run("losetup", &["--find", "--show", text(path)]);
        let loops = [&image, &second].map(attach);
        check(Path::new(loops[0].trim()));
        for device in &loops {
            run("losetup", &["--detach", device.trim()]);
        }
    }
}

/// The lines of a scrub about its errors, all of standard error, and the exit code.
fn outcome(output: &std::process::Output) -> (Vec<String>, String, Option<i32>) {
    let told = String::from_utf8_lossy(&output.stdout);
    let about = |line: &&str| line.contains("rror") || line.starts_with("  ");
    // Linux counts each copy of a sector that is lost.
    let in_short = |line: &str| match line.strip_prefix("  Uncorrectable:") {
        Some(count) if count.trim() != "0" => "some are lost".to_owned(),
        _ => line.to_owned(),
    };
    let lines = told.lines().filter(about).map(in_short).collect();
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    (lines, complaint, output.status.code())
}

/// The exit code and the complaints are those of btrfs-progs on Linux: 0 without errors and where
/// all were corrected, and 3 where some cannot be.
#[test]
fn uncorrectable_errors_have_an_exit_code() {
    let needed = ["mkfs.btrfs", "btrfs", "mount", "umount", "losetup", "cp"];
    if !has(&needed, Some("/dev/fuse")) || !crate::live::is_root() {
        return;
    }
    let bench = crate::bench();
    let (image, linux, top) = (bench.path("image"), bench.path("linux"), bench.path("lx"));
    File::create(&image).expect("a file").set_len(400 << 20).expect("a size");
    std::fs::create_dir(&top).expect("a folder");
    run("mkfs.btrfs", &["-q", "-d", "dup", text(&image)]);
    let ours = bench.path("btrfs");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_buttress"), &ours).expect("a link");
    let mount = |image: &Path| run("mount", &["-o", "loop", text(image), text(&top)]);
    mount(&image);
    let needle = [&b"a needle in two copies"[..], &[7; 8170]].concat();
    std::fs::write(top.join("file"), needle.repeat(40)).expect("a file");
    run("umount", &[text(&top)]);
    run("cp", &["--sparse=always", text(&image), text(&linux)]);

    let bytes = std::fs::read(&image).expect("the image");
    let is_it = |at: &usize| bytes[*at..].starts_with(b"a needle");
    let found = (0..bytes.len()).step_by(4096).filter(is_it).map(|at| at as u64);
    let places: Vec<_> = found.collect();
    assert_eq!(places.len(), 80, "each of the 40 sectors has two copies");
    drop(bytes);
    let scrub = |name: &Path, top: &Path, more: &[&str]| {
        let words = [&["scrub", "start", "-B"], more, &[text(top)]].concat();
        outcome(&crate::words::program(&bench, name).args(words).output().expect("it starts"))
    };
    let both = |damaged: &[u64], more: &[&str]| {
        for image in [&image, &linux] {
            let device = OpenOptions::new().write(true).open(image).expect("the image");
            damaged.iter().for_each(|at| device.write_all_at(b"another", *at).expect("damage"));
        }
        mount(&linux);
        let wanted = scrub(Path::new("btrfs"), &top, more);
        run("umount", &[text(&top)]);
        let mounted = Mounted::new(&bench, &[]);
        let found = scrub(&ours, &bench.path("mnt"), more);
        mounted.end();
        assert_eq!(wanted, found, "btrfs-progs on the left");
        found
    };
    let (lines, complaint, code) = both(&[], &[]);
    assert_eq!((code, complaint.as_str()), (Some(0), ""), "{lines:?}");
    let (lines, complaint, code) = both(&places[..3], &[]);
    assert!(code == Some(0) && complaint.contains("WARNING: "), "{lines:?} {complaint}");
    let (lines, complaint, code) = both(&[places[5], places[45]], &[]);
    assert!(code == Some(3) && complaint.contains("ERROR: "), "{lines:?} {complaint}");
    let (_, complaint, code) = both(&[], &["-q"]);
    assert_eq!((code, complaint.as_str()), (Some(3), ""));
    let file = state_file(&bench);
    std::fs::remove_file(file).expect("removed");
}
