//! `buttress filesystem defragment`: rewrites files.

use std::ffi::OsString;

use buttress_control::named::Named;
use buttress_fs::Codec;

use crate::client;
use crate::commands::du::below;
use crate::execute::Defragmented;
use crate::exit::{Context, Exit, Result};
use crate::image::Devices;
use crate::location::show;
use crate::order::{Defragmenting, Order};
use crate::size;
use crate::ui::Ui;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The files, or directories with --recursive, as IMG:/path or on a mount. Data that was shared
    /// with other files is no longer shared afterwards.
    #[arg(required = true, value_name = "IMG:/PATH")]
    places: Vec<OsString>,
    /// Defragment all files below directories.
    #[arg(long, short)]
    recursive: bool,
    /// Compress with zlib, lzo or zstd, optionally with a level as in zstd:9. The default is zlib.
    #[arg(long, short, value_name = "ALG", num_args = 0..=1, require_equals = false,
        default_missing_value = "zlib", value_parser = codec)]
    compress: Option<String>,
    /// Start at this offset in each file.
    #[arg(long, short, default_value = "0", value_parser = size::parse)]
    start: u64,
    /// Number of bytes in each file. The default is up to the end of the file.
    #[arg(long, short, value_parser = size::parse)]
    len: Option<u64>,
    /// Leave extents of at least this length as they are.
    #[arg(long, short, default_value = "32M", value_parser = size::parse)]
    target_size: u64,
    /// Write each file to the devices before the next file.
    #[arg(long, short)]
    flush: bool,
    /// Print the name of each file.
    #[arg(long, short)]
    verbose: bool,
    #[command(flatten)]
    devices: Devices,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Exit> {
    let how = Defragmenting {
        recursive: args.recursive,
        codec: args.compress.clone(),
        start: args.start,
        len: args.len,
        extent_bytes: args.target_size,
        flush: args.flush,
        lists: args.verbose && !ui.json(),
    };
    let (mut files, mut bytes) = (0, 0);
    for place in &args.places {
        let done = carry_out(place, &how, &args.devices, ui)?;
        files += done.files;
        bytes += done.bytes;
    }
    if ui.json() {
        ui.document(&serde_json::json!({ "files": files, "bytes": bytes }))?;
    }
    Ok(Exit::Success)
}

/// Defragments one place. Prints the names of the files if the answer lists them.
pub(crate) fn carry_out(
    place: &OsString,
    how: &Defragmenting,
    devices: &Devices,
    ui: &Ui,
) -> Result<Defragmented> {
    let Named { volume, spot, .. } = Named::parse(place)?;
    let order = Order::Defragment { at: spot, how: how.clone() };
    let done = client::run(&order, &volume, devices, "writing anew", ui)?;
    let done: Defragmented = serde_json::from_value(done).context(|| "the answer")?;
    for path in &done.paths {
        ui.line(show(&below(place, path)))?;
    }
    Ok(done)
}

/// Accepts the name of a codec.
pub(crate) fn codec(text: &str) -> Result<String, String> {
    let known = Codec::parse(text).map(|_| text.to_owned());
    known.ok_or_else(|| "one of zlib, lzo, zstd, with a level as in zstd:9".to_owned())
}
