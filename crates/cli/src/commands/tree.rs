//! `buttress tree`: draws a directory and everything below it; for scripts, a list of all entries.

use std::ffi::OsString;

use std::io::Write;

use buttress_base::text;
use buttress_fs::{FileKind, Inode};
use serde::Serialize;

use crate::exit::{Context, Exit, Result};
use crate::image::{self, Devices};
use crate::listing::{self, Entry, EntryDocument};
use crate::location::VolumePath;
use crate::location::show;
use crate::reading;
use crate::size;
use crate::ui::{Tone, Ui};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The directory to begin at, as IMG:/path or as a path on a mount. IMG alone is the
    /// root of the volume.
    #[arg(value_name = "IMG:/PATH | PATH")]
    place: OsString,
    /// Maximum depth of directories.
    #[arg(long, value_name = "N")]
    depth: Option<usize>,
    /// Show the sizes of files.
    #[arg(long)]
    size: bool,
    #[command(flatten)]
    devices: Devices,
}

/// A directory on the way down: its remaining entries, its path, and the text before its names.
struct Level {
    left: std::vec::IntoIter<Entry>,
    path: Vec<u8>,
    indent: String,
}

/// The JSON of one entry. All entries are in one flat list, because many JSON parsers limit the
/// depth.
#[derive(Serialize)]
struct Document {
    /// The path from the directory at which the list begins.
    path: String,
    #[serde(flatten)]
    entry: EntryDocument,
}

pub(crate) fn run(args: Args, ui: &Ui) -> Result<Exit> {
    let (fs, place) = reading::open_place(&args.place, &args.devices)?;
    let top = image::resolve(&fs, &place)?;
    let mut list = ui.json().then(List::default);
    if list.is_none() {
        ui.line(ui.tint(Tone::Directory, &place.show()))?;
    }
    let level = |dir: &Inode, path: Vec<u8>, indent: String| -> Result<Level> {
        let left = listing::entries(dir).context(|| place.show())?.into_iter();
        Ok(Level { left, path, indent })
    };
    let (mut directories, mut others) = (0_u64, 0_u64);
    let mut stack = vec![level(&top, Vec::new(), String::new())?];
    while let Some(current) = stack.last_mut() {
        let Some(entry) = current.left.next() else {
            stack.pop();
            continue;
        };
        let last = current.left.len() == 0;
        let indent = current.indent.clone();
        let path = [&current.path[..], &entry.name].concat();
        if let Some(list) = &mut list {
            list.add(&entry, &path, &place)?;
        } else {
            let branch = if last { "└── " } else { "├── " };
            ui.line(format!("{indent}{branch}{}", describe(&entry, &args, &place, ui)?))?;
        }
        if entry.attr.kind == FileKind::Directory {
            directories += 1;
            if args.depth.is_none_or(|depth| stack.len() < depth) {
                let below = if last { "    " } else { "│   " };
                let path = [&path[..], b"/"].concat();
                stack.push(level(&entry.inode, path, format!("{indent}{below}"))?);
            }
        } else {
            others += 1;
        }
    }
    match list {
        Some(list) => list.end(ui)?,
        None => ui.line(format!("\n{directories} directories, {others} files"))?,
    }
    Ok(Exit::Success)
}

/// The list of all entries, written while it grows.
#[derive(Default)]
struct List {
    has_some: bool,
}

impl List {
    fn add(&mut self, entry: &Entry, path: &[u8], place: &VolumePath) -> Result<()> {
        let target = match entry.attr.kind {
            FileKind::Symlink => Some(entry.inode.read_link().context(|| place.show())?),
            _ => None,
        };
        let entry = EntryDocument::new(&entry.name, &entry.attr, target.as_deref());
        let document = Document { path: text::encode(path), entry };
        let document = serde_json::to_string(&document).context(|| "output")?;
        let before = if self.has_some { ",\n" } else { "[\n" };
        self.has_some = true;
        let mut out = std::io::stdout().lock();
        write!(out, "{before}{document}").context(|| "standard output")
    }

    fn end(&self, ui: &Ui) -> Result<()> {
        ui.line(if self.has_some { "\n]" } else { "[]" })
    }
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
