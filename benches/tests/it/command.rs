//! Short runs of the measurements. They run, draw and report their results.

use serde_json::Value;

/// Orders of write-back in simulated time and on a file, with a plot.
#[test]
fn orders_of_write_back_are_measured_and_drawn() {
    let bench = crate::bench();
    let short = ["writeback", "--cache-mib", "16", "--files", "--speed", "100", "--dir", "."];
    let table = bench.ok(&[&short[..], &["--plot", "plot.svg"]].concat());
    for word in ["simulated", "file", "sorted", "lru", "fifo-unsorted", "x unsorted"] {
        assert!(table.contains(word), "no {word:?} in\n{table}");
    }
    let plot = std::fs::read_to_string(bench.path("plot.svg")).expect("a plot");
    assert_eq!(plot.matches(": flush in ").count(), 6, "a panel each");
    bench.fails(&["writeback", "--speed", "0", "--files"], 1, &["--speed"]);
    bench.fails(&["writeback", "--trace", "plot.svg", "--scale", "0.01"], 1, &["plot.svg"]);
}

/// The foreground's figures, with a few blocks instead of millions.
#[test]
fn the_foreground_is_measured() {
    let bench = crate::bench();
    let short =
        ["foreground", "--blocks", "20000", "--threads", "1,2", "--runs", "1", "--scattered"];
    let text = bench.ok(&[&["--json", "--plot", "page.html"], &short[..]].concat());
    let page = std::fs::read_to_string(bench.path("page.html")).expect("a page");
    assert!(page.starts_with("<!doctype html>") && page.contains("beside a flush"));
    bench.fails(&[&["--plot", "page.svg"], &short[..]].concat(), 2, &["--plot", ".html"]);
    bench.fails(&["choice", "--plot", "page.html"], 2, &["--plot", "table"]);
    let figures: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(figures["scaling"].as_array().map(Vec::len), Some(2));
    assert!(figures["p99_times_idle"].as_f64().is_some_and(|times| times > 0.0), "{figures}");
    bench.fails(&["foreground", "--threads", "0"], 1, &["--threads"]);
}

/// A mount option is added to each of our subjects that does not set this option, and is shown. An
/// option that no subject takes is refused.
#[test]
fn mount_options_are_added() {
    let bench = crate::bench();
    let short = ["read", "--threads", "1", "--runs", "1", "--scale", "0.002", "--dir", "."];
    let with = |more: &[&str]| bench.ok(&[&short[..], more].concat());
    let text = with(&["--json", "--only", "page by,buttress", "-o", "read_batch=16,commit=9"]);
    let found: Value = serde_json::from_str(&text).expect("JSON");
    let wanted = serde_json::json!({
        "buttress page by page": "read_batch=1,commit=9", "buttress": "read_batch=16,commit=9",
    });
    assert_eq!(found["options"], wanted);
    let table = with(&["--only", "buttress", "--options", "commit=9"]);
    assert!(table.contains("mount options\n") && table.ends_with("commit=9\n"), "{table}");

    let fails = |more: &[&str], code, words: &[&str]| {
        bench.fails(&[&short[..], more].concat(), code, words);
    };
    fails(&["-o", "nocommit"], 2, &["nocommit", "not known; like commit"]);
    fails(&["-o", "threads=0"], 2, &["threads=0", "1 to 256"]);
    fails(&["--only", "buttress", "-o", "nowriteback_cache"], 1, &["nowriteback_cache", "--mount"]);
    fails(&["--only", "page by", "-o", "read_batch=run"], 1, &["read_batch=run", "sets that"]);
    bench.fails(&["writeback", "-o", "commit=9"], 2, &["--options", "nocow"]);
}

/// Everyday loads on the empty server: figures, and requests by kind.
#[test]
fn everyday_loads_are_measured() {
    if !crate::has(&["git", "tar"], Some("/dev/fuse")) || !is_root() {
        return;
    }
    let bench = crate::bench();
    let short = ["mount", "--files", "40", "--mib", "1", "--transactions", "1", "--runs", "1"];
    let some = ["--dir", ".", "--only", "empty server", "--loads", "create,unlink"];
    let text = bench.ok(&[&["--json"], &short[..], &some].concat());
    let found: Value = serde_json::from_str(&text).expect("JSON");
    let figures = found["figures"].as_array().expect("rows");
    let of = |what: &str| figures.iter().find(|row| row["what"] == what).expect("a row");
    let created = of("create 4 KiB files");
    assert_eq!(created["requests"]["create"], 40, "{created}");
    assert_eq!(of("unlink")["requests"]["unlink"], 40);
    assert!(created["awaited"].as_u64().is_some_and(|count| count >= 80), "{created}");
    assert!(bench.ok(&[&short[..], &some].concat()).contains("server"));
    bench.fails(&["mount", "--files", "1", "--mib", "0", "--loads", "none"], 1, &["no load"]);
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The published experiments on the library, with each switch, run for a moment. All subjects have
/// the rows that a comparison needs.
#[test]
fn published_experiments_are_measured() {
    let bench = crate::bench();
    let rows = "buttress,lookup,no lock,by,linear,one goal,off,clamp";
    let short = ["--runs", "1", "--scale", "0.02", "--dir", ".", "--only", rows];
    let verbs: [(&[&str], usize, &[&str]); 6] = [
        (
            &["nocow", "--groups", "2", "--jobs", "2", "--file-mib", "4"],
            4,
            &[
                "64 KiB random direct",
                "4 KiB random direct",
                "processor time of a GiB",
                "p99 of 4 KiB",
            ],
        ),
        (
            &["cow", "--jobs", "2", "--file-mib", "4"],
            1,
            &[
                "64 KiB random direct",
                "4 KiB random direct",
                "processor time of a GiB",
                "p99 of 64 KiB",
            ],
        ),
        (
            &["enospc", "--names", "500", "--mib", "4"],
            2,
            &[
                "written, through memory",
                "written, direct",
                "p99.9 of a write",
                "commits",
                "variation",
            ],
        ),
        (
            &[
                "enospc",
                "--names",
                "500",
                "--mib",
                "4",
                "--size-mib",
                "1024",
                "--device-mib-s",
                "2000",
                "--device-latency-us",
                "10",
            ],
            2,
            &["written, through memory", "data to the device, direct", "a commit"],
        ),
        (
            &["read", "--threads", "1,2"],
            3,
            &[
                "read by 2, cold",
                "p99 of 32 KiB, 1",
                "requests to the device, 2",
                "mean size of a request",
            ],
        ),
        (
            &["allocate", "--workers", "1,3"],
            4,
            &["allocations by 3", "processor time of each, 1", "p99 of an allocation, 3"],
        ),
    ];
    bench.fails(&["enospc", "--device-mib-s", "0"], 2, &["--device-mib-s"]);
    for (verb, subjects, rows) in verbs {
        let json = bench.ok(&[&["--json"], verb, &short[..]].concat());
        let found: Value = serde_json::from_str(&json).expect("JSON");
        let figures = found["figures"].as_array().expect("rows");
        for row in rows {
            let seen =
                figures.iter().filter(|f| f["what"].as_str().is_some_and(|w| w.contains(row)));
            let (mut subject, mut sound) = (std::collections::BTreeSet::new(), true);
            for figure in seen {
                subject.insert(figure["subject"].as_str().expect("a name"));
                sound &= figure["median"].as_f64().is_some_and(f64::is_finite);
            }
            assert!(subject.len() == subjects && sound, "{}: {row}: {subject:?}", verb[0]);
        }
    }
}

/// Commands are measured beside those of btrfs-progs, all cases of them.
#[test]
fn programs_are_measured_beside_btrfs_progs() {
    let programs = ["btrfs", "mkfs.btrfs", "compsize", "losetup", "mount"];
    if !crate::has(&programs, Some("/dev/loop-control")) {
        return;
    }
    let bench = crate::bench();
    let text = bench.ok(&["--json", "programs", "--files", "300", "--runs", "1", "--dir", "."]);
    let figures: Value = serde_json::from_str(&text).expect("JSON");
    let rows = figures.as_array().expect("rows");
    assert_eq!(rows.len(), 18, "{figures}");
    let is_measured = |row: &&Value| row["median"].as_f64().is_some_and(|seconds| seconds > 0.0);
    let measured: Vec<_> = rows.iter().filter(is_measured).collect();
    let of = |subject: &str| measured.iter().filter(|row| row["subject"] == subject).count();
    assert_eq!((of("buttress"), of("compsize")), (9, 1), "{figures}");
    assert!(of("btrfs-progs") >= 7, "{figures}");
    let left = std::fs::read_dir(bench.folder()).expect("a folder");
    let names = left.map(|entry| entry.expect("a name").file_name().into_string().expect("plain"));
    let images: Vec<_> = names.filter(|name| name.starts_with("buttress-bench")).collect();
    assert!(images.is_empty(), "they are removed: {images:?}");
    bench.fails(&["programs", "--only", "no such work"], 1, &["no case"]);
}
