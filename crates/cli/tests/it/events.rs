//! The log of events as scripts read it: a JSON object on each line, even for a mount in the
//! background.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::Value;

use crate::live::{has, run};
use crate::{Bench, text};

const EVENTS: &str = "buttress::reserve=debug,buttress::flush=debug,buttress::enospc=debug";

/// A mount in the background. Dropping this value unmounts it.
struct Background<'a> {
    bench: &'a Bench,
    pid: String,
}

impl<'a> Background<'a> {
    fn new(bench: &'a Bench, args: &[&str], environment: &[(&str, &str)]) -> Self {
        std::fs::create_dir_all(bench.path("mnt")).expect("a folder");
        let mut command = bench.command(args);
        let output = command.envs(environment.iter().copied()).output().expect("it starts");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {error}");
        let stats: Value =
            serde_json::from_str(&bench.ok(&["--json", "stats", "mnt"])).expect("JSON");
        Self { bench, pid: stats["pid"].to_string() }
    }

    /// Unmounts, and waits for the end of the process, so that its log is complete.
    fn end(self) {
        let process = Path::new("/proc").join(&self.pid);
        drop(self);
        while process.exists() {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

impl Drop for Background<'_> {
    fn drop(&mut self) {
        run("umount", &["-l", text(&self.bench.path("mnt"))]);
    }
}

/// Writes until there is no room, so that a request waits for data and is refused in the end.
fn fill(bench: &Bench) {
    let mut big = std::fs::File::create(bench.path("mnt/big")).expect("a file");
    let block = vec![1; 1 << 20];
    let refused = (0..400).find_map(|_| big.write_all(&block).and_then(|()| big.sync_all()).err());
    assert_eq!(refused.expect("it is full").kind(), std::io::ErrorKind::StorageFull);
}

/// The events in a log. Each line must be an event.
fn events(log: &str) -> Vec<Value> {
    let event = |line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}"));
    log.lines().map(event).collect()
}

fn of<'e>(events: &'e [Value], target: &str) -> Vec<&'e Value> {
    let these: Vec<_> = events.iter().filter(|event| event["target"] == target).collect();
    assert!(!these.is_empty(), "nothing of {target} in {events:?}");
    these.iter().map(|event| &event["fields"]).collect()
}

#[track_caller]
fn number(fields: &Value, name: &str) -> u64 {
    fields[name].as_u64().unwrap_or_else(|| panic!("{name} is no number in {fields}"))
}

/// The log has the waiting requests, the steps that were made for them, and all accounts at a
/// refusal. The numbers add up, and agree with `stats`.
#[test]
fn a_log_of_json_has_numbers() {
    if !has(&["umount"], Some("/dev/fuse")) {
        return;
    }
    let bench = crate::bench();
    bench.ok(&["mkfs", "image", "--size", "300M"]);
    let args = ["--json", "mount", "image", "mnt", "--log", "log"];
    let mounted = Background::new(&bench, &args, &[("BUTTRESS_LOG", EVENTS)]);
    fill(&bench);
    let stats: Value = serde_json::from_str(&bench.ok(&["--json", "stats", "mnt"])).expect("JSON");
    mounted.end();
    let log = std::fs::read_to_string(bench.path("log")).expect("a log");
    let events = events(&log);
    for event in &events {
        assert!(event["timestamp"].is_string() && event["level"] == "DEBUG", "{event}");
    }

    let waits = of(&events, "buttress::reserve");
    for wait in &waits {
        assert!(number(wait, "bytes") > 0, "{wait}");
        number(wait, "waited_us");
        assert!(["all", "commit"].contains(&wait["reach"].as_str().expect("a name")), "{wait}");
        assert!(wait["granted"].is_boolean() && wait["interrupted"].is_boolean(), "{wait}");
    }
    assert!(waits.iter().any(|wait| wait["kind"] == "data"), "{waits:?}");

    let steps = of(&events, "buttress::flush");
    for step in &steps {
        let _ = (number(step, "forecast"), number(step, "yielded"));
        assert!(step["source"].is_string(), "{step}");
    }
    // A step has the same name as in the figures of `stats`.
    for step in steps.iter().filter(|step| step["source"] == "tickets") {
        let (kind, name) = (step["kind"].as_str(), step["step"].as_str());
        let name = format!("{}_{}", kind.expect("a kind"), name.expect("a step"));
        assert!(stats["sections"]["flush_steps"][&name].is_object(), "{name} in {stats}");
    }

    let refusals = of(&events, "buttress::enospc");
    for refusal in &refusals {
        for kind in ["data", "metadata", "system"] {
            let of = |part: &str| number(refusal, &format!("{kind}_{part}_bytes"));
            let parts = ["used", "reserved", "pinned", "read_only", "superblock"];
            let taken: u64 = parts.into_iter().map(of).sum();
            assert!(taken <= of("total"), "{kind} of {refusal}");
        }
        for name in [
            "global_reserve_bytes",
            "for_copies_bytes",
            "unallocated_bytes",
            "unreserved_bytes",
            "reserved_items",
            "reserved_bytes",
            "running_items",
            "running_bytes",
            "frozen_bytes",
            "height",
            "waiting_for_data",
            "waiting_for_metadata",
        ] {
            number(refusal, name);
        }
    }
    // The reason for the refusal is that the request exceeds all that could be reserved.
    let lacks = |refusal: &&Value| {
        let of = |part: &str| number(refusal, &format!("data_{part}_bytes"));
        let parts = ["used", "reserved", "pinned", "read_only", "superblock", "may_use"];
        let free = of("total").saturating_sub(parts.into_iter().map(of).sum());
        refusal["kind"] == "data" && free < number(refusal, "bytes")
    };
    assert!(refusals.iter().any(lacks), "{refusals:?}");
    // One of the refusals was the last when `stats` was called, so `stats` shows it.
    let last = &stats["sections"]["last_enospc"];
    let is_last = |refusal: &&Value| {
        ["data", "metadata", "system"].into_iter().all(|kind| {
            let parts = last[kind].as_object().expect("an account");
            let told = |part: &String| &refusal[format!("{kind}_{part}")];
            parts
                .iter()
                .all(|(part, figure)| part == "global_reserve_bytes" || told(part) == figure)
        }) && refusal["bytes"] == last["bytes"]
            && refusal["unallocated_bytes"] == last["unallocated_bytes"]
    };
    assert!(refusals.iter().any(is_last), "{last} in {refusals:?}");
}

/// The environment can choose the form, even against `--json`. As text, a line begins with its time
/// and level.
#[test]
fn the_environment_chooses_the_form() {
    if !has(&["umount"], Some("/dev/fuse")) {
        return;
    }
    let bench = crate::bench();
    bench.ok(&["mkfs", "image", "--size", "200M"]);
    let said = |more: &[&str], format: &str| {
        let log = bench.path("log");
        let _ = std::fs::remove_file(&log);
        let args = [more, &["mount", "image", "mnt", "--log", "log"]].concat();
        let environment = [("BUTTRESS_LOG", "buttress=info"), ("BUTTRESS_LOG_FORMAT", format)];
        Background::new(&bench, &args, &environment).end();
        std::fs::read_to_string(log).expect("a log")
    };
    for (more, format) in [(&[][..], "json"), (&["--json"], "")] {
        let log = events(&said(more, format));
        let unmounted = log.last().expect("an event");
        let message = unmounted["fields"]["message"].as_str().expect("a message");
        assert!(message.contains("durable"), "{unmounted}");
    }
    let log = said(&["--json"], "text");
    assert!(log.contains(" INFO ") && !log.contains('{'), "{log}");
}

/// Nothing reads standard error any more, as after the end of a supervisor. Events are lost, and no
/// thread of the program ends because of that.
#[test]
fn events_are_lost_where_standard_error_is_closed() {
    let bench = crate::bench();
    bench.ok(&["mkfs", "image", "--size", "200M"]);
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    drop(ours);
    let mut command = bench.command(&["mkdir", "image:/dir"]);
    command.env("BUTTRESS_LOG", "trace").stderr(OwnedFd::from(theirs));
    assert!(command.status().expect("it starts").success());
    assert!(bench.ok(&["ls", "image:/"]).contains("dir"));
}

/// A log option that makes no sense is refused before anything is done.
#[test]
fn a_wrong_log_is_refused() {
    let bench = crate::bench();
    for (name, value, word) in
        [("BUTTRESS_LOG_FORMAT", "xml", "json"), ("BUTTRESS_LOG", "buttress=loud", "info")]
    {
        let mut command = bench.command(&["mkfs", "image", "--size", "200M"]);
        let output = command.env(name, value).output().expect("it starts");
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
        for word in [name, value, word] {
            assert!(error.contains(word), "no {word} in {error}");
        }
        assert!(!bench.path("image").exists(), "{name}");
    }
}
