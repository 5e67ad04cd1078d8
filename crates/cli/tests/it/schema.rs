//! The documents that scripts read, against their schemas.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;

use boon::{Compiler, SchemaIndex, Schemas};
use serde_json::Value;

use crate::live::{Mounted, has};
use crate::{Bench, text};

const STATS: &str = include_str!("../../../../docs/stats.schema.json");

/// The schema of `stats`, ready to check documents.
struct Checker {
    schema: Value,
    schemas: Schemas,
    index: SchemaIndex,
}

impl Checker {
    fn new() -> Self {
        let schema: Value = serde_json::from_str(STATS).expect("the schema is JSON");
        let mut compiler = Compiler::new();
        compiler.add_resource("stats.json", schema.clone()).expect("a name");
        let mut schemas = Schemas::new();
        let index = compiler.compile("stats.json", &mut schemas).expect("the schema is one");
        Self { schema, schemas, index }
    }

    fn check(&self, value: &Value) -> Result<(), String> {
        let checked = self.schemas.validate(value, self.index);
        checked.map_err(|error| format!("{error:#}\n{value:#}"))
    }

    /// The names that the schema has for a section.
    fn names(&self, section: &str) -> BTreeSet<String> {
        let properties = &self.schema["$defs"][format!("section_{section}")]["properties"];
        properties.as_object().expect("a section with names").keys().cloned().collect()
    }

    /// The figures of a mount, which follow the schema.
    fn figures(&self, bench: &Bench, args: &[&str]) -> Value {
        let value = serde_json::from_str(&bench.ok(args)).expect("it is JSON");
        if let Err(error) = self.check(&value) {
            panic!("{error}");
        }
        value
    }
}

/// The names of the figures in a section.
fn names(sections: &Value, section: &str) -> BTreeSet<String> {
    sections[section].as_object().expect("a section").keys().cloned().collect()
}

/// After some work on a mount, its figures follow the schema: the figures for its place, and those
/// in the list of all mounts. Each section has all the names of the schema and no other, also that
/// of the last refusal.
#[test]
fn stats_follow_their_schema() {
    if !has(&["umount"], Some("/dev/fuse")) {
        return;
    }
    let checker = Checker::new();
    let bench = crate::bench();
    bench.volume("image", "200M");
    let mounted = Mounted::new(&bench, &[]);
    let mnt = bench.path("mnt");
    fs::write(mnt.join("file"), b"some bytes").expect("it is written");
    let mut file = fs::File::create(mnt.join("full")).expect("a file");
    let bytes = vec![1; 1 << 20];
    while file.write_all(&bytes).and_then(|()| file.sync_data()).is_ok() {}
    drop(file);
    fs::remove_file(mnt.join("full")).expect("there is room to remove it");
    let all = checker.figures(&bench, &["--json", "stats"]);
    assert!(all.as_array().is_some_and(|all| all.len() == 1), "{all}");
    let one = checker.figures(&bench, &["--json", "stats", text(&mnt)]);
    let sections = &one["sections"];
    let whole = [
        "space",
        "waits",
        "wait_times",
        "flush_steps",
        "last_enospc",
        "waiting",
        "memory",
        "devices",
    ];
    for section in whole {
        assert_eq!(names(sections, section), checker.names(section), "{section}");
    }
    for section in ["requests", "latency"] {
        assert!(names(sections, section).is_subset(&checker.names(section)), "{section}");
        let kinds: BTreeSet<String> =
            buttress_fuse::KINDS.iter().map(|(_, name)| (*name).to_owned()).collect();
        assert_eq!(checker.names(section), kinds, "{section}");
    }
    let reasons = buttress_fs::CommitReason::ALL.iter();
    let reasons: BTreeSet<String> =
        reasons.map(|reason| format!("commit_for_{}", reason.name())).collect();
    let mut listed = checker.names("fsync");
    listed.retain(|name| name.starts_with("commit_for_"));
    assert_eq!(listed, reasons, "the reasons for commits");
    let mut shown: BTreeSet<String> =
        sections.as_object().expect("sections").keys().cloned().collect();
    shown.extend(["cache".to_owned(), "store".to_owned()]);
    let known = checker.schema["$defs"]["sections"]["properties"].as_object().expect("names");
    assert_eq!(shown, known.keys().cloned().collect(), "the sections");

    // A document is wrong with a name, a section or a kind of value that the schema does not have.
    // It is wrong without a name that the schema demands.
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut other = one.clone();
        change(&mut other["sections"]);
        checker.check(&other)
    };
    assert!(changed(&|_| ()).is_ok());
    for section in whole.into_iter().chain(["requests", "latency", "fsync"]) {
        assert!(changed(&|sections| sections[section]["new"] = 1.into()).is_err(), "{section}");
    }
    assert!(changed(&|sections| sections["waiters"] = serde_json::json!([{ "new": 1 }])).is_err());
    assert!(changed(&|sections| sections["pools"]["fuse"]["new"] = 1.into()).is_err());
    assert!(changed(&|sections| sections["new"] = serde_json::json!({})).is_err());
    assert!(changed(&|sections| sections["space"]["chunks"] = "x".into()).is_err());
    assert!(changed(&|sections| sections["waits"]["data_all"]["new"] = 1.into()).is_err());
    let removed = |section: &str, name: &str| {
        changed(&|sections| {
            sections[section].as_object_mut().expect("a section").remove(name);
        })
    };
    assert!(removed("space", "chunks").is_err() && removed("fsync", "logs").is_err());
    mounted.end();
}

/// The figures of a volume in a store, and of a cache, have all the names of the schema.
#[test]
fn stores_and_caches_follow_the_schema() {
    if !has(&["umount"], Some("/dev/fuse")) {
        return;
    }
    let checker = Checker::new();
    let bench = crate::bench();
    let volume = format!("file://{}", bench.path("volume").display());
    bench.ok(&["mkfs", &volume, "--size", "1G"]);
    let mounted = Mounted::of(&bench, &volume, &[]);
    let figures = checker.figures(&bench, &["--json", "stats", "mnt"]);
    assert_eq!(names(&figures["sections"], "store"), checker.names("store"));
    mounted.end();
    bench.volume("image", "300M");
    bench.ok(&["cache", "format", "fast", "--size", "24M", "--origin", "image"]);
    let mounted = Mounted::new(&bench, &["--cache", "fast"]);
    let figures = checker.figures(&bench, &["--json", "stats", "mnt"]);
    assert_eq!(names(&figures["sections"], "cache"), checker.names("cache"));
    mounted.end();
}

/// Each figure of the schema has a unit and a meaning. A name that ends as a size or a time has
/// that unit.
#[test]
fn each_figure_has_a_unit_and_a_meaning() {
    fn walk(value: &Value, at: &str, seen: &mut usize) {
        if value["additionalProperties"].is_object() {
            walk(&value["additionalProperties"], at, seen);
        }
        for (name, figure) in value["properties"].as_object().into_iter().flatten() {
            let at = format!("{at}.{name}");
            assert!(figure["description"].is_string(), "{at} has no meaning");
            walk(figure, &at, seen);
            if figure["type"].is_null() || figure["type"] == "object" {
                continue;
            }
            *seen += 1;
            let unit = figure["unit"].as_str().unwrap_or_else(|| panic!("{at} has no unit"));
            assert_eq!(name.ends_with("_us"), unit == "microseconds", "{at}");
            assert_eq!(name.ends_with("_ms"), unit == "milliseconds", "{at}");
            assert!(!name.ends_with("bytes") || unit.starts_with("bytes"), "{at}");
        }
    }
    let checker = Checker::new();
    let definitions = checker.schema["$defs"].as_object().expect("definitions");
    let mut seen = 0;
    for (name, definition) in definitions {
        if name != "server" && name != "sections" {
            assert!(definition["description"].is_string(), "{name}");
            walk(definition, name, &mut seen);
        }
    }
    assert!(seen > 200, "{seen} figures");
}
