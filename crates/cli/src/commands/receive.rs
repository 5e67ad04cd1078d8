//! `buttress receive`: subvolumes from streams.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufReader, BufWriter, IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;

use buttress_control::named::Named;
use buttress_control::order::Order;
use buttress_control::target::Stream;
use buttress_send::stream::{Command, Dump, OneStream, StreamError, StreamReader};

use crate::client;
use crate::exit::{Context, Exit, Failure, Result};
use crate::image::Devices;
use crate::ui::{Progress, Ui};

/// Bytes of the stream that are read ahead.
const AHEAD_BYTES: usize = 1 << 20;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The directory for the received subvolumes, as IMG:/path or as a path on a mount.
    #[arg(value_name = "IMG:/DIR | DIR", required_unless_present = "dump")]
    dir: Option<OsString>,
    /// Read the stream from this file instead of standard input.
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    file: Option<PathBuf>,
    /// Print the commands of the stream, one on each line, and change nothing. Times are in UTC.
    #[arg(long, conflicts_with = "dir")]
    dump: bool,
    /// End after the first stream of the input, and leave the next streams in the input.
    #[arg(short = 'e')]
    one: bool,
    /// End when this many commands of a stream have failed; 0 for no limit. A subvolume with a
    /// failed command stays incomplete, and no other is received after it.
    #[arg(short = 'E', long, value_name = "N", default_value_t = 1)]
    max_errors: u64,
    /// Print only errors.
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    devices: Devices,
}

pub(crate) fn run(args: Args, ui: &Ui) -> Result<Exit> {
    let (input, len): (Box<dyn Read>, u64) = match &args.file {
        Some(path) => {
            let file = File::open(path).context(|| path.display().to_string())?;
            let len = file.metadata().map_or(0, |metadata| metadata.len());
            (Box::new(file), len)
        }
        None if std::io::stdin().is_terminal() => {
            let what = "not reading a stream from a terminal, give a file with -f or redirect one";
            return Err(Failure::new(Exit::Usage, what));
        }
        None => {
            // The standard library reads ahead from standard input, which may hold more streams.
            let file = std::io::stdin().as_fd().try_clone_to_owned();
            (Box::new(File::from(file.context(|| "standard input")?)), 0)
        }
    };
    let input = if args.one { Box::new(OneStream::new(input)) } else { input };
    let Some(dir) = args.dir.as_ref().filter(|_| !args.dump) else {
        let input = BufReader::with_capacity(AHEAD_BYTES, input);
        return dump(input, ui).context(|| "failed to dump the send stream");
    };
    let Named { volume, spot, .. } = Named::parse(dir)?;
    let bar = if len > 0 { ui.bytes_bar("receiving", len) } else { ui.stream_bar("receiving") };
    bar.tick();
    let mut input = Counted { input, bar: &bar };
    let order = Order::Receive { dir: spot, max_errors: args.max_errors };
    let done = client::stream(&order, &volume, &args.devices, Stream::In(&mut input))?;
    drop(bar);
    for begun in done["begun"].as_array().into_iter().flatten().filter(|_| !args.quiet) {
        // Scripts look for these words.
        let kind = begun["kind"].as_str().unwrap_or("subvol");
        let name = begun["name"].as_str().unwrap_or_default();
        let _ = writeln!(std::io::stderr(), "At {kind} {name}");
    }
    let errors = done["errors"].as_array().map_or(&[][..], Vec::as_slice);
    for error in errors {
        let _ = writeln!(std::io::stderr(), "ERROR: {}", error.as_str().unwrap_or_default());
    }
    if ui.json() {
        ui.document(&serde_json::json!({ "subvolumes": done["subvolumes"] }))?;
    }
    Ok(if errors.is_empty() { Exit::Success } else { Exit::Failure })
}

/// Reads the input, and moves the bar.
struct Counted<'b> {
    input: Box<dyn Read>,
    bar: &'b Progress,
}

impl Read for Counted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let len = self.input.read(buffer)?;
        self.bar.add(len as u64);
        Ok(len)
    }
}

/// Prints every stream of the input.
fn dump(mut input: impl Read, ui: &Ui) -> buttress_send::Result<Exit> {
    let mut out = BufWriter::new(ui.writer());
    let mut dump = Dump::default();
    let mut streams = 0;
    while let Some(mut reader) = StreamReader::open(&mut input)? {
        streams += 1;
        loop {
            let command = reader.command();
            // All commands that were read are printed, also before an error.
            let Ok(command) = command else {
                let _ = out.flush();
                command?;
                break;
            };
            if command == Command::End {
                break;
            }
            if let Some(line) = dump.line(&command) {
                writeln!(out, "{line}").map_err(StreamError::Write)?;
            }
        }
    }
    out.flush().map_err(StreamError::Write)?;
    if streams == 0 { Err(StreamError::Empty.into()) } else { Ok(Exit::Success) }
}
