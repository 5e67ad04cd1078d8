//! Real volumes of very many block groups: how such a volume is made, and the cost of its use. The
//! uses are opening, allocating and freeing, finding a group, committing, and adding a chunk.
//!
//! # Place
//!
//! The module works on the engine itself, so that the cost of files is left out. Every group of
//! data is nine tenths full, in extents with gaps between them. The extents belong to one file, so
//! that every checker looks at them. The gaps are reserved while the volume is made and freed at
//! the end, so that no allocation gets them meanwhile. All groups have four gaps of 25 MiB. The
//! module `choice` measures groups that exist only in memory. Their free tenth lies in pieces of 4
//! to 256 KiB.

use std::{fmt::Write as _, path::Path, sync::Arc, time::Instant};

use buttress_base::{Rng, clock};
use buttress_block::{Device, FileDevice, OpenOptions};
use buttress_format::{
    BlockGroupFlags, Body, Compression, Extent, FileExtent, Ino, InodeFlags, InodeItem, Key, Kind,
    Logical, Profile, Region, TreeId,
};
use buttress_fs::{
    Filesystem, MountOptions, NewInode,
    make::{MakeOptions, make},
};
use buttress_txn::{Cost, DataRef, Engine, EngineOptions, ReserveClass};
use buttress_volume::Volume;
use serde::Serialize;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
const SECTOR: u64 = 4096;

/// Extents of a group, each with a gap behind it.
const PIECES: u64 = 4;
const GAP: u64 = GIB / 10 / PIECES / SECTOR * SECTOR;
const KEPT: u64 = GIB / PIECES - GAP;

/// The results for one number of groups. Times are in nanoseconds.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    /// Groups of data asked for.
    pub groups: u64,
    /// The number of chunks of all kinds.
    pub chunks: u64,
    /// Seconds that making the volume took.
    pub make_seconds: f64,
    /// Seconds that opening took, including a lookup of a file and a read of one of its sectors.
    pub open_seconds: f64,
    /// Requests to the device during the opening.
    pub open_reads: u64,
    /// Seconds until all groups were known and the volume could be written, including the opening.
    pub known_seconds: f64,
    /// Requests to the device until all groups were known.
    pub known_reads: u64,
    /// Bytes that were read until all groups were known.
    pub known_bytes: u64,
    /// Memory that one group takes in an open volume, bytes of nodes left out.
    pub bytes_per_group: f64,
    /// The time to find the chunk of an address.
    pub chunk_lookup: f64,
    /// Nodes of the chunk map that one lookup passes. An added chunk copies as many nodes.
    pub map_height: u64,
    /// The time to find the group of an address and get the right to write there.
    pub group_lookup: f64,
    /// The time of the first allocations and frees of 4 KiB after the opening, which load the free
    /// space of groups.
    pub first: f64,
    /// Requests to the device for one of these first allocations.
    pub first_reads: f64,
    /// The time to allocate and free 4 KiB.
    pub small: f64,
    /// The time to allocate and free 64 KiB.
    pub large: f64,
    /// The time to allocate a whole gap and keep it, including the loading of the free space of its
    /// group.
    pub gap: f64,
    /// The time to allocate 256 MiB, which no group has in one piece, and to free the result.
    pub in_vain: f64,
    /// Groups that were examined for one small or large allocation.
    pub probes: f64,
    /// Groups that were examined for one allocation of 256 MiB.
    pub probes_in_vain: f64,
    /// The time of a commit that changed one extent.
    pub commit: f64,
    /// Nodes that this commit wrote.
    pub commit_nodes: f64,
    /// The time to add one chunk, without the commit that records it.
    pub chunk: f64,
}

fn text(error: impl std::error::Error) -> String {
    let mut all = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let _ = write!(all, ": {source}");
        next = source.source();
    }
    all
}

fn nanos(since: Instant, rounds: u64) -> f64 {
    clock::since(since).as_nanos() as f64 / rounds as f64
}

/// Returns the bytes of a device with space for `groups` groups of data, and for metadata.
pub fn device_bytes(groups: u64) -> u64 {
    (groups + groups / 64 + 8) * GIB
}

fn open_engine(device: Arc<dyn Device>) -> Result<Arc<Engine>, String> {
    let options = buttress_volume::OpenOptions { writable: true, ..Default::default() };
    let (volume, superblock) = Volume::open(vec![device], options).map_err(text)?;
    // The cache is so small that the measured memory is not that of nodes.
    let options = EngineOptions { cache_bytes: 64 << 20, ..EngineOptions::default() };
    let engine = Engine::open(Arc::new(volume), superblock, options).map_err(text)?;
    engine.read_only().map_or(Ok(engine), Err)
}

/// The file that has all extents.
struct Filler {
    ino: Ino,
    len: u64,
}

impl Filler {
    const NAME: &'static [u8] = b"filler";

    fn make(device: Arc<dyn Device>) -> Result<Self, String> {
        let fs = Filesystem::open(vec![device], MountOptions::default()).map_err(text)?;
        let file = fs.root().create(Self::NAME, NewInode::file(0o644)).map_err(text)?;
        let ino = file.id().ino;
        drop(file);
        fs.close().map_err(text)?;
        Ok(Self { ino, len: 0 })
    }

    /// Finds the file in a volume that was made.
    fn find(engine: &Arc<Engine>) -> Result<Self, String> {
        let ino = Ino(Ino::FIRST_FREE.0 + 1);
        let key = Key::new(ino.0, Kind::INODE_ITEM, 0);
        let found = engine.view().get(TreeId::FS, &key).map_err(text)?;
        let item = InodeItem::parse(&found.ok_or("the volume was not made by this program")?);
        Ok(Self { ino, len: item.map_err(text)?.size })
    }

    /// Reads the first sector of the file's last extent.
    fn read_last(&self, engine: &Arc<Engine>) -> Result<(), String> {
        let key = |offset| Key::new(self.ino.0, Kind::EXTENT_DATA, offset);
        let found =
            engine.view().at_or_before(TreeId::FS, &key(0), &key(u64::MAX)).map_err(text)?;
        let (_, item) = found.ok_or("the file has no extents")?;
        let extent = FileExtent::parse(&item).map_err(text)?;
        let Body::Prealloc(region) = extent.body else { return Err("not allocated ahead".into()) };
        let mut sector = vec![0; SECTOR as usize];
        engine.volume().read_mirror(region.disk, &mut sector, 0).map_err(text)
    }

    /// Appends an extent that was allocated.
    fn append(&mut self, engine: &Arc<Engine>, extent: Extent) -> Result<(), String> {
        let cost = Cost::of(2, 256);
        let reservation = engine.reserve(cost, ReserveClass::Normal).map_err(text)?;
        let handle = engine.begin(reservation);
        let region =
            Region { disk: extent.start, disk_len: extent.len, offset: 0, len: extent.len };
        let item = FileExtent {
            generation: handle.generation(),
            ram_bytes: extent.len,
            compression: Compression::None,
            body: Body::Prealloc(region),
        };
        let key = Key::new(self.ino.0, Kind::EXTENT_DATA, self.len);
        handle.put(TreeId::FS, key, item.to_bytes());
        let user = DataRef { root: TreeId::FS, ino: self.ino, offset: self.len };
        handle.add_data_ref(extent, user);
        self.len += extent.len;
        Ok(())
    }

    /// Writes the inode of the file, with its length.
    fn settle(&self, engine: &Arc<Engine>) -> Result<(), String> {
        let key = Key::new(self.ino.0, Kind::INODE_ITEM, 0);
        let found = engine.view().get(TreeId::FS, &key).map_err(text)?;
        let found = found.ok_or("the file has no inode")?;
        let mut item = InodeItem::parse(&found).map_err(text)?;
        item.size = self.len;
        item.nbytes = self.len;
        item.flags |= InodeFlags::PREALLOC;
        let cost = Cost::of(1, 256);
        let handle = engine.begin(engine.reserve(cost, ReserveClass::Normal).map_err(text)?);
        item.transid = handle.generation();
        handle.put(TreeId::FS, key, item.to_bytes());
        Ok(())
    }
}

/// Makes a volume of `groups` groups of data on a device. Returns the seconds that this took.
///
/// # Errors
///
/// The cause of the failure, in words.
pub fn make_volume(device: &Arc<dyn Device>, groups: u64) -> Result<f64, String> {
    let start = clock::now();
    let options = MakeOptions {
        metadata: Some(Profile::Single),
        seed: Some(groups),
        ..MakeOptions::default()
    };
    make(&**device, &options).map_err(text)?;
    let mut filler = Filler::make(Arc::clone(device))?;
    let engine = open_engine(Arc::clone(device))?;
    let mut gaps = Vec::new();
    for group in 0..groups * PIECES {
        let mut reservation = engine.reserve_data(KEPT + GAP).map_err(text)?;
        let goal = gaps.last().map(|gap: &Extent| gap.end());
        let kept = engine.allocate_data(&mut reservation, KEPT, SECTOR, goal, 1).map_err(text)?;
        filler.append(&engine, kept)?;
        let goal = Some(kept.end());
        gaps.push(engine.allocate_data(&mut reservation, GAP, SECTOR, goal, 1).map_err(text)?);
        if group % 1024 == 0 && engine.commits().is_wanted() {
            engine.commit().map_err(text)?;
        }
    }
    // Fill the last group, and the remaining space of other groups.
    loop {
        let left = engine.reservations().accounts().data.free().min(KEPT);
        if left < SECTOR {
            break;
        }
        let mut reservation = engine.reserve_data(left).map_err(text)?;
        let kept = engine.allocate_data(&mut reservation, left, SECTOR, None, 1).map_err(text)?;
        filler.append(&engine, kept)?;
    }
    filler.settle(&engine)?;
    engine.commit().map_err(text)?;
    gaps.into_iter().for_each(|gap| engine.allocation().free_unused_data(engine.storage(), gap));
    engine.shutdown().map_err(text)?;
    Ok(clock::since(start).as_secs_f64())
}

/// Opens a new sparse file for a volume of `groups` groups.
///
/// # Errors
///
/// If the file system of the folder does not support such a long file.
pub fn create(path: &Path, groups: u64) -> Result<Arc<dyn Device>, String> {
    let device = FileDevice::create(path, device_bytes(groups)).map_err(|error| {
        format!("{}: {} (tmpfs has files of exbibytes)", path.display(), text(error))
    })?;
    Ok(Arc::new(device))
}

/// Opens the file of a volume that was made.
///
/// # Errors
///
/// When it cannot be opened.
pub fn open(path: &Path) -> Result<Arc<dyn Device>, String> {
    let device = FileDevice::open(path, OpenOptions::WRITE).map_err(text)?;
    Ok(Arc::new(device))
}

fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0) * 4096
}

/// An open volume under measurement.
struct Opened {
    engine: Arc<Engine>,
    /// The places of the groups of data.
    chunks: Vec<Extent>,
    rng: Rng,
    filler: Filler,
}

impl Opened {
    fn reads(&self) -> u64 {
        self.engine.volume().stats().reads
    }

    fn address(&mut self) -> Logical {
        let chunk = self.chunks[self.rng.below(self.chunks.len() as u64) as usize];
        chunk.start.end(self.rng.below(chunk.len / SECTOR) * SECTOR)
    }

    fn allocate(&self, want: u64, stream: u64) -> Result<Extent, String> {
        let mut reservation = self.engine.reserve_data(want).map_err(text)?;
        self.engine.allocate_data(&mut reservation, want, SECTOR, None, stream).map_err(text)
    }

    /// Allocates and frees. Returns the nanoseconds and the examined groups of each allocation.
    fn allocations(&self, want: u64, rounds: u64) -> Result<(f64, f64), String> {
        // This many allocations at a time fit into a few gaps.
        let at_once = (16 * MIB / want).clamp(1, 64) as usize;
        let probes = self.engine.storage().space().alloc_stats().probes;
        let mut held = Vec::with_capacity(64);
        let start = clock::now();
        for stream in 0..rounds {
            held.push(self.allocate(want, stream)?);
            if held.len() == at_once {
                held.drain(..).for_each(|extent| {
                    self.engine.allocation().free_unused_data(self.engine.storage(), extent);
                });
            }
        }
        held.drain(..).for_each(|extent| {
            self.engine.allocation().free_unused_data(self.engine.storage(), extent);
        });
        let probes = self.engine.storage().space().alloc_stats().probes - probes;
        Ok((nanos(start, rounds), probes as f64 / rounds as f64))
    }

    fn lookups(&mut self, rounds: u64, row: &mut Row) {
        let addresses: Vec<_> = (0..4096).map(|_| self.address()).collect();
        let volume = self.engine.volume();
        let mut found = 0;
        let start = clock::now();
        for at in addresses.iter().cycle().take(rounds as usize) {
            found += u64::from(volume.chunk_at(*at).is_some());
        }
        row.chunk_lookup = nanos(start, rounds);
        let start = clock::now();
        for at in addresses.iter().cycle().take(rounds as usize) {
            found += u64::from(self.engine.begin_nocow(Extent::new(*at, SECTOR)).is_some());
        }
        row.group_lookup = nanos(start, rounds);
        assert!(found == 2 * rounds, "addresses of groups are found");
    }

    fn commits(&mut self, rounds: u64, row: &mut Row) -> Result<(), String> {
        // This commit writes the changes of earlier measurements, so that they do not count below.
        self.engine.commit().map_err(text)?;
        let before = self.engine.statistics().nodes_written;
        let start = clock::now();
        for _ in 0..rounds {
            let extent = self.allocate(SECTOR, 1)?;
            self.filler.append(&self.engine, extent)?;
            self.filler.settle(&self.engine)?;
            self.engine.commit().map_err(text)?;
        }
        row.commit = nanos(start, rounds);
        let nodes = self.engine.statistics().nodes_written - before;
        row.commit_nodes = nodes as f64 / rounds as f64;
        Ok(())
    }

    fn chunks(&mut self, rounds: u64, row: &mut Row) -> Result<(), String> {
        let free = self.engine.reservations().accounts().data.free();
        let all = self.engine.reserve_data(free).map_err(text)?;
        let before = self.engine.volume().map_size().0;
        let start = clock::now();
        let mut reservations = Vec::new();
        for _ in 0..rounds {
            reservations.push(self.engine.reserve_data(GIB).map_err(text)?);
        }
        let added = (self.engine.volume().map_size().0 - before) as u64;
        row.chunk = nanos(start, added);
        assert!(added >= rounds, "what was not there is in new chunks");
        drop((all, reservations));
        Ok(())
    }
}

/// Opens a volume that [`make_volume`] made and measures it, with `rounds` rounds of quick
/// operations. The program must have done nothing else before, because memory is measured.
///
/// # Errors
///
/// The cause of the failure, in words.
pub fn measure(device: &Arc<dyn Device>, groups: u64, rounds: u64) -> Result<Row, String> {
    let mut row = Row { groups, ..Row::default() };
    let before = resident();
    let start = clock::now();
    let engine = open_engine(Arc::clone(device))?;
    let filler = Filler::find(&engine)?;
    filler.read_last(&engine)?;
    row.open_seconds = clock::since(start).as_secs_f64();
    row.open_reads = engine.volume().stats().reads;
    engine.know_groups().map_err(text)?;
    engine.read_only().map_or(Ok(()), Err)?;
    row.known_seconds = clock::since(start).as_secs_f64();
    let nodes = engine.store().cached_nodes() as u64 * u64::from(engine.volume().nodesize());
    let (chunks, height) = engine.volume().map_size();
    row.bytes_per_group = resident().saturating_sub(before + nodes) as f64 / chunks as f64;
    (row.chunks, row.map_height) = (chunks as u64, height as u64);
    let stats = engine.volume().stats();
    (row.known_reads, row.known_bytes) = (stats.reads, stats.read_bytes);
    let all = engine.volume().chunks();
    let of_data = all.iter().filter(|chunk| chunk.flags.has(BlockGroupFlags::DATA));
    let chunks = of_data.map(|chunk| Extent::new(chunk.logical, chunk.len)).collect();
    let mut opened = Opened { engine, chunks, rng: Rng::new(groups), filler };
    let reads = opened.reads();
    let start = clock::now();
    let first = opened.allocate(SECTOR, 0)?;
    row.first = nanos(start, 1);
    row.first_reads = (opened.reads() - reads) as f64;
    opened.engine.allocation().free_unused_data(opened.engine.storage(), first);
    // These allocations take whole gaps and keep them. So every few allocations load the free space
    // of a new group.
    let gaps = (groups * PIECES / 2).min(256);
    let start = clock::now();
    let held: Vec<_> = (0..gaps).map(|gap| opened.allocate(GAP, gap)).collect::<Result<_, _>>()?;
    row.gap = nanos(start, gaps);
    held.into_iter().for_each(|extent| {
        opened.engine.allocation().free_unused_data(opened.engine.storage(), extent);
    });
    opened.lookups(rounds * 20, &mut row);
    (row.small, row.probes) = opened.allocations(SECTOR, rounds)?;
    (row.large, _) = opened.allocations(64 << 10, rounds)?;
    (row.in_vain, row.probes_in_vain) = opened.allocations(256 * MIB, rounds / 10)?;
    opened.commits(8, &mut row)?;
    // New chunks come last and are not committed, so the volume stays the same for the next
    // measurement.
    opened.chunks(4, &mut row)?;
    Ok(row)
}
