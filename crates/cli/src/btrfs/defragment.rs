//! `btrfs filesystem defragment`.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;

use crate::commands::filesystem::defragment as own;
use crate::exit::{Exit, Result};
use crate::image::Devices;
use crate::order::Defragmenting;
use crate::size;
use crate::ui::Ui;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Defragment all files below directories.
    #[arg(short)]
    recursive: bool,
    /// Compress with zlib, lzo or zstd, written without a space as in `-czstd`. The default is
    /// zlib.
    #[arg(short, value_name = "ALG", num_args = 0..=1, require_equals = true,
        default_missing_value = "zlib", value_parser = own::codec)]
    compress: Option<String>,
    /// Write each file to the devices before the next file.
    #[arg(short)]
    flush: bool,
    /// Start at this offset in each file.
    #[arg(short, default_value = "0", value_parser = size::parse)]
    start: u64,
    /// Number of bytes in each file. The default is up to the end of the file.
    #[arg(short, value_parser = size::parse)]
    len: Option<u64>,
    /// Leave extents of at least this length as they are.
    #[arg(short, default_value = "32M", value_parser = size::parse)]
    target_size: u64,
    #[arg(required = true)]
    places: Vec<OsString>,
}

pub(super) fn run(args: Args, is_verbose: bool, ui: &Ui) -> Result<Exit> {
    let how = Defragmenting {
        recursive: args.recursive,
        codec: args.compress,
        start: args.start,
        len: args.len.filter(|len| *len > 0),
        extent_bytes: if args.target_size == 0 { 32 << 20 } else { args.target_size },
        flush: args.flush,
        lists: is_verbose,
    };
    let mut failures = 0;
    for place in &args.places {
        let name = place.display();
        // If standard error is closed, these lines are lost, and the error is ignored.
        let say = |text: String| {
            let _ = writeln!(std::io::stderr(), "{text}");
        };
        if !how.recursive && Path::new(place).is_dir() {
            // Linux defragments the tree of the subvolume here. This program defragments no trees.
            say(format!("WARNING: directory specified but recursive mode not requested: {name}"));
        } else if let Err(failure) = own::carry_out(place, &how, &Devices::default(), ui) {
            say(format!("ERROR: {failure}"));
            failures += 1;
        }
    }
    if failures > 0 {
        let _ = writeln!(std::io::stderr(), "total {failures} failures");
    }
    Ok(if failures > 0 { Exit::Failure } else { Exit::Success })
}
