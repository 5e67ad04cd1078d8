//! The published experiments from end to end, as small as possible. Each switch has rows for on and
//! off, and its effect shows in the counts. No test checks speed.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{Bench, has};

/// The programs that are needed to measure a mount.
const OF_MOUNTS: &[&str] = &["fio", "umount"];

/// The arguments of one run of a verb. The names after `--only` contain blanks.
fn arguments(words: &str) -> Vec<&str> {
    let (words, only) = words.split_once(" --only ").expect("no file systems of others");
    let always = ["--runs", "1", "--dir", ".", "--only", only];
    ["--json"].into_iter().chain(words.split(' ')).chain(always).collect()
}

/// The results of one call of `buttress-bench`.
struct Found(Value);

impl Found {
    fn of(bench: &Bench, words: &str) -> Self {
        let found: Value = serde_json::from_str(&bench.ok(&arguments(words))).expect("JSON");
        Self(found)
    }

    fn figures(&self) -> &Vec<Value> {
        self.0["figures"].as_array().expect("rows")
    }

    /// All subjects of any row.
    fn subjects(&self) -> BTreeSet<&str> {
        self.figures().iter().filter_map(|row| row["subject"].as_str()).collect()
    }

    /// One figure of one subject.
    #[track_caller]
    fn figure(&self, what: &str, subject: &str) -> f64 {
        let row =
            self.figures().iter().find(|row| row["what"] == what && row["subject"] == subject);
        let found = row.and_then(|row| row["median"].as_f64());
        found.unwrap_or_else(|| panic!("no {what} of {subject} in {}", self.0))
    }

    /// The mount options of a subject.
    fn options(&self, subject: &str) -> &str {
        self.0["options"][subject].as_str().unwrap_or_default()
    }
}

/// The longer a batch of reads may be, the fewer and larger are the requests.
#[test]
fn batches_make_requests_fewer_and_larger() {
    let bench = crate::bench();
    let words = "read --threads 4 --scale 0.01 --only page by page,by sixteen,buttress";
    let found = Found::of(&bench, words);
    let rows = ["buttress page by page", "buttress by sixteen", "buttress"];
    assert_eq!(found.subjects(), BTreeSet::from(rows));
    assert_eq!(found.options(rows[0]), "read_batch=1");
    let requests = rows.map(|subject| found.figure("requests to the device, 4", subject));
    let sizes = rows.map(|subject| found.figure("mean size of a request, 4", subject));
    // The file of ten MiB is read page by page.
    assert!(requests[0] >= 2560.0, "{requests:?}");
    assert!(requests[1] < requests[0] / 10.0 && requests[2] < requests[1] / 3.0, "{requests:?}");
    assert!(sizes[1] > sizes[0] * 10.0 && sizes[2] > sizes[1] * 3.0, "{sizes:?}");
}

/// Through a mount, too, longer batches make fewer and larger requests. The mount counts the
/// requests to its device. The options turn our page cache on, and keep the kernel's reads below
/// the length that bypasses this cache.
#[test]
fn batches_make_requests_of_a_mount_fewer_and_larger() {
    if !has(OF_MOUNTS, Some("/dev/fuse")) {
        return;
    }
    let bench = crate::bench();
    let found = |batch: &str| {
        let options = format!("page_cache=268435456,read_ahead=128,read_batch={batch}");
        let words = format!("read --threads 2 --scale 0.01 --mount --options {options}");
        let found = Found::of(&bench, &format!("{words} --only buttress mount"));
        assert_eq!(found.options("buttress mount"), format!("noio_uring,{options}"));
        ["requests to the device, 2", "mean size of a request, 2"]
            .map(|what| found.figure(what, "buttress mount"))
    };
    let ([many, small], [few, large]) = (found("1"), found("run"));
    assert!(many > few * 3.0 && large > small * 3.0, "{many} {small} {few} {large}");
}

/// Lookups of block groups for writes in place: all three policies are measured beside our default.
/// Lookups are not counted.
#[test]
fn writes_in_place_have_their_switch() {
    let bench = crate::bench();
    let words = "nocow --groups 2 --jobs 2 --depth 2 --file-mib 1 --blocks 4096 --scale 0.02";
    let found = Found::of(&bench, &format!("{words} --only lookup,no lock,buttress"));
    for (subject, way) in [
        ("buttress, two lookups", "rwlock-double"),
        ("buttress, one lookup", "rwlock-single"),
        ("buttress, no lock", "lockfree"),
    ] {
        assert!(found.figure("4 KiB random direct", subject) > 0.0, "{}", found.0);
        let options = format!("nodatacow,nocow_check=always,bg_lookup={way}");
        assert_eq!(found.options(subject), options);
    }
    assert_eq!(found.options("buttress"), "nodatacow");
}

/// If preemptive flushing is on, and reservations follow Linux's rule, the flusher runs before a
/// ticket waits. If preemptive flushing is off, the flusher makes no such round. On a busy machine,
/// room may not run short within half a second, so the test tries longer runs, too.
#[test]
fn room_is_made_ahead_where_that_is_on() {
    let bench = crate::bench();
    let is_made = ["0.5", "2", "8"].into_iter().any(|seconds| {
        let words = "enospc --names 100 --mib 96 --size-mib 8192 --reserve levels --seconds";
        let found = Found::of(&bench, &format!("{words} {seconds} --only off,clamp"));
        assert_eq!(found.subjects(), BTreeSet::from(["clamp", "off"]));
        let counted = |what: &str| ["off", "clamp"].map(|subject| found.figure(what, subject));
        for way in ["through memory", "direct"] {
            assert_eq!(counted(&format!("rounds made ahead, {way}"))[0], 0.0, "{way}");
            for what in ["commits", "requests to the device"] {
                let counts = counted(&format!("{what}, {way}"));
                assert!(counts.iter().all(|count| *count >= 1.0), "{what}, {way}: {counts:?}");
            }
        }
        found.figure("rounds made ahead, through memory", "clamp") > 0.0
    });
    assert!(is_made, "no room was made ahead in eight seconds either");
}

/// With scarce metadata, mounts have the same rows as the library, and the given options.
#[test]
fn mounts_tell_of_scarce_metadata() {
    if !has(OF_MOUNTS, Some("/dev/fuse")) {
        return;
    }
    let bench = crate::bench();
    let words = "enospc --names 100 --mib 4 --seconds 0.4 --size-mib 1024 --mount";
    let found = Found::of(&bench, &format!("{words} --options nowriteback_cache --only mount"));
    let all = found.subjects();
    assert!(["off mount", "clamp mount"].iter().all(|subject| all.contains(subject)));
    for subject in all {
        assert!(found.options(subject).ends_with(",nowriteback_cache"), "{}", found.0);
        for way in ["through memory", "direct"] {
            let figure = |what: &str| found.figure(&format!("{what}, {way}"), subject);
            assert!(
                figure("commits") >= 1.0 && figure("requests to the device") >= 1.0,
                "{subject}"
            );
            assert!(figure("mean size of a request") >= 4.0, "{subject}");
            assert!(figure("metadata in use") <= figure("metadata"), "{subject}");
            let waits = figure("waits for metadata") + figure("waits for data");
            assert_eq!(figure("p99.9 of waits") > 0.0, waits > 0.0, "{subject}: {waits} waits");
            assert!(figure("rounds made ahead") == 0.0 || !subject.starts_with("off"), "{subject}");
        }
    }
}

/// Block allocation: every way to choose a group is measured.
#[test]
fn allocation_has_its_switch() {
    let bench = crate::bench();
    let found =
        Found::of(&bench, "allocate --workers 8 --scale 0.02 --only linear,one goal,buttress");
    let ways = [
        ("buttress, linear", "alloc=linear"),
        ("buttress, linear-trylock", "alloc=linear-trylock"),
        ("buttress, index, one goal", "alloc=index-single-goal"),
        ("buttress", ""),
    ];
    for (subject, way) in ways {
        assert!(found.figure("allocations by 8", subject) > 0.0, "{}", found.0);
        assert_eq!(found.options(subject), way);
    }
}

/// The engine runs on 64 processors, as the published job did. On so many processors, a search by
/// the index is faster than a walk from the first group. The host decides how long each simulated
/// step takes, so the test checks only the order of the two results. A program without the
/// scheduler prints how to build one.
#[test]
fn allocation_scales_on_simulated_processors() {
    let bench = crate::bench();
    let words = "allocate --workers 64 --processors 64 --scale 0.01 --only linear,buttress";
    if cfg!(not(buttress_seeded)) {
        let output = bench.run(&arguments(words));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("--cfg buttress_seeded"), "{said}");
        return;
    }
    let found = Found::of(&bench, words);
    let [linear, index] =
        ["buttress, linear", "buttress"].map(|subject| found.figure("allocations by 64", subject));
    assert!(linear < index, "{linear} {index}");
}
