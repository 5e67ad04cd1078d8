//! `buttress property`: what subvolumes, files and directories say about themselves.

use std::ffi::OsString;

use buttress_base::text;
use buttress_fs::{
    ErrorKind, FileKind, Filesystem, Inode, NameError, Received, RootFlags, XattrFlags,
};

use crate::commands::subvolume;
use crate::exit::{Context, Exit, Failure, Result};
use crate::image::{self, Access, Devices};
use crate::location::{VolumePath, show};
use crate::ui::Ui;

const COMPRESSION: &str = "compression";

/// Of subvolumes: whether nothing in it can be changed.
const RO: &str = "ro";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Show one property, or all that are set.
    Get {
        /// The file or directory, as IMG:/path.
        #[arg(value_name = "IMG:/PATH")]
        place: OsString,
        /// Which one: compression; ro of a subvolume.
        name: Option<String>,
        #[command(flatten)]
        devices: Devices,
    },
    /// Set a property; an empty value takes it away.
    Set {
        /// Clear ro of a subvolume that was received: no stream can build on it any more.
        #[arg(short = 'f')]
        force: bool,
        /// The file or directory, as IMG:/path.
        #[arg(value_name = "IMG:/PATH")]
        place: OsString,
        /// Which one: compression; ro of a subvolume.
        name: String,
        /// For compression: zlib, lzo or zstd, with a level as in zstd:9, or none. What is written
        /// from then on follows it, and what is made in a directory inherits it. For ro: true or
        /// false.
        value: String,
        #[command(flatten)]
        devices: Devices,
    },
    /// List the properties that there are.
    List {
        /// The file or directory, as IMG:/path.
        #[arg(value_name = "IMG:/PATH")]
        place: OsString,
    },
}

pub(crate) fn run(args: Args, ui: &Ui) -> Result<Exit> {
    match args.verb {
        Verb::Get { place, name, devices } => {
            let place = VolumePath::parse(&place);
            let fs = image::open(&place.image, &devices, Access::Read)?;
            let inode = image::resolve(&fs, &place)?;
            let mut names = vec![COMPRESSION.to_owned()];
            if subvolume::find(&fs, &place).is_ok() {
                names.insert(0, RO.to_owned());
            }
            let names = name.map_or(names, |name| vec![name]);
            let mut found = serde_json::Map::new();
            for name in names {
                known(&name)?;
                if name == RO {
                    found.insert(name, read_only(&fs, &place)?.to_string().into());
                } else if let Some(value) = get(&inode, &name).context(|| place.show())? {
                    let value = if ui.json() { text::encode(&value) } else { show(&value) };
                    found.insert(name, value.into());
                }
            }
            if ui.json() {
                ui.document(&found)?;
                return Ok(Exit::Success);
            }
            for (name, value) in &found {
                ui.line(format!("{name}={}", value.as_str().unwrap_or_default()))?;
            }
        }
        Verb::Set { force, place, name, value, devices } => {
            known(&name)?;
            let place = VolumePath::parse(&place);
            let fs = image::open(&place.image, &devices, Access::Write)?;
            if name == RO {
                set_read_only(&fs, &place, &value, force)?;
            } else {
                let inode = image::resolve(&fs, &place)?;
                set(&inode, &name, &value).context(|| place.show())?;
            }
            image::close(fs, &place.image)?;
        }
        Verb::List { place } => {
            let place = VolumePath::parse(&place);
            let fs = image::open(&place.image, &Devices::default(), Access::Read)?;
            let kind = image::resolve(&fs, &place)?.attr().kind;
            let mut found = Vec::new();
            if subvolume::find(&fs, &place).is_ok() {
                found.push((RO, "read-only flag of a subvolume"));
            }
            if matches!(kind, FileKind::Regular | FileKind::Directory) {
                found.push((COMPRESSION, "compression algorithm for the file or directory"));
            }
            if ui.json() {
                ui.document(&found.iter().map(|(name, _)| name).collect::<Vec<_>>())?;
                return Ok(Exit::Success);
            }
            for (name, what) in found {
                ui.line(format!("{name:<20}{what}"))?;
            }
        }
    }
    Ok(Exit::Success)
}

fn known(name: &str) -> Result<()> {
    if name == COMPRESSION || name == RO {
        return Ok(());
    }
    let what = format!("{name}: no property; there are {COMPRESSION} and {RO}");
    Err(Failure::new(Exit::Usage, what))
}

fn read_only(fs: &Filesystem, place: &VolumePath) -> Result<bool> {
    let tree = subvolume::find(fs, place)?;
    let item = fs.subvolume_item(tree).context(|| place.show())?;
    Ok(item.flags & RootFlags::READONLY != 0)
}

fn set_read_only(fs: &Filesystem, place: &VolumePath, value: &str, force: bool) -> Result<()> {
    let read_only = match value {
        "true" => true,
        "false" => false,
        _ => return Err(Failure::new(Exit::Usage, format!("{value:?}: {RO} is true or false"))),
    };
    let tree = subvolume::find(fs, place)?;
    let item = fs.subvolume_item(tree).context(|| place.show())?;
    let received = item.received_uuid != [0; 16];
    if !read_only && received && !force {
        let place = place.show();
        let what = format!("{place}: it was received; -f makes it writable, and forgets from what");
        return Err(Failure::new(Exit::Refused, what));
    }
    fs.set_subvolume_read_only(tree, read_only).context(|| place.show())?;
    if !read_only && received {
        fs.set_received(tree, Received::NOTHING).context(|| place.show())?;
    }
    Ok(())
}

fn get(inode: &Inode, name: &str) -> buttress_fs::Result<Option<Vec<u8>>> {
    match inode.xattr(format!("btrfs.{name}").as_bytes()) {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == ErrorKind::Name(NameError::NoAttribute) => Ok(None),
        Err(error) => Err(error),
    }
}

fn set(inode: &Inode, name: &str, value: &str) -> buttress_fs::Result<()> {
    let name = format!("btrfs.{name}");
    match inode.set_xattr(name.as_bytes(), value.as_bytes(), XattrFlags::default()) {
        // To take away what is not there is done.
        Err(error)
            if value.is_empty() && error.kind() == ErrorKind::Name(NameError::NoAttribute) =>
        {
            Ok(())
        }
        done => done,
    }
}
