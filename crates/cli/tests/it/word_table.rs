//! The program as `btrfs`, beside btrfs-progs: on the same volume, also the numbers are equal.

use std::os::unix::fs::symlink;
use std::path::Path;

use buttress_test_program::mounts::in_own_namespace;

use crate::checker::check;
use crate::live::{Mounted, has, run};
use crate::words::program;
use crate::{Bench, text};

/// Command lines for a volume that is not mounted. `I` stands for the image, `T` for an empty
/// folder.
const AT_REST: [&str; 30] = [
    "filesystem show I",
    "filesystem show --raw I",
    "filesystem label I",
    "inspect-internal dump-super I",
    "inspect-internal dump-super -f I",
    "inspect-internal dump-super -a I",
    "inspect-internal dump-super -s 1 I",
    "inspect-internal dump-super -f -a I",
    "inspect-internal dump-tree -t chunk I",
    "inspect-internal dump-tree -t 5 I",
    "inspect-internal dump-tree -R I",
    "check I",
    "check -p I",
    "check --readonly --check-data-csum I",
    "check --mode lowmem I",
    "check -s 1 I",
    "check -Q I",
    "check -E 256 I",
    "check none",
    "restore -l I",
    "restore -l I T",
    "restore -D I T",
    "restore -D -v I T",
    "restore -D none T",
    "rescue super-recover I",
    "rescue zero-log I",
    "rescue fix-device-size I",
    "rescue super-recover none",
    "rescue fix-device-size none",
    "check I",
];

/// Command lines for a volume that is mounted for reading only. `X` stands for the mount.
const MOUNTED: [&str; 36] = [
    "subvolume list X",
    "subvolume list -puqRcg X",
    "subvolume list -s X",
    "subvolume list -t X",
    "subvolume show X/s",
    "subvolume show X/s1",
    "subvolume show X",
    "subvolume get-default X",
    "subvolume find-new X/s 0",
    "filesystem df X",
    "filesystem df -b X",
    "filesystem usage X",
    "filesystem usage -b X",
    "filesystem usage -T X",
    "filesystem du X",
    "filesystem du -s X/s X/s1",
    "filesystem du --raw X/s",
    "filesystem show X",
    "filesystem show --raw X",
    "device usage X",
    "device usage -b X",
    "device stats X",
    "inspect-internal rootid X/s",
    "inspect-internal inode-resolve 257 X/s",
    "inspect-internal subvolid-resolve 256 X",
    "inspect-internal min-dev-size X",
    "property get X/s1",
    "property get X/s ro",
    "qgroup show X",
    "qgroup show --raw -pcre X",
    "--format json filesystem df X",
    "--format json device stats X",
    "--format json qgroup show X",
    "filesystem label X",
    "balance status X",
    "quota rescan -s X",
];

/// Whether a line tells of the volume, and both programs have it. The steps of a check differ, and
/// so does what each of them warns of and counts besides. A reserve, and the free space for
/// statfs(2), are those of the running file system. btrfs-progs 6.2 print a time of a send that
/// never was.
fn is_fact(line: &&str) -> bool {
    let not = [
        "btrfs-progs v",
        "buttress v",
        "[",
        "warning: ",
        "btree space waste bytes",
        "file data",
        " referenced",
    ];
    let within = ["Global reserve", "GlobalReserve", "Free (statfs, df)", "Send time"];
    !not.iter().any(|text| line.starts_with(text)) && !within.iter().any(|text| line.contains(text))
}

/// Runs one line, and returns its lines and its exit code. Names that differ become equal.
fn answer(bench: &Bench, name: &Path, line: &str, places: &[(&str, &str)]) -> String {
    let words = line.split(' ').map(|word| {
        let found = places.iter().find(|(short, _)| word.split('/').next() == Some(*short));
        found.map_or(word.to_owned(), |(short, place)| format!("{place}{}", &word[short.len()..]))
    });
    let output = program(bench, name).args(words).output().expect("it starts");
    let said = [&output.stdout[..], &output.stderr].concat();
    let mut said = String::from_utf8_lossy(&said).into_owned();
    let mut names = places.to_vec();
    // One name may begin with another: /dev/loop1 and /dev/loop12.
    names.sort_by_key(|(_, place)| std::cmp::Reverse(place.len()));
    for (short, place) in names {
        said = said.replace(place, short);
    }
    if let Ok(mut document) = serde_json::from_str::<serde_json::Value>(&said) {
        let rows = document.get_mut("filesystem-df").and_then(serde_json::Value::as_array_mut);
        if let Some(rows) = rows {
            rows.retain(|row| row["bg-type"] != "GlobalReserve");
        }
        said = format!("{document:#}");
    }
    let mut said: String = said.lines().filter(is_fact).map(|line| format!("{line}\n")).collect();
    // The width of a column depends on the names in it, so several spaces become one.
    for pair in ["  ", "--"] {
        while said.contains(pair) {
            said = said.replace(pair, &pair[1..]);
        }
    }
    format!("$ btrfs {line}\n{said}ends with {:?}\n", output.status.code())
}

/// A volume that Linux made, with subvolumes, shared data and quotas.
fn volume_of_linux(bench: &Bench) {
    let (image, top) = (bench.path("image"), bench.path("lx"));
    std::fs::File::create(&image).expect("a file").set_len(1 << 30).expect("a size");
    std::fs::create_dir_all(&top).expect("a folder");
    run("mkfs.btrfs", &["-q", "-L", "table", text(&image)]);
    run("mount", &["-o", "loop", text(&image), text(&top)]);
    let path = |name: &str| text(&top.join(name)).to_owned();
    run("btrfs", &["subvolume", "create", &path("s")]);
    std::fs::create_dir(top.join("s/folder")).expect("a folder");
    for (name, len) in [("s/file", 70_000), ("s/folder/small", 100), ("s/folder/large", 3_000_000)]
    {
        std::fs::write(top.join(name), vec![1; len]).expect("a file");
    }
    run("btrfs", &["subvolume", "snapshot", "-r", &path("s"), &path("s1")]);
    run("cp", &["--reflink=always", &path("s/folder/large"), &path("clone")]);
    run("btrfs", &["quota", "enable", text(&top)]);
    run("btrfs", &["quota", "rescan", "-w", text(&top)]);
    run("umount", &[text(&top)]);
}

fn programs(bench: &Bench) -> [std::path::PathBuf; 2] {
    let ours = bench.path("btrfs");
    symlink(env!("CARGO_BIN_EXE_buttress"), &ours).expect("a link");
    let theirs = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .map(|folder| folder.join("btrfs"))
        .find(|program| program.exists())
        .expect("btrfs-progs are installed");
    [theirs, ours]
}

/// Fails with all rows that differ.
#[track_caller]
fn expect_equal(rows: &[(String, String)]) {
    let differ: Vec<_> = rows.iter().filter(|(wanted, found)| wanted != found).collect();
    let shown: Vec<_> =
        differ.iter().map(|(wanted, found)| format!("{wanted}--- ours:\n{found}")).collect();
    assert!(differ.is_empty(), "{} of {} rows:\n{}", differ.len(), rows.len(), shown.join("\n"));
}

/// What is told of a volume that is not mounted.
#[test]
fn a_volume_at_rest_is_told_with_the_same_numbers() {
    let needed = ["mkfs.btrfs", "btrfs", "mount", "umount", "losetup", "cp"];
    if !has(&needed, None) || !crate::live::is_root() {
        return;
    }
    let bench = crate::bench();
    volume_of_linux(&bench);
    std::fs::create_dir(bench.path("to")).expect("a folder");
    let [image, to] = ["image", "to"].map(|name| text(&bench.path(name)).to_owned());
    let [theirs, ours] = programs(&bench);
    let places = [("I", &*image), ("T", &*to)];
    let told = |line: &&str| {
        let both = [&theirs, &ours].map(|name| answer(&bench, name, line, &places));
        let [wanted, found] = both;
        (wanted, found)
    };
    let rows: Vec<_> = AT_REST.iter().map(told).collect();
    expect_equal(&rows);
    check(&bench.path("image"));

    // A damaged copy of the superblock is replaced, and the exit code tells of it.
    let mended = [&theirs, &ours].map(|name| {
        let file = std::fs::File::options().write(true).open(&image).expect("the image");
        std::os::unix::fs::FileExt::write_all_at(&file, &[7; 50], (64 << 20) + 100).expect("room");
        drop(file);
        let said = answer(&bench, name, "rescue super-recover -y I", &places);
        check(&bench.path("image"));
        said.replace("ERROR: superblock checksum mismatch\n", "")
    });
    assert_eq!(mended[0], mended[1], "btrfs-progs on the left");
    assert!(mended[1].ends_with("ends with Some(2)\n"), "{}", mended[1]);
}

/// What is told of a volume that is mounted for reading only: by Linux, and by this project.
#[test]
fn a_mounted_volume_is_told_with_the_same_numbers() {
    let needed = ["mkfs.btrfs", "btrfs", "mount", "umount", "losetup", "cp"];
    if !has(&needed, Some("/dev/fuse")) || !crate::live::is_root() {
        return;
    }
    let bench = crate::bench();
    volume_of_linux(&bench);
    let [image, lx, mnt] = ["image", "lx", "mnt"].map(|name| text(&bench.path(name)).to_owned());
    let [theirs, ours] = programs(&bench);
    // Otherwise Linux takes the image for a clone of what it has seen, and gives it another UUID.
    run("btrfs", &["device", "scan", "--forget"]);
    let device = run("losetup", &["--read-only", "--find", "--show", &image]);
    let device = device.trim();
    run("mount", &["-o", "ro", device, &lx]);
    let told = |name: &Path, top: &str, device: &str| -> Vec<String> {
        let places = [("X", top), ("DEVICE", device)];
        MOUNTED.iter().map(|line| answer(&bench, name, line, &places)).collect()
    };
    let wanted = told(&theirs, &lx, device);
    run("umount", &[&lx]);
    run("losetup", &["--detach", device]);
    let mounted = Mounted::new(&bench, &["-o", "ro"]);
    let found = told(&ours, &mnt, &image);
    mounted.end();
    expect_equal(&wanted.into_iter().zip(found).collect::<Vec<_>>());
}

/// The device for programs of Linux is made as by btrfs-progs, in a `/dev` of its own.
#[test]
fn the_control_device_is_made() {
    if !has(&["btrfs", "unshare", "mount", "stat"], None) || !crate::live::is_root() {
        return;
    }
    let bench = crate::bench();
    let script = "umask 022; mount -t tmpfs none /dev || exit 9
        \"$1\" rescue create-control-device; echo $?
        stat -c '%F %t %T %a' /dev/btrfs-control
        \"$1\" rescue create-control-device 2>&1; echo $?
        \"$1\" rescue create-control-device more >/dev/null 2>&1; echo $?";
    let told = programs(&bench).map(|name| {
        let args = in_own_namespace(None, script, ["sh", text(&name)]);
        run("sh", &args.iter().map(String::as_str).collect::<Vec<_>>())
    });
    assert_eq!(told[0], told[1], "btrfs-progs on the left");
    assert!(told[1].contains("character special file a ea 600"), "{}", told[1]);
}
