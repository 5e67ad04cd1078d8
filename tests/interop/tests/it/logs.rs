//! Logs that Linux left are replayed as Linux replays them.
//!
//! Each case changes a committed volume through Linux and makes some of it durable with fsync; the
//! image is copied as a crash leaves it. Linux replays one copy, and the library replays another.
//! Both must show the same files.

use buttress_fs::NewInode;
use std::path::{Path, PathBuf};

use buttress_interop::linux::{Images, check, has_linux_btrfs, sparse_copy};
use buttress_interop::manifest::{Depth, Manifest};

use crate::open::{close, open};

struct Case {
    name: &'static str,
    mkfs: &'static [&'static str],
    /// The script that a commit makes durable.
    before: &'static str,
    /// The script with its own fsyncs.
    after: &'static str,
}

const CASES: &[Case] = &[
    Case {
        name: "new files, inline and not, in new folders",
        mkfs: &[],
        before: "mkdir a",
        after: "mkdir -p a/b/c; echo small > a/b/c/small; sync a/b/c/small; \
                head -c 300000 /dev/urandom > a/b/large; sync a/b/large; \
                echo lost > a/lost; ln -s target a/link; sync a/b",
    },
    Case {
        name: "content",
        mkfs: &[],
        before: "for f in over grow cut hole zero pre; do head -c 1000000 /dev/urandom > $f; done; \
                 fallocate -l 2M reserved",
        after: "head -c 70000 /dev/urandom | dd of=over bs=4096 seek=17 conv=notrunc status=none; \
                head -c 5000 /dev/urandom >> grow; truncate -s 123456 cut; \
                fallocate -p -o 65536 -l 200000 hole; fallocate -z -o 100000 -l 300000 zero; \
                fallocate -n -o 900000 -l 3000000 pre; \
                head -c 50000 /dev/urandom | dd of=reserved bs=4096 seek=9 conv=notrunc status=none; \
                for f in over grow cut hole zero pre reserved; do sync $f; done; \
                truncate -s 3000000 cut; sync cut; echo more >> grow; sync grow",
    },
    Case {
        name: "content with items for holes",
        mkfs: &["-O", "^no-holes"],
        before: "for f in cut hole grow; do head -c 1000000 /dev/urandom > $f; done",
        after: "truncate -s 123456 cut; truncate -s 2M cut; fallocate -p -o 65536 -l 200000 hole; \
                truncate -s 3M grow; echo end >> grow; for f in cut hole grow; do sync $f; done",
    },
    Case {
        name: "attributes",
        mkfs: &[],
        before: "for f in a b c; do echo $f > $f; setfattr -n user.one -v 1 $f; \
                 setfattr -n user.two -v 2 $f; done; mkdir d; setfattr -n user.d -v d d",
        after: "setfattr -x user.one a; setfattr -n user.two -v changed b; \
                setfattr -n user.three -v 3 c; chmod 600 a; chown 1000:1000 b; touch -d @1000 c; \
                setfattr -x user.d d; for f in a b c d; do sync $f; done",
    },
    Case {
        name: "names",
        mkfs: &[],
        before: "mkdir x y; for f in one two three four five; do echo $f > x/$f; done; \
                 ln x/five x/six; ln x/five y/seven",
        after: "mv x/one x/uno; sync x/uno; echo new > x/tmp; mv x/tmp x/two; sync x/two; \
                ln x/three y/tres; sync y/tres; rm x/six; sync x/five; \
                rm x/four; echo again > x/four; sync x/four",
    },
    Case {
        name: "names across folders",
        mkfs: &[],
        before: "mkdir x y; for f in one two three; do echo $f > x/$f; done; ln x/two y/two",
        after: "mv x/one y/one; sync y/one; rm x/two; sync y/two; mv x/three x/drei; sync x y",
    },
    Case {
        name: "folders",
        mkfs: &[],
        before: "mkdir d; for i in $(seq 50); do echo $i > d/$i; done; mkdir d/sub d/gone",
        after: "rm d/1? d/30; rmdir d/gone; for i in $(seq 60 90); do echo $i > d/$i; done; \
                mkdir d/new; echo x > d/new/x; ln d/40 d/forty; sync d; mv d/50 d/sub/; sync d/sub",
    },
    Case {
        name: "many names of one file",
        mkfs: &[],
        before: "echo many > f; long=$(printf 'n%.0s' $(seq 200)); \
                 for i in $(seq 100); do ln f $long$i; done",
        after: "long=$(printf 'm%.0s' $(seq 200)); for i in $(seq 20); do ln f $long$i; done; \
                echo content > f; sync f",
    },
    Case {
        name: "many files and extents",
        mkfs: &[],
        before: "head -c 8000000 /dev/urandom > f; mkdir m",
        after: "for i in $(seq 1 7 1900); do head -c 4096 /dev/urandom | \
                dd of=f bs=4096 seek=$i conv=notrunc status=none; done; sync f; \
                for i in $(seq 150); do head -c $((i * 100)) /dev/urandom > m/$i; sync m/$i; done; \
                for i in $(seq 3 11 1900); do head -c 4096 /dev/urandom | \
                dd of=f bs=4096 seek=$i conv=notrunc status=none; done; sync f",
    },
    Case {
        name: "kinds of content",
        mkfs: &[],
        before: "mkdir packed bare; chattr +c packed; chattr +C bare; \
                 head -c 500000 /dev/zero | tr '\\0' c > packed/old; head -c 500000 /dev/urandom > bare/old",
        after: "head -c 700000 /dev/zero | tr '\\0' d > packed/new; echo patched | \
                dd of=packed/old bs=4096 seek=3 conv=notrunc status=none; \
                echo patched | dd of=bare/old bs=4096 seek=3 conv=notrunc status=none; \
                head -c 300000 /dev/urandom > bare/new; cp --reflink=always bare/old bare/copy; \
                cp --reflink=always packed/new packed/copy; mkfifo pipe; \
                for f in */*; do sync $f; done; sync .",
    },
    Case {
        name: "subvolumes",
        mkfs: &[],
        before: "btrfs -q subvolume create s; btrfs -q subvolume create t; echo 1 > s/1; echo 1 > 1",
        after: "for d in . s t; do echo more >> $d/1; echo new > $d/2; sync $d/1 $d/2; done",
    },
];

/// Runs a case through Linux up to the crash; the image is left in its folder.
fn crash(case: &Case) -> (Images, PathBuf) {
    let images = Images::new(1, 512 << 20);
    images.mkfs(case.mkfs);
    let mount = images.mount("commit=300");
    mount.shell(&format!("{}; sync -f .", case.before));
    mount.shell(case.after);
    let crashed = images.scratch().join("crashed.img");
    sparse_copy(images.path(), &crashed);
    mount.unmount();
    (images, crashed)
}

/// Removes times that depend on the replay: the times of folders, and the time of an older file
/// that lost a name.
fn without_times(mut manifest: Manifest) -> Manifest {
    for entry in manifest.entries.values_mut() {
        entry.ctime = (0, 0);
        if entry.mode & 0o170_000 == 0o040_000 {
            entry.mtime = (0, 0);
        }
    }
    manifest
}

fn through_linux(images: &Images, image: &Path) -> Manifest {
    sparse_copy(image, images.path());
    let mount = images.mount("");
    let manifest = without_times(Manifest::of_folder(mount.path()));
    mount.unmount();
    manifest
}

/// Both replays of a crashed image give the same files, as `restore` does, and a sound volume.
fn replay(what: &str, images: &Images, crashed: &Path) -> Manifest {
    let ours = [crashed.to_path_buf()];
    let report = buttress_check::check_images(&ours, &buttress_check::Options::thorough());
    let report = report.expect("a check");
    assert!(report.is_clean(), "{what}: the log:\n{}", report.to_text());
    let theirs = images.scratch().join("theirs.img");
    sparse_copy(crashed, &theirs);
    let theirs = through_linux(images, &theirs);
    crate::restored::assert_restored(what, crashed, &theirs, without_times);
    let filesystem = open(&ours, true);
    let found = without_times(Manifest::of_library(&filesystem));
    close(filesystem);
    theirs.assert_same(&format!("{what}: Linux"), &found, "the library", Depth::Copy);
    check(crashed);
    let again = through_linux(images, crashed);
    found.assert_same(&format!("{what}: the library"), &again, "Linux afterwards", Depth::Copy);
    found
}

fn logs_of(cases: &[Case]) {
    if !has_linux_btrfs() {
        return;
    }
    let mut committed = Vec::new();
    for case in cases {
        let (images, crashed) = crash(case);
        let device = buttress_block::FileDevice::open(&crashed, buttress_block::OpenOptions::READ)
            .expect("an image");
        let superblock = buttress_volume::Volume::read_superblock(&device).expect("a superblock");
        if superblock.log_root.0 == 0 {
            committed.push(case.name);
        }
        drop(device);
        replay(case.name, &images, &crashed);
    }
    // If a log is hard to write, Linux commits instead. The affected cases depend on the version of
    // Linux.
    assert!(committed.len() <= 2, "Linux wrote no log for {committed:?}");
}

#[test]
pub(crate) fn logs_of_linux() {
    logs_of(&CASES[..CASES.len() / 2]);
}

#[test]
pub(crate) fn more_logs_of_linux() {
    logs_of(&CASES[CASES.len() / 2..]);
}

/// A case of ours: a script (see [`perform`]). Its first part is committed, and its second part has
/// fsyncs.
struct Script {
    name: &'static str,
    mkfs: &'static [&'static str],
    before: &'static str,
    after: &'static str,
    /// Paths that must be unchanged after the crash. `gone` has the paths that must not exist.
    kept: &'static str,
    gone: &'static str,
    /// The changes that a log cannot express, for which an fsync commits instead. A later fsync of
    /// the script writes a log in any case.
    commits: &'static str,
}

const PLAIN: Script =
    Script { name: "", mkfs: &[], before: "", after: "", kept: "", gone: "", commits: "" };

const SCRIPTS: &[Script] = &[
    Script {
        name: "overwrite, append, extend over a hole",
        before: "write f 0 1000000; write g 0 5000; write h 0 100",
        after: "write f 8192 4096; write f 500000 70000; sync f; write f 12288 4096; sync f; \
                write g 5000 6000; sync g; write g 300000 10; sync g; write h 100 5000; sync h; \
                write f 0 100",
        kept: "g h",
        ..PLAIN
    },
    Script {
        name: "shorter, longer, holes",
        before: "write f 0 1000000; write g 0 1000000; write h 0 1000000; write i 0 400000",
        after: "cut f 100; sync f; cut f 1000000; sync f; punch g 65536 200000; sync g; \
                write g 70000 4096; sync g; punch g 60000 30000; sync g; cut h 0; sync h; \
                write h 0 300000; sync h; cut i 200000; sync i; write i 390000 5; sync i",
        kept: "f g h i",
        ..PLAIN
    },
    Script {
        name: "shorter, longer, holes that have items",
        mkfs: &["-O", "^no-holes"],
        before: "write f 0 1000000; write g 0 1000000; write h 0 1000000",
        after: "cut f 100; sync f; cut f 1000000; sync f; punch g 65536 200000; sync g; \
                write g 70000 4096; sync g; cut h 0; sync h; cut h 50000; write h 90000 7; sync h",
        kept: "f g h",
        ..PLAIN
    },
    Script {
        name: "space set aside",
        before: "write f 0 100000; keep g 0 1000000; write g 0 10",
        after: "keep f 90000 1000000; sync f; write f 200000 5000; sync f; write g 8192 8192; \
                sync g; cut f 150000; sync f; keep f 100000 3000000; write f 180000 100; sync f; \
                alloc h 0 500000; sync h; write h 4096 4096; sync h",
        kept: "f g h",
        ..PLAIN
    },
    Script {
        name: "attributes",
        before: "write f 0 10; set f user.a 1; set f user.b 2; mkdir d; set d user.d 3",
        after: "unset f user.a; set f user.c 3; set f user.b changed; sync f; unset f user.c; sync f; \
                unset d user.d; sync d; mode f 600; sync f",
        kept: "f d",
        ..PLAIN
    },
    Script {
        name: "a new file, its folders, its neighbours",
        before: "mkdir a; write a/old 0 10",
        after: "mkdir a/b; mkdir a/b/c; write a/b/c/f 0 100000; sync a/b/c/f; write a/b/lost 0 10; \
                write a/g 0 10; sync a/g; link a/g a/b/g; sync a/g",
        kept: "a/b/c/f a/g a/b/g a/old",
        gone: "a/b/lost",
        ..PLAIN
    },
    Script {
        name: "as editors save",
        before: "mkdir d; write d/text 0 5000",
        after: "write d/text~ 0 6000; sync d/text~; mv d/text~ d/text; sync d; \
                write d/#1 0 7000; sync d/#1; mv d/#1 d/text; sync d/text",
        kept: "d/text",
        gone: "d/text~ d/#1",
        ..PLAIN
    },
    Script {
        name: "a new name for an old file",
        before: "mkdir d e; write d/f 0 5000; write d/g 0 5000; write d/h 0 10",
        after: "link d/f e/f; sync d/f; mv d/g d/h; sync d/h; mv d/f d/k; sync d/k",
        kept: "e/f d/h d/k",
        gone: "d/g d/f",
        ..PLAIN
    },
    Script {
        name: "the same name again",
        before: "mkdir d; write d/f 0 5000; write d/g 0 10; link d/g d/gg",
        after: "rm d/f; write d/f 0 100; sync d/f; rm d/g; write d/g 0 200; sync d/g; \
                rm d/f; write d/f 0 300; sync d/f",
        kept: "d/f d/g d/gg",
        ..PLAIN
    },
    Script {
        name: "names in a circle",
        before: "mkdir d; write d/a 0 1; write d/b 0 2; write d/c 0 3",
        after: "mv d/a d/t; mv d/b d/a; mv d/c d/b; mv d/t d/c; sync d/a; \
                swap d/a d/b; sync d/b; write d/new 0 4; mv d/c d/old; mv d/new d/c; sync d/c",
        kept: "d/a d/b d/c",
        ..PLAIN
    },
    Script {
        name: "to another folder",
        before: "mkdir d e; write d/a 0 1; write d/b 0 2; write d/c 0 3; link d/c d/cc",
        after: "mv d/a e/a; sync e/a; mv d/b e/b; sync d; mv d/c e/c; sync e; write d/b 0 9; sync d/b",
        kept: "e/a e/b e/c d/cc d/b",
        gone: "d/a d/c",
        ..PLAIN
    },
    Script {
        name: "a folder synced",
        before: "mkdir d; mkdir d/gone; write d/a 0 1; write d/b 0 2; write d/c 0 3; write k 0 4",
        after: "write d/new 0 5000; mkdir d/sub; write d/sub/f 0 5; rm d/a; rmdir d/gone; mv d/b d/bb; \
                link k d/k; symlink d/s target; sync d; write d/more 0 1; rm d/c; sync d; \
                rm d/new; write d/new 0 1; sync d/new",
        kept: "d/bb d/k d/s d/new k",
        gone: "d/a d/gone d/b d/c",
        ..PLAIN
    },
    Script {
        name: "synced, then renamed, then in the way",
        before: "mkdir d",
        after: "write d/a 0 1000; sync d/a; mv d/a d/b; write d/a 0 2000; sync d/a; \
                mv d/b d/c; mv d/a d/b; write d/a 0 3000; sync d/a",
        kept: "d/a d/b d/c",
        ..PLAIN
    },
    Script {
        name: "gone again",
        before: "mkdir d; write d/k 0 10",
        after: "write d/a 0 100000; sync d/a; rm d/a; write d/b 0 200000; sync d/b; \
                write d/k 0 50000; sync d/k; cut d/k 0; write d/k 0 60000; sync d/k",
        kept: "d/b d/k",
        gone: "d/a",
        ..PLAIN
    },
    Script {
        name: "a folder that moved",
        before: "mkdir d e; write d/f 0 1",
        after: "mv d e/d; write e/d/g 0 5; sync e/d; write e/d/h 0 6; sync e/d/h",
        kept: "e/d/f e/d/h",
        gone: "d",
        commits: "moved_directory",
        ..PLAIN
    },
    Script {
        name: "many",
        before: "mkdir d; write f 0 9000000",
        after: "many d 120; scatter f 700; sync f; scatter f 300; sync f",
        kept: "f d/0 d/119",
        ..PLAIN
    },
    Script {
        name: "more names than one item holds",
        mkfs: &["-n", "4096"],
        before: "mkdir d; write d/f 0 5000; links d/f d/n 0 40",
        after: "links d/f d/n 40 60; rm d/n3; rm d/n38; mv d/n39 d/moved; sync d/f; rm d/n45; \
                links d/f d/m 0 3; sync d/f; rm d/n50; write d/n50 0 10; sync d/n50",
        kept: "d/f d/n0 d/n37 d/n44 d/m2 d/moved d/n50",
        gone: "d/n3 d/n38 d/n39 d/n45",
        ..PLAIN
    },
    Script {
        name: "written in place",
        before: "write a 0 0; flag a C; write a 0 200000; keep a 0 400000; write k 0 5; flag b C",
        after: "write a 8192 4096; sync a; write a 300000 8192; sync a; write a 100 50; sync a; \
                cut a 310000; sync a; write b 0 70000; sync b; write b 4096 4096; sync b",
        kept: "a b",
        ..PLAIN
    },
    Script {
        name: "compressed, shown twice",
        before: "flag p c; text p 0 300000; write w 0 200000; write x 0 100000",
        after: "text p 131072 50000; sync p; clone p 0 q 0 131072; sync q; clone w 65536 x 4096 65536; \
                sync x; write w 65536 4096; sync w; clone x 0 w 0 8192; sync w; flag r c; text r 0 900; sync r",
        kept: "p q w x r",
        ..PLAIN
    },
    Script {
        name: "shown by another, written where it was set aside before",
        before: "alloc f 0 200000",
        after: "write f 8192 8192; clone f 8192 g 0 8192; sync g; write h 0 100; sync h",
        kept: "g h",
        commits: "shared_preallocation",
        ..PLAIN
    },
    Script {
        name: "shown by another, written where it was synced as set aside",
        before: "write e 0 10",
        after: "alloc f 0 200000; sync f; write f 8192 8192; clone f 8192 g 0 8192; sync g; write h 0 100; sync h",
        kept: "g h",
        commits: "shared_preallocation",
        ..PLAIN
    },
    Script {
        name: "made without a name",
        before: "mkdir d; write d/old 0 100",
        after: "unnamed d/f 60000; sync d/f; unnamed d/g 10; sync d; write d/g 0 20; mv d/g d/old; sync d/old",
        kept: "d/f d/old",
        gone: "d/g",
        ..PLAIN
    },
    Script {
        name: "synced, then gone or replaced by what no call syncs",
        before: "mkdir d; write d/k 0 100; write d/c 0 5000; write d/e 0 5000; link d/e d/ee",
        after: "write d/a 0 5000; sync d/a; write d/new 0 6000; mv d/new d/a; write d/c 0 9; sync d/c; rm d/c; \
                write d/e 0 70; sync d/e; write d/new 0 80; mv d/new d/e; write d/x 0 8; sync d/x; rm d/x; \
                write d/k 0 50; sync d/k",
        kept: "d/k d/ee",
        gone: "d/c d/x d/new",
        ..PLAIN
    },
    Script {
        name: "a log of three levels that grows and shrinks",
        mkfs: &["-n", "4096"],
        before: "write f 0 100000; mkdir a b c",
        after: "many a 600 1500; many b 600 1500; scatter f 300; sync f; prune a 100 500; sync a; many c 600 1500; sync c; \
                prune b 0 590; sync b; write a/100 0 1000; sync a/100",
        kept: "f a/0 a/99 a/100 a/500 a/599 b/590 b/599 c/0 c/300 c/599",
        gone: "a/101 a/499 b/0 b/589",
        ..PLAIN
    },
    Script {
        name: "packages unpacked over old ones",
        before: "mkdir u; mkdir u/b; many u/b 20; mkdir v",
        after: "write u/b/0.new 0 9000; sync u/b/0.new; link u/b/0 u/b/0.old; mv u/b/0.new u/b/0; rm u/b/0.old; \
                write u/b/1.new 0 100; sync u/b/1.new; mv u/b/1.new u/b/1; mv u/b/2 v/2; write u/b/2 0 50; \
                sync u/b; sync v; rm u/b/3; mkdir u/b/3; write u/b/3/f 0 7; sync u/b/3/f; swap u/b/4 u/b/5; \
                sync u/b/4; sync u/b",
        kept: "u/b/0 u/b/1 v/2 u/b/3/f u/b/19",
        gone: "u/b/0.new u/b/1.new u/b/0.old",
        ..PLAIN
    },
];

fn split(path: &str) -> (&str, &[u8]) {
    let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
    (dir, name.as_bytes())
}

/// Runs one script: commands separated by semicolons, paths from the top.
fn perform(fs: &buttress_fs::Filesystem, script: &str) {
    for (index, command) in script.split(';').map(str::trim).enumerate() {
        if !command.is_empty() {
            one(fs, command, index as u64);
        }
    }
}

fn one(fs: &buttress_fs::Filesystem, command: &str, seed: u64) {
    use buttress_fs::{FallocateMode, RenameFlags, SetAttr, XattrFlags};
    let words: Vec<&str> = command.split_whitespace().collect();
    let number = |index: usize| words[index].parse::<u64>().expect("a number");
    let at = |index: usize| fs.resolve(words[index]).unwrap_or_else(|e| panic!("{command}: {e}"));
    let dir = |index: usize| fs.resolve(split(words[index]).0).expect("a folder");
    let name = |index: usize| split(words[index]).1;
    let file = |index: usize| {
        fs.resolve(words[index])
            .or_else(|_| dir(index).create(name(index), NewInode::file(0o644)))
            .unwrap_or_else(|e| panic!("{command}: {e}"))
    };
    let random = |len: u64, seed: u64| {
        let mut data = vec![0; len as usize];
        buttress_base::Rng::new(seed * 1000 + len).fill(&mut data);
        data
    };
    let outcome = match words[0] {
        "write" => file(1).write_at(number(2), &random(number(3), seed)).map(drop),
        "cut" => {
            let set = SetAttr { size: Some(number(2)), ..SetAttr::default() };
            at(1).set_attr(&set).map(drop)
        }
        "mode" => {
            let mode = u32::from_str_radix(words[2], 8).expect("a mode");
            at(1).set_attr(&SetAttr { mode: Some(mode), ..SetAttr::default() }).map(drop)
        }
        "punch" => at(1).fallocate(number(2), number(3), FallocateMode::PunchHole),
        "keep" | "alloc" => {
            let how = FallocateMode::Allocate { keep_size: words[0] == "keep" };
            file(1).fallocate(number(2), number(3), how)
        }
        "set" => at(1).set_xattr(words[2].as_bytes(), words[3].as_bytes(), XattrFlags::default()),
        "unset" => at(1).remove_xattr(words[2].as_bytes()),
        "mkdir" => (1..words.len()).try_for_each(|i| dir(i).mkdir(name(i), 0o755, 0, 0).map(drop)),
        "symlink" => dir(1).symlink(name(1), words[2].as_bytes(), 0, 0).map(drop),
        "link" => dir(2).link(&at(1), name(2)),
        "rm" => dir(1).unlink(name(1)),
        "rmdir" => dir(1).rmdir(name(1)),
        "mv" => dir(1).rename(name(1), &dir(2), name(2), RenameFlags::default()),
        "swap" => {
            let flags = RenameFlags { exchange: true, ..RenameFlags::default() };
            dir(1).rename(name(1), &dir(2), name(2), flags)
        }
        "sync" => at(1).sync(),
        "flag" => file(1).set_flags(match words[2] {
            "C" => buttress_fs::InodeFlags::NODATACOW,
            _ => buttress_fs::InodeFlags::COMPRESS,
        }),
        "text" => {
            let text: Vec<u8> = (0..number(3)).map(|i| (i / 50 % 26) as u8 + b'a').collect();
            file(1).write_at(number(2), &text).map(drop)
        }
        "clone" => at(1).clone_range(number(2), &file(3), number(4), number(5)),
        "unnamed" => dir(1).tmpfile(0o644, 0, 0).and_then(|unnamed| {
            unnamed.write_at(0, &random(number(2), seed))?;
            unnamed.sync()?;
            dir(1).link(&unnamed, name(1))
        }),
        // Makes links with long names, which begin with the short names.
        "links" => (number(3)..number(4)).try_for_each(|i| {
            let short = format!("{}{i}", split(words[2]).1.escape_ascii());
            let long = format!("{short:-<200}");
            dir(2).link(&at(1), long.as_bytes())?;
            dir(2).link(&at(1), short.as_bytes())
        }),
        "many" => (0..number(2)).try_for_each(|i| {
            let file = at(1).create(i.to_string().as_bytes(), NewInode::file(0o644))?;
            let len = words.get(3).map_or(i * 150 + 1, |_| number(3));
            file.write_at(0, &random(len, seed))?;
            file.sync()
        }),
        "prune" => (number(2)..number(3)).try_for_each(|i| at(1).unlink(i.to_string().as_bytes())),
        "scatter" => (0..number(2)).try_for_each(|i| {
            let sector = (i * 7919 + seed) % 2000;
            let file = at(1);
            file.write_at(sector * 4096, &random(4096, i))?;
            if i % 20 == 0 { file.sync() } else { Ok(()) }
        }),
        other => panic!("no such command: {other}"),
    };
    outcome.unwrap_or_else(|error| panic!("{command}: {error}"));
}

/// Data that the library synced is there after a crash, for each of the two replays of its log.
#[test]
pub(crate) fn logs_of_ours() {
    if !has_linux_btrfs() {
        return;
    }
    for script in SCRIPTS {
        let images = Images::new(1, 512 << 20);
        images.mkfs(script.mkfs);
        let filesystem = crate::open::open_with(images.paths(), "rw,noatime,commit=3000");
        perform(&filesystem, script.before);
        filesystem.sync().expect("a commit");
        perform(&filesystem, script.after);
        let crashed = images.scratch().join("crashed.img");
        sparse_copy(images.path(), &crashed);
        let live = without_times(Manifest::of_library(&filesystem));
        let commits = filesystem.sync_stats().commits;
        let commits: Vec<_> = commits.into_keys().map(|reason| reason.name()).collect();
        assert_eq!(commits.join(", "), script.commits, "{}", script.name);
        close(filesystem);
        let device = buttress_block::FileDevice::open(&crashed, buttress_block::OpenOptions::READ)
            .expect("an image");
        let superblock = buttress_volume::Volume::read_superblock(&device).expect("a superblock");
        drop(device);
        let name = script.name;
        assert_ne!(superblock.log_root.0, 0, "{name}: a log");
        let found = replay(name, &images, &crashed);
        for path in script.kept.split_whitespace().map(str::as_bytes) {
            let (was, is) = (live.entries.get(path), found.entries.get(path));
            let path = String::from_utf8_lossy(path);
            let (Some(was), Some(is)) = (was, is) else {
                panic!("{name}: {path} was {was:?} and is {is:?}");
            };
            assert_eq!(was.content, is.content, "{name}: content of {path}");
            assert_eq!((was.size, was.mode), (is.size, is.mode), "{name}: {path}");
            assert_eq!(was.xattrs, is.xattrs, "{name}: attributes of {path}");
            assert_eq!(was.target, is.target, "{name}: {path}");
        }
        for path in script.gone.split_whitespace().map(str::as_bytes) {
            let there = found.entries.contains_key(path);
            assert!(!there, "{name}: {} came back", String::from_utf8_lossy(path));
        }
    }
}
