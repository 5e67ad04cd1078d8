//! The work of each side with a feature, besides the sample that fills every volume. Linux works in
//! a folder `there`, and we work in a folder `here`. Each side also uses the files that the other
//! side left.

use buttress_format::{DeviceId, Profile};
use buttress_fs::{
    BalanceOptions, Codec, Defragment, FallocateMode, Filesystem, Filter, Inode, InodeFlags,
    NewInode, XattrFlags,
};
use buttress_interop::linux::Mount;
use buttress_interop::sample::{noise, words};

use crate::open::drop_all;

/// A new folder of ours.
fn folder(filesystem: &Filesystem) -> Inode {
    filesystem.root().mkdir(b"here", 0o755, 0, 0).expect("a folder")
}

fn file(dir: &Inode, name: &str, content: &[u8]) -> Inode {
    let file = dir.create(name.as_bytes(), NewInode::file(0o644)).expect("a file");
    file.write_at(0, content).expect("a write");
    file
}

fn at(filesystem: &Filesystem, path: &str) -> Inode {
    filesystem.resolve(path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Clones a whole file.
fn clone_of(source: &Inode, dir: &Inode, name: &str) -> Inode {
    let target = file(dir, name, b"");
    source.clone_range(0, &target, 0, 0).expect("a clone");
    target
}

pub(super) fn compress_there(mount: &Mount) {
    mount.shell(
        "mkdir there
         for kind in zlib lzo zstd; do
             mkdir there/$kind; btrfs property set there/$kind compression $kind
             cp big/words big/zeros holes/comb there/$kind; cp -r small/d000 there/$kind/small
         done
         sync
         cp --reflink=always there/zstd/words there/zstd/shared
         dd if=/dev/urandom of=there/zstd/words bs=1000 count=50 seek=333 conv=notrunc status=none
         fallocate --punch-hole --offset 300000 --length 70000 there/lzo/words
         truncate -s 1000001 there/zlib/words; truncate -s 2000001 there/zlib/words
         for kind in zlib lzo zstd; do
             btrfs filesystem defragment -c$kind big/backwards > /dev/null; sync
             dd if=big/noise of=big/backwards bs=4096 count=3 seek=10 conv=notrunc status=none
         done",
    );
}

pub(super) fn compress_here(filesystem: &Filesystem) {
    let here = folder(filesystem);
    for (number, name) in ["zlib", "lzo", "zstd"].into_iter().enumerate() {
        let dir = here.mkdir(name.as_bytes(), 0o755, 0, 0).expect("a folder");
        let flags = XattrFlags::default();
        dir.set_xattr(b"btrfs.compression", name.as_bytes(), flags).expect("a property");
        let text = words(number as u64, 1_500_000);
        let long = file(&dir, "words", &text);
        file(&dir, "inline", &text[..1800]);
        let noisy = file(&dir, "noise", &noise(number as u64, 300_000));
        filesystem.sync().expect("a sync");
        let shared = clone_of(&long, &dir, "shared");
        shared.write_at(333_333, &noise(1, 5000)).expect("a write");
        long.fallocate(300_000, 70_000, FallocateMode::PunchHole).expect("a hole");
        noisy.write_at(1000, &text[..200_000]).expect("a write");
        filesystem.sync().expect("a sync");
        let how = Defragment { codec: Codec::parse(name), ..Defragment::default() };
        noisy.defragment(0..u64::MAX, &how).expect("a defragmentation");
    }
}

pub(super) fn reflink_there(mount: &Mount) {
    mount.shell(
        "mkdir there; sync
         for number in $(seq 20); do cp --reflink=always big/noise there/$number; done
         for number in $(seq 10); do
             dd if=/dev/urandom of=there/$number bs=5000 count=3 seek=$((number * 7)) \
                 conv=notrunc status=none
         done
         rm there/1?; sync
         cp --reflink=always small/d001/* there/
         if [ -d here ]; then cp --reflink=always here/a there/from-here; rm here/a; fi",
    );
}

pub(super) fn reflink_here(filesystem: &Filesystem) {
    let here = folder(filesystem);
    let source = at(filesystem, "big/noise");
    for number in 0..8 {
        let clone = clone_of(&source, &here, &number.to_string());
        clone.write_at(number * 30_000, &noise(number, 7000)).expect("a write");
    }
    let content = noise(99, 1 << 20);
    let (a, b) = (file(&here, "a", &content), file(&here, "b", &content));
    filesystem.sync().expect("a sync");
    assert!(a.dedupe_range(0, &b, 0, 1 << 20).expect("a comparison"));
    b.write_at(0, &words(1, 4096)).expect("a write");
    filesystem.sync().expect("a sync");
    assert!(!a.dedupe_range(0, &b, 0, 8192).expect("a comparison"));
    here.unlink(b"3").expect("it goes");
    if let Ok(theirs) = filesystem.resolve("there/1") {
        clone_of(&theirs, &here, "from there");
        at(filesystem, "there").unlink(b"2").expect("it goes");
    }
}

/// Shared files with ranges that are allocated, zeroed, punched and cut.
pub(super) fn allocate_shared_there(mount: &Mount) {
    mount.shell(
        "mkdir there; sync
         for number in 1 2 3; do cp --reflink=always big/noise there/$number; done
         fallocate --keep-size --offset 100000 --length 500000 there/1
         fallocate --zero-range --offset 4096 --length 123456 there/2
         fallocate --punch-hole --offset 200001 --length 300000 there/3
         truncate -s 1234567 there/3; sync; fallocate --offset 1000000 --length 3000000 there/3",
    );
}

pub(super) fn allocate_shared_here(filesystem: &Filesystem) {
    let here = folder(filesystem);
    let source = at(filesystem, "big/noise");
    let clones: Vec<Inode> =
        (0..3).map(|number| clone_of(&source, &here, &format!("clone {number}"))).collect();
    let keep = FallocateMode::Allocate { keep_size: true };
    clones[0].fallocate(100_000, 500_000, keep).expect("space");
    let zero = FallocateMode::ZeroRange { keep_size: false };
    clones[1].fallocate(4096, 123_456, zero).expect("zeros");
    clones[2].fallocate(200_001, 300_000, FallocateMode::PunchHole).expect("a hole");
    clones[2].write_at(250_000, &words(4, 60_000)).expect("a write");
}

pub(super) fn in_place_there(mount: &Mount) {
    mount.shell(
        "mkdir there; chattr +C there
         cp big/noise there/file; sync
         dd if=/dev/urandom of=there/file bs=4000 count=100 seek=20 conv=notrunc status=none
         fallocate -l 3M there/allocated; sync
         dd if=/dev/urandom of=there/allocated bs=4k count=10 seek=99 conv=notrunc status=none
         cp -r small/d002 there/small
         if [ -d here ]; then
             dd if=/dev/urandom of=here/file bs=4000 count=100 seek=20 conv=notrunc status=none
         fi",
    );
}

pub(super) fn in_place_here(filesystem: &Filesystem) {
    let here = folder(filesystem);
    here.set_flags(InodeFlags::NODATACOW).expect("flags");
    let made = file(&here, "file", &noise(5, 1_000_000));
    filesystem.sync().expect("a sync");
    made.write_at(77_777, &noise(6, 400_000)).expect("a write");
    let allocated = file(&here, "allocated", b"");
    let mode = FallocateMode::Allocate { keep_size: false };
    allocated.fallocate(0, 3 << 20, mode).expect("space");
    allocated.write_at(99 * 4096, &noise(7, 40_960)).expect("a write");
    // The file is now shared, so a write to it is copied once more.
    clone_of(&made, &here, "clone").write_at(0, &words(7, 50_000)).expect("a write");
    made.write_at(1000, &noise(8, 100_000)).expect("a write");
    if let Ok(theirs) = filesystem.resolve("there/file") {
        theirs.write_at(200_000, &noise(9, 50_000)).expect("a write");
    }
}

pub(super) fn flags_there(mount: &Mount) {
    mount.shell(
        "mkdir there; for flag in a i c C S d A; do echo $flag > there/$flag; done
         mkdir there/folder; chattr +c there/folder; cp big/words there/folder/
         truncate -s 0 there/C
         for flag in c C S d A a i; do chattr +$flag there/$flag; done",
    );
}

pub(super) fn flags_here(filesystem: &Filesystem) {
    let here = folder(filesystem);
    let flags = [
        ("append", InodeFlags::APPEND),
        ("immutable", InodeFlags::IMMUTABLE),
        ("compress", InodeFlags::COMPRESS),
        ("nocow", InodeFlags::NODATACOW),
        ("sync", InodeFlags::SYNC),
        ("nodump", InodeFlags::NODUMP),
        ("noatime", InodeFlags::NOATIME),
    ];
    for (name, flag) in flags {
        let made = file(&here, name, b"");
        if flag != InodeFlags::IMMUTABLE {
            made.set_flags(flag).expect("flags");
            made.write_at(0, &words(flag, 10_000)).expect("a write");
        } else {
            made.write_at(0, b"before").expect("a write");
            made.set_flags(flag).expect("flags");
            assert!(made.write_at(0, b"after").is_err(), "immutable");
        }
    }
    if let Ok(theirs) = filesystem.resolve("there/i") {
        assert!(theirs.write_at(0, b"after").is_err(), "immutable");
        at(filesystem, "there/a").write_at(2, b"more\n").expect("at its end");
    }
}

pub(super) fn defragment_there(mount: &Mount) {
    mount.shell("btrfs filesystem defragment -r big holes; sync");
}

pub(super) fn defragment_here(filesystem: &Filesystem) {
    for path in ["big/backwards", "big/noise", "holes/comb"] {
        let how = Defragment::default();
        at(filesystem, path).defragment(0..u64::MAX, &how).expect("a defragmentation");
    }
}

pub(super) fn nest_there(mount: &Mount) {
    mount.shell(
        "mkdir there; cd there; btrfs -q subvolume create sub; btrfs -q subvolume create sub/within
         mkdir -p sub/within/deep/down; btrfs -q subvolume create sub/within/deep/down/lowest
         for at in sub sub/within sub/within/deep/down/lowest; do cp -a ../small ../links $at/; done
         btrfs -q subvolume create gone; cp -a ../small gone/; sync; btrfs -q subvolume delete gone
         if [ -d ../here ]; then
             btrfs -q subvolume delete ../here/sub/within/down/lowest ../here/sub/within; echo there > ../here/sub/file
         fi",
    );
}

/// A new subvolume with some files.
fn subvolume(dir: &Inode, name: &str) -> Inode {
    let made = dir.create_subvolume(name.as_bytes(), 0o755, 0, 0).expect("a subvolume");
    for number in 0..40 {
        file(&made, &format!("file {number}"), &noise(number, (number * 777) as usize));
    }
    made
}

pub(super) fn nest_here(filesystem: &Filesystem) {
    let here = folder(filesystem);
    let sub = subvolume(&here, "sub");
    let within = subvolume(&sub, "within");
    let down = within.mkdir(b"down", 0o700, 1, 2).expect("a folder");
    drop(subvolume(&down, "lowest"));
    drop(subvolume(&here, "gone"));
    here.delete_subvolume(b"gone").expect("a deletion");
    if filesystem.resolve("there").is_ok() {
        let down = at(filesystem, "there/sub/within/deep/down");
        down.delete_subvolume(b"lowest").expect("a deletion");
        file(&at(filesystem, "there/sub/within"), "here", b"here");
    }
    drop((sub, within, down));
    drop_all(filesystem);
}

pub(super) fn snapshot_there(mount: &Mount) {
    nest_there(mount);
    mount.shell(
        "cd there; btrfs -q subvolume snapshot sub writable
         btrfs -q subvolume snapshot -r sub read-only
         btrfs -q subvolume snapshot .. whole
         rm -r writable/small/d00[0-2]; echo changed > writable/small/d007/new
         rm sub/small/d005/*; cp -a small/d003 sub/small/d005/ 2>/dev/null || cp -a sub/small/d003 sub/small/d005/
         for number in $(seq 12); do
             btrfs -q subvolume snapshot whole generation-$number
             echo $number > whole/generation; rm whole/small/d00$((number % 8))/file-000$((number % 10)).*
         done
         btrfs -q subvolume delete generation-3 generation-7 > /dev/null
         if [ -d ../here/copy ]; then
             echo there > ../here/copy/file; btrfs -q subvolume delete ../here/older
             btrfs -q subvolume snapshot ../here/frozen thawed; echo there > thawed/there
         fi
         sync",
    );
}

pub(super) fn snapshot_here(filesystem: &Filesystem) {
    nest_here(filesystem);
    let here = at(filesystem, "here");
    let sub = at(filesystem, "here/sub");
    let copy = |source: &Inode, name: &str, read_only| {
        here.snapshot(name.as_bytes(), source.id().tree, read_only).expect("a snapshot")
    };
    drop(copy(&sub, "older", false));
    for number in 0..12 {
        drop(copy(&sub, &format!("generation {number}"), number % 2 == 0));
        let name = format!("file {}", number * 3);
        sub.unlink(name.as_bytes()).expect("it goes");
        file(&sub, &format!("new {number}"), &noise(number, 30_000));
    }
    let changed = copy(&sub, "copy", false);
    file(&changed, "only in the copy", &words(1, 100_000));
    drop(copy(&changed, "frozen", true));
    here.delete_subvolume(b"generation 4").expect("a deletion");
    here.delete_subvolume(b"generation 7").expect("a deletion");
    if let Ok(theirs) = filesystem.resolve("there/writable") {
        file(&theirs, "here", &noise(3, 9000));
        drop(copy(&theirs, "of theirs", false));
        at(filesystem, "there").delete_subvolume(b"whole").expect("a deletion");
        file(&at(filesystem, "there/generation-5/small"), "here", b"here");
    }
    drop((sub, changed));
    drop_all(filesystem);
}

pub(super) fn default_there(mount: &Mount) {
    mount.shell(
        "btrfs -q subvolume create there; cp -a --sparse=always [a-s]* times there/
         btrfs subvolume set-default there",
    );
}

pub(super) fn default_here(filesystem: &Filesystem) {
    // If Linux has set a default subvolume, the mount now shows that subvolume, which has the whole
    // sample.
    let made = subvolume(&filesystem.root(), "here");
    for name in ["big", "holes", "links", "small", "times"] {
        let target = made.mkdir(name.as_bytes(), 0o755, 0, 0).expect("a folder");
        file(&target, "file", name.as_bytes());
    }
    filesystem.set_default_subvolume(made.id().tree).expect("another default");
    let top = filesystem.root().id().tree;
    filesystem.set_default_subvolume(top).expect("the old default");
}

pub(super) fn quotas_there(mount: &Mount) {
    mount.btrfs("quota enable");
    mount.shell("btrfs -q subvolume create there; cp -a small there/; sync");
}

pub(super) fn quotas_here(filesystem: &Filesystem) {
    drop(subvolume(&filesystem.root(), "here"));
}

pub(super) fn balance_there(mount: &Mount) {
    mount.btrfs("balance start --full-balance");
}

pub(super) fn balance_here(filesystem: &Filesystem) {
    filesystem.balance(&BalanceOptions::full(), &mut |_| true).expect("a balance");
}

pub(super) fn convert_there(mount: &Mount) {
    // The new chunks go to the same device, because only the profile changes.
    mount.btrfs("balance start -f -mconvert=single -sconvert=single");
    mount.shell("cp -a small there");
}

pub(super) fn convert_here(filesystem: &Filesystem) {
    let filter = Some(Filter { convert: Some(Profile::Dup), soft: true, ..Filter::default() });
    let options = BalanceOptions { metadata: filter.clone(), system: filter.clone(), data: filter };
    filesystem.balance(&options, &mut |_| true).expect("a balance");
}

pub(super) fn resize_there(mount: &Mount) {
    mount.btrfs("filesystem resize 700m");
    mount.btrfs("filesystem resize 900m");
}

pub(super) fn resize_here(filesystem: &Filesystem) {
    for mib in [600, 1000] {
        filesystem.resize_device(DeviceId(1), mib << 20, &mut |_| true).expect("another size");
    }
}
