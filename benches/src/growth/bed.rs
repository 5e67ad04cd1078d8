//! A volume that a case works on, and helper functions for cases.
//!
//! # What must hold
//!
//! - A dropped bed leaves neither an image nor a folder.
//! - The volume has no threads, so the counts are the same in every run.

use std::error::Error;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use buttress::{CreateOptions, Filesystem, OpenOptions};
use buttress_block::{Device, FileDevice};
use buttress_fs::{Inode, NewInode, be_repeatable};
use buttress_tree::Steps;
use buttress_volume::stats::io_of_gone_volumes;

use super::{Counts, Done};
use crate::heap;

/// Bytes of the first device, a sparse file. A case may make it larger.
const SIZE: u64 = 4 << 30;
/// The number of operations of a case with a fixed number of operations.
pub(super) const OPERATIONS: u64 = 4;
/// Bytes of a sector.
pub(super) const SECTOR: u64 = 4096;

/// The seed of identifiers of volumes and subvolumes.
const SEED: u64 = 1;

/// The place and the value of the magic number of a volume.
const MAGIC_AT: u64 = (64 << 10) + 64;
const MAGIC: &[u8; 8] = b"_BHRfS_M";

/// The environment variable with the file for the program's counts.
const COUNTS: &str = "BUTTRESS_BENCH_COUNTS";

/// A volume in a folder of its own.
#[derive(Debug)]
pub struct Bed {
    dir: PathBuf,
    fs: Option<Filesystem>,
}

impl Drop for Bed {
    fn drop(&mut self) {
        drop(self.fs.take());
        let _ = fs::remove_dir_all(&self.dir);
    }
}

impl Bed {
    /// An empty volume in a new folder below `parent`.
    pub(super) fn new(parent: &Path) -> Result<Self, Box<dyn Error>> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        be_repeatable(SEED, None);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = parent.join(format!("buttress-growth-{}-{next}", std::process::id()));
        fs::create_dir_all(&dir)?;
        let mut bed = Self { dir, fs: None };
        bed.fs = Some(CreateOptions::new(SIZE).create(bed.image())?);
        Ok(bed)
    }

    /// The image of the volume's first device.
    #[must_use]
    pub fn image(&self) -> PathBuf {
        self.dir.join("img")
    }

    /// The folder of the image, for further files of a case.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The volume.
    pub(super) fn fs(&self) -> &Filesystem {
        self.fs.as_ref().expect("a case works on an open volume")
    }

    /// The images of the volume's devices, in order.
    pub(super) fn images(&self) -> Vec<PathBuf> {
        let more = (1..).map(|at| self.dir.join(format!("img{at}")));
        let all = std::iter::once(self.image()).chain(more.take_while(|path| path.exists()));
        all.filter(|path| is_device(path)).collect()
    }

    pub(super) fn close(&mut self) -> Done {
        self.fs.take().map_or(Ok(()), |fs| Ok(fs.close()?))
    }

    /// Opens the volume anew, so that nothing is in memory. A first change then loads the nodes
    /// that all later changes need.
    pub(super) fn reopen(&mut self) -> Done {
        self.close()?;
        let images = self.images();
        let paths: Vec<&Path> = images.iter().map(|path| &**path).collect();
        let options = OpenOptions::new().mount_options("commit=3600")?;
        let fs = options.open_all(&paths)?;
        fs.write("/warm", "up")?;
        fs.sync()?;
        self.fs = Some(fs);
        Ok(())
    }

    /// Adds a sparse device of `gib` GiB.
    pub(super) fn add_device(&self, gib: u64) -> Done {
        let path = self.dir.join(format!("img{}", self.images().len()));
        let device: Arc<dyn Device> = Arc::new(FileDevice::create(path, gib << 30)?);
        self.fs().engine().add_device(device)?;
        Ok(())
    }

    /// Runs a verb in a separate process, and returns the counts of that process.
    pub(super) fn verb(
        &self,
        program: &Path,
        words: &str,
        size: u64,
    ) -> Result<Counts, Box<dyn Error>> {
        let (image, dir) = (self.image().display().to_string(), self.dir.display().to_string());
        let words = words.split(' ').map(|word| word.replace("IMG", &image).replace("DIR", &dir));
        let counts = self.dir.join("counts");
        let mut command = Command::new(program);
        command.arg(crate::setup::PROGRAM).args(words).env(COUNTS, &counts);
        let out = command.output()?;
        if !out.status.success() {
            return Err(String::from_utf8_lossy(&[out.stderr, out.stdout].concat()).trim().into());
        }
        let text = fs::read_to_string(counts)?;
        let (seconds, numbers) = text.split_once(' ').ok_or("the program did not count")?;
        let seconds = seconds.parse()?;
        let numbers: Vec<u64> = numbers.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        let &[allocations, memory, steps, nodes_read, written] = &numbers[..] else {
            return Err("the program did not count".into());
        };
        Ok(Counts { size, steps, nodes_read, allocations, written, memory, seconds })
    }

    pub(super) fn root(&self) -> Inode {
        self.fs().engine().root()
    }

    /// The file or directory with this name in the top directory.
    pub(super) fn at(&self, name: &str) -> Result<Inode, Box<dyn Error>> {
        Ok(self.root().lookup(name.as_bytes())?)
    }

    /// A new file in the top directory.
    pub(super) fn make(&self, name: &str) -> Result<Inode, Box<dyn Error>> {
        Ok(self.root().create(name.as_bytes(), NewInode::file(0o644))?)
    }
}

/// Whether a file has the magic number of a btrfs superblock, so that it is part of a volume.
fn is_device(path: &Path) -> bool {
    let mut magic = [0; 8];
    let read = fs::File::open(path).and_then(|file| file.read_exact_at(&mut magic, MAGIC_AT));
    read.is_ok() && &magic == MAGIC
}

/// The name with a number. All names have the same length.
pub(super) fn name(at: u64) -> Vec<u8> {
    format!("name-{at:08}").into_bytes()
}

/// Numbers spread over `0..size`, as many as a case does operations.
pub(super) fn spread(size: u64) -> impl Iterator<Item = u64> {
    (0..OPERATIONS).map(move |at| at * size / OPERATIONS)
}

/// Nothing to prepare.
pub(super) fn nothing(_: &Bed, _: u64) -> Done {
    Ok(())
}

/// Begins to count, if the environment asks for counts.
pub(crate) fn begin_program() {
    if std::env::var_os(COUNTS).is_some() {
        heap::start();
    }
}

/// Writes the counts to the file that the environment names.
pub(crate) fn end_program() {
    let Some(path) = std::env::var_os(COUNTS) else { return };
    let (seconds, heap) = (super::processor_seconds(), heap::counted());
    let steps = Steps::of_gone_stores();
    let (reads, written) = io_of_gone_volumes();
    let all = steps.nodes + steps.keys + reads;
    let text = format!(
        "{seconds} {} {} {all} {} {written}",
        heap.allocations, heap.peak, steps.nodes_read
    );
    // If the write fails, the caller finds no counts and reports an error.
    let _ = fs::write(path, text);
}
