//! `btrfs filesystem defragment`.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use crate::commands::filesystem::defragment as own;
use crate::exit::{Exit, Result};
use crate::image::Devices;
use crate::order::Defragmenting;
use crate::size;
use crate::ui::Ui;

/// The codecs that may follow `-c` without a space.
const CODECS: [&[u8]; 3] = [b"zlib", b"lzo", b"zstd"];

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

/// Puts `=` between `-c` and the codec after it. The parser takes a codec only after `=`, since
/// otherwise it would read the path after `-c` as the codec.
pub(super) fn with_equals(word: OsString) -> OsString {
    let bytes = word.as_bytes();
    let is_short = bytes.first() == Some(&b'-') && bytes.get(1) != Some(&b'-');
    let codec_at = bytes.iter().position(|byte| *byte == b'c').map(|at| at + 1);
    match codec_at.map(|at| bytes.split_at(at)) {
        Some((flags, codec)) if is_short && CODECS.iter().any(|name| codec.starts_with(name)) => {
            OsString::from_vec([flags, b"=", codec].concat())
        }
        _ => word,
    }
}

/// Whether a command line is one of this verb.
pub(super) fn is_meant(words: &[OsString]) -> bool {
    let mut names = words.iter().skip(1).filter(|word| !word.as_bytes().starts_with(b"-"));
    let mut begins = |whole: &str, least: usize| {
        let word = names.next().map_or(&[][..], |word: &OsString| OsStr::as_bytes(word));
        word.len() >= least && whole.as_bytes().starts_with(word)
    };
    begins("filesystem", 1) && begins("defragment", 2)
}
