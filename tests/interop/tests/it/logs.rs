//! Logs that Linux left are replayed as Linux replays them.
//!
//! Each case changes a committed volume through Linux and makes some of it durable with fsync; the image is
//! copied as a crash leaves it. Linux replays one copy, the library another: both must show the same.

use std::path::{Path, PathBuf};

use buttress_interop::linux::{Images, check, has_linux_btrfs};
use buttress_interop::manifest::{Depth, Manifest};

use crate::open::{close, open};

struct Case {
    name: &'static str,
    mkfs: &'static [&'static str],
    /// Made durable by a commit.
    before: &'static str,
    /// Made durable by fsync, as far as it is.
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
    std::fs::copy(images.path(), &crashed).expect("the image as a crash leaves it");
    mount.unmount();
    (images, crashed)
}

/// A folder's times say when its names were replayed; of a file that was there all along, when a name went.
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
    std::fs::copy(image, images.path()).expect("a copy for Linux");
    let mount = images.mount("");
    let manifest = without_times(Manifest::of_folder(mount.path()));
    mount.unmount();
    manifest
}

/// Both ways of replaying a crashed image lead to the same, and to a sound volume.
fn replay(what: &str, images: &Images, crashed: &Path) -> Manifest {
    let ours = [crashed.to_path_buf()];
    let theirs = images.scratch().join("theirs.img");
    std::fs::copy(crashed, &theirs).expect("a copy");
    let theirs = through_linux(images, &theirs);
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
    // Where a log is hard to write Linux commits; which cases those are depends on its version.
    assert!(committed.len() <= 2, "Linux wrote no log for {committed:?}");
}

#[test]
fn logs_of_linux() {
    logs_of(&CASES[..CASES.len() / 2]);
}

#[test]
fn more_logs_of_linux() {
    logs_of(&CASES[CASES.len() / 2..]);
}
