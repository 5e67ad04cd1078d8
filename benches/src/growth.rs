//! `buttress-bench growth`: how the cost of operations and verbs grows with the size of their
//! volume.
//!
//! # What must hold
//!
//! - Each case runs at several sizes, each time on a new volume that was opened anew. Counts are
//!   compared: tree steps, allocations and bytes written. The counts are the same in every run.
//! - The wall clock stands while a volume is prepared, and stands at a later second during the
//!   work. Otherwise the counts depend on where a tick falls: a file that is read in the tick of
//!   its last change keeps its access time.
//! - A case of [`Shape::Each`] does work for each of its units, so the exponent of its growth
//!   should be 1. A case of [`Shape::One`] does a fixed number of operations in a structure of that
//!   size, so the exponent should be 0.
//! - Processor time is only shown. It includes work that no count sees.

mod bed;
mod cases;
mod contents;
mod damage;
mod facade;
mod mounted;
mod names;
mod rows;
mod shared;
mod verbs;
mod whole;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use buttress_base::clock;
use buttress_block::{Device, FileDevice, OpenOptions};

pub use self::bed::Bed;
pub(crate) use self::bed::{begin_program, end_program};
pub use self::cases::all;
pub use self::rows::{Counts, Row, json, table};

use crate::heap;

/// The result of a step of a case.
pub type Done = Result<(), Box<dyn std::error::Error>>;
/// Prepares a volume for a size, or works on it.
pub type Step = fn(&Bed, u64) -> Done;
/// Works on a mount, which is at the path.
pub type MountStep = fn(&Path, u64) -> Done;

/// The largest allowed exponent of a case of [`Shape::Each`].
const EACH_MAX: f64 = 1.15;
/// The largest allowed exponent of a case of [`Shape::One`]: trees are deeper in larger structures.
const ONE_MAX: f64 = 0.3;
/// The sizes of a case, in units of its own.
pub const FACTORS: [u64; 4] = [1, 4, 16, 64];

/// The second at which the wall clock stands while a volume is prepared.
const PREPARED: u64 = 1_700_000_000;
/// The second at which the wall clock stands during the work.
const WORKED: u64 = PREPARED + 60;

/// How the work of a case should grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// In proportion to the size.
    Each,
    /// Not at all.
    One,
}

/// How the requests of a mount come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// By `/dev/fuse`.
    Device,
    /// By io_uring, where the kernel offers it.
    Ring,
}

/// The work of a case.
#[derive(Clone, Copy, Debug)]
pub enum GrowthWork {
    /// Operations of the library. A commit follows and is counted.
    Library(Step),
    /// System calls on a mount. A commit follows and is counted. The steps are the requests of the
    /// kernel.
    Mount(MountStep, Transport),
    /// A command line of `buttress`, with `IMG` for the image and `DIR` for a folder beside it.
    Verb(&'static str),
}

/// A kind of work with a cost that may grow.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The operation or verb.
    pub name: &'static str,
    /// The quantity that grows.
    pub grows: &'static str,
    /// The smallest size.
    pub least: u64,
    /// How the cost should grow.
    pub shape: Shape,
    /// Fills the volume.
    pub prepare: Step,
    /// Changes the closed volume before a verb: damages it, for example.
    pub after: Option<fn(&Bed) -> Done>,
    /// The work that is counted.
    pub work: GrowthWork,
    /// The largest allowed exponent and the reason, if the cost has to grow faster.
    pub because: Option<(f64, &'static str)>,
}

impl Case {
    /// The largest allowed exponent of cases of this shape.
    #[must_use]
    pub fn usual(&self) -> f64 {
        match self.shape {
            Shape::Each => EACH_MAX,
            Shape::One => ONE_MAX,
        }
    }

    /// The largest allowed exponent of the case.
    #[must_use]
    pub fn most(&self) -> f64 {
        self.because.map_or(self.usual(), |(most, _)| most)
    }

    /// Lets the exponent of the case be larger, for a reason.
    const fn because(mut self, most: f64, why: &'static str) -> Self {
        self.because = Some((most, why));
        self
    }

    /// The same case with requests by io_uring.
    const fn by_ring(mut self, name: &'static str) -> Self {
        if let GrowthWork::Mount(run, _) = self.work {
            self.work = GrowthWork::Mount(run, Transport::Ring);
        }
        self.name = name;
        self
    }

    const fn after(mut self, change: fn(&Bed) -> Done) -> Self {
        self.after = Some(change);
        self
    }

    /// The program of another package that the case needs.
    fn needs(&self) -> Option<&'static str> {
        self.name.starts_with("convert").then_some(damage::MKFS_EXT4)
    }
}

const fn each(
    name: &'static str,
    grows: &'static str,
    least: u64,
    prepare: Step,
    run: Step,
) -> Case {
    let work = GrowthWork::Library(run);
    Case { name, grows, least, shape: Shape::Each, prepare, after: None, work, because: None }
}

const fn one(
    name: &'static str,
    grows: &'static str,
    least: u64,
    prepare: Step,
    run: Step,
) -> Case {
    let work = GrowthWork::Library(run);
    Case { name, grows, least, shape: Shape::One, prepare, after: None, work, because: None }
}

const fn mount(
    name: &'static str,
    grows: &'static str,
    least: u64,
    shape: Shape,
    prepare: Step,
    run: MountStep,
) -> Case {
    let work = GrowthWork::Mount(run, Transport::Device);
    Case { name, grows, least, shape, prepare, after: None, work, because: None }
}

const fn verb(
    words: &'static str,
    grows: &'static str,
    least: u64,
    shape: Shape,
    prepare: Step,
) -> Case {
    let work = GrowthWork::Verb(words);
    Case { name: words, grows, least, shape, prepare, after: None, work, because: None }
}

/// What to measure, and how.
pub struct Plan<'a> {
    /// The folder for images.
    pub dir: PathBuf,
    /// The program that runs verbs and counts.
    pub program: PathBuf,
    /// Sizes, in units of each case.
    pub factors: Vec<u64>,
    /// The divisor of the units of each case.
    pub divisor: u64,
    /// Only cases with one of these words in their names, or in `grows`.
    pub only: Vec<String>,
    /// Checks the images of the largest size of each case.
    pub look: &'a dyn Fn(&[PathBuf]) -> Result<(), String>,
}

impl std::fmt::Debug for Plan<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plan").field("dir", &self.dir).finish_non_exhaustive()
    }
}

fn processor_seconds() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

fn library(
    bed: &Bed,
    run: &dyn Fn() -> Done,
    size: u64,
) -> Result<Counts, Box<dyn std::error::Error>> {
    let fs = bed.fs();
    let store = Arc::clone(fs.engine().view().store());
    let (steps, io) = (store.steps(), fs.engine().io_stats());
    let before = processor_seconds();
    clock::stop_wall(WORKED);
    heap::start();
    run()?;
    fs.sync()?;
    let heap = heap::counted();
    let seconds = processor_seconds() - before;
    let (steps, done) = (store.steps().since(&steps), fs.engine().io_stats());
    Ok(Counts {
        size,
        steps: steps.nodes + steps.keys + done.reads - io.reads,
        nodes_read: steps.nodes_read,
        allocations: heap.allocations,
        written: done.write_bytes - io.write_bytes,
        memory: heap.peak,
        seconds,
    })
}

/// Measures one case at one size.
///
/// # Errors
///
/// The cause of the failure.
pub fn measure(
    case: &Case,
    size: u64,
    plan: &Plan<'_>,
    is_last: bool,
) -> Result<Counts, Box<dyn std::error::Error>> {
    clock::stop_wall(PREPARED);
    let mut bed = Bed::new(&plan.dir)?;
    (case.prepare)(&bed, size)?;
    let counts = match case.work {
        GrowthWork::Library(run) => {
            bed.reopen()?;
            library(&bed, &|| run(&bed, size), size)?
        }
        GrowthWork::Mount(run, transport) => {
            bed.reopen()?;
            let before = mounted::requests();
            let work = || mounted::run(bed.fs().engine(), bed.dir(), (run, transport), size);
            let counts = library(&bed, &work, size)?;
            Counts { steps: mounted::requests() - before, ..counts }
        }
        GrowthWork::Verb(words) => {
            bed.close()?;
            if let Some(change) = case.after {
                change(&bed)?;
            }
            bed.verb(&plan.program, words, size)?
        }
    };
    bed.close()?;
    let images = bed.images();
    if is_last && !leaves_none(&case.work) {
        if images.is_empty() {
            return Err(format!("{}: the volume is gone", case.name).into());
        }
        (plan.look)(&images)?;
    }
    Ok(counts)
}

/// Whether there is no volume behind the work: a conversion that was rolled back, and a rescue from
/// a device without superblocks.
fn leaves_none(work: &GrowthWork) -> bool {
    matches!(work, GrowthWork::Verb("convert --rollback IMG" | "restore --dry-run IMG"))
}

/// Checks that our checker finds no fault on a volume, including its data.
///
/// # Errors
///
/// The faults, in words.
pub fn expect_sound(images: &[PathBuf]) -> Result<(), String> {
    let mut devices: Vec<Arc<dyn Device>> = Vec::new();
    for image in images {
        let device = FileDevice::open(image, OpenOptions::READ).map_err(|e| e.to_string())?;
        devices.push(Arc::new(device));
    }
    let options = buttress_check::Options::thorough();
    let report = buttress_check::check_devices(devices, &options, &buttress_check::NoProgress);
    let report = report.map_err(|error| error.to_string())?;
    if report.is_clean() { Ok(()) } else { Err(report.to_text()) }
}

fn is_there(program: &str) -> bool {
    std::process::Command::new(program).arg("-V").output().is_ok()
}

/// Measures every case. `say` gets a message for each case.
///
/// # Errors
///
/// The cause of the failure, in words.
pub fn run(plan: &Plan<'_>, say: &mut dyn FnMut(&str)) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    let wanted = |case: &Case| {
        let has = |word: &String| case.name.contains(&**word) || case.grows.contains(&**word);
        plan.only.is_empty() || plan.only.iter().any(has)
    };
    let can_mount = mounted::can_mount();
    if !can_mount {
        say("SKIPPED: cases on a mount need root and /dev/fuse");
    }
    let has_ext4 = is_there(damage::MKFS_EXT4);
    if !has_ext4 {
        say("SKIPPED: cases of conversions need mkfs.ext4");
    }
    let has_ring = mounted::has_ring();
    if !has_ring {
        say("SKIPPED: cases by io_uring need fuse.enable_uring");
    }
    let can_run = |case: &Case| match case.work {
        GrowthWork::Mount(_, Transport::Device) => can_mount,
        GrowthWork::Mount(_, Transport::Ring) => can_mount && has_ring,
        _ => has_ext4 || case.needs().is_none(),
    };
    for case in all().filter(wanted).filter(can_run) {
        let start = clock::now();
        let mut counts = Vec::new();
        for (at, factor) in plan.factors.iter().enumerate() {
            let size = (case.least / plan.divisor).max(1) * factor;
            say(&format!("{}, {}: {size}", case.name, case.grows));
            let done = measure(&case, size, plan, at + 1 == plan.factors.len());
            counts.push(done.map_err(|error| format!("{}, {size}: {error}", case.name))?);
        }
        let row = Row { case, counts };
        say(&format!("{} ({:.1} s)", row.line(), clock::since(start).as_secs_f64()));
        rows.push(row);
    }
    Ok(rows)
}
