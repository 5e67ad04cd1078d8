//! Many threads that keep a full volume full, each with a model of its files.
//!
//! `BUTTRESS_STORM_SECONDS` is the length of a storm. `ENOSPC` is the only failure, and removing
//! always works. In the end the volume has all accepted changes.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use std::time::Instant;

use buttress_base::Rng;
use buttress_block::{FileDevice, OpenOptions};
use buttress_fs::{
    FallocateMode, Filesystem, Inode, MountOptions, NewInode, SetAttr, XattrFlags,
    make::MakeOptions,
};
use buttress_sim::campaign;
use buttress_txn::SpaceKind;

use super::{Kept, full, open, verify};
use crate::checker;

use folder::{Filled, Folder, LEAF, Model, SHARED, put};
use snapshot::Snapshot;

mod folder;
mod snapshot;

const THREADS: usize = 8;
/// Leaves of metadata that are free when a storm begins. A storm about shared nodes has more free
/// leaves, because reservations then include copies of these nodes.
const GIVEN_BACK: usize = 40;
const GIVEN_BACK_TO_SHARE: usize = 400;
/// The name of the folder with files that take the metadata, and of the snapshot that shares these
/// files.
const SHARED_CROWD: &[u8] = b"shared-crowd";
const FIRST: &[u8] = b"first";
/// The time limit in which a storm must fill the volume.
const FULL_MAX_MILLIS: u128 = 120_000;

/// The free metadata when a storm begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nodes {
    Plenty,
    /// A few leaves are free, and no tree shares nodes. From the first request for a snapshot on,
    /// even if it is refused, reservations include copies of nodes. From then on hardly any request
    /// fits, so threads request snapshots only in the second half.
    Few,
    /// Some leaves are free, and reservations include copies from the beginning. Files fill these
    /// leaves, and snapshots share them.
    Shared,
    /// A few leaves are free. Files that snapshots share take the rest of the metadata, and room is
    /// kept for copies of their nodes. Each thread has one snapshot. The shared files are removed
    /// during the storm, in random order.
    Kept,
}

/// A running storm.
struct Storm {
    fs: Filesystem,
    nodes: Nodes,
    begun: Instant,
    refused_before: u64,
    /// Files that the first snapshot shares, in random order, and the index of the next file to
    /// remove.
    crowd: Vec<usize>,
    removed: AtomicUsize,
    /// Changes of files in snapshots.
    written: AtomicUsize,
}

impl Storm {
    fn begin(fs: &Filesystem, nodes: Nodes, crowd: usize) -> Self {
        let (written, removed) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let mut crowd: Vec<_> = (0..crowd).collect();
        Rng::new(1).shuffle(&mut crowd);
        let (fs, begun) = (fs.clone(), Instant::now());
        let mut storm = Self { fs, nodes, begun, refused_before: 0, crowd, removed, written };
        storm.refused_before = storm.refused();
        storm
    }

    /// Removes the next file that the first snapshot shares. Returns whether there was such a file.
    fn remove_shared(&self) -> bool {
        let next = self.removed.fetch_add(1, Ordering::Relaxed);
        let Some(next) = self.crowd.get(next) else { return false };
        let dir = self.fs.root().lookup(SHARED_CROWD).expect("it was made");
        dir.unlink(&number(*next)).expect("removing always works");
        true
    }

    /// The kind of space that the storm fills.
    fn kind(&self) -> SpaceKind {
        if self.nodes == Nodes::Plenty { SpaceKind::Data } else { SpaceKind::Metadata }
    }

    /// How often a request for the kind of space that the storm fills was refused.
    fn refused(&self) -> u64 {
        self.fs.space_stats().engine.waits.of_kind(self.kind()).refused - self.refused_before
    }

    fn written(&self) -> usize {
        self.written.load(Ordering::Relaxed)
    }

    /// Whether the storm goes on. However slow the machine is, the storm lasts until the refusals
    /// and changes that it tests have happened.
    fn goes_on(&self) -> bool {
        let passed = self.begun.elapsed().as_millis();
        let has_met = || self.refused() > 0 && (self.nodes == Nodes::Few || self.written() > 0);
        passed < storm_millis() || (passed < FULL_MAX_MILLIS && !has_met())
    }

    fn may_cut(&self) -> bool {
        !matches!(self.nodes, Nodes::Few | Nodes::Kept)
            || self.begun.elapsed().as_millis() > storm_millis() / 2
    }
}

/// Fills the data space with one file, and leaves `left` bytes of the devices for chunks of `chunk`
/// bytes. Makes another file to be cloned.
fn fill_but(fs: &Filesystem, chunk: u64, left: u64) {
    let shared = fs.root().create(b"shared", NewInode::file(0o644)).expect("a file");
    assert!(put(&shared, SHARED, false), "there is room");
    let filler = fs.root().create(b"filler", NewInode::file(0o644)).expect("a file");
    let mut at = 0;
    for piece in [16_u64 << 20, 1 << 20] {
        let may = || {
            let now = fs.space_stats().accounts;
            left == 0 || now.data.available() >= piece || now.unallocated >= left + chunk
        };
        let mode = FallocateMode::Allocate { keep_size: false };
        while may() && full(filler.fallocate(at, piece, mode)).is_some() {
            at += piece;
        }
    }
}

/// Fills metadata with files that have attributes of about a leaf each. Removes some of them, so
/// that the storm has space.
fn crowd(fs: &Filesystem, nodes: Nodes) {
    let given_back = match nodes {
        Nodes::Plenty => return,
        Nodes::Few | Nodes::Kept => GIVEN_BACK,
        Nodes::Shared => {
            fs.root().snapshot(b"first", fs.root().id().tree, true).expect("there is room");
            fs.root().delete_subvolume(b"first").expect("removing always works");
            GIVEN_BACK_TO_SHARE
        }
    };
    let dir = fs.root().mkdir(b"crowd", 0o755, 0, 0).expect("a folder");
    let count = take_leaves(&dir, LEAF.1, |_| true);
    for count in 0..given_back.min(count) {
        dir.unlink(&number(count)).expect("removing always works");
    }
    fs.sync().expect("durable");
}

/// Fills a fifth of the metadata with files, several in each leaf, and takes a snapshot of them.
/// Returns the number of files.
fn share(fs: &Filesystem) -> usize {
    let dir = fs.root().mkdir(SHARED_CROWD, 0o755, 0, 0).expect("a folder");
    let has_room = |count: usize| {
        // The number of used bytes is the number at the last commit.
        if count.is_multiple_of(100) {
            fs.sync().expect("durable");
        }
        let metadata = fs.space_stats().accounts.metadata;
        metadata.used < (metadata.total - metadata.global_reserve) / 5
    };
    let count = take_leaves(&dir, &LEAF.1[..LEAF.1.len() / 6], has_room);
    fs.root().snapshot(FIRST, fs.root().id().tree, true).expect("there is room");
    count
}

/// Makes files with the attribute `value`, as long as there is room and `wants_more` returns true.
/// Returns the number of files.
fn take_leaves(dir: &Inode, value: &[u8], wants_more: impl Fn(usize) -> bool) -> usize {
    let mut count = 0;
    while wants_more(count)
        && let Some(file) = full(dir.create(&number(count), NewInode::file(0o644)))
    {
        full(file.set_xattr(LEAF.0, value, XattrFlags::default()));
        count += 1;
    }
    count
}

fn number(count: usize) -> Vec<u8> {
    format!("{count}").into_bytes()
}

/// Keeps a full volume full for a while. Threads create files, through the page cache and by direct
/// I/O. They overwrite, clone, truncate and remove files, in the live tree and in snapshots. They
/// also take and delete snapshots. Debug builds compare the accounts with groups and tokens at
/// every commit.
///
/// Before the storm, the volume is filled, except for `left` bytes of the devices and some
/// metadata, according to `nodes`.
fn storm(seed: u64, size: u64, (left, nodes): (u64, Nodes), options: &str) {
    let dir = tempfile::tempdir().expect("a folder");
    let path = checker::volume(dir.path(), size, &MakeOptions::default());
    let device = FileDevice::open(&path, OpenOptions::WRITE).expect("the image opens");
    let options = MountOptions::parse(options).expect("options");
    let fs = Filesystem::open(vec![Arc::new(device)], options).expect("it mounts");
    let seed = seed + 100 * campaign::round();
    for thread in 0..THREADS {
        fs.root().mkdir(dir_name(thread).as_bytes(), 0o755, 0, 0).expect("a folder");
    }
    fill_but(&fs, size / 10, left);
    let shared = if nodes == Nodes::Kept { share(&fs) } else { 0 };
    let begin = |thread| Turn::begin(&fs, nodes, thread, seed * 8 + thread as u64);
    let turns: Vec<_> = (0..THREADS).map(begin).collect();
    crowd(&fs, nodes);
    let unallocated = fs.space_stats().accounts.unallocated;
    assert!(unallocated >= left, "{unallocated} for chunks");
    let storm = Storm::begin(&fs, nodes, shared);
    let left_behind: Vec<Left> = std::thread::scope(|scope| {
        let worker = |turn| {
            let storm = &storm;
            scope.spawn(move || stay_full(storm, turn))
        };
        let workers: Vec<_> = turns.into_iter().map(worker).collect();
        workers.into_iter().map(|worker| worker.join().expect("no panic")).collect()
    });
    let stats = fs.space_stats();
    assert_eq!(fs.read_only_reason(), None, "{}", stats.accounts);
    assert!(storm.refused() > 0, "{} was never full: {}", storm.kind(), stats.accounts);
    assert!(storm.written() > 0 || nodes == Nodes::Few, "no thread wrote to a snapshot");
    let removed = storm.removed.load(Ordering::Relaxed).min(shared);
    assert!(removed > 0 || nodes != Nodes::Kept, "no thread removed what is shared");
    assert!(left == 0 || stats.accounts.unallocated < unallocated, "no chunk was made");
    let accounts = stats.accounts;
    let (compared, overtaken) = (stats.engine.audits, stats.engine.audits_overtaken);
    let is_compared = cfg!(debug_assertions);
    assert!(!is_compared || compared > 0, "no commit was compared");
    assert_eq!(overtaken, 0, "not every commit was compared, of {compared}");
    campaign::count("audits", compared as usize);
    campaign::count("written-in-snapshots", storm.written());
    let with_snapshot = left_behind.iter().filter(|left| left.snapshot.is_some());
    campaign::count("snapshots-left", with_snapshot.count());
    campaign::count("shared-removed", removed);
    campaign::count("shared", shared);
    while storm.remove_shared() {}
    drop(storm);
    assert_eq!(accounts.waiting, (0, 0), "no request is left in a line: {accounts}");
    fs.close().expect("a full volume unmounts");
    checker::check(&path);
    let fs = open(&path);
    for (thread, left) in left_behind.into_iter().enumerate() {
        left.verify_and_remove(&fs, thread);
    }
    verify(&fs.root(), &shared_alone());
    fs.root().unlink(b"shared").expect("removing always works");
    fs.root().unlink(b"filler").expect("removing always works");
    if nodes == Nodes::Kept {
        fs.root().delete_subvolume(FIRST).expect("removing always works");
    }
    fs.close().expect("it unmounts");
    checker::check(&path);
}

/// The files that a thread of a storm leaves, and its snapshot with the files in it.
struct Left {
    model: Model,
    snapshot: Option<(String, Model, bool)>,
}

impl Left {
    /// Verifies everything once more and removes it: files that a snapshot shares, files in the
    /// snapshot, and the snapshot.
    fn verify_and_remove(self, fs: &Filesystem, thread: usize) {
        let root = fs.root();
        let dir = root.lookup(dir_name(thread).as_bytes()).expect("it was made");
        self.model.verify(&dir);
        self.model.remove_all(&dir);
        let Some((name, model, is_written)) = self.snapshot else { return };
        let top = root.lookup(name.as_bytes()).expect("it was left");
        let dir = top.lookup(dir_name(thread).as_bytes()).expect("it was there");
        model.verify(&dir);
        verify(&top, &shared_alone());
        if is_written {
            model.remove_all(&dir);
        }
        root.delete_subvolume(name.as_bytes()).expect("removing always works");
    }
}

fn dir_name(thread: usize) -> String {
    format!("dir{thread}")
}

fn shared_alone() -> Kept {
    Kept::from([("shared".to_owned(), SHARED)])
}

/// The input of one thread of a storm.
struct Turn {
    thread: usize,
    rng: Rng,
    live: Folder,
    snapshot: Option<Snapshot>,
}

impl Turn {
    /// Takes the thread's empty folder. In a storm with `Nodes::Kept`, also takes a snapshot. Every
    /// second thread may write to its snapshot.
    fn begin(fs: &Filesystem, nodes: Nodes, thread: usize, seed: u64) -> Self {
        let dir = fs.root().lookup(dir_name(thread).as_bytes()).expect("it was made");
        let shared = fs.root().lookup(b"shared").expect("it was made");
        let is_crowded = matches!(nodes, Nodes::Shared | Nodes::Kept);
        let filled = if is_crowded { Filled::Metadata } else { Filled::Data };
        let live = Folder::new(dir, shared, filled, seed);
        let is_written = thread.is_multiple_of(2);
        let cut = || Snapshot::cut(fs, &live, thread, is_written).expect("there is room");
        let snapshot = (nodes == Nodes::Kept).then(cut);
        Self { thread, rng: Rng::new(seed), live, snapshot }
    }
}

/// Runs one thread of a storm. Returns the files and the snapshot that it leaves.
fn stay_full(storm: &Storm, turn: Turn) -> Left {
    let fs = &storm.fs;
    let Turn { thread, mut rng, mut live, mut snapshot } = turn;
    while storm.goes_on() {
        match (rng.below(20), &mut snapshot) {
            (0, None) if storm.may_cut() => {
                snapshot = Snapshot::cut(fs, &live, thread, rng.chance(1, 2));
            }
            (0, Some(_)) if storm.may_cut() => {
                snapshot.take().expect("it is there").delete(fs, &mut rng);
            }
            (8, _) => drop(storm.remove_shared()),
            (1..=7, Some(snapshot)) if snapshot.is_written => {
                snapshot.folder.change(&mut rng);
                storm.written.fetch_add(1, Ordering::Relaxed);
            }
            _ => live.change(&mut rng),
        }
    }
    live.verify();
    let last = snapshot.or_else(|| Snapshot::cut(fs, &live, thread, rng.chance(1, 2)));
    let kept = last.and_then(|snapshot| {
        if rng.chance(1, 2) {
            snapshot.delete(fs, &mut rng);
            return None;
        }
        Some((snapshot.name, snapshot.folder.model, snapshot.is_written))
    });
    Left { model: live.model, snapshot: kept }
}

/// Milliseconds of one storm; `BUTTRESS_STORM_SECONDS` for long storms, and ten seconds in a round
/// of a search.
fn storm_millis() -> u128 {
    let seconds =
        std::env::var("BUTTRESS_STORM_SECONDS").ok().and_then(|text| text.parse::<u64>().ok());
    let usual = if campaign::round() > 0 { 10_000 } else { 1500 };
    seconds.map_or(usual, |seconds| seconds * 1000).into()
}

/// E4, E9, E12: at the edge of a full volume `ENOSPC` is the only failure, under every rule of
/// making room.
#[test]
fn storm_at_the_edge_commits() {
    storm(1, 160 << 20, (0, Nodes::Plenty), "dirty=8M");
}

/// E12: a storm at the edge of a full volume, without preemptive flushing.
#[test]
fn storm_without_preemption_commits() {
    storm(2, 128 << 20, (0, Nodes::Plenty), "preempt=off,dirty=4M");
}

/// E12: a storm while the last chunks are added: there is room for one data chunk, or for two.
#[test]
fn storm_for_the_last_chunk_commits() {
    let (size, chunks) = (160 << 20, 1 + campaign::round() % 2);
    storm(4, size, (chunks * size / 10, Nodes::Plenty), "dirty=8M");
}

/// E12: a storm with full metadata: clones and new names are refused, too.
#[test]
fn storm_for_the_last_node_commits() {
    let rules = ["clamp", "off", "clamp,reserve=levels"];
    let rule = rules[campaign::round() as usize % rules.len()];
    storm(5, 128 << 20, (0, Nodes::Few), &format!("preempt={rule},dirty=4M"));
}

/// E12: a storm with metadata full of leaves that snapshots share. A thread that removes or
/// truncates a file, in the live tree or in a snapshot, copies some leaves first.
#[test]
fn storm_for_the_last_shared_node_commits() {
    let rules = ["clamp", "clamp,reserve=levels", "off"];
    let rule = rules[campaign::round() as usize % rules.len()];
    let options = format!("preempt={rule},dirty=4M,delete_room=off");
    storm(6, 128 << 20, (0, Nodes::Shared), &options);
}

/// E12: a storm with room kept for copies: files that a snapshot shares are removed, in random
/// order, while other threads fill the space that becomes free.
#[test]
fn storm_with_kept_space_commits() {
    let rules = ["clamp", "off", "clamp,reserve=levels"];
    let rule = rules[campaign::round() as usize % rules.len()];
    storm(7, 128 << 20, (0, Nodes::Kept), &format!("preempt={rule},dirty=4M"));
}

/// E12: a truncation of a file to its present length (`> empty` in a shell) reserves nothing that
/// fills the volume. So it is not refused, even if no name fits and a snapshot was requested.
#[test]
fn cut_of_nothing_commits() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = checker::volume(dir.path(), 128 << 20, &MakeOptions::default());
    let fs = open(&path);
    let file = fs.root().create(b"empty", NewInode::file(0o644)).expect("a file");
    fill_but(&fs, 0, 0);
    crowd(&fs, Nodes::Few);
    let mut names = 0;
    while full(fs.root().create(format!("{names}").as_bytes(), NewInode::file(0o644))).is_some() {
        names += 1;
    }
    // From now on reservations include copies of nodes, and no reservation fits any more.
    full(fs.root().snapshot(b"snapshot", fs.root().id().tree, true));
    let none = SetAttr { size: Some(0), ..SetAttr::default() };
    file.set_attr(&none).expect("shrinking always works");
    fs.close().expect("a full volume unmounts");
    checker::check(&path);
}
