//! Limits of quotas: writers stay within the limits, and give back admitted bytes that they do not
//! need.

use std::sync::atomic::{AtomicBool, Ordering};

use buttress_fs::{
    ErrorKind, FallocateMode, Filesystem, Inode, InodeFlags, NewInode, QuotaGroup, QuotaLimit,
    Result, SetAttr,
};

use crate::checker::expect_sound;
use crate::volume::{memory, mount, mount_with, pattern};

const MIB: u64 = 1 << 20;
/// Bytes that the nodes of one commit may add.
const NODES: u64 = MIB;

fn limit(fs: &Filesystem, group: QuotaGroup, bytes: u64) {
    fs.limit_quota_group(group, |limit| {
        limit.flags |= QuotaLimit::REFERENCED;
        limit.referenced = bytes;
    })
    .expect("a limit");
}

fn used(fs: &Filesystem, group: QuotaGroup) -> u64 {
    let quotas = fs.quotas().expect("quotas").expect("they are on");
    quotas.group(group).expect("the group").info.referenced
}

/// A subvolume with a limit.
fn limited(fs: &Filesystem, name: &str, bytes: u64) -> Inode {
    let sub = fs.root().create_subvolume(name.as_bytes(), 0o755, 0, 0).expect("a subvolume");
    fs.sync().expect("a sync");
    limit(fs, QuotaGroup::of(sub.id().tree), bytes);
    sub
}

fn file(dir: &Inode, name: &str) -> Inode {
    dir.create(name.as_bytes(), NewInode::file(0o644)).expect("a file")
}

fn set_size(file: &Inode, size: u64) {
    file.set_attr(&SetAttr { size: Some(size), ..SetAttr::default() }).expect("a size");
}

#[track_caller]
fn expect_refused<T>(outcome: Result<T>) {
    match outcome {
        Ok(_) => panic!("it was not refused"),
        Err(error) => assert!(matches!(error.kind(), ErrorKind::Quota), "{error}"),
    }
}

/// Writes pieces at the end of a file until a limit refuses a piece.
fn fill(file: &Inode, piece: u64) -> Result<()> {
    let bytes = pattern(file.id().ino.0, piece as usize);
    for number in 0..1000 {
        let end = file.attr().size;
        if let Err(error) = file.write_at(end, &bytes) {
            assert!(matches!(error.kind(), ErrorKind::Quota), "{error}");
            return Ok(());
        }
        assert!(number < 999, "no limit is in the way");
    }
    Ok(())
}

/// A subvolume is limited by the groups that it will join, even before a commit makes the
/// subvolume's own group. At the limit, names of subvolumes are refused like names of files.
#[test]
fn a_new_subvolume_is_limited_at_once() {
    let device = memory(512);
    let fs = mount(&device);
    fs.enable_quotas(true).expect("quotas");
    let home = fs.root().create_subvolume(b"home", 0o755, 0, 0).expect("a subvolume");
    fs.sync().expect("a sync");
    let above = QuotaGroup(1 << 48 | 1);
    fs.make_quota_group(above).expect("a group");
    fs.join_quota_group(QuotaGroup::of(home.id().tree), above).expect("a membership");
    limit(&fs, above, 8 * MIB);
    // The limit is known from here on.
    file(&home, "first").write_at(0, b"a few bytes").expect("a write");
    let nested = home.create_subvolume(b"nested", 0o755, 0, 0).expect("a subvolume");
    let deep = nested.create_subvolume(b"deep", 0o755, 0, 0).expect("a subvolume");
    let before = fs.view().generation();
    let large = file(&deep, "large");
    let mut written = 0;
    while written < 7 {
        large.write_at(written * MIB, &pattern(written, MIB as usize)).expect("a write");
        written += 1;
    }
    assert_eq!(fs.view().generation(), before, "the subvolumes are not committed");
    fill(&large, MIB).expect("a limit");
    fill(&large, 4096).expect("a limit");
    assert!(large.attr().size <= 8 * MIB, "{} bytes", large.attr().size);
    expect_refused(home.create_subvolume(b"more", 0o755, 0, 0));
    expect_refused(home.snapshot(b"copy", home.id().tree, false));
    fs.sync().expect("a sync");
    assert!(used(&fs, above) <= 8 * MIB + NODES);
    drop((home, nested, deep, large));
    fs.close().expect("a close");
    expect_sound(&device);
}

/// At the limit, writes that need no new space are not refused: writes into allocated space, and
/// writes in place.
#[test]
fn writes_that_need_no_space_pass_the_limit() {
    let device = memory(512);
    let fs = mount(&device);
    fs.enable_quotas(true).expect("quotas");
    let sub = limited(&fs, "sub", 8 * MIB);
    let over = file(&sub, "over");
    let flags = Some(InodeFlags::NODATACOW);
    over.set_attr(&SetAttr { flags, ..SetAttr::default() }).expect("flags");
    over.write_at(0, &pattern(1, MIB as usize)).expect("a write");
    over.flush_data().expect("a write");
    let aside = file(&sub, "aside");
    let keep = FallocateMode::Allocate { keep_size: false };
    aside.fallocate(0, 6 * MIB, keep).expect("space");
    fs.sync().expect("a sync");
    let rest = file(&sub, "rest");
    fill(&rest, 65536).expect("a limit");
    fill(&rest, 4096).expect("a limit");
    expect_refused(rest.write_at(rest.attr().size, &pattern(1, 65536)));
    expect_refused(aside.fallocate(6 * MIB, MIB, keep));
    // Data that was written into allocated space is copied when it is overwritten.
    for (target, direct, small) in [(&over, 0, 4096), (&aside, 2 * MIB, 3 * MIB)] {
        target.write_at(0, &pattern(2, MIB as usize)).expect("it needs no space");
        target.flush_data().expect("a write");
        target.write_direct(direct, &pattern(3, 65536)).expect("it needs no space");
        target.write_at(small, &pattern(4, 4096)).expect("it needs no space");
    }
    fs.sync().expect("a sync");
    assert!(used(&fs, QuotaGroup::of(sub.id().tree)) <= 8 * MIB + NODES);
    drop((sub, over, aside, rest));
    fs.close().expect("a close");
    expect_sound(&device);
}

/// Bytes for which a writer was admitted no longer count once their data is gone, even before a
/// commit.
#[test]
fn admitted_bytes_end_with_their_data() {
    let device = memory(1024);
    let fs = mount_with(&device, "rw,compress=zstd");
    fs.enable_quotas(true).expect("quotas");
    let sub = limited(&fs, "sub", 20 * MIB);
    let over = file(&sub, "over");
    let flags = Some(InodeFlags::NODATACOW);
    over.set_attr(&SetAttr { flags, ..SetAttr::default() }).expect("flags");
    over.write_at(0, &pattern(1, MIB as usize)).expect("a write");
    fs.sync().expect("a sync");
    let before = fs.view().generation();
    for round in 0..8 {
        // The file is removed while its data is dirty.
        let gone = file(&sub, &format!("gone-{round}"));
        gone.write_at(0, &pattern(round, 5 << 20)).expect("a write");
        gone.fallocate(MIB, 2 * MIB, FallocateMode::PunchHole).expect("a hole");
        set_size(&gone, 0);
        // These extents are freed in the transaction that made them.
        gone.write_at(0, &pattern(round, 3 << 20)).expect("a write");
        gone.flush_data().expect("a write");
        set_size(&gone, 0);
        // The data takes less space than it reserved.
        let packed = file(&sub, &format!("packed-{round}"));
        packed.write_at(0, &vec![round as u8; 5 << 20]).expect("a write");
        packed.flush_data().expect("a write");
        // This data becomes inline.
        file(&sub, &format!("small-{round}")).write_at(0, b"small").expect("a write");
        // This data is written in place.
        over.write_at(0, &pattern(round, MIB as usize)).expect("a write");
        over.flush_data().expect("a write");
        over.write_direct(0, &pattern(round, MIB as usize)).expect("a write");
    }
    // This file grows in steps, with space from its allocation window.
    let steps = file(&sub, "steps");
    for step in 0..200 {
        let keep = FallocateMode::Allocate { keep_size: false };
        steps.fallocate(step << 16, 1 << 16, keep).expect("a step");
    }
    assert_eq!(fs.view().generation(), before, "no writer was refused first");
    fs.sync().expect("a sync");
    assert!(used(&fs, QuotaGroup::of(sub.id().tree)) <= 20 * MIB);
    drop((sub, over, steps));
    fs.close().expect("a close");
    expect_sound(&device);
}

/// Writers of several subvolumes stay within the limit of the group above them. Some of their
/// writes are refused.
#[test]
fn writers_together_stay_within_a_limit() {
    let device = memory(512);
    let fs = mount(&device);
    fs.enable_quotas(true).expect("quotas");
    let above = QuotaGroup(1 << 48 | 1);
    fs.make_quota_group(above).expect("a group");
    let subs: Vec<Inode> = (0..3).map(|n| limited(&fs, &format!("sub-{n}"), 12 * MIB)).collect();
    for sub in &subs {
        fs.join_quota_group(QuotaGroup::of(sub.id().tree), above).expect("a membership");
    }
    limit(&fs, above, 20 * MIB);
    std::thread::scope(|scope| {
        for (number, sub) in subs.iter().enumerate() {
            scope.spawn(move || {
                let large = file(sub, "large");
                fill(&large, 256 << 10).expect("a limit");
                fill(&large, 16 << 10).expect("a limit");
                if number == 0 {
                    set_size(&large, 0);
                    fill(&large, 256 << 10).expect("a limit");
                }
            });
        }
    });
    fs.sync().expect("a sync");
    let sum = used(&fs, above);
    assert!(sum <= 20 * MIB + NODES && sum > 15 * MIB, "{sum} bytes");
    drop(subs);
    fs.close().expect("a close");
    expect_sound(&device);
}

/// The first limit applies from the end of the call that sets it, whatever writers do during the
/// call.
#[test]
fn the_first_limit_counts_beside_writers() {
    let device = memory(512);
    let fs = mount(&device);
    fs.enable_quotas(true).expect("quotas");
    let free = fs.root().create_subvolume(b"free", 0o755, 0, 0).expect("a subvolume");
    let subs: Vec<Inode> = (0..8)
        .map(|n| fs.root().create_subvolume(format!("sub-{n}").as_bytes(), 0o755, 0, 0))
        .map(|sub| sub.expect("a subvolume"))
        .collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let target = file(&free, "target");
            while !done.load(Ordering::Relaxed) {
                target.write_at(0, &pattern(1, 65536)).expect("a write");
            }
        });
        for sub in &subs {
            let group = QuotaGroup::of(sub.id().tree);
            limit(&fs, group, 2 * MIB);
            let large = file(sub, "large");
            fill(&large, 256 << 10).expect("a limit");
            assert!(large.attr().size <= 2 * MIB, "{} bytes", large.attr().size);
            // Remove the limit.
            fs.limit_quota_group(group, |limit| limit.flags = 0).expect("no limit");
            large.write_at(3 * MIB, &pattern(2, MIB as usize)).expect("it is not limited");
        }
        done.store(true, Ordering::Relaxed);
    });
    drop((free, subs));
    fs.close().expect("a close");
    expect_sound(&device);
}

/// Full quotas have a limit for all bytes and one for exclusive bytes. Shared bytes count only for
/// the limit of all bytes. A snapshot gets both limits.
#[test]
fn full_quotas_limit_both_figures() {
    let device = memory(512);
    let fs = mount(&device);
    fs.enable_quotas(false).expect("quotas");
    let sub = limited(&fs, "sub", 8 * MIB);
    let group = QuotaGroup::of(sub.id().tree);
    let (large, gone) = (file(&sub, "large"), file(&sub, "gone"));
    large.write_at(0, &pattern(1, 2 << 20)).expect("a write");
    fill(&gone, MIB).expect("a limit");
    fill(&gone, 4096).expect("a limit");
    fs.sync().expect("a sync");
    assert!(used(&fs, group) <= 8 * MIB + NODES && used(&fs, group) > 6 * MIB);
    expect_refused(
        sub.create(b"name", NewInode::file(0o644))
            .and_then(|file| file.write_at(0, &pattern(1, 65536)).map(drop)),
    );
    // Freed bytes can be written again.
    set_size(&gone, 0);
    large.write_at(2 * MIB, &pattern(2, 4 << 20)).expect("there is room");
    // Bytes that a snapshot shares do not count as exclusive. Only bytes that are written later
    // count.
    let exclusive = |fs: &Filesystem, group: QuotaGroup, bytes: u64| {
        fs.limit_quota_group(group, |limit| {
            limit.flags = QuotaLimit::EXCLUSIVE;
            limit.exclusive = bytes;
        })
        .expect("a limit");
    };
    exclusive(&fs, group, 3 * MIB);
    expect_refused(large.write_at(0, &pattern(3, 65536)));
    let copy = fs.root().snapshot(b"copy", sub.id().tree, false).expect("a snapshot");
    fs.sync().expect("a sync");
    large.write_at(0, &pattern(4, 2 << 20)).expect("it shares all else");
    fill(&file(&sub, "more"), 256 << 10).expect("a limit");
    fs.sync().expect("a sync");
    // Old bytes that the source has overwritten are exclusive to the copy. The copy has the same
    // limit.
    let theirs = copy.lookup(b"large").expect("the file");
    expect_refused(theirs.write_at(4 * MIB, &pattern(5, 2 << 20)));
    theirs.write_at(4 * MIB, &pattern(5, 512 << 10)).expect("there is room");
    fs.sync().expect("a sync");
    let quotas = fs.quotas().expect("quotas").expect("they are on");
    for home in [&sub, &copy] {
        let info = quotas.group(QuotaGroup::of(home.id().tree)).expect("the group").info;
        assert!(info.exclusive <= 3 * MIB + NODES && info.exclusive > 2 * MIB, "{info:?}");
        assert!(info.referenced > 5 * MIB, "{info:?}");
    }
    drop((sub, copy, large, gone, theirs));
    fs.close().expect("a close");
    expect_sound(&device);
}
