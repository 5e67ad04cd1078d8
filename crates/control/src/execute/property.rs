//! Properties of subvolumes, files and directories.

use buttress_base::text;
use buttress_fs::{
    ErrorKind, FileKind, Filesystem, Ino, Inode, NameError, ReceivedUuid, RootFlags, XattrFlags,
};
use buttress_fuse::KernelSync;
use serde_json::{Map, Value};

use crate::exit::{Context, Exit, Failure, Result};
use crate::order::{PathInVolume, PropertyAct};

const COMPRESSION: &str = "compression";

/// The property that makes a subvolume read-only.
const RO: &str = "ro";

/// Shows or sets properties. Returns an object of properties, or of their descriptions.
pub(super) fn carry_out(
    fs: &Filesystem,
    at: &PathInVolume,
    act: &PropertyAct,
    kernel_sync: Option<&KernelSync>,
) -> Result<Value> {
    let inode = at.inode(fs)?;
    let is_subvolume = inode.id().ino == Ino::ROOT_DIR;
    let mut found = Map::new();
    match act {
        PropertyAct::Get { name } => {
            let all = [RO, COMPRESSION].into_iter().filter(|name| *name != RO || is_subvolume);
            let names = match name {
                Some(name) => vec![&name[..]],
                None => all.collect(),
            };
            for name in names {
                known(name)?;
                if name == RO {
                    found.insert(name.to_owned(), read_only(fs, at)?.to_string().into());
                } else if let Some(value) = get(&inode, name).context(|| at.text.clone())? {
                    found.insert(name.to_owned(), text::encode(&value).into());
                }
            }
        }
        PropertyAct::Set { name, value, force } => {
            known(name)?;
            if name == RO {
                if let Some(kernel_sync) = kernel_sync {
                    kernel_sync.write_back().context(|| at.text.clone())?;
                }
                set_read_only(fs, at, value, *force)?;
            } else {
                set(&inode, name, value).context(|| at.text.clone())?;
            }
        }
        PropertyAct::List => {
            if is_subvolume {
                found.insert(RO.into(), "read-only status of a subvolume".into());
            }
            if matches!(inode.attr().kind, FileKind::Regular | FileKind::Directory) {
                let what = "compression algorithm for the file or directory";
                found.insert(COMPRESSION.into(), what.into());
            }
        }
    }
    Ok(Value::Object(found))
}

fn known(name: &str) -> Result<()> {
    if name == COMPRESSION || name == RO {
        return Ok(());
    }
    let what = format!("{name}: no property; there are {COMPRESSION} and {RO}");
    Err(Failure::new(Exit::Usage, what))
}

fn read_only(fs: &Filesystem, at: &PathInVolume) -> Result<bool> {
    let tree = at.subvolume(fs)?;
    let item = fs.subvolume_item(tree).context(|| at.text.clone())?;
    Ok(item.flags & RootFlags::READONLY != 0)
}

fn set_read_only(fs: &Filesystem, at: &PathInVolume, value: &str, force: bool) -> Result<()> {
    let read_only = match value {
        "true" => true,
        "false" => false,
        _ => return Err(Failure::new(Exit::Usage, format!("{value:?}: {RO} is true or false"))),
    };
    let tree = at.subvolume(fs)?;
    let item = fs.subvolume_item(tree).context(|| at.text.clone())?;
    let received = item.received_uuid != [0; 16];
    if !read_only && received && !force {
        let place = &at.text;
        let what = format!("{place}: it was received; -f makes it writable, and forgets from what");
        return Err(Failure::new(Exit::Refused, what));
    }
    fs.set_subvolume_read_only(tree, read_only).context(|| at.text.clone())?;
    if !read_only && received {
        fs.set_received(tree, ReceivedUuid::NOTHING).context(|| at.text.clone())?;
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
        // Removing an absent property is a success.
        Err(error)
            if value.is_empty() && error.kind() == ErrorKind::Name(NameError::NoAttribute) =>
        {
            Ok(())
        }
        done => done,
    }
}
