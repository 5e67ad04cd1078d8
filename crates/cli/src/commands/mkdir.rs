//! `buttress mkdir`: makes directories.

use std::ffi::{OsStr, OsString};

use buttress_fs::{ErrorKind, FileKind, Filesystem, Inode, NameError};

use crate::exit::{Context, Exit, Result};
use crate::image::{self, Access, Devices};
use crate::location::VolumePath;
use crate::transfer::mounted;
use crate::ui::Ui;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The directories to create, as IMG:/path or as paths on a mount.
    #[arg(required = true, value_name = "IMG:/PATH | PATH")]
    places: Vec<OsString>,
    /// Create missing parents, and accept directories that exist.
    #[arg(long, short)]
    parents: bool,
    /// Permissions of the new directories, in octal.
    #[arg(long, short, default_value = "755", value_parser = octal)]
    mode: u32,
    #[command(flatten)]
    devices: Devices,
}

pub(crate) fn run(args: Args, _ui: &Ui) -> Result<Exit> {
    for place in &args.places {
        if on_mount(place, &args)? {
            continue;
        }
        let place = VolumePath::parse(place);
        let fs = image::open(&place.image, &args.devices, Access::Write)?;
        if args.parents {
            all(&fs, &place, args.mode)?;
        } else {
            let (dir, name) = image::resolve_parent(&fs, &place)?;
            make(&dir, name, args.mode).context(|| place.show())?;
        }
        image::close(fs, &place.image)?;
    }
    Ok(Exit::Success)
}

/// Makes a directory on a mount. Returns false if the place is on no mount.
fn on_mount(place: &OsStr, args: &Args) -> Result<bool> {
    if args.parents {
        return mounted::make_directories(place, args.mode);
    }
    let Some(entry) = mounted::Entry::parse(place)? else { return Ok(false) };
    entry.make_directory(args.mode).map(|()| true)
}

fn all(fs: &Filesystem, place: &VolumePath, mode: u32) -> Result<()> {
    let mut dir = fs.root();
    for name in place.components() {
        let next = match dir.lookup(name) {
            Ok(next) => Ok(next),
            Err(error) if error.kind() == ErrorKind::Name(NameError::NotFound) => {
                make(&dir, name, mode)
            }
            Err(error) => Err(error),
        };
        dir = next.context(|| place.show())?;
    }
    if dir.attr().kind != FileKind::Directory {
        return Err(buttress_fs::Error::from(NameError::Exists)).context(|| place.show());
    }
    Ok(())
}

fn make(dir: &Inode, name: &[u8], mode: u32) -> buttress_fs::Result<Inode> {
    let (uid, gid) = crate::transfer::caller();
    dir.mkdir(name, mode, uid, gid)
}

/// Reads permission bits.
fn octal(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o7777 => Ok(mode),
        _ => Err(format!("{text:?} is no octal mode such as 755")),
    }
}
