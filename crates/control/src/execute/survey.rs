//! The space that files and folders take on the devices, read from the last commit.

use buttress_fs::{FileKind, Filesystem, Ino};
use buttress_survey as survey;
use buttress_survey::{Sharing, Start, Trees};
use serde::Serialize;
use serde_json::Value;

use crate::exit::{Context, Result};
use crate::order::{Spot, Step, SurveyRequest, Watch};

/// Carries out the survey. Returns the result of the crate `buttress-survey` as JSON.
pub(super) fn carry_out(
    fs: &Filesystem,
    at: &Spot,
    request: &SurveyRequest,
    watch: Watch<'_>,
) -> Result<Value> {
    let inode = at.inode(fs)?;
    let (id, is_folder) = (inode.id(), inode.kind() == FileKind::Directory);
    let start = Start { tree: id.tree, ino: id.ino, is_folder };
    let view = fs.view();
    let trees = Trees::of(&view);
    let name = || at.text.clone();
    match request {
        SurveyRequest::Folders { depth, stay } => {
            let sharing = Sharing::of(&trees).context(name)?;
            let mut goes_on =
                |files| watch(&Step { done: 0, total: 0, text: format!("{files} files") });
            let shape = (*depth, *stay);
            let rows = survey::folders(&trees, &sharing, start, shape, &mut goes_on);
            answer(rows.context(name)?)
        }
        SurveyRequest::Shares => {
            let sharing = Sharing::of(&trees).context(name)?;
            answer(survey::shares(&trees, &sharing, start).context(name)?)
        }
        SurveyRequest::Packing { stay } => {
            answer(survey::packing(&trees, start, *stay).context(name)?)
        }
        SurveyRequest::FindNew { since } => {
            let found = survey::find_new(&trees, id.tree, *since).context(name)?;
            let item = trees.view().committed_root_item(id.tree).context(name)?;
            answer((found, item.map_or(0, |item| item.generation.0)))
        }
        SurveyRequest::Map => answer(survey::map(&trees).context(name)?),
        SurveyRequest::Holders { address, any_part } => {
            let found = survey::holders(&trees, *address, *any_part).context(name)?;
            answer((found, id.tree.0))
        }
        SurveyRequest::Parts => answer(survey::parts(&trees, id.tree, id.ino).context(name)?),
        SurveyRequest::Names { ino } => {
            answer(survey::names(&trees, id.tree, Ino(*ino)).context(name)?)
        }
    }
}

fn answer(rows: impl Serialize) -> Result<Value> {
    serde_json::to_value(rows).context(|| "the answer")
}
