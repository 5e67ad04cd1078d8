//! `buttress ln`: makes links.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use crate::exit::{Context, Exit, Failure, Result};
use crate::image::{self, Access, Devices};
use crate::location::VolumePath;
use crate::transfer::mounted;
use crate::ui::Ui;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The target: IMG:/path, a path on a mount, or any text with --symbolic.
    target: OsString,
    /// The link to create, as IMG:/path or as a path on a mount.
    #[arg(value_name = "IMG:/LINK | LINK")]
    link: OsString,
    /// Create a symbolic link.
    #[arg(long, short)]
    symbolic: bool,
    #[command(flatten)]
    devices: Devices,
}

pub(crate) fn run(args: Args, _ui: &Ui) -> Result<Exit> {
    if mounted::link(&args.target, &args.link, args.symbolic)? {
        return Ok(Exit::Success);
    }
    let link = VolumePath::parse(&args.link);
    let fs = image::open(&link.image, &args.devices, Access::Write)?;
    let (dir, name) = image::resolve_parent(&fs, &link)?;
    if args.symbolic {
        let (uid, gid) = crate::transfer::caller();
        dir.symlink(name, args.target.as_bytes(), uid, gid).context(|| link.show())?;
    } else {
        let target = VolumePath::parse(&args.target);
        if target.image != link.image {
            return Err(Failure::new(Exit::Usage, mounted::LINK_STAYS));
        }
        let inode = image::resolve(&fs, &target)?;
        dir.link(&inode, name).context(|| link.show())?;
    }
    drop(dir);
    image::close(fs, &link.image)?;
    Ok(Exit::Success)
}
