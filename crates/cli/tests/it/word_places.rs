//! Which command lines of `btrfs` go to btrfs-progs, from inside a folder of Linux's btrfs.

use std::collections::BTreeSet;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::live::{Mounted, has, is_root, run};
use crate::words::program;
use crate::{Bench, text};

/// A line for each verb, with `P` for its place. All other words without a dash or a slash are also
/// names of folders in the current folder, which is on Linux's btrfs.
const VERBS: [&str; 66] = [
    "subvolume create P/new",
    "subvolume snapshot -r P/sub P/snap",
    "subvolume delete P/none",
    "subvolume list -t P",
    "subvolume show P",
    "subvolume find-new P/sub 0",
    "subvolume get-default P",
    "subvolume set-default 5 P",
    "subvolume sync P 999",
    "filesystem df P",
    "filesystem du -s P",
    "filesystem usage -T P",
    "filesystem show P",
    "filesystem sync P",
    "filesystem label P word",
    "filesystem resize max P",
    "filesystem defragment P",
    "filesystem mkswapfile -s 1M P/swap",
    "balance start -dusage=5 P",
    "balance pause P",
    "balance cancel P",
    "balance resume P",
    "balance status P",
    "balance P",
    "device add -f none P",
    "device remove 1 P",
    "device delete 1 P",
    "device ready P",
    "device stats P",
    "device usage P",
    "device replace status -1 P",
    "scrub start -B P",
    "scrub resume -B P",
    "scrub status P",
    "scrub cancel P",
    "check P",
    "inspect-internal dump-tree P",
    "inspect-internal dump-super P",
    "inspect-internal inode-resolve 256 P",
    "inspect-internal logical-resolve 1 P",
    "inspect-internal map-swapfile P/none",
    "inspect-internal min-dev-size --id 1 P",
    "inspect-internal rootid P",
    "inspect-internal subvolid-resolve 5 P",
    "inspect-internal tree-stats P",
    "property get P ro",
    "property set P label word",
    "property list P",
    "quota enable P",
    "quota rescan -s P",
    "quota status P",
    "qgroup show P",
    "qgroup create 1/1 P",
    "qgroup assign 0/5 1/1 P",
    "qgroup remove 0/5 1/1 P",
    "qgroup limit max P",
    "qgroup destroy 1/1 P",
    "qgroup clear-stale P",
    "quota disable P",
    "send -f word P/none",
    "receive -f word P",
    "replace start -f 1 none P",
    "replace status -1 P",
    "replace cancel P",
    "restore P word",
    "rescue zero-log P",
];
/// More lines that belong to btrfs-progs. `L` is the folder on Linux's btrfs, `D` is its device,
/// and `X` is a mount of ours.
const THEIRS: [&str; 34] = [
    "subvolume create new",
    "subvolume create ./new",
    "subvolume create new/below",
    "subvolume snapshot sub new",
    "subvolume delete none",
    "subvolume list .",
    "subvolume list --newer-option .",
    "subvolume list --newer-option word .",
    "filesystem newer-verb L",
    "newer-group L",
    "balance balance",
    "balance start balance",
    "property get file compression",
    "filesystem defragment file",
    "filesystem du file",
    "inspect-internal rootid file",
    "send -f X/stream sub",
    "send --newer-option -f X/stream sub",
    "receive -f X/stream .",
    "scrub start -B D",
    "scrub status D",
    "filesystem show D",
    "device stats D",
    "check D",
    "device scan",
    "device scan D",
    "device scan image D",
    "device scan image no-such-device",
    "device ready U",
    "property set image compression none",
    "property get image",
    "filesystem defragment image",
    "filesystem du image",
    "inspect-internal rootid image",
];
/// More lines that belong to this program. `image` is a file on Linux's btrfs with a volume, and
/// `broken` is one without. `U` is a device that Linux has not mounted.
const OURS: [&str; 17] = [
    "version",
    "subvolume --help",
    "subvolume list",
    "subvolume list image:/",
    "subvolume list L/image:/",
    "subvolume list --newer-option X",
    "subvolume list --newer-option word X",
    "filesystem df image",
    "property get image label",
    "check image",
    "check broken",
    "rescue zero-log broken",
    "inspect-internal dump-super broken",
    "device scan image",
    "restore image L",
    "check U",
    "send -f L/stream X/none",
];

const MARK: &str = "btrfs-progs were called";

struct Table<'a> {
    bench: &'a Bench,
    path: std::ffi::OsString,
    /// The letters of the lines, and what they stand for.
    names: Vec<(&'static str, PathBuf)>,
}

impl Table<'_> {
    /// What a line prints, from inside the folder of Linux's btrfs.
    fn says(&self, line: &str) -> String {
        let words = line.split(' ').map(|word| {
            let (first, rest) = word.split_once('/').unwrap_or((word, ""));
            let place = self.names.iter().find(|(letter, _)| *letter == first);
            place.map_or(word.to_owned(), |(_, place)| match rest {
                "" => text(place).to_owned(),
                rest => text(&place.join(rest)).to_owned(),
            })
        });
        let mut command = program(self.bench, &self.bench.path("btrfs"));
        command.args(words).env("PATH", &self.path).current_dir(self.bench.path("lx"));
        let output = command.stdin(std::process::Stdio::null()).output().expect("it starts");
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    }

    fn passes_on(&self, line: &str) -> bool {
        self.says(line).contains(MARK)
    }
}

/// A program in place of btrfs-progs, which only says that it was called.
fn stand_in(folder: &Path) {
    std::fs::create_dir(folder).expect("a folder");
    let program = folder.join("btrfs");
    std::fs::write(&program, format!("#!/bin/sh\necho {MARK}\n")).expect("a program");
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).expect("its mode");
}

/// The place of a verb decides, and neither other words nor the current folder do.
#[test]
fn the_place_of_a_verb_decides() {
    let needed = ["mkfs.btrfs", "btrfs", "mount", "umount", "losetup", "cp"];
    if !has(&needed, Some("/dev/btrfs-control")) || !has(&[], Some("/dev/fuse")) || !is_root() {
        return;
    }
    let bench = crate::bench();
    let make = |name: &str, mib: u64| {
        let path = bench.path(name);
        std::fs::File::create(&path).expect("a file").set_len(mib << 20).expect("a size");
        run("mkfs.btrfs", &["-q", text(&path)]);
        path
    };
    let (image, linux, unmounted) = (make("image", 300), make("linux", 600), make("other", 300));
    let top = bench.path("lx");
    std::fs::create_dir(&top).expect("a folder");
    let attach = |path: &Path| {
        let name = run("losetup", &["--find", "--show", text(path)]);
        PathBuf::from(name.trim())
    };
    let (device, unmounted) = (attach(&linux), attach(&unmounted));
    run("mount", &[text(&device), text(&top)]);
    run("cp", &["--sparse=always", text(&image), text(&top.join("image"))]);
    std::fs::write(top.join("broken"), vec![0; 200_000]).expect("a file");
    std::fs::write(top.join("file"), "text").expect("a file");
    run("btrfs", &["subvolume", "create", text(&top.join("sub"))]);
    // Names of verbs, and values of options and arguments, are folders here.
    let lines = VERBS.iter().chain(&THEIRS).chain(&OURS);
    let words: BTreeSet<&str> = lines.flat_map(|line| line.split(' ')).collect();
    let kept = ["P", "L", "D", "X", "U", "new", "none"];
    for word in words.iter().filter(|word| !word.contains(['/', '-', ':'])) {
        if !kept.contains(word) && !top.join(word).exists() {
            std::fs::create_dir(top.join(word)).expect("a folder");
        }
    }
    symlink(env!("CARGO_BIN_EXE_buttress"), bench.path("btrfs")).expect("a link");
    let fake = bench.path("fake");
    stand_in(&fake);
    let mounted = Mounted::new(&bench, &[]);
    let old = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(fake).chain(std::env::split_paths(&old));
    let mnt = bench.path("mnt");
    let mut table = Table {
        bench: &bench,
        path: std::env::join_paths(folders).expect("names"),
        names: vec![
            ("P", top.clone()),
            ("L", top.clone()),
            ("D", device.clone()),
            ("X", mnt.clone()),
            ("U", unmounted.clone()),
        ],
    };
    let mut wrong = Vec::new();
    let mut expect = |table: &Table<'_>, lines: &[&'static str], wanted: bool| {
        let found = lines.iter().filter(|line| table.passes_on(line) != wanted);
        wrong.extend(found.map(|line| (*line, wanted)));
    };
    expect(&table, &VERBS, true);
    expect(&table, &THEIRS, true);
    expect(&table, &OURS, false);
    table.names[0].1 = PathBuf::from(".");
    expect(&table, &VERBS, true);
    let refused = table.says("property set U compression none");
    assert!(refused.contains("ERROR: object is not compatible"), "{refused}");
    table.names[0].1 = mnt;
    expect(&table, &VERBS, false);
    // Without a path, both programs tell of their volumes. A volume may also be meant by its name.
    let said = table.says("filesystem show");
    let (uuid, all) = (said.contains("uuid: "), said.contains(MARK));
    let known = table.says("filesystem show word");
    let unknown = table.says("filesystem show no-such-name");
    mounted.end();
    run("umount", &[text(&top)]);
    for device in [device, unmounted] {
        run("losetup", &["--detach", text(&device)]);
    }
    assert!(wrong.is_empty(), "goes to the wrong program: {wrong:?}");
    assert!(uuid && all, "{said}");
    assert!(known.contains(MARK), "a folder of Linux has this name: {known}");
    assert!(unknown.contains(MARK), "{unknown}");
}

/// The table has a line for each verb.
#[test]
fn every_verb_has_a_place() {
    let verb = |line: &str| -> String {
        let words = line.split(' ').skip_while(|word| word.starts_with('-'));
        let words: Vec<&str> = words.take(2).collect();
        match words[..] {
            ["check" | "send" | "receive" | "restore" | "version", ..] => words[0].to_owned(),
            _ => words.join(" "),
        }
    };
    let lines = VERBS.iter().chain(&THEIRS).chain(&OURS);
    let listed: BTreeSet<String> = lines.map(|line| verb(line)).collect();
    // Verbs of one kind with other verbs of the table, and one without any place.
    let left = [
        "rescue super-recover",
        "rescue fix-device-size",
        "rescue chunk-recover",
        "rescue clear-uuid-tree",
        "rescue create-control-device",
        "balance a",
    ];
    let known = include_str!("../../src/btrfs/lines.txt");
    let options = ["quiet", "json", "filesystem"];
    for line in known.lines().filter(|line| !line.is_empty() && !line.starts_with("--log")) {
        let name = verb(line);
        let is_left = left.contains(&name.as_str()) || options.contains(&name.as_str());
        assert!(is_left || listed.contains(&name), "no line for {name}");
    }
}
