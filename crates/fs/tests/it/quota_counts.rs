//! Full quotas: the counts after every commit are the same as a new count would give.

use std::sync::Arc;

use buttress_base::Rng;
use buttress_block::{Device, MemoryDevice};
use buttress_format::QuotaStatus;
use buttress_fs::{
    BalanceOptions, Filesystem, Filter, Inode, MakeOptions, NewInode, QuotaGroup, Quotas, SetAttr,
};

use crate::checker::{check, expect_cut_sound, expect_sound};
use crate::volume::{drop_all, file_with, memory_with, mount, pattern, recorded, setting};

fn quotas(fs: &Filesystem) -> Quotas {
    fs.quotas().expect("quotas").expect("they are on")
}

fn are_marked(quotas: &Quotas) -> bool {
    quotas.status.flags & (QuotaStatus::INCONSISTENT | QuotaStatus::RESCAN) != 0
}

/// The referenced and exclusive bytes of each group.
fn figures(quotas: &Quotas) -> Vec<(QuotaGroup, u64, u64)> {
    let figures =
        |one: &buttress_fs::QuotaUse| (one.group, one.info.referenced, one.info.exclusive);
    quotas.groups.iter().map(figures).collect()
}

/// Compares the counts of the last commit with a new count. Returns whether the counts were not
/// marked as inconsistent.
#[track_caller]
fn compare(fs: &Filesystem, when: &str) -> bool {
    let kept = quotas(fs);
    fs.count_quotas().expect("a count");
    let counted = quotas(fs);
    assert!(!are_marked(&counted), "{when}");
    if are_marked(&kept) {
        return false;
    }
    assert_eq!(figures(&kept), figures(&counted), "{when}");
    true
}

/// A volume with small nodes and full quotas.
fn volume() -> (Arc<dyn Device>, Filesystem) {
    let device = memory_with(512, &MakeOptions { nodesize: 4096, ..MakeOptions::default() });
    let fs = mount(&device);
    fs.enable_quotas(false).expect("quotas");
    assert!(!are_marked(&quotas(&fs)));
    (device, fs)
}

fn subvolume(fs: &Filesystem, name: &str) -> Inode {
    fs.root().create_subvolume(name.as_bytes(), 0o755, 0, 0).expect("a subvolume")
}

fn set_size(file: &Inode, size: u64) {
    file.set_attr(&SetAttr { size: Some(size), ..SetAttr::default() }).expect("a size");
}

#[track_caller]
fn expect_kept(fs: &Filesystem, when: &str) {
    fs.sync().expect("a sync");
    assert!(compare(fs, when), "marked {when}");
}

/// Files of one subvolume come, change and go.
#[test]
fn changes_of_files_are_counted() {
    let (device, fs) = volume();
    let sub = subvolume(&fs, "sub");
    expect_kept(&fs, "a subvolume");
    for number in 0..200 {
        file_with(&sub, &format!("f{number}"), &pattern(number, 9000));
    }
    expect_kept(&fs, "new files");
    let large = file_with(&sub, "large", &pattern(9, 1 << 20));
    expect_kept(&fs, "a large file");
    for at in [4096_u64, 500_000, 600_000, 4096] {
        large.write_at(at, &pattern(at, 8192)).expect("a write");
        expect_kept(&fs, "a write into the middle");
    }
    set_size(&large, 300_001);
    expect_kept(&fs, "a shorter file");
    for number in 0..150 {
        sub.unlink(format!("f{number}").as_bytes()).expect("it is there");
    }
    fs.sync().expect("a sync");
    expect_kept(&fs, "fewer files");
    drop((sub, large));
    fs.close().expect("a close");
    check(&device);
}

/// Extents that files share within one subvolume, and between two subvolumes.
#[test]
fn shared_extents_are_counted() {
    let (device, fs) = volume();
    let (one, two) = (subvolume(&fs, "one"), subvolume(&fs, "two"));
    let file = file_with(&one, "file", &pattern(1, 1 << 20));
    expect_kept(&fs, "a file");
    let near = one.create(b"near", NewInode::file(0o644)).expect("a file");
    file.clone_range(0, &near, 0, 1 << 20).expect("a clone");
    expect_kept(&fs, "a clone in the subvolume");
    let far = two.create(b"far", NewInode::file(0o644)).expect("a file");
    file.clone_range(65536, &far, 0, 1 << 19).expect("a clone");
    expect_kept(&fs, "a clone in another subvolume");
    near.write_at(4096, &pattern(2, 4096)).expect("a write");
    far.write_at(8192, &pattern(3, 4096)).expect("a write");
    expect_kept(&fs, "writes into clones");
    drop((file, near));
    one.unlink(b"file").expect("it is there");
    one.unlink(b"near").expect("it is there");
    fs.sync().expect("a sync");
    expect_kept(&fs, "only the far clone is left");
    drop((one, two, far));
    fs.close().expect("a close");
    check(&device);
}

/// Snapshots share everything at first. Changes of the source and of the snapshot end the sharing.
#[test]
fn snapshots_are_counted() {
    let (device, fs) = volume();
    let sub = subvolume(&fs, "sub");
    for number in 0..200 {
        file_with(&sub, &format!("f{number}"), &pattern(number, 9000));
    }
    fs.sync().expect("a sync");
    for round in 0..4_u64 {
        // The source is changed in the transaction of the snapshot, too.
        file_with(&sub, &format!("g{round}"), &pattern(round, 20_000));
        let name = format!("copy-{round}");
        let copy = fs.root().snapshot(name.as_bytes(), sub.id().tree, false).expect("a snapshot");
        expect_kept(&fs, &format!("snapshot {round}"));
        file_with(&copy, "new", &pattern(round, 30_000));
        copy.unlink(format!("f{}", 20 * round).as_bytes()).expect("it is there");
        sub.unlink(format!("f{}", 20 * round + 1).as_bytes()).expect("it is there");
        expect_kept(&fs, &format!("changes {round}"));
    }
    // Two copies of one tree, a copy of a copy, and a copy within its source.
    let twice = fs.root().snapshot(b"twice", sub.id().tree, false).expect("a snapshot");
    drop(fs.root().snapshot(b"thrice", sub.id().tree, true).expect("a snapshot"));
    drop(twice.snapshot(b"below", twice.id().tree, false).expect("a snapshot"));
    drop(fs.root().snapshot(b"own", fs.root().id().tree, false).expect("a snapshot"));
    expect_kept(&fs, "several snapshots");
    drop((sub, twice));
    for name in ["copy-1", "thrice", "copy-0", "sub"] {
        fs.root().delete_subvolume(name.as_bytes()).expect("a deletion");
        drop_all(&fs);
        expect_kept(&fs, &format!("{name} is gone"));
    }
    fs.close().expect("a close");
    check(&device);
}

/// A group counts a subvolume once, even if two paths of memberships lead from the subvolume to the
/// group. The test adds and removes both paths. Counts of full quotas may be marked as inconsistent
/// in between.
#[test]
fn a_subvolume_by_two_paths_counts_once() {
    let group = |level: u64| QuotaGroup(level << 48 | 1);
    for is_simple in [false, true] {
        let device = memory_with(512, &MakeOptions { nodesize: 4096, ..MakeOptions::default() });
        let fs = mount(&device);
        fs.enable_quotas(is_simple).expect("quotas");
        let subs = ["one", "two"].map(|name| subvolume(&fs, name));
        for (sub, size) in subs.iter().zip([100_000, 300_000]) {
            file_with(sub, "file", &pattern(size, size as usize));
        }
        fs.sync().expect("a sync");
        let [one, two] = subs.each_ref().map(|sub| QuotaGroup::of(sub.id().tree));
        fs.make_quota_group(group(1)).expect("a group");
        fs.make_quota_group(group(2)).expect("a group");
        let expect = |members: &[QuotaGroup], when: &str| {
            if !is_simple {
                compare(&fs, when);
            }
            let quotas = quotas(&fs);
            let used = |group| quotas.group(group).expect("a group").info.referenced;
            let sum: u64 = members.iter().map(|member| used(*member)).sum();
            assert_eq!(used(group(2)), sum, "{when}, simple: {is_simple}");
        };
        fs.join_quota_group(one, group(2)).expect("a membership");
        fs.join_quota_group(one, group(1)).expect("a membership");
        fs.join_quota_group(two, group(1)).expect("a membership");
        expect(&[one], "the first path");
        fs.join_quota_group(group(1), group(2)).expect("a membership");
        expect(&[one, two], "the second path");
        fs.leave_quota_group(group(1), group(2)).expect("a membership");
        expect(&[one], "without the second path");
        fs.join_quota_group(group(1), group(2)).expect("a membership");
        fs.leave_quota_group(one, group(2)).expect("a membership");
        expect(&[one, two], "without the first path");
        drop(subs);
        fs.close().expect("a close");
        // `btrfs check` of Debian 12 does not know simple quotas.
        if is_simple { expect_sound(&device) } else { check(&device) }
    }
}

/// Deleting a snapshot that shares everything takes several commits, and none of them marks the
/// counts.
#[test]
fn a_large_snapshot_goes_without_a_mark() {
    let (device, fs) = volume();
    let sub = subvolume(&fs, "sub");
    let file = sub.create(b"file", NewInode::file(0o644)).expect("a file");
    // Every second block of 4 KiB is written, so each written block is an extent.
    for number in 0..80_000_u64 {
        file.write_at(number * 8192, &pattern(number, 4096)).expect("a write");
    }
    drop(fs.root().snapshot(b"copy", sub.id().tree, true).expect("a snapshot"));
    expect_kept(&fs, "a snapshot");
    fs.root().delete_subvolume(b"copy").expect("a deletion");
    drop_all(&fs);
    expect_kept(&fs, "the snapshot is gone");
    drop((sub, file));
    fs.close().expect("a close");
    check(&device);
}

/// After a power cut, the counts are right for the last commit: the checker counts in each state.
#[test]
fn cuts_leave_right_counts() {
    let base = MemoryDevice::new(512 << 20);
    let make = MakeOptions { nodesize: 4096, ..MakeOptions::default() };
    Filesystem::make(&base, &make).expect("a volume");
    let (log, recorder, fs) = recorded(&base);
    fs.enable_quotas(false).expect("quotas");
    let sub = subvolume(&fs, "sub");
    for number in 0..300 {
        file_with(&sub, &format!("f{number}"), &pattern(number, 9000));
    }
    for name in ["copy", "other"] {
        drop(fs.root().snapshot(name.as_bytes(), sub.id().tree, false).expect("a snapshot"));
        file_with(&sub, name, &pattern(7, 100_000));
    }
    fs.sync().expect("a sync");
    log.start(&[&recorder]);
    for number in 0..60 {
        sub.unlink(format!("f{}", 5 * number).as_bytes()).expect("it is there");
        if number % 20 == 0 {
            fs.sync().expect("a sync");
        }
    }
    drop(fs.root().snapshot(b"third", sub.id().tree, false).expect("a snapshot"));
    file_with(&sub, "last", &pattern(8, 100_000));
    drop(sub);
    for name in ["other", "sub"] {
        fs.root().delete_subvolume(name.as_bytes()).expect("a deletion");
        drop_all(&fs);
    }
    fs.close().expect("a close");
    let stride = (log.len() / (40 * setting("BUTTRESS_CUTS", 1) as usize)).max(1);
    let shown = log.crashes(&mut Rng::new(3), 1, stride, |crash| {
        let device: Arc<dyn Device> = Arc::new(crash.devices[0].fork());
        expect_cut_sound(&device, "after a cut");
        let fs = mount(&device);
        assert!(!are_marked(&quotas(&fs)), "the counts were right");
        fs.close().expect("a close");
        expect_cut_sound(&device, "after a mount");
    });
    assert!(shown > 30, "{shown} states");
}

struct Random {
    fs: Filesystem,
    rng: Rng,
    subs: Vec<String>,
    next: u64,
}

impl Random {
    fn home(&mut self) -> Inode {
        match self.rng.choose(&self.subs).cloned() {
            Some(name) if !self.rng.chance(1, 8) => {
                self.fs.root().lookup(name.as_bytes()).expect("a subvolume")
            }
            _ => self.fs.root(),
        }
    }

    fn file(&mut self) -> Inode {
        let home = self.home();
        let name = format!("f{}", self.rng.below(40));
        match home.lookup(name.as_bytes()) {
            Ok(file) => file,
            Err(_) => home.create(name.as_bytes(), NewInode::file(0o644)).expect("a file"),
        }
    }

    fn fresh(&mut self, what: &str) -> String {
        self.next += 1;
        format!("{what}{}", self.next)
    }

    /// Makes one random change. Returns its name.
    fn step(&mut self) -> String {
        let root = self.fs.root();
        match self.rng.below(100) {
            0..=29 => {
                let file = self.file();
                let at = 4096 * self.rng.below(60);
                let len = 1 + self.rng.below(60_000) as usize;
                file.write_at(at, &pattern(self.rng.next_u64(), len)).expect("a write");
                if self.rng.chance(1, 3) {
                    file.flush_data().expect("a write");
                }
                format!("write {len} at {at} in {:?}", file.id())
            }
            30..=39 => {
                let file = self.file();
                set_size(&file, self.rng.below(200_000));
                format!("size of {:?}", file.id())
            }
            40..=54 => {
                let (from, to) = (self.file(), self.file());
                let sectors = from.attr().size / 4096;
                if sectors == 0 || from.id() == to.id() {
                    return "nothing".into();
                }
                let start = self.rng.below(sectors);
                let len = 1 + self.rng.below(sectors - start);
                let at = self.rng.below(40);
                from.clone_range(4096 * start, &to, 4096 * at, 4096 * len).expect("a clone");
                format!("clone {:?} to {:?}", from.id(), to.id())
            }
            55..=64 => {
                let home = self.home();
                let name = format!("f{}", self.rng.below(40));
                let _ = home.unlink(name.as_bytes());
                format!("unlink {name} in {:?}", home.id())
            }
            65..=69 => {
                let home = self.home();
                for number in 0..40 {
                    let name = self.fresh("many");
                    file_with(&home, &name, &pattern(number, 100));
                }
                format!("many files in {:?}", home.id())
            }
            70..=79 if self.subs.len() < 7 => {
                let name = self.fresh("sub");
                let (source, ro) = (self.home(), self.rng.chance(1, 4));
                if self.rng.chance(1, 4) {
                    drop(subvolume(&self.fs, &name));
                } else {
                    let tree = source.id().tree;
                    drop(root.snapshot(name.as_bytes(), tree, ro).expect("a snapshot"));
                }
                if !ro {
                    self.subs.push(name.clone());
                }
                format!("{name}, perhaps of {:?}", source.id())
            }
            80..=85 if self.subs.len() > 2 => {
                let at = self.rng.below(self.subs.len() as u64) as usize;
                let name = self.subs.swap_remove(at);
                root.delete_subvolume(name.as_bytes()).expect("a deletion");
                format!("deletion of {name}")
            }
            86..=89 => {
                let group = QuotaGroup((1 + self.rng.below(2)) << 48 | self.rng.below(3));
                let _ = self.fs.make_quota_group(group);
                format!("group {group}")
            }
            90..=95 => {
                let groups: Vec<_> = quotas(&self.fs).groups.iter().map(|one| one.group).collect();
                let (child, parent) = (
                    *self.rng.choose(&groups).expect("groups"),
                    *self.rng.choose(&groups).expect("groups"),
                );
                let joins = self.rng.chance(2, 3);
                let done = match joins {
                    true => self.fs.join_quota_group(child, parent),
                    false => self.fs.leave_quota_group(child, parent),
                };
                format!("{child} in {parent}: {joins}, {}", done.is_ok())
            }
            96..=97 => {
                let all = Some(Filter::default());
                let options = BalanceOptions { data: all.clone(), metadata: all, system: None };
                self.fs.balance(&options, &mut |_| true).expect("a balance");
                "a balance".into()
            }
            _ => "nothing".into(),
        }
    }
}

/// Random changes, with a commit after a few of them. The same seed makes the same changes.
#[test]
fn random_changes_are_counted() {
    let first = setting("BUTTRESS_SEED", 1);
    let rounds = setting("BUTTRESS_QUOTA_ROUNDS", 60);
    let (mut kept, mut marked) = (0, 0);
    for seed in first..first + setting("BUTTRESS_SEEDS", 2) {
        let (device, fs) = volume();
        let mut random = Random { fs, rng: Rng::new(seed), subs: Vec::new(), next: 0 };
        for round in 0..rounds {
            let mut done = Vec::new();
            for _ in 0..=random.rng.below(6) {
                done.push(random.step());
            }
            random.fs.sync().expect("a sync");
            drop_all(&random.fs);
            random.fs.sync().expect("a sync");
            let when = format!("seed {seed}, round {round}: {done:?}");
            match compare(&random.fs, &when) {
                true => kept += 1,
                false => marked += 1,
            }
        }
        random.fs.close().expect("a close");
        check(&device);
    }
    assert!(kept > 4 * marked, "{kept} were kept, {marked} were marked");
}
