//! Names in JSON: valid, whole and one-to-one, in every verb that gives names.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use buttress_base::text::decode;
use serde_json::Value;

use crate::Bench;

/// Names that would be equal or invalid in a careless encoding.
const NAMES: [&[u8]; 10] = [
    b"plain",
    b"new\nline",
    b"new\\nline",
    b"lit\xe9",
    b"lit\\xe9",
    "lit\u{fffd}e9".as_bytes(),
    b"\x1b[31mred",
    b"half \xe6\x97",
    "\u{e9} \u{1f980}".as_bytes(),
    b"\"quoted\"",
];

fn bench() -> Bench {
    let bench = crate::bench();
    std::fs::create_dir(bench.path("src")).expect("a folder");
    for name in NAMES {
        std::fs::write(bench.path("src").join(OsStr::from_bytes(name)), b"x").expect("a file");
    }
    bench.ok(&["mkfs", "n.img", "--size", "300M"]);
    bench.ok(&["cp", "-r", "src", "n.img:/"]);
    bench
}

fn json(bench: &Bench, args: &[&str]) -> Value {
    let args = [&["--json"], args].concat();
    serde_json::from_str(&bench.ok(&args)).expect("valid JSON")
}

fn bytes(name: &Value) -> Vec<u8> {
    decode(name.as_str().expect("a string")).expect("whole marks")
}

fn all() -> BTreeSet<Vec<u8>> {
    NAMES.iter().map(|name| name.to_vec()).collect()
}

/// Each verb that lists names gives back every name, byte by byte.
#[test]
fn names_come_back_from_every_list() {
    let bench = bench();
    let entries = |value: Value| value.as_array().expect("a list").clone();
    let listed = entries(json(&bench, &["ls", "n.img:/src"]));
    assert_eq!(listed.len(), NAMES.len());
    assert_eq!(listed.iter().map(|entry| bytes(&entry["name"])).collect::<BTreeSet<_>>(), all());
    let tree = entries(json(&bench, &["tree", "n.img"]));
    let below = tree
        .iter()
        .filter_map(|entry| bytes(&entry["path"]).strip_prefix(b"src/").map(<[u8]>::to_vec));
    assert_eq!(below.collect::<BTreeSet<_>>(), all());
    assert!(entries(json(&bench, &["tree", "--depth", "1", "n.img"])).len() == 1);
    for verb in [&["dump", "n.img"][..], &["dump", "n.img", "--tree", "fs"]] {
        let nodes = entries(json(&bench, verb));
        let items = nodes.iter().filter_map(|node| node["items"].as_array()).flatten();
        let named = items.filter_map(|item| item["names"].as_array()).flatten();
        let found: BTreeSet<_> = named.map(|name| bytes(&name["name"])).collect();
        assert!(found.is_superset(&all()), "{verb:?}: {found:?}");
    }
    assert_eq!(entries(json(&bench, &["dump", "n.img", "--super", "--all"])).len(), 2);
}

/// Documents about a single object give back its name: a place, a subvolume, an image or a folder
/// of the host.
#[test]
fn names_come_back_from_single_documents() {
    let bench = bench();
    let os = OsStr::from_bytes;
    let run = |args: &[&[u8]]| {
        let mut command = bench.command(&["--json"]);
        let output = command.args(args.iter().map(|arg| os(arg))).output().expect("it starts");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
        serde_json::from_slice::<Value>(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", output.stdout.escape_ascii()))
    };
    for (at, name) in NAMES.iter().enumerate() {
        let place = [b"n.img:/src/", *name].concat();
        assert_eq!(bytes(&run(&[b"stat", &place])["name"]), [b"/src/", *name].concat());
        let subvolume = [b"n.img:/", *name].concat();
        let made = run(&[b"subvolume", b"create", &subvolume]);
        assert_eq!(bytes(&made[0]["place"]), subvolume);
        let image = [*name, b".img"].concat();
        if at % 3 == 0 {
            let made = run(&[b"mkfs", &image, b"--size", b"120M"]);
            assert_eq!(bytes(&made["image"]), image);
            let told = run(&[b"info", &image]);
            assert!(bytes(&told["devices"][0]["path"]).ends_with(&image), "{told}");
        }
    }
    let subvolumes = run(&[b"subvolume", b"list", b"n.img"]);
    let paths = subvolumes.as_array().expect("a list").iter().map(|one| bytes(&one["path"]));
    assert_eq!(paths.collect::<BTreeSet<_>>(), all());
    run(&[b"check", b"n.img"]);
}
