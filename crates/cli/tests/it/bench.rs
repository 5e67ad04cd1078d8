//! The measurements, made short: that they run, draw and say what they found.

use serde_json::Value;

use crate::Bench;

/// Orders of write-back in simulated time and on a file, with a plot.
#[test]
fn orders_of_write_back_are_measured_and_drawn() {
    let bench = Bench::new();
    let short =
        ["bench", "writeback", "--cache-mib", "16", "--files", "--speed", "100", "--dir", "."];
    let table = bench.ok(&[&short[..], &["--plot", "plot.svg"]].concat());
    for word in ["simulated", "file", "sorted", "lru", "fifo-unsorted", "x unsorted"] {
        assert!(table.contains(word), "no {word:?} in\n{table}");
    }
    let plot = std::fs::read_to_string(bench.path("plot.svg")).expect("a plot");
    assert_eq!(plot.matches(": flush in ").count(), 6, "a panel each");
    bench.fails(&["bench", "writeback", "--speed", "0", "--files"], 1, &["--speed"]);
    bench.fails(
        &["bench", "writeback", "--trace", "plot.svg", "--scale", "0.01"],
        1,
        &["plot.svg"],
    );
}

/// The foreground's figures, with a few blocks instead of millions.
#[test]
fn the_foreground_is_measured() {
    let bench = Bench::new();
    let short = [
        "bench",
        "foreground",
        "--blocks",
        "20000",
        "--threads",
        "1,2",
        "--runs",
        "1",
        "--scattered",
    ];
    let text = bench.ok(&[&["--json"], &short[..]].concat());
    let figures: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(figures["scaling"].as_array().map(Vec::len), Some(2));
    assert!(figures["p99_times_idle"].as_f64().is_some_and(|times| times > 0.0), "{figures}");
    bench.fails(&["bench", "foreground", "--threads", "0"], 1, &["--threads"]);
}
