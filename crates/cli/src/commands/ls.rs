//! `buttress ls`: lists directories.

use std::ffi::OsString;

use buttress_fs::{FileKind, Inode};

use crate::exit::{Context, Exit, Result};
use crate::image::{self, Devices};
use crate::listing::{self, Entry, EntryDocument};
use crate::location::show;
use crate::reading;
use crate::ui::{Tone, Ui};
use crate::{size, when};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The file or directory, as IMG:/path or as a path on a mount. IMG alone is the root of the
    /// volume.
    #[arg(value_name = "IMG:/PATH | PATH")]
    place: OsString,
    /// Show mode, links, owner, size and time.
    #[arg(long, short)]
    long: bool,
    /// Show sizes with units, as in 1.5M.
    #[arg(long)]
    human_readable: bool,
    /// Show a directory itself instead of its entries.
    #[arg(long, short)]
    directory: bool,
    #[command(flatten)]
    devices: Devices,
}

pub(crate) fn run(args: Args, ui: &Ui) -> Result<Exit> {
    let (fs, place) = reading::open_place(&args.place, &args.devices)?;
    let inode = image::resolve(&fs, &place)?;
    let attr = inode.attr();
    let entries = if attr.kind == FileKind::Directory && !args.directory {
        listing::entries(&inode).context(|| place.show())?
    } else {
        vec![Entry { name: place.path.clone(), inode, attr }]
    };
    if ui.json() {
        let documents: Result<Vec<_>> = entries
            .iter()
            .map(|entry| {
                let target = link_target(&entry.inode, entry).context(|| place.show())?;
                Ok(EntryDocument::new(&entry.name, &entry.attr, target.as_deref()))
            })
            .collect();
        ui.document(&documents?)?;
        return Ok(Exit::Success);
    }
    let width = entries.iter().map(|entry| size_text(entry, &args).len()).max().unwrap_or(0);
    for entry in &entries {
        let mut name = show(&entry.name);
        if entry.attr.kind == FileKind::Directory {
            name = ui.tint(Tone::Directory, &name);
        }
        if !args.long {
            ui.line(name)?;
            continue;
        }
        if let Some(target) = link_target(&entry.inode, entry).context(|| place.show())? {
            name = format!("{name} -> {}", show(&target));
        }
        let attr = &entry.attr;
        ui.line(format!(
            "{} {:>3} {:>5} {:>5} {:>width$} {} {name}",
            listing::letters(attr),
            attr.nlink,
            attr.uid,
            attr.gid,
            size_text(entry, &args),
            when::date_time(attr.mtime.sec),
        ))?;
    }
    Ok(Exit::Success)
}

fn size_text(entry: &Entry, args: &Args) -> String {
    match entry.attr.kind {
        FileKind::Character | FileKind::Block => {
            format!("{}, {}", entry.attr.rdev >> 20, entry.attr.rdev & 0xf_ffff)
        }
        _ if args.human_readable => size::short(entry.attr.size),
        _ => entry.attr.size.to_string(),
    }
}

fn link_target(inode: &Inode, entry: &Entry) -> buttress_fs::Result<Option<Vec<u8>>> {
    if entry.attr.kind == FileKind::Symlink { inode.read_link().map(Some) } else { Ok(None) }
}
