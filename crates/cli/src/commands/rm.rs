//! `buttress rm`: removes names, and whole directories with `--recursive`.

use std::ffi::OsString;
use std::ops::ControlFlow;

use buttress_fs::{ErrorKind, FileKind, Inode, NameError};

use crate::exit::{Context, Exit, Failure, Result};
use crate::image::{self, Access, Devices};
use crate::location::VolumePath;
use crate::transfer::mounted::Entry;
use crate::ui::{Progress, Ui};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The files and directories to remove, as IMG:/path or as paths on a mount.
    #[arg(required = true, value_name = "IMG:/PATH | PATH")]
    places: Vec<OsString>,
    /// Remove directories with everything in them.
    #[arg(long, short)]
    recursive: bool,
    /// Ignore names that do not exist.
    #[arg(long, short)]
    force: bool,
    #[command(flatten)]
    devices: Devices,
}

pub(crate) fn run(args: Args, ui: &Ui) -> Result<Exit> {
    for place in &args.places {
        if let Some(entry) = Entry::parse(place)? {
            let bar = ui.count_bar("removing", 0);
            entry.remove(args.recursive, args.force, &bar)?;
            continue;
        }
        let place = VolumePath::parse(place);
        let fs = image::open(&place.image, &args.devices, Access::Write)?;
        let (dir, name) = image::resolve_parent(&fs, &place)?;
        let missing = ErrorKind::Name(NameError::NotFound);
        match dir.lookup(name) {
            Err(error) if args.force && error.kind() == missing => {}
            Err(error) => return Err(Failure::of_volume(place.show(), error)),
            Ok(inode) if inode.attr().kind == FileKind::Directory => {
                if !args.recursive {
                    let what = format!("{}: is a directory; --recursive removes it", place.show());
                    return Err(Failure::new(Exit::Failure, what));
                }
                let bar = ui.count_bar("removing", 0);
                empty(&inode, &place, &bar)?;
                drop(inode);
                dir.rmdir(name).context(|| place.show())?;
            }
            Ok(inode) => {
                drop(inode);
                dir.unlink(name).context(|| place.show())?;
            }
        }
        drop(dir);
        image::close(fs, &place.image)?;
    }
    Ok(Exit::Success)
}

/// Removes everything in a directory. The function keeps its own stack, because a volume may nest
/// deeper than the call stack allows.
fn empty(top: &Inode, place: &VolumePath, bar: &Progress) -> Result<()> {
    // Directories on the way down, each with the names still to be removed.
    let mut stack = vec![(top.clone(), names(top).context(|| place.show())?, Vec::new())];
    while let Some((dir, left, _)) = stack.last_mut() {
        let Some((name, kind)) = left.pop() else {
            let (done, _, name) = stack.pop().expect("the loop saw it");
            drop(done);
            if let Some((parent, _, _)) = stack.last() {
                parent.rmdir(&name).context(|| place.show())?;
                bar.add(1);
            }
            continue;
        };
        if kind == FileKind::Directory {
            let child = dir.lookup(&name).context(|| place.show())?;
            let inside = names(&child).context(|| place.show())?;
            stack.push((child, inside, name));
        } else {
            dir.unlink(&name).context(|| place.show())?;
            bar.add(1);
        }
    }
    Ok(())
}

fn names(dir: &Inode) -> buttress_fs::Result<Vec<(Vec<u8>, FileKind)>> {
    let mut names = Vec::new();
    dir.read_dir(0, |entry| {
        names.push((entry.name.to_vec(), entry.kind));
        ControlFlow::Continue(())
    })?;
    Ok(names)
}
