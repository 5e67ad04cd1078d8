//! `buttress send`: a read-only subvolume as a stream.

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use buttress_control::named::Named;
use buttress_control::order::{Order, Sending, SurveyRequest};
use buttress_control::target::Stream;

use crate::client;
use crate::exit::{Context, Exit, Failure, Result};
use crate::image::Devices;
use crate::output;
use crate::ui::{Progress, Ui};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The read-only subvolumes, as IMG:/path or as paths on a mount. Each has a stream of its own.
    /// The streams follow one another.
    #[arg(value_name = "IMG:/SUBVOLUME | PATH", required = true)]
    subvolumes: Vec<OsString>,
    /// Put all subvolumes into one stream.
    #[arg(short = 'e')]
    one: bool,
    /// Send only the differences from this subvolume, which the receiver must have. It is given
    /// like the subvolume to send, or as a path in the same volume.
    #[arg(short, long, value_name = "SUBVOLUME")]
    parent: Option<OsString>,
    /// Let the receiver clone data from this subvolume, which it must have. Can be given several
    /// times.
    ///
    /// Without a parent, the most closely related clone source becomes the parent.
    #[arg(short = 'c', long = "clone-source", value_name = "SUBVOLUME")]
    clone_sources: Vec<OsString>,
    /// Version of the stream. All receivers understand 1. Version 2 preserves holes, preallocated
    /// space and compressed data. Version 3 also preserves fs-verity, for few receivers.
    #[arg(long, value_name = "N", default_value = "1", value_parser = version)]
    proto: u32,
    /// Send compressed data without decompressing it. Needs version 2.
    #[arg(long)]
    compressed_data: bool,
    /// Write the stream to this file instead of standard output.
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    file: Option<PathBuf>,
    /// Send only the changed ranges of files, without their data.
    #[arg(long)]
    no_data: bool,
    /// Print only errors.
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    devices: Devices,
}

pub(crate) fn run(args: Args, ui: &Ui) -> Result<Exit> {
    if args.file.is_none() && std::io::stdout().is_terminal() {
        let what = "not dumping send stream into a terminal, redirect it into a file";
        return Err(Failure::new(Exit::Usage, what));
    }
    if args.compressed_data && args.proto < 2 {
        let what = "--compressed-data needs --proto 2";
        return Err(Failure::new(Exit::Usage, what));
    }
    let (sendings, volume) = sendings(&args)?;
    let bar = match total(&sendings, &volume, &args, ui) {
        0 => ui.stream_bar("sending"),
        total => ui.bytes_bar("sending", total),
    };
    bar.tick();
    let mut output = Counted { output: Output::open(&args)?, bar: &bar, say: None };
    let mut bytes = 0;
    for sending in sendings {
        output.say = Some(sending.subvolume.text.clone()).filter(|_| !args.quiet);
        let order = Order::Send(sending);
        let done = client::stream(&order, &volume, &args.devices, Stream::Out(&mut output))?;
        bytes += done["bytes"].as_u64().unwrap_or_default();
    }
    output.output.close(&args)?;
    drop(bar);
    if ui.json() && args.file.is_some() {
        ui.document(&serde_json::json!({ "bytes": bytes }))?;
    }
    Ok(Exit::Success)
}

/// About how many bytes will be sent, if a bar is shown. Zero if that is not known: the stream
/// itself then reports what is wrong.
fn total(sendings: &[Sending], volume: &Path, args: &Args, ui: &Ui) -> u64 {
    if !ui.shows_bars() || args.no_data {
        return 0;
    }
    let each = sendings.iter().map(|sending| {
        let (parent, packed) = (sending.parent.clone(), sending.compressed_data);
        let request = SurveyRequest::ToSend { parent, packed };
        let order = Order::Survey { at: sending.subvolume.clone(), request };
        let found = client::stream(&order, volume, &args.devices, Stream::None);
        found.ok().and_then(|bytes| bytes.as_u64())
    });
    each.sum::<Option<u64>>().unwrap_or_default()
}

/// The orders for all subvolumes, and the volume that has them. All names are looked up before the
/// first byte is written. A parent serves all subvolumes. Without it, a subvolume that was sent is
/// one more clone source of the later ones if clone sources were named.
fn sendings(args: &Args) -> Result<(Vec<Sending>, PathBuf)> {
    let [first, rest @ ..] = &args.subvolumes[..] else {
        return Err(Failure::new(Exit::Usage, "no subvolume was named"));
    };
    let named = Named::parse(first)?;
    let sibling = |name: &OsString| named.sibling(name);
    let parent = args.parent.as_ref().map(sibling).transpose()?;
    let mut clone_sources = args.clone_sources.iter().map(sibling).collect::<Result<Vec<_>>>()?;
    let mut subvolumes = vec![named.spot.clone()];
    for subvolume in rest {
        subvolumes.push(sibling(subvolume)?);
    }
    let (last, mut sendings) = (subvolumes.len() - 1, Vec::new());
    for (at, subvolume) in subvolumes.into_iter().enumerate() {
        sendings.push(Sending {
            subvolume: subvolume.clone(),
            parent: parent.clone(),
            clone_sources: clone_sources.clone(),
            proto: args.proto,
            compressed_data: args.compressed_data,
            no_data: args.no_data,
            continues: args.one && at > 0,
            stays_open: args.one && at < last,
        });
        if !clone_sources.is_empty() {
            clone_sources.push(subvolume);
        }
    }
    Ok((sendings, named.volume))
}

fn version(text: &str) -> Result<u32, String> {
    match text {
        "1" => Ok(1),
        "2" | "0" => Ok(2),
        "3" => Ok(3),
        _ => Err(format!("stream version {text} is not known; known are 1, 2 and 3, and 0 for 2")),
    }
}

/// The destination of the stream.
enum Output {
    File(output::Output),
    Standard(std::io::StdoutLock<'static>),
}

impl Output {
    fn open(args: &Args) -> Result<Self> {
        let Some(path) = &args.file else { return Ok(Self::Standard(std::io::stdout().lock())) };
        // A stream has files of all owners, so only the owner of this file may read it.
        Ok(Self::File(output::create(path, 0o600)?))
    }

    fn close(self, args: &Args) -> Result<()> {
        match (self, &args.file) {
            // Pipes and devices have nothing that could be made durable.
            (Self::File(file), Some(path)) if path.is_file() => {
                file.file.sync_all().context(|| path.display().to_string())
            }
            _ => Ok(()),
        }
    }
}

/// Writes the stream, and moves the bar.
struct Counted<'b> {
    output: Output,
    bar: &'b Progress,
    /// The message to print with the first bytes of the stream, which come only after all checks
    /// have passed.
    say: Option<String>,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if let Some(subvolume) = self.say.take() {
            // Scripts look for these words.
            self.bar.print_above(&format!("At subvol {subvolume}"));
        }
        let len = match &mut self.output {
            Output::File(file) => file.file.write(bytes)?,
            Output::Standard(out) => out.write(bytes)?,
        };
        self.bar.add(len as u64);
        Ok(len)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match &mut self.output {
            Output::File(file) => file.file.flush(),
            Output::Standard(out) => out.flush(),
        }
    }
}
