//! Every verb and every call of the crate `buttress` has a case of growth, or a reason why not.

use std::collections::BTreeSet;

use buttress_bench::growth::all;

/// Verbs without a case.
const VERBS: &[(&str, &str)] = &[
    ("mount", "the cases on a mount count its requests"),
    ("umount", "waits for a server; the cases on a mount end with an unmount"),
    ("nbd", "serves until it is stopped"),
    ("stats", "asks a server, which adds up its counts"),
    ("top", "asks servers twice a second"),
    ("metrics", "serves until it is stopped"),
    ("demo", "its load has a fixed size"),
    ("completions", "reads no volume"),
    ("manual", "reads no volume"),
    ("fsverity measure", "reads one item"),
    ("quota disable", "removes the items that `quota enable` makes"),
    ("quota status", "reads what `qgroup show` reads"),
    ("qgroup destroy", "as `qgroup create`"),
    ("qgroup clear-stale", "as `qgroup show`"),
    ("qgroup assign", "as `qgroup create`"),
    ("qgroup remove", "as `qgroup create`"),
    ("scrub resume", "as `scrub start`"),
    ("scrub cancel", "asks a server"),
    ("scrub status", "reads one file of the host"),
    ("balance resume", "as `balance start`"),
    ("balance pause", "asks a server"),
    ("balance cancel", "removes one item"),
    ("balance status", "reads one item"),
    ("cache format", CACHE),
    ("cache status", CACHE),
    ("cache flush", CACHE),
    ("cache check", CACHE),
    ("cache dump", CACHE),
    ("cache detach", CACHE),
    ("cache message", CACHE),
    ("remote log", STORE),
    ("remote pin", STORE),
    ("remote unpin", STORE),
    ("remote usage", STORE),
    ("remote clone", STORE),
    ("remote rekey", STORE),
    ("remote push", STORE),
    ("remote salvage", STORE),
    ("remote delete", STORE),
    ("remote gc", STORE),
];

const CACHE: &str = "works on a cache device, with a cost that `writeback` measures";
const STORE: &str = "works on a store, with a cost that `remote` measures";

/// Calls of the crate `buttress`, and the case that makes each. Calls without a case have a reason
/// in parentheses.
const CALLS: &[(&str, &str)] = &[
    ("admin usage", "usage and info"),
    ("admin info", "usage and info"),
    ("admin space", "(copies counters)"),
    ("admin subvolumes", "subvolumes"),
    ("admin devices", "usage and info"),
    ("admin add_device", "device add IMG DIR/img1"),
    ("admin remove_device", "remove_device"),
    ("admin replace_device", "device replace IMG 1 DIR/img1"),
    ("admin resize_device", "filesystem resize -1G IMG"),
    ("admin resume_replace", "(goes on where a replacement was interrupted)"),
    ("admin scrub", "scrub"),
    ("admin balance", "balance"),
    ("admin trim", "trim"),
    ("file path", "(copies a field)"),
    ("file metadata", "calls of a file, facade"),
    ("file read_at", "calls of a file, facade"),
    ("file read_exact_at", "calls of a file, facade"),
    ("file write_all_at", "calls of a file, facade"),
    ("file set_len", "calls of a file, facade"),
    ("file sync_all", "calls of a file, facade"),
    ("file inode", "(copies a field)"),
    ("filesystem transaction", "transaction"),
    ("filesystem snapshot", "snapshot and read, facade"),
    ("filesystem engine", "(copies a field)"),
    ("filesystem admin", "(copies a field)"),
    ("filesystem sync", "a few files and commits"),
    ("filesystem renew", "(opens the next commit, as the cases of verbs open a volume)"),
    ("filesystem close", "write, facade"),
    ("filesystem open_file", "calls of a file, facade"),
    ("filesystem create_file", "calls of a file, facade"),
    ("filesystem open_with", "calls of a file, facade"),
    ("filesystem read", "read_dir and read, facade"),
    ("filesystem read_to_string", "read_dir and read, facade"),
    ("filesystem write", "write, facade"),
    ("filesystem copy", "copy, facade"),
    ("filesystem exists", "calls by path, facade"),
    ("filesystem metadata", "calls by path, facade"),
    ("filesystem symlink_metadata", "calls by path, facade"),
    ("filesystem read_dir", "read_dir and read, facade"),
    ("filesystem create_dir", "calls by path, facade"),
    ("filesystem create_dir_all", "create_dir_all"),
    ("filesystem remove_file", "calls by path, facade"),
    ("filesystem remove_dir", "calls by path, facade"),
    ("filesystem remove_dir_all", "remove_dir_all"),
    ("filesystem rename", "calls by path, facade"),
    ("filesystem symlink", "calls by path, facade"),
    ("filesystem read_link", "calls by path, facade"),
    ("filesystem hard_link", "calls by path, facade"),
    ("filesystem set_attributes", "calls by path, facade"),
    ("filesystem xattr", "calls by path, facade"),
    ("filesystem set_xattr", "calls by path, facade"),
    ("filesystem create_subvolume", "create_subvolume"),
    ("filesystem create_snapshot", "snapshot and write"),
    ("filesystem delete_subvolume", "delete_subvolume"),
    ("snapshot open_file", "calls of a snapshot, facade"),
    ("snapshot read", "snapshot and read, facade"),
    ("snapshot read_to_string", "snapshot and read, facade"),
    ("snapshot read_dir", "snapshot and read, facade"),
    ("snapshot exists", "calls of a snapshot, facade"),
    ("snapshot metadata", "calls of a snapshot, facade"),
    ("snapshot symlink_metadata", "calls of a snapshot, facade"),
    ("snapshot read_link", "calls of a snapshot, facade"),
    ("transaction write", "transaction"),
    ("transaction create_dir", "calls of a transaction, facade"),
    ("transaction rename", "calls of a transaction, facade"),
    ("transaction remove_file", "calls of a transaction, facade"),
    ("transaction read", "calls of a transaction, facade"),
    ("verity enable_verity", "enable_verity and read"),
    ("verity verity", "enable_verity and read"),
];

/// The files of the crate `buttress` with calls that work on a volume.
const SOURCES: [(&str, &str); 6] = [
    ("admin", include_str!("../../../crates/buttress/src/admin.rs")),
    ("file", include_str!("../../../crates/buttress/src/file.rs")),
    ("filesystem", include_str!("../../../crates/buttress/src/filesystem.rs")),
    ("snapshot", include_str!("../../../crates/buttress/src/snapshot.rs")),
    ("transaction", include_str!("../../../crates/buttress/src/transaction.rs")),
    ("verity", include_str!("../../../crates/buttress/src/verity.rs")),
];

/// Asserts that the list names what there is, and each only once.
#[track_caller]
fn expect_all(what: &str, there: &BTreeSet<String>, listed: &[&str]) {
    let names: BTreeSet<String> = listed.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(names.len(), listed.len(), "{what} are listed twice");
    let missing: Vec<_> = there.difference(&names).collect();
    assert!(missing.is_empty(), "{what} without a case and without a reason: {missing:?}");
    let gone: Vec<_> = names.difference(there).collect();
    assert!(gone.is_empty(), "{what} that do not exist, or have a case: {gone:?}");
}

#[test]
fn every_verb_has_a_case() {
    let cases: Vec<&str> = all().map(|case| case.name).collect();
    let has_case = |verb: &str| {
        let words = format!("{verb} ");
        cases.iter().any(|case| case.starts_with(&words))
    };
    let without = buttress_cli::verbs().into_iter().filter(|verb| !has_case(verb)).collect();
    let listed: Vec<&str> = VERBS.iter().map(|(verb, _)| *verb).collect();
    expect_all("verbs", &without, &listed);
    assert!(VERBS.iter().all(|(_, why)| !why.is_empty()));
}

#[test]
fn every_call_has_a_case() {
    let mut calls = BTreeSet::new();
    for (file, text) in SOURCES {
        // The options of `file` are no calls that work on a volume.
        let text = text.split("impl FileOptions").next().unwrap_or_default();
        for line in text.lines() {
            let Some(rest) = line.strip_prefix("    pub fn ") else { continue };
            let name: String =
                rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            calls.insert(format!("{file} {name}"));
        }
    }
    let listed: Vec<&str> = CALLS.iter().map(|(call, _)| *call).collect();
    expect_all("calls", &calls, &listed);
    let cases: BTreeSet<&str> = all().map(|case| case.name).collect();
    for (call, case) in CALLS {
        assert!(case.starts_with('(') || cases.contains(case), "{call}: there is no case {case:?}");
    }
}
