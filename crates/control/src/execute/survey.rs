//! The space that files and folders take on the devices, read from the last commit.

use buttress_fs::{FileKind, Filesystem, Ino};
use buttress_survey as survey;
use buttress_survey::{Progress, Sharing, Start, Trees};
use serde::Serialize;
use serde_json::Value;

use crate::exit::{Context, Failure, Result};
use crate::order::{PathInVolume, Step, SurveyRequest, Watch};

/// Carries out the survey. Returns the result of the crate `buttress-survey` as JSON.
pub(super) fn carry_out(
    fs: &Filesystem,
    at: &PathInVolume,
    request: &SurveyRequest,
    watch: Watch<'_>,
) -> Result<Value> {
    let inode = at.inode(fs)?;
    let (id, is_folder) = (inode.id(), inode.kind() == FileKind::Directory);
    let start = Start { tree: id.tree, ino: id.ino, is_folder };
    let view = fs.view();
    let trees = Trees::of(&view);
    let name = || at.text.clone();
    let accounts = fs.space_stats().accounts;
    let used = accounts.data.used + accounts.metadata.used + accounts.system.used;
    let mut passes = Passes { used, done: 0, total: used, is_stopped: false, watch };
    let found = match request {
        SurveyRequest::Folders { depth, stay } => {
            let shape = (*depth, *stay);
            passes.sharing(&trees).and_then(|sharing| {
                survey::folders(&trees, &sharing, start, shape, &mut |now| passes.step(now))
                    .map(answer)
            })
        }
        SurveyRequest::Shares => passes.sharing(&trees).and_then(|sharing| {
            survey::shares(&trees, &sharing, start, &mut |now| passes.step(now)).map(answer)
        }),
        SurveyRequest::Packing { stay } => {
            survey::packing(&trees, start, *stay, &mut |now| passes.step(now)).map(answer)
        }
        SurveyRequest::Map => survey::map(&trees, used, &mut |now| passes.step(now)).map(answer),
        SurveyRequest::FindNew { since } => {
            let found = survey::find_new(&trees, id.tree, *since).context(name)?;
            let item = trees.view().committed_root_item(id.tree).context(name)?;
            return answer((found, item.map_or(0, |item| item.generation.0)));
        }
        SurveyRequest::ToSend { parent, packed } => {
            let mut since = 0;
            if let Some(parent) = parent {
                let tree = parent.inode(fs)?.id().tree;
                let item = trees.view().committed_root_item(tree).context(name)?;
                since = item.map_or(0, |item| item.generation.0 + 1);
            }
            survey::written_since(&trees, id.tree, since, *packed).map(answer)
        }
        SurveyRequest::Holders { address, any_part } => {
            let found = survey::holders(&trees, *address, *any_part).context(name)?;
            return answer((found, id.tree.0));
        }
        SurveyRequest::Parts => survey::parts(&trees, id.tree, id.ino).map(answer),
        SurveyRequest::Names { ino } => survey::names(&trees, id.tree, Ino(*ino)).map(answer),
    };
    match found {
        Err(_) if passes.is_stopped => Err(Failure::stopped(name())),
        found => found.context(name)?,
    }
}

/// The passes of a survey, as one bar. A walk counts as much as a pass over all extents.
struct Passes<'w> {
    used: u64,
    /// Bytes of the passes that ended.
    done: u64,
    total: u64,
    is_stopped: bool,
    watch: Watch<'w>,
}

impl Passes<'_> {
    /// The first of two passes.
    fn sharing(&mut self, trees: &Trees<'_>) -> buttress_tree::Result<Sharing> {
        self.total = 2 * self.used;
        let found = Sharing::of(trees, self.used, &mut |now| self.step(now))?;
        self.done = self.used;
        Ok(found)
    }

    fn step(&mut self, now: Progress) -> bool {
        let done = self.done + (self.used as f64 * now.done) as u64;
        let text = if now.files > 0 { format!("{} files", now.files) } else { String::new() };
        let goes_on = (self.watch)(&Step { done, total: self.total, text });
        self.is_stopped |= !goes_on;
        goes_on
    }
}

fn answer(rows: impl Serialize) -> Result<Value> {
    serde_json::to_value(rows).context(|| "the answer")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use buttress_block::{Device, MemoryDevice};
    use buttress_fs::{MakeOptions, MountOptions, NewInode};

    use super::*;

    /// A survey tells how far it is, up to its end, and ends early with an error.
    #[test]
    fn surveys_tell_how_far_they_are() {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(256 << 20));
        Filesystem::make(&*device, &MakeOptions::default()).expect("a volume");
        let fs = Filesystem::open(vec![device], MountOptions::default()).expect("open");
        for folder in 0..20 {
            let dir = fs.root().mkdir(format!("{folder}").as_bytes(), 0o755, 0, 0).expect("made");
            for file in 0..30 * (folder % 2) {
                let name = format!("{file}");
                let inode = dir.create(name.as_bytes(), NewInode::file(0o644)).expect("made");
                inode.write_at(0, &[folder; 9000]).expect("written");
            }
        }
        fs.sync().expect("durable");
        let (is_mounted, is_from_top) = (false, false);
        let at =
            PathInVolume { path: b"/".to_vec(), is_mounted, is_from_top, text: "volume".into() };
        let requests = [
            SurveyRequest::Folders { depth: 1, stay: false },
            SurveyRequest::Shares,
            SurveyRequest::Packing { stay: false },
            SurveyRequest::Map,
        ];
        for request in &requests {
            let mut steps = Vec::new();
            let mut watch = |step: &Step| {
                steps.push(step.clone());
                true
            };
            carry_out(&fs, &at, request, &mut watch).expect("carried out");
            assert!(steps.is_sorted_by_key(|step| step.done), "{request:?}: {steps:?}");
            let last = steps.last().expect("a step");
            assert!(last.total > 0 && last.done == last.total, "{request:?}: {last:?}");
            let failure = carry_out(&fs, &at, request, &mut |_| false).expect_err("stopped");
            assert!(failure.is_stopped(), "{request:?}: {failure}");
        }
        // The data of a full stream, and none for a copy that has not changed.
        let to_send = |parent| {
            let request = SurveyRequest::ToSend { parent, packed: false };
            carry_out(&fs, &at, &request, &mut |_| true).expect("carried out").as_u64()
        };
        assert_eq!(to_send(None), Some(10 * 30 * 12_288));
        assert_eq!(to_send(Some(at.clone())), Some(0));
        fs.close().expect("closed");
    }
}
