//! A random test by seeds. A seed selects the shape of the volume, its content and snapshots, the
//! fillers that run meanwhile, and the order of deletion.
//!
//! `BUTTRESS_SEED` or `BUTTRESS_SEEDS` select the seeds.

use buttress_format::Profile;
use buttress_sim::campaign;

use super::*;
use crate::make::{MakeOptions, make_on};
use crate::{Error, NewInode, Result};

const SECONDS_MAX: u64 = 4;
/// After this many refusals in a row a filler stops.
const REFUSED_MAX: usize = 40;

/// The devices of a volume, and its mount options.
struct Shape {
    devices: Vec<Arc<dyn Device>>,
    options: String,
}

impl Shape {
    fn of(rng: &mut Rng) -> Self {
        let nodesize = *rng.choose(&[4096, 16384]).expect("one");
        let mib = *rng.choose(&[128, 160, 192, 256, 384]).expect("one");
        let (metadata, mixed, count) = match rng.below(4) {
            0 => (Profile::Dup, false, 1),
            1 => (Profile::Single, false, 1),
            2 => (Profile::Raid1, false, 2 + rng.below(2)),
            _ => (Profile::Single, true, 1),
        };
        let nodesize = if mixed { 4096 } else { nodesize };
        let metadata = (!mixed).then_some(metadata);
        let options = MakeOptions { nodesize, metadata, mixed, ..MakeOptions::default() };
        let device = |_| Arc::new(MemoryDevice::new(mib << 20)) as Arc<dyn Device>;
        let devices: Vec<_> = (0..count).map(device).collect();
        let all: Vec<&dyn Device> = devices.iter().map(|device| &**device).collect();
        make_on(&all, &options).expect("an empty volume");
        let commit = rng.choose(&[1, 300]).expect("one");
        let more = rng.choose(&["", "", ",compress=zstd", ",nodatacow", ",notreelog"]);
        let options = format!("rw,commit={commit}{}", more.expect("one"));
        Self { devices, options }
    }

    fn mount(&self) -> Filesystem {
        let options = MountOptions::parse(&self.options).expect("options");
        Filesystem::open(self.devices.clone(), options).expect("a mount")
    }
}

/// The result, or `None` if there is no space. Panics on any other error.
fn if_there_is_room<T>(result: Result<T>) -> Option<T> {
    match result {
        Ok(done) => Some(done),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
            None
        }
    }
}

/// A step of the deletion: removes or cuts one entry of a folder.
#[derive(Clone, Debug)]
enum Goes {
    File(String),
    Folder(String),
    Cut(String),
}

impl Goes {
    fn from(&self, dir: &Inode) -> Result<()> {
        match self {
            Self::File(name) => dir.unlink(name.as_bytes()),
            Self::Folder(name) => dir.rmdir(name.as_bytes()),
            Self::Cut(name) => {
                let size = Some(2 * SECTOR);
                let file = dir.lookup(name.as_bytes())?;
                file.set_attr(&SetAttr { size, ..SetAttr::default() }).map(drop)
            }
        }
    }
}

/// Makes one object of the given kind: small files, files with two names, folders with attributes,
/// or files with extents.
fn make_one(dir: &Inode, kind: u64, number: usize, rng: &mut Rng) -> Result<Vec<Goes>> {
    let name = format!("f{number}");
    let attribute = vec![3; 500 + rng.below(2500) as usize];
    if kind == 2 {
        let folder = dir.mkdir(name.as_bytes(), 0o755, 0, 0)?;
        folder.set_xattr(b"user.large", &attribute, XattrFlags::default())?;
        return Ok(vec![Goes::Folder(name)]);
    }
    let file = dir.create(name.as_bytes(), NewInode::file(0o644))?;
    if kind < 2 || !number.is_multiple_of(8) {
        file.write_at(0, &bytes(number as u8, 1)[..INLINE - 50 * (number % 20)])?;
        let mut all = vec![Goes::File(name)];
        if kind == 1 {
            let other = format!("l{number}");
            dir.link(&file, other.as_bytes())?;
            all.push(Goes::File(other));
        }
        return Ok(all);
    }
    for piece in 0..5 + rng.below(60) {
        let at = 2 * piece * SECTOR;
        if rng.chance(1, 2) {
            file.write_at(at, &bytes(piece as u8, 1))?;
        } else {
            file.fallocate(at, SECTOR, FallocateMode::Allocate { keep_size: false })?;
        }
    }
    let cut = rng.chance(1, 3);
    Ok(if cut { vec![Goes::Cut(name.clone()), Goes::File(name)] } else { vec![Goes::File(name)] })
}

/// Makes objects until there is no space, of one kind or of all kinds.
fn make_all(fs: &Filesystem, dir: &Inode, rng: &mut Rng) -> Vec<Goes> {
    let (kind, most) = (rng.below(5), 500 + rng.below(6000) as usize);
    let mut all = Vec::new();
    for number in 0..most {
        let kind = if kind == 4 { rng.below(4) } else { kind };
        let Some(made) = if_there_is_room(make_one(dir, kind, number, rng)) else { break };
        all.extend(made);
        if number % 700 == 0 {
            if_there_is_room(fs.sync());
        }
    }
    if_there_is_room(fs.sync());
    all
}

/// Makes some snapshots, some of them of other snapshots. Returns the name of a writable snapshot.
fn cut_some(fs: &Filesystem, rng: &mut Rng) -> Option<&'static [u8]> {
    let cut = |name: &[u8], of, read_only| {
        if_there_is_room(fs.root().snapshot(name, of, read_only)).map(|top| top.id().tree)
    };
    match rng.below(3) {
        0 => cut(b"one", TreeId::FS, true).and(None),
        1 => {
            let one = cut(b"one", TreeId::FS, false)?;
            cut(b"two", one, true);
            Some(b"one")
        }
        _ => {
            let one = cut(b"one", TreeId::FS, true)?;
            cut(b"two", one, false).map(|_| &b"two"[..])
        }
    }
}

/// Fills the volume as one of four threads, until no space is left or the time is over.
fn fill_on(fs: &Filesystem, top: &Inode, rng: &mut Rng, thread: u64) {
    let (begun, name) =
        (Instant::now(), |what: &str, number: usize| format!("{what}{thread}-{number}"));
    let filler = if_there_is_room(top.create(name("data", 0).as_bytes(), NewInode::file(0o644)));
    let (mut refused, mut number) = (0, 0);
    while refused < REFUSED_MAX && begun.elapsed().as_secs() < SECONDS_MAX {
        number += 1;
        let made = |what| top.create(name(what, number).as_bytes(), NewInode::file(0o644));
        let done = match (thread + rng.below(8) / 7) % 4 {
            0 | 1 if filler.is_none() => Ok(()),
            0 => {
                let mode = FallocateMode::Allocate { keep_size: false };
                filler.as_ref().map_or(Ok(()), |it| it.fallocate(number as u64 * MIB, MIB, mode))
            }
            // Small writes at many offsets, for which much metadata is reserved.
            1 => {
                let at = rng.below(4000) * 3 * SECTOR;
                filler.as_ref().map_or(Ok(()), |it| it.write_at(at, &bytes(1, 1)).map(drop))
            }
            2 => made("large")
                .and_then(|file| file.set_xattr(b"user.large", &[1; 3000], XattrFlags::default())),
            _ if number % 40 == 7 => {
                let name = name("snapshot", number);
                let cut = fs.root().snapshot(name.as_bytes(), top.id().tree, true).map(drop);
                cut.and_then(|()| fs.root().delete_subvolume(name.as_bytes()))
            }
            _ => made("small").and_then(|it| it.write_at(0, &bytes(1, 1)[..INLINE]).map(drop)),
        };
        refused = if if_there_is_room(done).is_some() { 0 } else { refused + 1 };
        if number % 200 == 0 {
            if_there_is_room(fs.sync());
        }
    }
}

/// Runs the whole test for a seed. Returns how many objects were removed.
fn storm(seed: u64) -> usize {
    let mut rng = Rng::new(seed);
    let shape = Shape::of(&mut rng);
    let mut fs = shape.mount();
    let dir = fs.root().mkdir(b"dir", 0o755, 0, 0).expect("a folder");
    let mut all = make_all(&fs, &dir, &mut rng);
    drop(dir);
    let written = cut_some(&fs, &mut rng);
    let tops = |fs: &Filesystem| {
        let other = written.map(|name| fs.root().lookup(name).expect("it was cut"));
        std::iter::once(fs.root()).chain(other).collect::<Vec<_>>()
    };
    let all_tops = tops(&fs);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (fs, top) = (&fs, &all_tops[thread % all_tops.len()]);
            let mut rng = Rng::new(seed * 31 + thread as u64);
            scope.spawn(move || fill_on(fs, top, &mut rng, thread as u64));
        }
    });
    drop(all_tops);
    if rng.chance(1, 2) {
        // A sync reports once that a background write was refused.
        if_there_is_room(fs.sync());
        fs.close().expect("closed");
        fs = shape.mount();
    }
    // Cut files before anything is removed, because a file may be both cut and removed.
    let cuts = all.iter().filter(|goes| matches!(goes, Goes::Cut(_))).cloned().collect::<Vec<_>>();
    all.retain(|goes| !matches!(goes, Goes::Cut(_)));
    rng.shuffle(&mut all);
    let dirs: Vec<_> = tops(&fs).iter().map(dir_of).collect();
    for (count, goes) in cuts.iter().chain(&all).enumerate() {
        for dir in &dirs {
            let gone = goes.from(dir);
            let tell = |error: Error| {
                let options = &shape.options;
                panic!(
                    "{seed}, {options}: {goes:?}, {count}: {error}; {}",
                    fs.space_stats().accounts
                )
            };
            gone.unwrap_or_else(tell);
        }
        if rng.chance(1, 300) {
            if_there_is_room(fs.sync());
        }
    }
    assert_eq!(fs.read_only_reason(), None, "{seed}");
    drop(dirs);
    if_there_is_room(fs.sync());
    fs.close().expect("closed");
    check_volumes(shape.devices);
    all.len()
}

/// Y1, P1: no commit runs out of space and no delete is refused, for any volume.
#[test]
fn deletes_in_any_storm() {
    let seeds = campaign::seeds_or(1..4);
    campaign::count("deletes", seeds.map(storm).sum());
}
