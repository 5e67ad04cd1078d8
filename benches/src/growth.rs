//! `buttress-bench growth`: how the cost of operations and verbs grows with the size of their
//! volume.
//!
//! # What must hold
//!
//! - Each case runs at several sizes, each time on a new volume that was opened anew. Counts are
//!   compared: tree steps, allocations and bytes written. The counts are the same in every run.
//! - A case of [`Shape::Each`] does work for each of its units, so the exponent of its growth
//!   should be 1. A case of [`Shape::One`] does a fixed number of operations in a structure of that
//!   size, so the exponent should be 0.
//! - Processor time is only shown. It includes work that no count sees.

mod bed;
mod cases;
mod contents;
mod mounted;
mod names;
mod shared;
mod verbs;
mod whole;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use buttress_base::clock;
use buttress_block::{Device, FileDevice, OpenOptions};
use serde::Serialize;
use serde_json::{Value, json};

pub use bed::Bed;
pub(crate) use bed::{begin_program, end_program};
pub use cases::all;

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
/// Fewer steps or allocations count as this number, so that the first few steps do not count as
/// growth.
const STEPS_MIN: u64 = 128;
/// Less memory counts as this number of bytes. Opening the volume caches the first nodes, so work
/// on a small structure needs almost no further memory.
const MEMORY_MIN: u64 = 64 << 10;
/// Fewer written bytes count as this number, about a small commit.
const WRITTEN_MIN: u64 = 256 << 10;
/// The sizes of a case, in units of its own.
pub const FACTORS: [u64; 4] = [1, 4, 16, 64];

/// How the work of a case should grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// In proportion to the size.
    Each,
    /// Not at all.
    One,
}

/// The work of a case.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// Operations of the library. A commit follows and is counted.
    Library(Step),
    /// System calls on a mount. A commit follows and is counted. The steps are the requests of the
    /// kernel.
    Mount(MountStep),
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
    /// The work that is counted.
    pub work: Work,
    /// The reason why the cost grows faster, if that cannot be avoided.
    pub because: Option<&'static str>,
}

impl Case {
    /// The largest allowed exponent of the case.
    #[must_use]
    pub fn most(&self) -> f64 {
        match self.shape {
            Shape::Each => EACH_MAX,
            Shape::One => ONE_MAX,
        }
    }

    const fn because(mut self, why: &'static str) -> Self {
        self.because = Some(why);
        self
    }
}

const fn each(
    name: &'static str,
    grows: &'static str,
    least: u64,
    prepare: Step,
    run: Step,
) -> Case {
    let work = Work::Library(run);
    Case { name, grows, least, shape: Shape::Each, prepare, work, because: None }
}

const fn one(
    name: &'static str,
    grows: &'static str,
    least: u64,
    prepare: Step,
    run: Step,
) -> Case {
    let work = Work::Library(run);
    Case { name, grows, least, shape: Shape::One, prepare, work, because: None }
}

const fn mount(
    name: &'static str,
    grows: &'static str,
    least: u64,
    shape: Shape,
    prepare: Step,
    run: MountStep,
) -> Case {
    Case { name, grows, least, shape, prepare, work: Work::Mount(run), because: None }
}

const fn verb(
    words: &'static str,
    grows: &'static str,
    least: u64,
    shape: Shape,
    prepare: Step,
) -> Case {
    Case { name: words, grows, least, shape, prepare, work: Work::Verb(words), because: None }
}

/// The counts of one size of a case.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Counts {
    /// The number of units.
    pub size: u64,
    /// Nodes and keys that were visited, and reads of devices. On a mount, the requests of the
    /// kernel.
    pub steps: u64,
    /// Nodes that were read from a device, except by the checker, which has its own reader.
    pub nodes_read: u64,
    /// Allocations.
    pub allocations: u64,
    /// Bytes written to devices.
    pub written: u64,
    /// The most bytes of memory at once, beyond the bytes from before the work.
    pub memory: u64,
    /// Processor seconds.
    pub seconds: f64,
}

/// A case, and the counts of its sizes.
#[derive(Clone, Debug)]
pub struct Row {
    /// The case.
    pub case: Case,
    /// By size.
    pub counts: Vec<Counts>,
}

/// The slope of a line through sizes and counts, both as logarithms.
fn exponent(counts: &[Counts], of: impl Fn(&Counts) -> f64) -> f64 {
    let points = counts.iter().map(|one| ((one.size as f64).ln(), of(one).max(1.0).ln()));
    let (mut x, mut y, mut xx, mut xy, mut n) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for (log_size, log_count) in points {
        x += log_size;
        y += log_count;
        xx += log_size * log_size;
        xy += log_size * log_count;
        n += 1.0;
    }
    (n * xy - x * y) / (n * xx - x * x)
}

impl Row {
    /// The three largest sizes: fixed costs hide growth at the smallest sizes.
    fn largest(&self) -> &[Counts] {
        &self.counts[self.counts.len().saturating_sub(3)..]
    }

    /// The exponents of the counts: steps, allocations, bytes written.
    #[must_use]
    pub fn exponents(&self) -> [f64; 3] {
        let of: [fn(&Counts) -> u64; 3] = [
            |one| one.steps.max(STEPS_MIN),
            |one| one.allocations.max(STEPS_MIN),
            |one| one.written.max(WRITTEN_MIN),
        ];
        of.map(|of| exponent(self.largest(), |one| of(one) as f64))
    }

    /// The largest exponent.
    #[must_use]
    pub fn worst(&self) -> f64 {
        self.exponents().into_iter().fold(0.0, f64::max)
    }

    /// The exponent of memory.
    #[must_use]
    pub fn memory(&self) -> f64 {
        exponent(self.largest(), |one| one.memory.max(MEMORY_MIN) as f64)
    }

    /// The exponent of processor time.
    #[must_use]
    pub fn time(&self) -> f64 {
        exponent(self.largest(), |one| one.seconds * 1e6)
    }

    /// Whether the case grows faster than allowed.
    #[must_use]
    pub fn is_above(&self) -> bool {
        self.is_above_by(0.0)
    }

    /// Whether the largest exponent is above the allowed one by more than `slack`. Small sizes need
    /// a slack, because a change rewrites leaves that are still filling up.
    #[must_use]
    pub fn is_above_by(&self, slack: f64) -> bool {
        self.worst() > self.case.most() + slack && self.case.because.is_none()
    }

    /// One row of the generated figures.
    #[must_use]
    pub fn json(&self) -> Value {
        let [steps, allocations, written] = self.exponents();
        json!({
            "case": self.case.name, "grows": self.case.grows, "most": self.case.most(),
            "is_above": self.is_above(), "because": self.case.because, "steps": steps,
            "allocations": allocations, "written": written, "memory": self.memory(),
            "processor_time": self.time(), "counts": self.counts,
        })
    }

    fn line(&self) -> String {
        let [steps, allocations, written] = self.exponents();
        let most = self.counts.last().copied().unwrap_or_default();
        let mark = if self.is_above() { " <" } else { "" };
        format!(
            "{:<34} {:<22} {:>7} {steps:>6.2} {allocations:>6.2} {written:>6.2} {:>6.2} {:>6.2} \
             {:>10.1} {:>9.3}{mark}",
            self.case.name,
            self.case.grows,
            most.size,
            self.memory(),
            self.time(),
            most.memory as f64 / 1024.0,
            most.seconds,
        )
    }
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
    let clock = processor_seconds();
    heap::start();
    run()?;
    fs.sync()?;
    let heap = heap::counted();
    let seconds = processor_seconds() - clock;
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
    let mut bed = Bed::new(&plan.dir)?;
    (case.prepare)(&bed, size)?;
    let counts = match case.work {
        Work::Library(run) => {
            bed.reopen()?;
            library(&bed, &|| run(&bed, size), size)?
        }
        Work::Mount(run) => {
            bed.reopen()?;
            let before = mounted::requests();
            let work = || mounted::run(bed.fs().engine(), bed.dir(), run, size);
            let counts = library(&bed, &work, size)?;
            Counts { steps: mounted::requests() - before, ..counts }
        }
        Work::Verb(words) => {
            bed.close()?;
            bed.verb(&plan.program, words, size)?
        }
    };
    bed.close()?;
    if is_last {
        (plan.look)(&bed.images())?;
    }
    Ok(counts)
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
    let can_run = |case: &Case| can_mount || !matches!(case.work, Work::Mount(_));
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

/// All rows as text. Rows that grow too fast are repeated at the end.
#[must_use]
pub fn table(rows: &[Row]) -> String {
    let mut out = format!(
        "{:<34} {:<22} {:>7} {:>6} {:>6} {:>6} {:>6} {:>6} {:>10} {:>9}\n",
        "case", "grows", "size", "steps", "allocs", "writes", "memory", "time", "KiB", "seconds"
    );
    for row in rows {
        // Writing into a string cannot fail.
        let _ = writeln!(out, "{}", row.line());
    }
    let above: Vec<_> = rows.iter().filter(|row| row.is_above()).collect();
    let _ = writeln!(out, "\n{} of {} grow faster than they may", above.len(), rows.len());
    for row in above {
        let _ = writeln!(out, "{}", row.line());
    }
    for (name, why) in rows.iter().filter_map(|row| Some((row.case.name, row.case.because?))) {
        let _ = writeln!(out, "{name}: {why}");
    }
    out
}

/// All rows as JSON.
#[must_use]
pub fn json(rows: &[Row]) -> Value {
    let rows: Vec<_> = rows.iter().map(Row::json).collect();
    json!({ "experiment": "growth", "rows": rows })
}
