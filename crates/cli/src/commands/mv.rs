//! `buttress mv`: renames within one volume.

use std::ffi::OsString;

use buttress_fs::{ErrorKind, FileKind, NameError, RenameFlags};

use crate::exit::{Context, Exit, Failure, Result};
use crate::image::{self, Access, Devices};
use crate::location::VolumePath;
use crate::transfer::mounted;
use crate::ui::Ui;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The file or directory to rename, as IMG:/path or as a path on a mount.
    #[arg(value_name = "IMG:/OLD | OLD")]
    source: OsString,
    /// The new name in the same volume, or an existing directory to move into.
    #[arg(value_name = "IMG:/NEW | NEW")]
    target: OsString,
    /// Fail if the new name exists.
    #[arg(long, short)]
    no_clobber: bool,
    /// Exchange the two names.
    #[arg(long, conflicts_with = "no_clobber")]
    exchange: bool,
    #[command(flatten)]
    devices: Devices,
}

pub(crate) fn run(args: Args, _ui: &Ui) -> Result<Exit> {
    let flags = RenameFlags { no_replace: args.no_clobber, exchange: args.exchange };
    if mounted::rename(&args.source, &args.target, flags)? {
        return Ok(Exit::Success);
    }
    let source = VolumePath::parse(&args.source);
    let target = VolumePath::parse(&args.target);
    if source.image != target.image {
        return Err(Failure::new(Exit::Usage, mounted::MOVE_STAYS));
    }
    let fs = image::open(&source.image, &args.devices, Access::Write)?;
    let (source_dir, source_name) = image::resolve_parent(&fs, &source)?;
    let (target_dir, target_name) = match fs.resolve(&target.path) {
        Ok(inode) if inode.attr().kind == FileKind::Directory && !args.exchange => {
            (inode, source_name)
        }
        Err(error) if error.kind() != ErrorKind::Name(NameError::NotFound) => {
            return Err(Failure::of_volume(target.show(), error));
        }
        _ => image::resolve_parent(&fs, &target)?,
    };
    source_dir
        .rename(source_name, &target_dir, target_name, flags)
        .context(|| format!("{} to {}", source.show(), target.show()))?;
    drop((source_dir, target_dir));
    image::close(fs, &source.image)?;
    Ok(Exit::Success)
}
