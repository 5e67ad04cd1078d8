//! Everyday loads on a mount, compared with Linux's btrfs and an empty server.
//!
//! # Place
//!
//! Each load runs on each subject in turn. The empty server answers from memory on the same
//! transport with the same flags, so its figure is the limit for a mount. Servers count the
//! requests of a load by kind.
//!
//! # What must hold
//!
//! - If a load ends with a sync, the sync includes an fsync of the mount's top: the kernel passes
//!   `syncfs` to no server.
//! - Sources lie in memory, outside of the measured volume.

mod loads;
mod server;
mod shapes;
mod sources;
mod table;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::setup::Setup;
use crate::subject::Subject;
use crate::target::{self, Target};

use loads::{Bench, Load};
use server::{Server, Spent};
use sources::Sources;

pub(crate) use server::serve_empty;
pub(crate) use sources::drop_caches;

/// Bytes of each image.
const SIZE: u64 = 8 << 30;
/// The prefix of the names of mounts by a former program.
const BEFORE: &str = "former ";

/// The plan of a measurement.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// A memory-backed folder.
    pub(crate) dir: PathBuf,
    pub(crate) runs: usize,
    /// Small files of each load.
    pub(crate) files: usize,
    /// MiB of the large file.
    pub(crate) mib: u64,
    /// Transactions of sqlite.
    pub(crate) transactions: usize,
    /// Factor for the counts of the loads that grow in one dimension. Zero leaves them out.
    pub(crate) grown: usize,
    /// Only loads with one of these words in their names.
    pub(crate) loads: Vec<String>,
    /// Only subjects with one of these words in their names.
    pub(crate) only: Vec<String>,
    /// A former `buttress`, which is measured beside this one.
    pub(crate) before: Option<PathBuf>,
}

/// The result of one run of a load on one subject.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    pub(crate) took: Duration,
    /// Processor time of the programs of the load.
    pub(crate) programs: Duration,
    pub(crate) server: Option<Spent>,
}

/// Figures by load and subject.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    pub(crate) subjects: Vec<String>,
    pub(crate) loads: Vec<Load>,
    pub(crate) seen: BTreeMap<(&'static str, String), Vec<Figure>>,
}

/// Runs all loads on all subjects. Returns the figures as JSON and as text.
pub(crate) fn run(plan: &Plan, say: &mut dyn FnMut(&str)) -> Result<(Value, String), String> {
    let wanted = |words: &[String], name: &str| {
        words.is_empty() || words.iter().any(|word| name.contains(word.as_str()))
    };
    let mut subjects = subjects(plan.before.is_some());
    subjects.retain(|subject| wanted(&plan.only, &subject.name));
    if !target::has_loops() {
        subjects.retain(|subject| !subject.target.needs_loop());
    }
    let all = loads::all(plan);
    let mut figures = Figures {
        subjects: subjects.iter().map(|subject| subject.name.clone()).collect(),
        loads: all.iter().filter(|load| wanted(&plan.loads, load.name)).cloned().collect(),
        seen: BTreeMap::new(),
    };
    if figures.loads.is_empty() || subjects.is_empty() {
        return Err("there is no load, or no subject, of such a name".to_owned());
    }
    let parts: Vec<_> = figures.loads.iter().map(|load| load.part).collect();
    let sources = Sources::make(plan, &parts)?;
    for run in 0..plan.runs {
        for subject in &subjects {
            say(&format!("run {} of {}: {}", run + 1, plan.runs, subject.name));
            let program = plan.before.clone().filter(|_| subject.name.starts_with(BEFORE));
            let setup = Setup::everyday(subject, &plan.dir, SIZE, program)?;
            let bench = Bench { root: setup.folder().to_owned(), plan, sources: &sources };
            for load in &all {
                let is_wanted = figures.loads.iter().any(|known| known.name == load.name);
                // A load that other loads depend on is run, but not measured.
                let is_needed = figures.loads.iter().any(|known| known.part == load.part);
                let is_possible = !load.needs_volume || subject.target != Target::Empty;
                if !is_possible || !(is_wanted || load.is_base && is_needed) {
                    continue;
                }
                let failed = |error| format!("{}, {}: {error}", subject.name, load.name);
                let figure = measure(load, &bench, &setup).map_err(failed)?;
                if is_wanted {
                    let key = (load.name, subject.name.clone());
                    figures.seen.entry(key).or_default().push(figure);
                }
            }
        }
    }
    Ok((table::json(&figures), table::text(&figures)))
}

/// Returns Linux's btrfs first, then each transport with its empty server beside it.
fn subjects(has_before: bool) -> Vec<Subject> {
    let mut subjects = vec![Subject::new("kernel btrfs", Target::Btrfs, "")];
    for mount in Subject::mounts("") {
        let name = mount.name.replace("buttress mount", "empty server");
        subjects.push(Subject { name, target: Target::Empty, ..mount.clone() });
        if has_before {
            subjects.push(Subject { name: format!("{BEFORE}{}", mount.name), ..mount.clone() });
        }
        subjects.push(mount);
    }
    subjects
}

fn measure(load: &Load, bench: &Bench<'_>, setup: &Setup) -> Result<Figure, String> {
    if load.is_cold {
        drop_caches()?;
    }
    let server = Server::of(setup);
    let before = server.as_ref().map(Server::look).transpose()?;
    let (start, own) = (Instant::now(), server::programs_time());
    (load.run)(bench)?;
    let took = start.elapsed();
    let programs = server::programs_time().saturating_sub(own);
    let after = server.as_ref().map(Server::look).transpose()?;
    let server = after.zip(before).map(|(after, before)| after.since(&before));
    Ok(Figure { took, programs, server })
}
