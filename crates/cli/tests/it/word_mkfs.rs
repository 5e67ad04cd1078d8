//! The program as `mkfs.btrfs`, beside that of btrfs-progs.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::checker::check;
use crate::live::{has, is_root, run};
use crate::{Bench, text};

/// Command lines that make a volume. `a` to `d` are files of 1 GiB, `small` has 50 MiB, and `short`
/// has 10 MiB. There is a folder `tree`, and no file `new`.
const MADE: [&str; 49] = [
    "a",
    "-L name a",
    "--label=-name a",
    "-fLz a",
    "--lab abbreviated a",
    "-U 01234567-89ab-cdef-0123-456789abcdef a",
    "-U 01234567-89ab-cdef-0123-456789abcdef-and-more a",
    "-q a",
    "-v a",
    "-vv -K a",
    "-f -d single -m single a",
    "-d dup -m dup a",
    "-d DUP -m single a",
    "-m single -m dup a",
    "-d raid0 a",
    "a b",
    "-d raid0 -m raid0 a b",
    "-d raid1 -m raid1 a b c",
    "-d raid1c3 -m raid1c4 a b c d",
    "-d raid10 -m raid10 a b c d",
    "-d raid10 a b",
    "-d raid5 -m raid1 a b c",
    "-d raid6 -m raid6 a b c d",
    "-d dup -m dup a b",
    "-M small",
    "-M a",
    "-M -d raid1 -m raid1 a b",
    "-n 4096 a",
    "-n 64k a",
    "-s 8192 a",
    "-s 64k -n 64k a",
    "-b 500M a",
    "-b 500M a b",
    "-b 0 a",
    "--csum crc32c a",
    "--csum xxhash a",
    "--csum XXHASH64 a",
    "--checksum sha256 a",
    "--csum blake2b a",
    "-O ^no-holes a",
    "-O extref,^skinny-metadata a",
    "-R quota a",
    "-R ^free-space-tree a",
    "a -f",
    "-f -- a",
    "-r tree new",
    "-r tree -b 300M new",
    "-q --rootdir tree --shrink new",
    "--rootdir=tree short",
];

/// Command lines that are refused, or only print something.
const REFUSED: [&str; 38] = [
    "-d nonsense a",
    "-m nonsense a",
    "--csum nonsense a",
    "-O nonsense a",
    "-O ^nonsense a",
    "-b nonsense a",
    "-n 5000 a",
    "-n 128k a",
    "-n 4k -s 16k a",
    "-s 1000 a",
    "-s 512 a",
    "-s 128k a",
    "-M -n 16384 a",
    "-M -m single -d dup a",
    "-O mixed-bg a",
    "-U nonsense a",
    "-U 0123456789abcdef0123456789abcdef a",
    "-U {01234567-89ab-cdef-0123-456789abcdef} a",
    "-U urn:uuid:01234567-89ab-cdef-0123-456789abcdef a",
    "-l 4096 a",
    "-b 10k a",
    "-b 2G a",
    "small",
    "-m single -d single short",
    "-d dup small",
    "-M short",
    "-d raid1 a",
    "-m raid6 a b",
    "-m raid1c4 a b c",
    "--shrink a",
    "-r tree a b",
    "nowhere",
    "-f nowhere",
    "-b 500M nowhere",
    "volume",
    "ext4",
    "table",
    "a volume",
];

/// Command lines of which only the exit code is equal: the words of each parser are its own, and so
/// are the descriptions of features.
const ENDINGS: [&str; 10] = [
    "",
    "-Z a",
    "--nonsense a",
    "-L",
    "-V",
    "--version a",
    "--help",
    "-O list-all",
    "-R list-all a",
    "-f tree",
];

/// Whether a line tells of the volume, and both programs have it.
fn is_fact(line: &&str) -> bool {
    let not = [
        "btrfs-progs v",
        "See http",
        // What btrfs-progs changed in a release of their own.
        "NOTE: ",
        "      ",
        // What btrfs-progs say of a device before it has a volume.
        "ERROR: superblock magic doesn't match",
        "ERROR: zoned: unable to stat",
        "WARNING: cannot read superblock",
    ];
    !line.is_empty() && !not.iter().any(|text| line.starts_with(text))
}

/// Whether a command line fills the volume from the folder `tree`.
fn is_filled(command: &str) -> bool {
    command.split([' ', '=']).any(|word| word == "tree")
}

/// A line without what differs from run to run: identifiers that were drawn, and the lengths of the
/// first chunks. A volume that is filled has the size that its program chose.
fn plain(line: &str, command: &str) -> String {
    let is_filled = is_filled(command) && !command.contains("300M");
    let chunks = ["  Data:", "  Metadata:", "  System:", "  Data+Metadata:"];
    let sized = ["Filesystem size:", "    1  "];
    let mut words: Vec<&str> = line.split(' ').filter(|word| !word.is_empty()).collect();
    if line.starts_with("UUID:") && !command.contains("-U") {
        words.truncate(1);
    } else if chunks.iter().any(|what| line.starts_with(what)) {
        words.pop();
    } else if is_filled && sized.iter().any(|what| line.starts_with(what)) {
        words.retain(|word| !word.ends_with("MiB"));
    } else {
        return line.replace("ERROR: ERROR: ", "ERROR: ");
    }
    words.join(" ")
}

/// Makes the files of the lines.
fn lay_out(bench: &Bench) {
    let file = |name: &str, mib: u64| {
        let _ = std::fs::remove_file(bench.path(name));
        let file = std::fs::File::create(bench.path(name)).expect("a file");
        file.set_len(mib << 20).expect("a size");
    };
    ["a", "b", "c", "d"].into_iter().for_each(|name| file(name, 1024));
    file("small", 50);
    file("short", 10);
    let _ = std::fs::remove_file(bench.path("new"));
}

/// What a program says to a line, and its exit code.
fn answer(bench: &Bench, program: &Path, line: &str) -> (Vec<String>, Option<i32>) {
    lay_out(bench);
    let words = line.split(' ').filter(|word| !word.is_empty());
    let mut command = Command::new(program);
    command.args(words).current_dir(bench.folder()).env("LC_ALL", "C");
    let output = command.output().expect("it starts");
    let lines = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes).into_owned();
        text.lines().filter(is_fact).map(|text| plain(text, line)).collect::<Vec<_>>()
    };
    (
        [lines(&output.stdout), vec!["--".into()], lines(&output.stderr)].concat(),
        output.status.code(),
    )
}

/// The program of btrfs-progs, a bench with the program under test as `mkfs.btrfs`, and its path.
fn both() -> Option<(Bench, PathBuf, PathBuf)> {
    if !has(&["mkfs.btrfs", "btrfs", "mkfs.ext4", "sfdisk"], None) {
        return None;
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let theirs = std::env::split_paths(&path).map(|folder| folder.join("mkfs.btrfs"));
    let theirs = theirs.into_iter().find(|program| program.exists())?;
    let bench = crate::bench();
    let ours = bench.path("mkfs.btrfs");
    symlink(env!("CARGO_BIN_EXE_buttress"), &ours).expect("a link");
    std::fs::create_dir_all(bench.path("tree/folder")).expect("a folder");
    std::fs::write(bench.path("tree/folder/file"), "text").expect("a file");
    symlink("folder/file", bench.path("tree/link")).expect("a link");
    std::fs::write(bench.path("tree/large"), vec![7; 300_000]).expect("a file");
    Some((bench, theirs, ours))
}

/// Command lines make the same volumes as with btrfs-progs, and print the same table. All of them
/// are free of errors, and those of a folder have its files.
#[test]
fn lines_make_the_same_volumes() {
    let Some((bench, theirs, ours)) = both() else { return };
    let mut differing = Vec::new();
    for line in MADE {
        let wanted = answer(&bench, &theirs, line);
        assert_eq!(wanted.1, Some(0), "{line}: {wanted:?}");
        let found = answer(&bench, &ours, line);
        if found != wanted {
            differing.push(format!("mkfs.btrfs {line}\n{found:?}\nwanted {wanted:?}\n"));
            continue;
        }
        let is_device = |word: &&str| matches!(*word, "a" | "b" | "c" | "d");
        let devices: Vec<&str> = line.split(' ').filter(is_device).collect();
        match devices[..] {
            [] => ["small", "short", "new"]
                .iter()
                .filter(|name| line.ends_with(*name))
                .for_each(|name| check(&bench.path(name))),
            [only] => check(&bench.path(only)),
            [first, ..] => {
                let others = devices[1..].iter().flat_map(|other| ["--device", *other]);
                let words = ["check", first].into_iter().chain(others).collect::<Vec<_>>();
                drop(bench.ok(&words));
            }
        }
        if is_filled(line) {
            let image = line.rsplit(' ').next().expect("a word");
            assert_eq!(bench.ok(&["cat", &format!("{image}:/folder/file")]), "text", "{line}");
            let large = bench.ok(&["cat", &format!("{image}:/large")]);
            assert!(large.into_bytes() == vec![7; 300_000], "{line}");
        }
    }
    assert!(differing.is_empty(), "{}", differing.concat());
}

/// Command lines are refused for the same reasons as by btrfs-progs, and change no file.
#[test]
fn lines_are_refused_for_the_same_reasons() {
    let Some((bench, theirs, ours)) = both() else { return };
    let made = |name: &str, program: &str| {
        let path = bench.path(name);
        std::fs::File::create(&path).expect("a file").set_len(200 << 20).expect("a size");
        run(program, &["-q", text(&path)]);
    };
    made("volume", "mkfs.btrfs");
    made("ext4", "mkfs.ext4");
    std::fs::File::create(bench.path("table")).expect("a file").set_len(200 << 20).expect("a size");
    run("sh", &["-c", &format!("echo 'label: gpt' | sfdisk -q {}", text(&bench.path("table")))]);
    let kept = ["volume", "ext4", "table"];
    let content = || kept.map(|name| std::fs::read(bench.path(name)).expect("a file"));
    let before = content();
    let mut differing = Vec::new();
    for line in REFUSED {
        let wanted = answer(&bench, &theirs, line);
        assert_eq!(wanted.1, Some(1), "{line}: {wanted:?}");
        let found = answer(&bench, &ours, line);
        if found != wanted {
            differing.push(format!("mkfs.btrfs {line}\n{found:?}\nwanted {wanted:?}\n"));
        }
        for name in ["a", "b", "small", "short"] {
            let metadata = std::fs::metadata(bench.path(name)).expect("a file");
            assert_eq!(std::os::unix::fs::MetadataExt::blocks(&metadata), 0, "{line}: {name}");
        }
        assert!(!bench.path("nowhere").exists(), "{line}");
    }
    for line in ENDINGS {
        let (wanted, found) = (answer(&bench, &theirs, line), answer(&bench, &ours, line));
        assert_eq!(found.1, wanted.1, "mkfs.btrfs {line}: {found:?}");
        let complained = found.0.iter().skip_while(|text| *text != "--").nth(1);
        let is_error = complained.is_some_and(|text| text.starts_with("ERROR: "));
        assert_eq!(is_error, found.1 == Some(1), "mkfs.btrfs {line}: {found:?}");
    }
    assert!(content() == before, "a refused line has changed a file");
    assert!(differing.is_empty(), "{}", differing.concat());
}

/// Options of newer btrfs-progs work, too.
#[test]
fn newer_options_work() {
    let Some((bench, _, ours)) = both() else { return };
    let make = |line: &str| answer(&bench, &ours, line);
    let (said, code) = make(
        "-c xxhash -r tree -u ro:folder --inode-flags nodatacow:large --compress zstd new \
         --device-uuid 01234567-89ab-cdef-0123-456789abcdef",
    );
    assert_eq!(code, Some(0), "{said:?}");
    check(&bench.path("new"));
    assert!(bench.ok(&["subvolume", "list", "new"]).contains("folder"));
    let devices = bench.ok(&["dump", "--super", "new"]);
    assert!(devices.contains("01234567-89ab-cdef-0123-456789abcdef"), "{devices}");
    let (said, code) = make("-O block-group-tree,squota,quota a");
    assert_eq!(code, Some(0), "{said:?}");
    let runtime = said.iter().find(|line| line.starts_with("Runtime features:"));
    let runtime = runtime.expect("a line of the table");
    assert!(runtime.ends_with(" squota, free-space-tree, block-group-tree"), "{runtime}");
    bench.ok(&["check", "a"]);
    for line in ["--subvol folder a", "--device-uuid nonsense a", "-O zoned a", "-r nowhere new"] {
        let (said, code) = make(line);
        assert_eq!(code, Some(1), "{line}: {said:?}");
        assert!(!bench.path("new").exists(), "{line}");
    }
}

/// A program locks a block device, and calls `mkfs.btrfs` for it. That lock is no obstacle, but
/// that of another program is one, and so is a mount.
#[test]
fn a_caller_may_hold_the_lock() {
    if !has(&["losetup", "flock", "mount", "umount"], Some("/dev/loop-control")) || !is_root() {
        return;
    }
    let Some((bench, _, ours)) = both() else { return };
    lay_out(&bench);
    let device = run("losetup", &["--find", "--show", text(&bench.path("a"))]);
    let device = device.trim();
    let by_caller = || {
        let mut command = Command::new("flock");
        let output = command.args([device, text(&ours), "-f", device]).output().expect("it starts");
        let said = [output.stdout, output.stderr].concat();
        (String::from_utf8_lossy(&said).into_owned(), output.status.code())
    };
    let made = by_caller();
    assert!(made.1 == Some(0) && made.0.contains("Number of devices:  1"), "{made:?}");
    // The lock of another program: `flock` waits for the end of the program that it runs.
    let waits = ["--close", device, "sleep", "20"];
    let mut other = Command::new("flock").args(waits).spawn().expect("it starts");
    let held = || buttress_control::closing::locked_by(Path::new(device)) == Some(other.id());
    (0..200).take_while(|_| !held()).for_each(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
    });
    let refused = Command::new(&ours).args(["-f", device]).output().expect("it starts");
    let _ = other.kill();
    let _ = other.wait();
    std::fs::create_dir(bench.path("top")).expect("a folder");
    run("mount", &[device, text(&bench.path("top"))]);
    let mounted = by_caller();
    run("umount", &[text(&bench.path("top"))]);
    run("losetup", &["--detach", device]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(1) && said.contains("in use"), "{said}");
    assert_eq!(mounted.1, Some(1), "{mounted:?}");
    check(&bench.path("a"));
}

/// What `sh` says to a script, and its exit code. In the script, `$0` is `mkfs.btrfs`.
fn script(bench: &Bench, ours: &Path, text: &str) -> (String, Option<i32>) {
    let mut command = Command::new("sh");
    command.args(["-c", text]).arg(ours).current_dir(bench.folder());
    let output = command.output().expect("it starts");
    let said = [output.stdout, output.stderr].concat();
    (String::from_utf8_lossy(&said).into_owned(), output.status.code())
}

/// A caller holds a lock by a descriptor, also if the process that took the lock has ended. A lock
/// of another program is respected, also beside one of a caller.
#[test]
fn a_caller_may_hold_the_lock_by_a_descriptor() {
    if !has(&["flock"], None) {
        return;
    }
    let Some((bench, _, ours)) = both() else { return };
    for text in [
        "flock a $0 a",
        "flock -s a $0 a",
        "exec 9>>a; flock 9; $0 a",
        "exec 9>>a; flock 9; $0 a 9>&-",
        "exec 9>>a; flock 9; sh -c '$0 a 9>&-; exit $?' $0",
        "flock new $0 -r tree new",
    ] {
        lay_out(&bench);
        let (said, code) = script(&bench, &ours, text);
        assert_eq!(code, Some(0), "{text}: {said}");
        check(&bench.path(if text.ends_with("new") { "new" } else { "a" }));
    }
    lay_out(&bench);
    // `read` waits until the script is told to end.
    let mut other = Command::new("flock");
    other.args(["-s", "a", "sh", "-c", "echo held; read line"]).current_dir(bench.folder());
    other.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut other = other.spawn().expect("it starts");
    let mut line = String::new();
    let held = other.stdout.take().expect("a pipe");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(held), &mut line).expect("text");
    let refused = ["$0 a", "flock -s a $0 a"].map(|text| script(&bench, &ours, text));
    drop(other.stdin.take());
    let _ = other.wait();
    for (said, code) in refused {
        assert!(code == Some(1) && said.contains("is in use by process"), "{said}");
    }
    let metadata = std::fs::metadata(bench.path("a")).expect("a file");
    assert_eq!(std::os::unix::fs::MetadataExt::blocks(&metadata), 0);
    // A device is given twice, also below a caller's lock.
    for text in ["$0 -f a a", "flock a $0 -f a a"] {
        let (said, code) = script(&bench, &ours, text);
        assert!(code == Some(1) && said.contains("in use"), "{text}: {said}");
    }
}

/// A standard output that is closed, full, or without a reader loses no volume.
#[test]
fn a_lost_output_loses_no_volume() {
    let Some((bench, _, ours)) = both() else { return };
    for words in [&["a"][..], &["-r", "tree", "new"]] {
        let image = words.last().expect("a word");
        for output in ["closed", "full", "unread"] {
            lay_out(&bench);
            let mut command = Command::new(&ours);
            command.args(words).current_dir(bench.folder());
            match output {
                "closed" => {
                    command = Command::new("sh");
                    command.args(["-c", "exec \"$0\" \"$@\" >&-"]).arg(&ours).args(words);
                    command.current_dir(bench.folder());
                }
                "full" => {
                    let full = std::fs::File::options().write(true).open("/dev/full");
                    command.stdout(full.expect("Linux has it"));
                }
                _ => {
                    let (reader, writer) = std::io::pipe().expect("a pipe");
                    drop(reader);
                    command.stdout(writer);
                }
            }
            let said = command.output().expect("it starts");
            assert_eq!(said.status.code(), Some(0), "{output}: {said:?}");
            let warned =
                String::from_utf8_lossy(&said.stderr).contains("not everything was printed");
            assert_eq!(warned, output == "full", "{said:?}");
            check(&bench.path(image));
        }
    }
}
