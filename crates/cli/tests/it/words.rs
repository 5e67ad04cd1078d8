//! The program as `btrfs`, beside btrfs-progs on Linux: the same words, the same lines.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::checker::check;
use crate::live::{Mounted, has, run};
use crate::{Bench, text};

/// Command lines with `X` for the mount, and `D` for a device outside the volume. Each line may
/// need the results of earlier lines. For each line, both programs print the same text, except for
/// numbers, identifiers and times.
const LINES: [&str; 159] = [
    "replace status X",
    "replace status -1 X",
    "replace cancel X",
    "subvolume create X/new",
    "subvolume create X/new",
    "subvolume snapshot -r X/s X/s2",
    "subvolume snapshot X/s X/s3",
    "subvolume snapshot X/s X/new",
    "subvolume snapshot X/nope X/x",
    "subvolume list X",
    "sub list -t X",
    "subvolume list -puqR X",
    "subvolume list -s X",
    "subvolume list -acg X",
    "subvolume list -r X",
    "subvolume list -o X/new",
    "subvolume list -a X/new",
    "subvolume show X/s1",
    "subvolume show X/s",
    "subvolume get-default X",
    "filesystem df X",
    "fi df -b X",
    "filesystem usage X",
    "filesystem usage -T X",
    "filesystem du X",
    "filesystem du -s X/s X/s1",
    "filesystem du --raw X/s/file",
    "subvolume find-new X/s 0",
    "subvolume find-new X/s 1000",
    "inspect-internal inode-resolve 257 X/s",
    "inspect-internal inode-resolve 999 X/s",
    "inspect-internal logical-resolve 1 X",
    "inspect-internal logical-resolve -P 1 X/s",
    "inspect-internal min-dev-size X",
    "inspect-internal min-dev-size --id 1 X",
    "filesystem show X",
    "filesystem label X",
    "filesystem label X named",
    "filesystem label X",
    "filesystem sync X",
    "device usage X",
    "device stats X",
    "inspect-internal rootid X/s",
    "inspect-internal subvolid-resolve 256 X",
    "subvolume sync X",
    "balance status X",
    "property get X/s1",
    "property set X/s1 ro false",
    "property get X/s1 ro",
    "property set X/s compression zstd",
    "property get X/s",
    "property get X/s/file",
    "property set X/s/file compression zlib",
    "property get X/s/file",
    "filesystem df -H X",
    "filesystem df --iec X",
    "filesystem df --si -k X",
    "-q filesystem df X",
    "--log quiet filesystem df X",
    "--log info filesystem df X",
    "--format json filesystem df X",
    "--format json device stats X",
    "--format json subvolume list X",
    "filesystem du --si X/s",
    "filesystem du --human-readable X/s",
    "filesystem usage -b X",
    "filesystem usage -T -b X",
    "filesystem usage --si X",
    "filesystem show --raw X",
    "filesystem show --si X",
    "filesystem show --mbytes X",
    "device usage -H X",
    "device stats -T X",
    "-q subvolume create X/quiet",
    "-q subvolume create X/quiet2",
    "subvolume list --sort=-rootid X",
    "subvolume list --sort=path X",
    "subvolume list -G +1 X",
    "subvolume list -G -1000 X",
    "subvolume list -C +1 X",
    "subvolume list -d X",
    "subvolume list X/nope",
    "subvolume show -r 256 X",
    "subvolume show -r 999 X",
    "subvolume show -r 5 X",
    "subvolume show -u 00000000-0000-0000-0000-000000000001 X",
    "subvolume show --raw X/s",
    "subvolume create -i 1/1 X/unlimited",
    "subvolume snapshot -i 1/1 X/s X/unlimited2",
    "subvolume sync -s 1 X",
    "subvolume sync X 9999",
    "inspect-internal rootid X/s/file",
    "inspect-internal subvolid-resolve 5 X",
    "balance pause X",
    "balance cancel X",
    "balance resume X",
    "balance start -susage=0 X",
    "balance start -v -dusage=0,limit=3 X",
    "balance start --enqueue -dusage=0 X",
    "balance X",
    "scrub resume -B X",
    "scrub start -B -R X",
    "scrub status --si X",
    "scrub status -R X",
    "scrub resume X",
    "scrub start -B -d X",
    "scrub start -B -d -R X",
    "scrub status -d X",
    "scrub status -d -R X",
    "scrub status -d --raw X",
    "filesystem resize 1:900m X",
    "filesystem resize -1k X",
    "filesystem resize max X",
    "filesystem resize +1g X",
    "filesystem resize 1:4g X",
    "filesystem resize -5g X",
    "filesystem resize 7:max X",
    "filesystem resize 0:max X",
    "filesystem resize 1: X",
    "filesystem resize bogus X",
    "filesystem resize cancel X",
    "filesystem resize 1:cancel X",
    "device remove cancel X",
    "device remove cancel 1 X",
    "property list X",
    "property list X/s",
    "property list -t subvol X/s",
    "property list -t i X/s/file",
    "property get -t s X/s ro",
    "property get -t f X label",
    "property get X",
    "property set -t f X label other",
    "property get X label",
    "property get -t i X/s ro",
    "property get X/s/file bogus",
    "device replace status -1 X",
    "quota enable X",
    "quota rescan -W X",
    "qgroup show --kbytes X",
    "qgroup show --si X",
    "qgroup create 1/1 X",
    "subvolume create -i 1/1 X/grouped",
    "subvolume show --si X/grouped",
    "subvolume snapshot -i 1/1 X/grouped X/grouped2",
    "quota disable X",
    "subvolume delete X/quiet X/nope X/quiet2",
    "subvolume delete X/nope",
    "subvolume delete -c X/s1",
    "subvolume delete X/s3",
    "subvolume set-default 256 X",
    "subvolume get-default X",
    "scrub start -B X",
    "scrub cancel X",
    "balance start --full-balance X",
    "device add D X",
    "device add D X",
    "device remove D X",
    "device add -K D X",
    "device remove D X",
];

/// Characters around numbers.
const SEPARATORS: [char; 7] = [' ', '\t', ':', '\'', '(', '=', '"'];

/// A text without the parts that differ between volumes.
fn plain(text: &str, top: &str, [device, other]: [&str; 2]) -> String {
    let mut names = [(device, "DEVICE"), (other, "OTHER"), (top, "X")];
    // One name may begin with another: /dev/loop1 and /dev/loop12.
    names.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
    let text = names.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to));
    let mut out = String::new();
    for line in text.lines().filter(|line| !line.contains("Send time")) {
        for word in line.split_inclusive(SEPARATORS) {
            let end = word.len() - word.trim_end_matches(SEPARATORS).len();
            let (word, end) = word.split_at(word.len() - end);
            let is_uuid = word.len() == 36 && word.matches('-').count() == 4;
            let is_number = word.starts_with(|c: char| c.is_ascii_digit());
            out.push_str(if is_uuid || is_number { "N" } else { word });
            // The padding of a column depends on its numbers, so several spaces become one.
            out.push_str(if end.starts_with("  ") { " " } else { end });
        }
        out.push('\n');
    }
    // The padding before a number, and the dashes under the number, depend on its width.
    for pair in ["  ", "--"] {
        while out.contains(pair) {
            out = out.replace(pair, &pair[1..]);
        }
    }
    out
}

/// A program with the sockets of a bench.
pub(crate) fn program(bench: &Bench, name: &Path) -> Command {
    let mut command = Command::new(name);
    command.env("BUTTRESS_RUNTIME_DIR", bench.path("run")).env("TZ", "UTC");
    command
}

/// Runs one line, and returns its output and its exit code.
fn answer(bench: &Bench, name: &Path, line: &str, top: &str, devices: [&str; 2]) -> String {
    let words = line.split(' ').map(|word| match word.strip_prefix('X') {
        Some(rest) => format!("{top}{rest}"),
        None if word == "D" => devices[1].to_owned(),
        None => word.to_owned(),
    });
    let output = program(bench, name).args(words).output().expect("it starts");
    let said = [&output.stdout[..], &output.stderr].concat();
    let said = plain(&String::from_utf8_lossy(&said), top, devices);
    format!("$ btrfs {line}\n{said}ends with {:?}\n", output.status.code())
}

/// On a mount of ours, a session of commands prints the same text as btrfs-progs on a mount of
/// Linux.
#[test]
fn btrfs_says_the_same_on_both() {
    let needed = ["mkfs.btrfs", "btrfs", "mount", "umount", "losetup", "cp"];
    if !has(&needed, Some("/dev/fuse")) || !crate::live::is_root() {
        return;
    }
    let bench = crate::bench();
    let (image, linux) = (bench.path("image"), bench.path("linux"));
    std::fs::File::create(&image).expect("a file").set_len(1 << 30).expect("a size");
    run("mkfs.btrfs", &["-q", text(&image)]);
    run("cp", &["--sparse=always", text(&image), text(&linux)]);
    let ours = bench.path("btrfs");
    symlink(env!("CARGO_BIN_EXE_buttress"), &ours).expect("a link");
    let theirs = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .map(|folder| folder.join("btrfs"))
        .find(|program| program.exists())
        .expect("btrfs-progs are installed");

    let top = bench.path("lx");
    std::fs::create_dir(&top).expect("a folder");
    let device = run("losetup", &["--find", "--show", text(&linux)]);
    let device = device.trim();
    run("mount", &[device, text(&top)]);
    let session = |name: &Path, top: &Path, devices: [&str; 2]| -> Vec<String> {
        let top = text(top);
        let begin = ["subvolume create X/s", "filesystem sync X", "sub snap -r X/s X/s1"];
        let begun = begin.map(|line| {
            if line.starts_with("filesystem") {
                std::fs::write(format!("{top}/s/file"), vec![1; 70_000]).expect("a file");
            }
            answer(&bench, name, line, top, devices)
        });
        let rest = LINES.iter().map(|line| answer(&bench, name, line, top, devices));
        begun.into_iter().chain(rest).collect()
    };
    let more = ["other", "second"].map(|name| bench.path(name));
    for path in &more {
        std::fs::File::create(path).expect("a file").set_len(1 << 30).expect("a size");
    }
    let second = run("losetup", &["--find", "--show", text(&more[1])]);
    let devices = [device, second.trim()];
    let wanted = session(&theirs, &top, devices);
    // A command for a mount of Linux is passed on to btrfs-progs.
    let passed_on = answer(&bench, &ours, "subvolume list X", text(&top), devices);
    assert_eq!(passed_on, answer(&bench, &theirs, "subvolume list X", text(&top), devices));
    run("umount", &[text(&top)]);
    for device in devices {
        run("losetup", &["--detach", device]);
    }

    let mounted = Mounted::new(&bench, &[]);
    let found = session(&ours, &bench.path("mnt"), [text(&image), text(&more[0])]);
    mounted.end();
    for (wanted, found) in wanted.iter().zip(&found) {
        assert_eq!(wanted, found, "btrfs-progs on the left");
    }
    check(&image);
}

/// After a replacement, `replace status` and `cancel` print the same text on a mount of ours as on
/// a mount of Linux.
#[test]
fn replacements_are_told_as_by_btrfs_progs() {
    let needed = ["mkfs.btrfs", "btrfs", "mount", "umount", "losetup"];
    if !has(&needed, Some("/dev/fuse")) || !crate::live::is_root() {
        return;
    }
    let bench = crate::bench();
    for name in ["image", "linux", "new", "other"] {
        std::fs::File::create(bench.path(name)).expect("a file").set_len(300 << 20).expect("size");
    }
    let (image, linux, top) = (bench.path("image"), bench.path("linux"), bench.path("lx"));
    run("mkfs.btrfs", &["-q", text(&image)]);
    run("mkfs.btrfs", &["-q", text(&linux)]);
    std::fs::create_dir(&top).expect("a folder");
    let ours = bench.path("btrfs");
    symlink(env!("CARGO_BIN_EXE_buttress"), &ours).expect("a link");
    let lines = ["replace status X", "replace status -1 X", "replace cancel X"];
    let told = |name: &Path, top: &Path, old: &str, new: &str| {
        let mut replace = program(&bench, name);
        replace.args(["replace", "start", "-B", "-f", old, new, text(top)]);
        assert!(replace.output().expect("it starts").status.success(), "{name:?}");
        lines.map(|line| answer(&bench, name, line, text(top), ["no device", "no other"]))
    };
    let devices = [&linux, &bench.path("other")]
        .map(|file| run("losetup", &["--find", "--show", text(file)]));
    let [old, new] = devices.each_ref().map(|device| device.trim());
    run("mount", &[old, text(&top)]);
    // `btrfs` is btrfs-progs here. Our program would only pass these commands on to btrfs-progs.
    let wanted = told(Path::new("btrfs"), &top, "1", new);
    run("umount", &[text(&top)]);
    for device in [old, new] {
        run("losetup", &["--detach", device]);
    }
    let mounted = Mounted::new(&bench, &[]);
    let found = told(&ours, &bench.path("mnt"), "1", text(&bench.path("new")));
    mounted.end();
    assert_eq!(wanted, found, "btrfs-progs on the left");
    assert!(found[0].contains("finished on"), "{found:?}");
    check(&bench.path("new"));
}

/// `logical-resolve` finds the files that Linux finds: clones, snapshots, parts of an extent.
#[test]
fn addresses_lead_to_the_files_that_linux_finds() {
    let needed = ["mkfs.btrfs", "btrfs", "mount", "umount", "losetup", "cp"];
    if !has(&needed, Some("/dev/fuse")) || !crate::live::is_root() {
        return;
    }
    let bench = crate::bench();
    let (image, top) = (bench.path("image"), bench.path("lx"));
    std::fs::File::create(&image).expect("a file").set_len(300 << 20).expect("a size");
    std::fs::create_dir(&top).expect("a folder");
    run("mkfs.btrfs", &["-q", text(&image)]);
    let device = run("losetup", &["--find", "--show", text(&image)]);
    run("mount", &[device.trim(), text(&top)]);
    let path = |name: &str| text(&top.join(name)).to_owned();
    let clone = |from: &str, to: &str| run("cp", &["--reflink=always", &path(from), &path(to)]);
    std::fs::write(top.join("first"), vec![7; 300_000]).expect("room");
    clone("first", "second");
    run("btrfs", &["subvolume", "create", &path("sub")]);
    clone("first", "sub/third");
    std::fs::hard_link(top.join("sub/third"), top.join("sub/hard")).expect("a link");
    run("btrfs", &["subvolume", "snapshot", &path("sub"), &path("snap")]);
    // The middle of one file is new, so that file holds only two parts of the extent.
    let part = std::fs::OpenOptions::new().write(true).open(top.join("second")).expect("it");
    std::os::unix::fs::FileExt::write_all_at(&part, &[8; 8192], 65_536).expect("room");
    drop(part);
    run("sync", &["--file-system", text(&top)]);
    let trees = run("btrfs", &["inspect-internal", "dump-tree", "-t", "5", device.trim()]);
    let at = trees.split("disk byte ").nth(1).and_then(|rest| rest.split(' ').next());
    let start: u64 = at.expect("an extent").parse().expect("its address");
    let lines = [0, 4096, 65_536, 69_632, 131_072].map(|at| {
        ["-P", "-Po"].map(|how| format!("inspect-internal logical-resolve {how} {} X", start + at))
    });
    let sorted = |name: &Path, place: &str| {
        lines
            .as_flattened()
            .iter()
            .map(|line| {
                let words = line.split(' ').map(|word| if word == "X" { place } else { word });
                let output = program(&bench, name).args(words).output().expect("it starts");
                assert!(output.status.success(), "{line}: {output:?}");
                let said = String::from_utf8(output.stdout).expect("text");
                let mut said: Vec<_> = said.lines().map(str::to_owned).collect();
                said.sort();
                (line.clone(), said)
            })
            .collect::<Vec<_>>()
    };
    let wanted = sorted(Path::new("btrfs"), text(&top));
    run("umount", &[text(&top)]);
    run("losetup", &["--detach", device.trim()]);
    let ours = bench.path("btrfs");
    symlink(env!("CARGO_BIN_EXE_buttress"), &ours).expect("a link");
    let place = format!("{}:/", text(&image));
    assert_eq!(wanted, sorted(&ours, &place));
    let words = ["inspect-internal", "logical-resolve", &start.to_string(), &place];
    let output = program(&bench, &ours).args(words).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    for name in ["first", "second", "sub/third", "sub/hard", "snap/third", "snap/hard"] {
        assert!(said.lines().any(|line| line.ends_with(&format!(":/{name}"))), "{name}: {said}");
    }
    assert_eq!(said.lines().count(), 6, "{said}");
}

/// `tree-stats` prints the lines of btrfs-progs, with the same sizes and numbers of nodes. A device
/// can be shrunk to the size that `min-dev-size` prints.
#[test]
fn trees_and_sizes_are_told() {
    if !has(&["mkfs.btrfs", "btrfs"], None) {
        return;
    }
    let bench = crate::bench();
    let (image, folder) = (bench.path("image"), bench.path("folder"));
    std::fs::create_dir(&folder).expect("a folder");
    for number in 0..3000 {
        std::fs::write(folder.join(number.to_string()), vec![b'x'; number / 2]).expect("a file");
    }
    std::fs::File::create(&image).expect("a file").set_len(1 << 30).expect("a size");
    run("mkfs.btrfs", &["-q", "-r", text(&folder), text(&image)]);
    let ours = bench.path("btrfs");
    symlink(env!("CARGO_BIN_EXE_buttress"), &ours).expect("a link");
    let theirs = run("btrfs", &["inspect-internal", "tree-stats", "-b", text(&image)]);
    let mut words = program(&bench, &ours);
    let output = words.args(["inspect-internal", "tree-stats", "-b", text(&image)]).output();
    let output = String::from_utf8_lossy(&output.expect("it starts").stdout).into_owned();
    // The distances between nodes depend on the order of the walk. Times depend on the machine.
    // Only btrfs-progs draw the lengths of seeks.
    let is_equal = |line: &&str| {
        let own = ["seek", "Seek", " - ", "cluster", "read time", "fanout"];
        !own.iter().any(|word| line.contains(word))
    };
    let (theirs, said): (Vec<_>, Vec<_>) =
        (theirs.lines().filter(is_equal).collect(), output.lines().filter(is_equal).collect());
    assert_eq!(theirs, said, "{output}");
    assert!(output.contains("Inline data: ") && output.contains("avg fanout"), "{output}");

    let min = || {
        let mut words = program(&bench, &ours);
        let output = words.args(["inspect-internal", "min-dev-size", text(&image)]).output();
        let output = String::from_utf8_lossy(&output.expect("it starts").stdout).into_owned();
        output.split(' ').next().and_then(|word| word.parse::<u64>().ok()).expect("a number")
    };
    let smallest = min();
    assert!(smallest < 1 << 30, "{smallest}");
    bench.ok(&["filesystem", "resize", &smallest.to_string(), "image"]);
    check(&image);
    assert!(min() <= smallest, "it was the smallest");
}

/// A bench with a volume in `image`, and the program under the name `btrfs`. `None` where nothing
/// can be mounted.
pub(crate) fn bench_of_words() -> Option<(Bench, std::path::PathBuf)> {
    if !has(&["umount"], Some("/dev/fuse")) {
        return None;
    }
    let bench = crate::bench();
    bench.volume("image", "300M");
    let ours = bench.path("btrfs");
    symlink(env!("CARGO_BIN_EXE_buttress"), &ours).expect("a link");
    Some((bench, ours))
}

/// Runs one line of words, and returns its output and its exit code.
pub(crate) fn said(bench: &Bench, ours: &Path, words: &[&str]) -> (String, Option<i32>) {
    let output = program(bench, ours).args(words).output().expect("it starts");
    let said = [&output.stdout[..], &output.stderr].concat();
    (String::from_utf8_lossy(&said).into_owned(), output.status.code())
}

/// After `device add` on a mount, every word that describes the volume names both devices.
#[test]
fn an_added_device_is_named() {
    let Some((bench, ours)) = bench_of_words() else { return };
    let (image, second) = (bench.path("image"), bench.path("second"));
    std::fs::File::create(&second).expect("a file").set_len(300 << 20).expect("a size");
    let mounted = Mounted::new(&bench, &[]);
    let top = bench.path("mnt");
    let words = ["device", "add", text(&second), text(&top)];
    assert_eq!(said(&bench, &ours, &words).1, Some(0));
    for place in [&top, &image, &second] {
        let lines: [&[&str]; 4] = [
            &["filesystem", "show", text(place)],
            &["filesystem", "usage", text(place)],
            &["filesystem", "usage", "-T", text(place)],
            &["device", "usage", text(place)],
        ];
        for words in lines {
            let (said, code) = said(&bench, &ours, words);
            assert_eq!(code, Some(0), "{words:?}: {said}");
            // A line "Device missing" of `filesystem usage` tells that no device is missing.
            assert!(!said.replace("Device missing:", "").contains("missing"), "{words:?}: {said}");
            assert!(said.contains(text(&second)) && said.contains(text(&image)), "{said}");
        }
        let words = ["inspect-internal", "min-dev-size", "--id", "2", text(place)];
        assert_eq!(said(&bench, &ours, &words).1, Some(0), "{words:?}");
        assert_eq!(said(&bench, &ours, &["device", "ready", text(place)]).1, Some(0));
    }
    // The name of a device need not be UTF-8.
    let third = bench.path("").join(std::ffi::OsStr::from_bytes(b"th\xffird"));
    std::fs::File::create(&third).expect("a file").set_len(300 << 20).expect("a size");
    let count =
        || said(&bench, &ours, &["filesystem", "show", text(&top)]).0.matches("devid").count();
    for (verb, devices) in [("add", 3), ("remove", 2)] {
        let mut words = program(&bench, &ours);
        let output = words.args(["device", verb]).args([&third, &top]).output().expect("it starts");
        assert!(output.status.success(), "{verb}: {output:?}");
        assert_eq!(count(), devices, "{verb}");
    }
    mounted.end();
}

/// `defragment` joins the parts of files on a mount, and packs them.
#[test]
fn files_of_a_mount_are_defragmented() {
    let Some((bench, ours)) = bench_of_words() else { return };
    let mounted = Mounted::new(&bench, &[]);
    let top = bench.path("mnt");
    std::fs::create_dir_all(top.join("folder/below")).expect("folders");
    let content = |name: &str| name.repeat(50_000).into_bytes();
    let files = ["folder/file", "folder/below/other"];
    for name in files {
        // Each part is on the device before the part in front of it, so that no two lie together.
        let file = std::fs::File::create(top.join(name)).expect("a file");
        for (number, part) in
            content(name).chunks(16 << 10).enumerate().collect::<Vec<_>>().into_iter().rev()
        {
            let at = number as u64 * (16 << 10);
            std::os::unix::fs::FileExt::write_all_at(&file, part, at).expect("room");
            file.sync_all().expect("it is written");
        }
    }
    let path = |name: &str| text(&top.join(name)).to_owned();
    let parts = |name: &str| {
        let words = ["subvolume", "find-new", text(&top), "0"];
        let (said, _) = said(&bench, &ours, &words);
        let parts = said.lines().filter(|line| line.ends_with(name));
        let flags = parts.map(|line| line.contains("COMPRESS")).collect::<Vec<_>>();
        assert!(!flags.is_empty(), "{name}: {said}");
        flags
    };
    let before = parts(files[0]);
    assert!(before.len() > 10, "{before:?}");
    let words = ["filesystem", "defragment", "-f", "-v", &path(files[0])];
    assert_eq!(said(&bench, &ours, &words), (format!("{}\n", path(files[0])), Some(0)));
    assert!(parts(files[0]).len() < before.len(), "{:?}", parts(files[0]));
    // A directory alone is no error, and its files stay as they are.
    let before = parts(files[1]);
    let (told, code) = said(&bench, &ours, &["filesystem", "defragment", &path("folder")]);
    assert_eq!(code, Some(0), "{told}");
    assert!(told.starts_with("WARNING: "), "{told}");
    assert_eq!(parts(files[1]), before);
    let words =
        ["fi", "defrag", "-rv", "-czstd", "-s", "0", "-l", "1G", "-t", "64M", &path("folder")];
    let names = format!("{}\n{}\n", path(files[0]), path(files[1]));
    assert_eq!(said(&bench, &ours, &words), (names, Some(0)));
    for name in files {
        assert!(parts(name).iter().all(|is_packed| *is_packed), "{name}: {:?}", parts(name));
        assert!(std::fs::read(top.join(name)).expect("it is there") == content(name));
    }
    let words = ["filesystem", "defragment", &path("nope"), &path(files[0])];
    let (told, code) = said(&bench, &ours, &words);
    assert_eq!(code, Some(1), "{told}");
    assert!(told.ends_with("total 1 failures\n"), "{told}");
    // The verb of this project takes a place on a mount, too.
    bench.ok(&["filesystem", "defragment", "-r", "-c", "zlib", "mnt/folder"]);
    bench.fails(&["filesystem", "defragment", "mnt/folder"], 2, &["--recursive"]);
    mounted.end();
    check(&bench.path("image"));
    for name in files {
        let found = bench.ok(&["cat", &format!("image:/{name}")]);
        assert!(found.into_bytes() == content(name), "{name}");
    }
}
