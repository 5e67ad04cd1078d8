//! The documents that scripts read, against their schemas.

use std::fs;

use boon::{Compiler, Schemas};
use serde_json::Value;

use crate::live::{Mounted, has};
use crate::text;

const STATS: &str = include_str!("../../../../docs/stats.schema.json");

/// After some work on a mount, its figures follow the schema: the figures for its place, and those
/// in the list of all mounts.
#[test]
fn stats_follow_their_schema() {
    if !has(&["umount"], Some("/dev/fuse")) {
        return;
    }
    let schema: Value = serde_json::from_str(STATS).expect("the schema is JSON");
    let mut compiler = Compiler::new();
    compiler.add_resource("stats.json", schema).expect("a name");
    let mut schemas = Schemas::new();
    let index = compiler.compile("stats.json", &mut schemas).expect("the schema is one");
    let is_valid = |said: &str| {
        let value: Value = serde_json::from_str(said).expect("it is JSON");
        schemas.validate(&value, index).map_err(|error| format!("{error:#}\n{said}"))
    };
    assert!(is_valid(r#"[{ "pid": 1, "image": "/a", "sections": { "space": 3 } }]"#).is_err());
    let wrong = r#"[{ "pid": 1, "image": "/a", "sections": { "space": { "a_bytes": "b" } } }]"#;
    assert!(is_valid(wrong).is_err());

    let bench = crate::bench();
    bench.volume("image", "300M");
    let mounted = Mounted::new(&bench, &[]);
    fs::write(bench.path("mnt/file"), b"some bytes").expect("it is written");
    for args in [&["--json", "stats"][..], &["--json", "stats", text(&bench.path("mnt"))]] {
        if let Err(error) = is_valid(&bench.ok(args)) {
            panic!("{error}");
        }
    }
    mounted.end();
}
