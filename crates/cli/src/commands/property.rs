//! `buttress property`: what files and directories say about themselves.

use std::ffi::OsString;

use buttress_fs::{ErrorKind, FileKind, Inode, NameError, XattrFlags};

use crate::exit::{Context, Exit, Failure, Result};
use crate::image::{self, Access, Devices};
use crate::location::{VolumePath, show};
use crate::ui::Ui;

const COMPRESSION: &str = "compression";

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
        /// Which one: compression.
        name: Option<String>,
        #[command(flatten)]
        devices: Devices,
    },
    /// Set a property; an empty value takes it away.
    Set {
        /// The file or directory, as IMG:/path.
        #[arg(value_name = "IMG:/PATH")]
        place: OsString,
        /// Which one: compression.
        name: String,
        /// For compression: zlib, lzo or zstd, with a level as in zstd:9, or none. What is written from then
        /// on follows it, and what is made in a directory inherits it.
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
            let names = name.map_or_else(|| vec![COMPRESSION.to_owned()], |name| vec![name]);
            let fs = image::open(&place.image, &devices, Access::Read)?;
            let inode = image::resolve(&fs, &place)?;
            let mut found = serde_json::Map::new();
            for name in names {
                known(&name)?;
                if let Some(value) = get(&inode, &name).context(|| place.show())? {
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
        Verb::Set { place, name, value, devices } => {
            known(&name)?;
            let place = VolumePath::parse(&place);
            let fs = image::open(&place.image, &devices, Access::Write)?;
            let inode = image::resolve(&fs, &place)?;
            set(&inode, &name, &value).context(|| place.show())?;
            drop(inode);
            image::close(fs, &place.image)?;
        }
        Verb::List { place } => {
            let place = VolumePath::parse(&place);
            let fs = image::open(&place.image, &Devices::default(), Access::Read)?;
            let kind = image::resolve(&fs, &place)?.attr().kind;
            if matches!(kind, FileKind::Regular | FileKind::Directory) {
                ui.line(format!(
                    "{COMPRESSION:<20}compression algorithm for the file or directory"
                ))?;
            }
        }
    }
    Ok(Exit::Success)
}

fn known(name: &str) -> Result<()> {
    if name == COMPRESSION {
        return Ok(());
    }
    let what = format!("{name}: no property; there is {COMPRESSION}");
    Err(Failure::new(Exit::Usage, what))
}

fn get(inode: &Inode, name: &str) -> buttress_fs::Result<Option<String>> {
    match inode.xattr(format!("btrfs.{name}").as_bytes()) {
        Ok(value) => Ok(Some(show(&value))),
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
