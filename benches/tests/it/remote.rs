//! `buttress-bench remote` at small sizes: it ends, and the counts of requests are as expected.

use serde_json::Value;

/// Without a local log, an fsync takes two requests, and one of them writes the manifest. With a
/// local log, an fsync takes no request. A fork takes a handful of requests, whatever the size of
/// the volume.
#[test]
fn requests_of_a_store_are_counted() {
    let bench = crate::bench();
    let words = "--json --runs 1 --scale 0.1 remote --mib 20 --files 600 --latencies 0 --objects 300 \
                 --overwritten-mib 4 --dir .";
    let words: Vec<&str> = words.split_whitespace().collect();
    let rows: Vec<Value> = serde_json::from_str(&bench.ok(&words)).expect("rows");
    let median = |what: &str, place: &str| {
        let row = rows.iter().find(|row| {
            row["what"].as_str().is_some_and(|found| found.contains(what)) && row["place"] == place
        });
        row.and_then(|row| row["median"].as_f64()).unwrap_or_else(|| panic!("{what} {place}"))
    };
    let puts = median("requests of an fsync", "store 0 ms");
    assert!((1.9..4.0).contains(&puts), "{puts} puts");
    assert!(median("requests of an fsync", "store 0 ms, cache") < puts);
    assert!(median("a fork: requests", "store 30 ms") <= 8.0);
    let sent = median("bytes sent for each written", "store 0 ms");
    assert!(sent >= 1.0, "{sent}");
}
