//! `mkdir`, `rm`, `ln`, `mv` and `cp` on a mount do what they do on an image, in the same words.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use serde_json::Value;

use crate::checker::check;
use crate::live::{Mounted, has, run};
use crate::{Bench, text};

/// Command lines with `X` for the image or the mount, and `H` for a folder of the host. Each may
/// need the results of those before it. Some of them fail.
const LINES: [&str; 56] = [
    "mkdir X/a X/b",
    "mkdir X/a",
    "mkdir X/no/such",
    "mkdir --mode 2771 X/bits",
    "mkdir -p --mode 750 X/a/deep/er X/a/deep",
    "mkdir -p X/file",
    "mkdir -p X/file/below",
    "mkdir X/a/..",
    "ln X/file X/a/hard",
    "ln X/file X/a/hard",
    "ln X/none X/a/none",
    "ln X/file X/sub/hard",
    "ln X/b X/a/folder",
    "ln -s where/ever X/a/soft",
    "ln -s where/ever X/a/soft",
    "mv X/file X/a",
    "mv X/a/file X/b/renamed",
    "mv X/none X/b",
    "mv --no-clobber X/a/hard X/b/renamed",
    "mv --no-clobber X/a/hard X/b/other",
    "mv --exchange X/b/renamed X/a/soft",
    "mv --exchange X/b/renamed X/none",
    "mv X/b/other X/sub",
    "mv X/a X/a/deep",
    "mv X/a/deep X/b/deep",
    "mv X/b X/.",
    "cp H/one X/one",
    "cp H/one H/tree/two X/a",
    "cp H/tree X/a",
    "cp -r H/tree X/a",
    "cp -a H/tree X/kept",
    "cp -a H/tree/. X/into",
    "cp X/one X/one",
    "cp X/one X/twice",
    "cp --reflink=always X/kept/large X/shared",
    "cp --reflink=never X/kept/large X/apart",
    "cp -a X/kept X/again",
    "cp X/none X/b",
    "cp X/one X/twice X/one",
    "cp X/one X/sub/crossed",
    "cp -r X/kept H/back-X",
    "cp -a X/kept H/kept-X",
    "cp -r X/kept X/kept/within",
    "rm X/a",
    "rm X/none",
    "rm --force X/none",
    "rm X/a/soft",
    "rm -r X/a",
    "rm X/b/renamed X/b/other",
    "rm -r X/kept/within",
    "rm X/sub",
    "rm -r X/sub",
    "rm -r X/b/..",
    "rm --recursive --force X/a X/again",
    "mkdir X/a",
    "rm -r X/a",
];

/// Runs a line for the image or the mount `place`. Returns what it says, with `X` for the place.
fn said(bench: &Bench, line: &str, place: &str, from: &str) -> String {
    let word = |word: &str| {
        let (first, rest) = word.split_at(word.len().min(1));
        match first {
            "X" => format!("{place}{rest}"),
            "H" => format!("host{}", rest.replace("-X", from)),
            _ => word.to_owned(),
        }
    };
    let words: Vec<String> = line.split(' ').map(word).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let output = bench.run(&words);
    let said = [&output.stdout[..], &output.stderr].concat();
    let said = String::from_utf8_lossy(&said).replace(&format!("{place}/"), "X/");
    format!("$ {line}\n{said}ends with {:?}", output.status.code())
}

/// The objects below a place: paths, kinds, modes, links and sizes, without those of folders.
fn tree(bench: &Bench, place: &str) -> Vec<String> {
    let document = bench.ok(&["--json", "tree", place]);
    let document: Value = serde_json::from_str(&document).expect("JSON");
    let row = |entry: &Value| {
        let size = if entry["kind"] == "directory" { &Value::Null } else { &entry["size"] };
        let [path, kind] = ["path", "kind"].map(|field| entry[field].as_str().unwrap_or_default());
        format!("{path} {kind} {} {} {size} {}", entry["mode"], entry["links"], entry["target"])
    };
    document.as_array().expect("a list").iter().map(row).collect()
}

/// A folder of the host with files, links and a hole.
fn host(bench: &Bench) {
    let top = bench.path("host");
    fs::create_dir_all(top.join("tree/folder")).expect("folders");
    fs::write(top.join("one"), b"one").expect("a file");
    fs::write(top.join("tree/two"), vec![2; 5000]).expect("a file");
    fs::write(top.join("tree/large"), noise(3_000_001)).expect("a file");
    fs::hard_link(top.join("tree/two"), top.join("tree/folder/two-too")).expect("a link");
    symlink("../two", top.join("tree/folder/soft")).expect("a link");
    let hole = fs::File::create(top.join("tree/hole")).expect("a file");
    hole.set_len(1 << 20).expect("a size");
    drop(hole);
    let old = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    let file = fs::File::options().write(true).open(top.join("tree/two")).expect("a file");
    file.set_modified(old).expect("a time");
    fs::set_permissions(
        top.join("tree/folder"),
        std::os::unix::fs::PermissionsExt::from_mode(0o711),
    )
    .expect("a mode");
}

fn noise(len: u64) -> Vec<u8> {
    let mut state = len;
    let step = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..len).map(step).collect()
}

/// A session of changes says the same on an image and on its mount, and leaves the same tree.
#[test]
fn changing_verbs_do_on_a_mount_what_they_do_on_an_image() {
    if !has(&["umount", "btrfs"], Some("/dev/fuse")) {
        return;
    }
    for options in [&[][..], &["-o", "subvol=@"]] {
        let bench = crate::bench();
        host(&bench);
        for name in ["plain", "image"] {
            bench.volume(name, "300M");
            if !options.is_empty() {
                bench.ok(&["subvolume", "create", &format!("{name}:/@")]);
            }
        }
        let top = if options.is_empty() { "plain:" } else { "plain:/@" };
        let mounted = Mounted::new(&bench, options);
        for place in [top, "mnt"] {
            bench.ok(&["subvolume", "create", &format!("{place}/sub")]);
            bench.ok(&["cp", "host/one", &format!("{place}/file")]);
        }
        let rows = LINES
            .map(|line| (said(&bench, line, top, "-image"), said(&bench, line, "mnt", "-mount")));
        let differ: Vec<_> = rows.iter().filter(|(wanted, found)| wanted != found).collect();
        assert!(differ.is_empty(), "the image is on the left: {differ:#?}");
        let whole = if options.is_empty() { "plain:/" } else { "plain:/@" };
        assert_eq!(tree(&bench, whole), tree(&bench, "mnt"), "the image is on the left");
        for name in ["back", "kept"] {
            let [from_image, from_mount] =
                ["image", "mount"].map(|from| bench.path(&format!("host/{name}-{from}")));
            run("diff", &["-r", "--no-dereference", text(&from_image), text(&from_mount)]);
            run(
                "diff",
                &["-r", "--no-dereference", text(&bench.path("host/tree")), text(&from_mount)],
            );
        }
        mounted.end();
        check(&bench.path("image"));
        check(&bench.path("plain"));
    }
}

/// Places at which nothing is changed: the top of a mount, another file system below it, an image
/// that lies on a mount, and links to a mount.
#[test]
fn changing_verbs_keep_to_the_mount() {
    if !has(&["umount", "mount"], Some("/dev/fuse")) || !crate::live::is_root() {
        return;
    }
    let bench = crate::bench();
    bench.volume("image", "300M");
    let mounted = Mounted::new(&bench, &[]);
    bench.ok(&["mkdir", "-p", "mnt/folder/within"]);
    run("mount", &["-t", "tmpfs", "none", text(&bench.path("mnt/folder/within"))]);
    fs::write(bench.path("mnt/folder/within/foreign"), b"foreign").expect("a file");
    bench.fails(&["rm", "-r", "mnt/folder"], 1, &["mnt/folder", "something is mounted in it"]);
    bench.fails(&["rm", "-r", "mnt/folder/within"], 1, &["something is mounted in it"]);
    bench.fails(&["rm", "mnt/folder/within/foreign"], 1, &["not on the volume", "tmpfs"]);
    assert!(bench.path("mnt/folder/within/foreign").exists());
    run("umount", &[text(&bench.path("mnt/folder/within"))]);
    for line in [&["rm", "-r", "mnt"][..], &["mv", "mnt", "mnt/folder"], &["mkdir", "mnt/."]] {
        bench.fails(line, 2, &["mnt", "names no entry of a directory"]);
    }
    // A link on the host is not followed, and is no name on the mount.
    symlink(bench.path("mnt/folder"), bench.path("outside")).expect("a link");
    bench.fails(&["rm", "-r", "outside"], 2, &["outside"]);
    assert!(bench.path("mnt/folder").exists());
    // A link on the mount is removed itself.
    symlink(bench.folder(), bench.path("mnt/link")).expect("a link");
    bench.ok(&["rm", "-r", "mnt/link"]);
    assert!(bench.path("image").exists());
    // An image on the mount is a volume, and not a file to remove.
    bench.volume("mnt/inner", "120M");
    bench.fails(&["rm", "mnt/inner"], 2, &["names no entry of a directory"]);
    bench.ok(&["mkdir", "mnt/inner:/folder"]);
    bench.ok(&["rm", "-r", "mnt/inner:/folder"]);
    bench.fails(&["cp", "host", "other"], 2, &["neither side names a volume"]);
    mounted.end();
}

/// A copy within a mount shares the data, and one between two mounts copies it.
#[test]
fn copies_share_within_a_mount_and_cross_between_two() {
    if !has(&["umount", "btrfs"], Some("/dev/fuse")) {
        return;
    }
    let (bench, other) = (crate::bench(), crate::bench());
    bench.volume("image", "300M");
    other.volume("image", "300M");
    let mounted = Mounted::new(&bench, &[]);
    let second = Mounted::sharing(&other, &bench);
    let bytes = noise(40_000_123);
    fs::write(bench.path("mnt/large"), &bytes).expect("room");
    let free = || {
        run("sync", &["--file-system", text(&bench.path("mnt"))]);
        let found = rustix::fs::statvfs(bench.path("mnt")).expect("it is mounted");
        found.f_bfree * found.f_frsize
    };
    let same = |path: &Path| assert!(fs::read(path).expect("a file") == bytes, "{path:?}");
    let before = free();
    for how in ["--reflink=always", "--reflink=auto"] {
        let to = format!("mnt/{how}");
        bench.ok(&["cp", how, "mnt/large", &to]);
        same(&bench.path(&to));
    }
    let shared = before - free();
    assert!(shared < 2 << 20, "{shared} bytes for two copies that share");
    bench.ok(&["cp", "--reflink=never", "mnt/large", "mnt/apart"]);
    let copied = before - free();
    assert!(copied > 38_000_000, "{copied} bytes for a copy that does not share");

    let there = other.path("mnt");
    bench.fails(
        &["cp", "--reflink=always", "mnt/large", text(&there)],
        1,
        &["its data cannot be shared", "--reflink=auto"],
    );
    bench.ok(&["mkdir", "mnt/tree"]);
    bench.ok(&["ln", "mnt/large", "mnt/tree/one"]);
    bench.ok(&["ln", "mnt/large", "mnt/tree/two"]);
    bench.ok(&["cp", "-a", "mnt/tree", text(&there)]);
    same(&there.join("tree/two"));
    let id = |name: &str| fs::metadata(there.join(name)).expect("a file").ino();
    assert_eq!(id("tree/one"), id("tree/two"), "they are names of one file");
    bench.fails(
        &["ln", "mnt/large", text(&there.join("hard"))],
        2,
        &["a hard link stays within its volume"],
    );
    bench.fails(&["mv", "mnt/large", text(&there)], 2, &["mv works within one volume"]);
    bench.fails(&["mv", "mnt/large", "image:/large"], 2, &["mv works within one volume"]);
    second.end();
    mounted.end();
    check(&bench.path("image"));
    check(&other.path("image"));
}

/// A copy gives no rights that its source does not give: to a mount, to a folder of the host, and
/// from an image. It can be repeated, and takes files that the kernel makes up.
#[test]
fn copies_give_no_more_rights_and_can_be_repeated() {
    let is_root = rustix::process::geteuid().is_root();
    if !has(&["umount", "setfacl", "getfacl"], Some("/dev/fuse")) || !is_root {
        return;
    }
    let bench = crate::bench();
    let mode = |path: &Path, mode: u32| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        fs::set_permissions(path, mode).expect("a mode");
    };
    let source = bench.path("source");
    fs::create_dir_all(source.join("folder")).expect("folders");
    for name in ["private", "program"] {
        fs::write(source.join("folder").join(name), name).expect("a file");
    }
    fs::hard_link(source.join("folder/private"), source.join("folder/too")).expect("a link");
    mode(&source.join("folder/private"), 0o640);
    std::os::unix::fs::chown(source.join("folder/program"), Some(1000), Some(1000)).expect("root");
    mode(&source.join("folder/program"), 0o6755);
    mode(&source.join("folder"), 0o755);
    run("setfacl", &["--default", "-m", "user:1234:rwx", text(&source.join("folder"))]);

    bench.volume("image", "300M");
    bench.volume("plain", "300M");
    bench.ok(&["cp", "-a", "source", "plain:/"]);
    let mounted = Mounted::new(&bench, &[]);
    fs::create_dir(bench.path("host")).expect("a folder");
    for (from, place) in [("source", "mnt"), ("plain:/source", "host"), ("mnt/source", "mnt/again")]
    {
        if place == "mnt/again" {
            bench.ok(&["mkdir", place]);
        }
        // Twice: the second one finds everything there.
        for _ in 0..2 {
            bench.ok(&["cp", "-a", from, place]);
        }
        let folder = bench.path(place).join("source/folder");
        let found = |name: &str| fs::metadata(folder.join(name)).expect("it");
        let program = found("program");
        let bits = (program.mode() & 0o7777, program.uid(), program.gid());
        assert_eq!(bits, (0o6755, 1000, 1000), "{place}");
        assert_eq!(found("private").ino(), found("too").ino(), "{place}");
        let lists = |name: &str| {
            let path = folder.join(name);
            let args = ["--numeric", "--absolute-names", "--omit-header", text(&path)];
            let output = std::process::Command::new("getfacl").args(args).output();
            String::from_utf8(output.expect("getfacl runs").stdout).expect("text")
        };
        assert!(!lists("private").contains("1234"), "{place}: {}", lists("private"));
        assert!(lists(".").contains("default:user:1234:rwx"), "{place}: {}", lists("."));

        // Without the owner, a program does not run as another user.
        let alone = bench.path(place).join("alone");
        let program = format!("{from}/folder/program");
        bench.ok(&["cp", "--preserve", &program, text(&alone)]);
        let found = fs::metadata(&alone).expect("it");
        assert_eq!((found.mode() & 0o7777, found.uid()), (0o755, 0), "{place}");

        // A directory that is there keeps its mode.
        mode(&folder, 0o2700);
        bench.ok(&["cp", "-r", from, place]);
        assert_eq!(fs::metadata(&folder).expect("it").mode() & 0o7777, 0o2700, "{place}");
        mode(&folder, 0o755);
    }
    for name in ["/proc/cpuinfo", "/sys/kernel/mm/transparent_hugepage/enabled"] {
        let Ok(wanted) = fs::read(name) else { continue };
        bench.ok(&["cp", name, "mnt/made-up"]);
        let got = fs::read(bench.path("mnt/made-up")).expect("a file");
        if name.starts_with("/sys") {
            assert_eq!(got, wanted);
        }
        assert!(!got.is_empty() && got.iter().any(|byte| *byte != 0));
    }
    mounted.end();
    check(&bench.path("image"));
}

/// Options of `cp`, and what the copies of four objects have: mode and owner of each, and whether
/// `listed` has the list of its source.
type Way = (&'static [&'static str], [(u32, u32); 4], bool);
const WAYS: [Way; 3] = [
    (&["-r"], [(0o755, 0), (0o640, 0), (0o640, 0), (0o755, 0)], false),
    (&["-r", "--preserve"], [(0o755, 0), (0o640, 0), (0o660, 0), (0o1777, 0)], true),
    (&["-a"], [(0o6755, 1000), (0o640, 0), (0o660, 0), (0o7777, 1000)], true),
];
const OBJECTS: [&str; 4] = ["program", "private", "listed", "open"];

/// Copies between all kinds of places, below a folder with a list for new objects. No copy has
/// rights that its source lacks, in any place, also when it replaces a copy.
#[test]
fn no_place_gives_a_copy_more_rights() {
    let is_root = rustix::process::geteuid().is_root();
    if !has(&["umount", "setfacl", "getfacl"], Some("/dev/fuse")) || !is_root {
        return;
    }
    let bench = crate::bench();
    let source = bench.path("source");
    fs::create_dir_all(source.join("open")).expect("folders");
    for (name, (mode, owner)) in OBJECTS.iter().zip(WAYS[2].1) {
        if *name != "open" {
            fs::write(source.join(name), name).expect("a file");
        }
        std::os::unix::fs::chown(source.join(name), Some(owner), Some(owner)).expect("root");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        fs::set_permissions(source.join(name), mode).expect("a mode");
    }
    fs::hard_link(source.join("private"), source.join("too")).expect("a link");
    let list = "user::rw-,group::---,user:1234:rw-,mask::rw-,other::---";
    run("setfacl", &["--set", list, text(&source.join("listed"))]);
    fs::create_dir(bench.path("lists")).expect("a folder");
    run("setfacl", &["--default", "-m", "user:1234:rwx", text(&bench.path("lists"))]);

    for image in ["image", "plain", "other"] {
        bench.volume(image, "300M");
    }
    bench.ok(&["mkdir", "plain:/empty"]);
    bench.ok(&["cp", "-a", "source", "plain:/"]);
    bench.ok(&["cp", "-a", "lists", "plain:/empty"]);
    fs::write(bench.path("able"), "able").expect("a file");
    // CAP_SETUID, permitted and effective, in the second version of the attribute.
    let able = [1, 0, 0, 2, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(bench.path("able"), "security.capability", &able, flags).expect("root");
    bench.ok(&["cp", "-a", "able", "plain:/empty"]);
    let mounted = Mounted::new(&bench, &[]);
    fs::create_dir(bench.path("host")).expect("a folder");
    bench.ok(&["cp", "-a", "source", "mnt/"]);
    let places = ["host/", "mnt/", "plain:/", "other:/"];
    for place in places {
        bench.ok(&["cp", "-a", "plain:/empty/lists", place]);
        for (at, from) in ["source", "plain:/source", "mnt/source"].into_iter().enumerate() {
            // Nothing is copied from the host to the host.
            let from = if place == "host/" && at == 0 { "plain:/source" } else { from };
            for (way, (flags, ..)) in WAYS.iter().enumerate() {
                let to = format!("{place}lists/{at}{way}");
                match place {
                    "host/" => fs::create_dir(bench.path(&to)).expect("a folder"),
                    _ => _ = bench.ok(&["mkdir", &to]),
                }
                // Twice: the second copy finds everything there.
                for _ in 0..2 {
                    bench.ok(&[&["cp"], *flags, &[from, to.as_str()]].concat());
                }
            }
        }
        // What was there has rights that the source lacks: a list, and a capability.
        bench.ok(&["cp", "-a", "plain:/source/listed", &format!("{place}twice")]);
        bench.ok(&["cp", "--preserve", "plain:/source/private", &format!("{place}twice")]);
        bench.ok(&["cp", "-a", "plain:/empty/able", &format!("{place}able")]);
        bench.ok(&["cp", "plain:/source/private", &format!("{place}able")]);
        // A program of another owner replaces the content of a file of root.
        bench.ok(&["cp", "plain:/source/private", &format!("{place}once")]);
        bench.ok(&["cp", "--preserve", "plain:/source/program", &format!("{place}once")]);
        if place != "host/" {
            bench.ok(&["cp", "/proc/cpuinfo", &format!("{place}made-up")]);
        }
    }
    mounted.end();

    expect_rights(&bench.path("host"), "host");
    for image in ["image", "plain", "other"] {
        let mounted = Mounted::of(&bench, image, &[]);
        expect_rights(&bench.path("mnt"), image);
        mounted.end();
        check(&bench.path(image));
    }
}

/// Looks at the copies of the three sources, made in all ways.
fn expect_rights(place: &Path, what: &str) {
    let lists = |path: &Path| {
        let args = ["--numeric", "--absolute-names", "--omit-header", text(path)];
        let output = std::process::Command::new("getfacl").args(args).output();
        String::from_utf8(output.expect("getfacl runs").stdout).expect("text")
    };
    for at in 0..3 {
        for (way, (flags, wanted, has_list)) in WAYS.iter().enumerate() {
            let folder = place.join(format!("lists/{at}{way}/source"));
            let when = format!("{what}, source {at}, {flags:?}");
            for (name, wanted) in OBJECTS.iter().zip(wanted) {
                let found = fs::metadata(folder.join(name)).expect("it");
                assert_eq!((found.mode() & 0o7777, found.uid()), *wanted, "{when}: {name}");
                if *flags != ["-r"] {
                    let is_listed = lists(&folder.join(name)).contains("user:1234");
                    assert_eq!(is_listed, *has_list && *name == "listed", "{when}: {name}");
                }
            }
            let ino = |name: &str| fs::metadata(folder.join(name)).expect("it").ino();
            assert_eq!(ino("private") == ino("too"), *flags == ["-a"], "{when}: names");
        }
    }
    assert!(!lists(&place.join("twice")).contains("1234"), "{what}");
    let able = rustix::fs::getxattr(place.join("able"), "security.capability", &mut [0; 64]);
    able.expect_err(what);
    let once = fs::metadata(place.join("once")).expect("it");
    assert_eq!((once.mode() & 0o7777, once.uid()), (0o755, 0), "{what}");
    if what != "host" {
        let made_up = fs::read(place.join("made-up")).expect("it");
        assert!(!made_up.is_empty() && !made_up.contains(&0), "{what}");
    }
}

/// Numbers of inodes of two images say nothing about each other. Within one image a folder is not
/// copied into itself, however often.
#[test]
fn copies_between_images_are_not_copies_onto_themselves() {
    let bench = crate::bench();
    fs::create_dir_all(bench.path("tree/tree")).expect("folders");
    fs::write(bench.path("tree/file"), "text").expect("a file");
    for image in ["a", "b"] {
        bench.volume(image, "300M");
        bench.ok(&["cp", "-r", "tree", &format!("{image}:/")]);
    }
    for _ in 0..2 {
        bench.ok(&["cp", "-r", "a:/tree", "b:/"]);
        bench.ok(&["cp", "a:/tree/file", "b:/tree/file"]);
    }
    bench.fails(&["cp", "-r", "b:/tree", "b:/tree"], 1, &["copied into itself"]);
    bench.fails(&["cp", "b:/tree/file", "b:/tree/file"], 1, &["the same file"]);
    check(&bench.path("b"));
}
