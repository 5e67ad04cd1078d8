//! `buttress tree`: draws a directory and everything below it.

use std::ffi::OsString;

use buttress_fs::{FileKind, Inode};

use crate::exit::{Context, Exit, Result};
use crate::image::{self, Access, Devices};
use crate::listing::{self, Entry};
use crate::location::{VolumePath, show};
use crate::size;
use crate::ui::{Tone, Ui};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where to begin, as IMG:/path; IMG alone is its root.
    #[arg(value_name = "IMG:/PATH")]
    place: OsString,
    /// Go at most this many directories down.
    #[arg(long, value_name = "N")]
    depth: Option<usize>,
    /// Show sizes.
    #[arg(long)]
    size: bool,
    #[command(flatten)]
    devices: Devices,
}

/// A directory on the way down: what is left of it, and what to draw before its names.
struct Level {
    left: std::vec::IntoIter<Entry>,
    indent: String,
}

pub(crate) fn run(args: Args, ui: &Ui) -> Result<Exit> {
    let place = VolumePath::parse(&args.place);
    let fs = image::open(&place.image, &args.devices, Access::Read)?;
    let top = image::resolve(&fs, &place)?;
    ui.line(ui.tint(Tone::Directory, &place.show()))?;
    let level = |dir: &Inode, indent: String| -> Result<Level> {
        let left = listing::entries(dir).context(|| place.show())?.into_iter();
        Ok(Level { left, indent })
    };
    let (mut directories, mut others) = (0_u64, 0_u64);
    let mut stack = vec![level(&top, String::new())?];
    while let Some(current) = stack.last_mut() {
        let Some(entry) = current.left.next() else {
            stack.pop();
            continue;
        };
        let last = current.left.len() == 0;
        let indent = current.indent.clone();
        let branch = if last { "└── " } else { "├── " };
        ui.line(format!("{indent}{branch}{}", describe(&entry, &args, &place, ui)?))?;
        if entry.attr.kind == FileKind::Directory {
            directories += 1;
            if args.depth.is_none_or(|depth| stack.len() < depth) {
                let below = if last { "    " } else { "│   " };
                stack.push(level(&entry.inode, format!("{indent}{below}"))?);
            }
        } else {
            others += 1;
        }
    }
    ui.line(format!("\n{directories} directories, {others} files"))?;
    Ok(Exit::Success)
}

fn describe(entry: &Entry, args: &Args, place: &VolumePath, ui: &Ui) -> Result<String> {
    let name = show(&entry.name);
    Ok(match entry.attr.kind {
        FileKind::Directory => ui.tint(Tone::Directory, &name),
        FileKind::Symlink => {
            let target = entry.inode.read_link().context(|| place.show())?;
            format!("{name} -> {}", show(&target))
        }
        FileKind::Regular if args.size => {
            format!("{name} {}", ui.tint(Tone::Dim, &size::human(entry.attr.size)))
        }
        _ => name,
    })
}
