//! `buttress stat`: everything about one file.

use std::ffi::OsString;

use buttress_base::text;
use buttress_fs::FileKind;
use serde::Serialize;

use crate::exit::{Context, Exit, Result};
use crate::image::{self, Devices};
use crate::listing::{EntryDocument, kind_name, letters};
use crate::location::show;
use crate::reading;
use crate::ui::Ui;
use crate::when;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The file or directory, as IMG:/path or as a path on a mount.
    #[arg(value_name = "IMG:/PATH | PATH")]
    place: OsString,
    #[command(flatten)]
    devices: Devices,
}

/// The JSON document for scripts.
#[derive(Serialize)]
struct Document {
    #[serde(flatten)]
    entry: EntryDocument,
    generation: u64,
    access: String,
    modify: String,
    change: String,
    birth: String,
    xattrs: Vec<String>,
}

pub(crate) fn run(args: Args, ui: &Ui) -> Result<Exit> {
    let (fs, place) = reading::open_place(&args.place, &args.devices)?;
    let inode = image::resolve(&fs, &place)?;
    let attr = inode.attr();
    let target = match attr.kind {
        FileKind::Symlink => Some(inode.read_link().context(|| place.show())?),
        _ => None,
    };
    let xattrs = inode.list_xattrs().context(|| place.show())?;
    if ui.json() {
        ui.document(&Document {
            entry: EntryDocument::new(&place.path, &attr, target.as_deref()),
            generation: attr.generation,
            access: when::exact(attr.atime),
            modify: when::exact(attr.mtime),
            change: when::exact(attr.ctime),
            birth: when::exact(attr.otime),
            xattrs: xattrs.iter().map(|name| text::encode(name)).collect(),
        })?;
        return Ok(Exit::Success);
    }
    let arrow = target.map_or_else(String::new, |target| format!(" -> {}", show(&target)));
    ui.line(format!("  File: {}{arrow}", place.show()))?;
    ui.line(format!(
        "  Size: {:<15} Allocated: {:<12} {}",
        attr.size,
        attr.blocks.saturating_mul(512),
        kind_name(attr.kind)
    ))?;
    ui.line(format!(
        " Inode: {:<15} Subvolume: {:<12} Links: {}",
        attr.id.ino.0, attr.id.tree.0, attr.nlink
    ))?;
    ui.line(format!(
        "Access: ({:04o}/{})  Uid: {}  Gid: {}",
        attr.mode & 0o7777,
        letters(&attr),
        attr.uid,
        attr.gid
    ))?;
    let times = [
        ("Access", attr.atime),
        ("Modify", attr.mtime),
        ("Change", attr.ctime),
        (" Birth", attr.otime),
    ];
    for (name, time) in times {
        ui.line(format!("{name}: {}", when::exact(time)))?;
    }
    for name in xattrs {
        let value = inode.xattr(&name).context(|| place.show())?;
        ui.line(format!(" Xattr: {} = {}", show(&name), show(&value)))?;
    }
    Ok(Exit::Success)
}
