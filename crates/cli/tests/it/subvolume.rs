//! Subvolumes and properties by command.

use serde_json::{Value, json};

use crate::checker::check;
use crate::text;

/// Subvolumes are made, copied, shown and deleted, and the checker finds no fault.
#[test]
fn subvolumes_by_command() {
    let bench = crate::bench();
    bench.volume("v.img", "256M");
    assert_eq!(
        bench.ok(&["subvolume", "create", "v.img:/live"]),
        "Create subvolume 'v.img:/live'\n"
    );
    std::fs::write(bench.path("file"), vec![7; 300_000]).expect("a file");
    bench.ok(&["cp", "file", "v.img:/live/file"]);
    assert_eq!(
        bench.ok(&["subvolume", "snapshot", "-r", "v.img:/live", "v.img:/frozen"]),
        "Create readonly snapshot of 'v.img:/live' in 'v.img:/frozen'\n"
    );
    bench.ok(&["mkdir", "v.img:/dir"]);
    bench.ok(&["subvolume", "snapshot", "v.img:/live", "v.img:/dir"]);
    check(&bench.path("v.img"));
    let list = bench.ok(&["subvolume", "list", "v.img"]);
    let paths: Vec<_> = list.lines().filter_map(|line| line.rsplit(' ').next()).collect();
    assert_eq!(paths, ["live", "frozen", "dir/live"]);
    assert!(list.starts_with("ID 256 gen "), "{list}");
    assert!(list.contains(" top level 5 path live"), "{list}");
    let show = bench.ok(&["subvolume", "show", "v.img:/live"]);
    assert!(show.contains("Subvolume ID: \t\t256"), "{show}");
    assert!(show.contains("frozen") && show.contains("dir/live"), "{show}");
    assert_eq!(bench.ok(&["property", "get", "v.img:/frozen", "ro"]), "ro=true\n");
    bench.fails(&["cp", "file", "v.img:/frozen/more"], 1, &["read-only"]);
    bench.ok(&["property", "set", "v.img:/frozen", "ro", "false"]);
    bench.ok(&["cp", "file", "v.img:/frozen/more"]);
    bench.ok(&["subvolume", "snapshot", "v.img:/live", "./v.img:/dir/again"]);
    bench.ok(&["subvolume", "delete", "v.img:/dir/again"]);
    bench.fails(&["subvolume", "snapshot", "v.img:/live", "none:/x"], 2, &["volume of its source"]);
    bench.fails(&["subvolume", "delete", "v.img:/dir"], 1, &["not a subvolume"]);
    bench.fails(&["subvolume", "create", "v.img:/live"], 1, &["exists"]);

    assert_eq!(bench.ok(&["subvolume", "get-default", "v.img"]), "ID 5 (FS_TREE)\n");
    bench.ok(&["subvolume", "set-default", "v.img:/dir/live"]);
    let default = bench.ok(&["subvolume", "get-default", "v.img"]);
    assert!(default.ends_with("path dir/live\n"), "{default}");
    assert!(bench.ok(&["ls", "v.img:/"]).contains("file"));
    bench.ok(&["subvolume", "set-default", "5", "v.img"]);
    check(&bench.path("v.img"));

    let gone = bench.ok(&["subvolume", "delete", "v.img:/live", "v.img:/frozen"]);
    assert_eq!(
        gone,
        "Delete subvolume 256 (commit): 'v.img:/live'\nDelete subvolume 257 (commit): 'v.img:/frozen'\n"
    );
    let json = bench.ok(&["--json", "subvolume", "list", "v.img"]);
    assert!(json.contains("\"path\": \"dir/live\"") && !json.contains("frozen"), "{json}");
    check(&bench.path("v.img"));
}

/// Every verb can answer scripts, with one JSON document. After a failure, the document has all
/// results from before the failure.
#[test]
fn verbs_answer_scripts() {
    let bench = crate::bench();
    for name in ["v.img", "more.img"] {
        bench.volume(name, "256M");
    }
    let parsed = |args: &[&str], text: &[u8]| -> Value {
        serde_json::from_slice(text)
            .unwrap_or_else(|_| panic!("{args:?}: {}", String::from_utf8_lossy(text)))
    };
    let ask = |args: &[&str]| parsed(args, bench.ok(&[&["--json"], args].concat()).as_bytes());
    assert_eq!(
        ask(&["subvolume", "create", "v.img:/a", "v.img:/b"]),
        json!([{ "place": "v.img:/a", "id": 256 }, { "place": "v.img:/b", "id": 257 }])
    );
    assert_eq!(
        ask(&["subvolume", "snapshot", "-r", "v.img:/a", "v.img:/c"]),
        json!({ "source": "v.img:/a", "place": "v.img:/c", "read_only": true, "id": 258 })
    );
    assert_eq!(ask(&["property", "list", "v.img:/a"]), json!(["ro", "compression"]));
    let args = ["--json", "subvolume", "delete", "v.img:/a", "v.img:/none", "v.img:/b"];
    let output = bench.run(&args);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(parsed(&args, &output.stdout), json!([{ "place": "v.img:/a", "id": 256 }]));
    assert!(bench.ok(&["subvolume", "list", "v.img"]).contains("path b"));

    let state = bench.path("state");
    let status = ask(&["scrub", "status", "v.img", "--state", text(&state)]);
    assert_eq!(status["status"], "none", "{status}");
    assert!(status["uuid"].is_string(), "{status}");
    assert_eq!(ask(&["device", "add", "-f", "v.img", "more.img"]), json!([{ "devid": 2 }]));
    let remove = ["device", "remove", "v.img", "2", "--device", "more.img"];
    assert_eq!(ask(&remove), json!([{ "devid": 2 }]));
    check(&bench.path("v.img"));
}
