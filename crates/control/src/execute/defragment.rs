//! Writes fragmented files anew, in an image or in the mount that has it open.
//!
//! # What must hold
//!
//! - Only files of the subvolume of the named place are written. Files of nested subvolumes stay
//!   shared with their snapshots.

use std::ops::ControlFlow;

use buttress_fs::{Codec, Defragment, FileKind, Filesystem, Inode};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::exit::{Context, Exit, Failure, Result};
use crate::order::{Defragmenting, PathInVolume, Step, Watch};

/// The result of the order.
///
/// Plain data: callers read the fields, which have no rule among them.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Done {
    /// Number of examined files.
    pub files: u64,
    /// Bytes that were written anew.
    pub bytes: u64,
    /// The examined files, if the order asks for them, as paths below the place of the order. The
    /// path of the place itself is empty.
    pub paths: Vec<Vec<u8>>,
}

/// Defragments a file, or all files below a directory. Ends early, without a failure, when `watch`
/// says so: the files so far are done.
pub(super) fn carry_out(
    fs: &Filesystem,
    at: &PathInVolume,
    how: &Defragmenting,
    watch: Watch<'_>,
) -> Result<Value> {
    let top = at.inode(fs)?;
    if top.kind() == FileKind::Directory && !how.recursive {
        let what = format!("{}: is a directory; --recursive goes into it", at.text);
        return Err(Failure::new(Exit::Usage, what));
    }
    let codec = match &how.codec {
        Some(text) => Some(Codec::parse(text).ok_or_else(|| {
            Failure::new(Exit::Usage, format!("{text:?}: the codecs are zlib, lzo and zstd"))
        })?),
        None => None,
    };
    let options = Defragment { extent_bytes: how.extent_bytes, codec };
    let end = how.len.map_or(u64::MAX, |len| how.start.saturating_add(len));
    let mut done = Done::default();
    let tree = top.id().tree;
    let mut stack = vec![(top, Vec::new())];
    while let Some((inode, path)) = stack.pop() {
        let named = || format!("{}/{}", at.text, path.escape_ascii());
        match inode.kind() {
            FileKind::Directory => {
                for (child, name) in children(&inode).context(named)? {
                    if child.id().tree == tree {
                        let slash = if path.is_empty() { &[][..] } else { b"/" };
                        stack.push((child, [&path[..], slash, &name].concat()));
                    }
                }
            }
            FileKind::Regular => {
                done.bytes += inode.defragment(how.start..end, &options).context(named)?;
                if how.flush {
                    inode.sync().context(named)?;
                }
                let text = path.escape_ascii().to_string();
                done.files += 1;
                if how.lists {
                    done.paths.push(path);
                }
                if !watch(&Step { done: done.bytes, total: 0, text }) {
                    break;
                }
            }
            _ => {}
        }
    }
    serde_json::to_value(done).context(|| "the answer")
}

/// The entries of a directory, in the order in which a stack must get them: subdirectories first,
/// each kind from the last name to the first.
fn children(dir: &Inode) -> buttress_fs::Result<Vec<(Inode, Vec<u8>)>> {
    let mut names = Vec::new();
    dir.read_dir(0, |entry| {
        names.push((entry.kind != FileKind::Directory, entry.name.to_vec()));
        ControlFlow::Continue(())
    })?;
    names.sort_unstable_by(|one, other| one.0.cmp(&other.0).then_with(|| other.1.cmp(&one.1)));
    names.into_iter().map(|(_, name)| Ok((dir.lookup(&name)?, name))).collect()
}
