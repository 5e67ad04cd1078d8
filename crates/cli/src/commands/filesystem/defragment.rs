//! `buttress filesystem defragment`: rewrites files.

use std::ffi::OsString;

use buttress_fs::{Codec, Defragment, FileKind, Inode};

use crate::exit::{Context, Exit, Failure, Result};
use crate::image::{self, Access, Devices};
use crate::listing;
use crate::location::{VolumePath, show};
use crate::size;
use crate::ui::{Progress, Ui};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The files, or directories with --recursive, as IMG:/path. Data that was shared with other
    /// files is no longer shared afterwards.
    #[arg(required = true, value_name = "IMG:/PATH")]
    places: Vec<OsString>,
    /// Defragment all files below directories.
    #[arg(long, short)]
    recursive: bool,
    /// Compress with zlib, lzo or zstd, optionally with a level as in zstd:9. The default is zlib.
    #[arg(long, short, value_name = "ALG", num_args = 0..=1, require_equals = false,
        default_missing_value = "zlib", value_parser = codec)]
    compress: Option<Codec>,
    /// Start at this offset in each file.
    #[arg(long, short, default_value = "0", value_parser = size::parse)]
    start: u64,
    /// Number of bytes in each file. The default is up to the end of the file.
    #[arg(long, short, value_parser = size::parse)]
    len: Option<u64>,
    /// Leave extents of at least this length as they are.
    #[arg(long, short, default_value = "32M", value_parser = size::parse)]
    target_size: u64,
    /// Print the name of each file.
    #[arg(long, short)]
    verbose: bool,
    #[command(flatten)]
    devices: Devices,
}

#[derive(Default)]
struct Tally {
    files: u64,
    bytes: u64,
}

pub(crate) fn run(args: Args, ui: &Ui) -> Result<Exit> {
    let mut tally = Tally::default();
    for place in &args.places {
        let place = VolumePath::parse(place);
        let fs = image::open(&place.image, &args.devices, Access::Write)?;
        let inode = image::resolve(&fs, &place)?;
        if inode.kind() == FileKind::Directory && !args.recursive {
            let what = format!("{}: is a directory; --recursive goes into it", place.show());
            return Err(Failure::new(Exit::Usage, what));
        }
        let bar = ui.bytes_bar("writing anew", 0);
        below(&args, inode, place.show(), &bar, &mut tally, ui)?;
        drop(bar);
        image::close(fs, &place.image)?;
    }
    if ui.json() {
        ui.document(&serde_json::json!({ "files": tally.files, "bytes": tally.bytes }))?;
    }
    Ok(Exit::Success)
}

/// One file, or all below a directory.
fn below(
    args: &Args,
    top: Inode,
    path: String,
    bar: &Progress,
    tally: &mut Tally,
    ui: &Ui,
) -> Result<()> {
    let how = Defragment { extent_bytes: args.target_size, codec: args.compress };
    let end = args.len.map_or(u64::MAX, |len| args.start.saturating_add(len));
    let tree = top.id().tree;
    let mut stack = vec![(top, path)];
    while let Some((inode, path)) = stack.pop() {
        match inode.kind() {
            FileKind::Directory => {
                for entry in listing::entries(&inode).context(|| path.clone())? {
                    // Files of other subvolumes are included only if the subvolume is named.
                    if entry.inode.id().tree == tree {
                        let path = format!("{}/{}", path.trim_end_matches('/'), show(&entry.name));
                        stack.push((entry.inode, path));
                    }
                }
            }
            FileKind::Regular => {
                bar.set_message(&path);
                let bytes = inode.defragment(args.start..end, &how).context(|| path.clone())?;
                bar.add(bytes);
                tally.files += 1;
                tally.bytes += bytes;
                if args.verbose && !ui.json() {
                    ui.line(&path)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn codec(text: &str) -> Result<Codec, String> {
    Codec::parse(text).ok_or_else(|| "one of zlib, lzo, zstd, with a level as in zstd:9".to_owned())
}
