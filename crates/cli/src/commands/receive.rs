//! `buttress receive`: subvolumes from streams.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufReader, BufWriter, IsTerminal, Read, Write};
use std::path::PathBuf;

use buttress_send::stream::{Command, Dump, StreamError, StreamReader};

use crate::exit::{Context, Exit, Failure, Result};
use crate::image::Devices;
use crate::ui::Ui;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The directory that the subvolumes are made in, as IMG:/path.
    #[arg(value_name = "IMG:/DIR", required_unless_present = "dump")]
    dir: Option<OsString>,
    /// Read the stream from this file instead of standard input.
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    file: Option<PathBuf>,
    /// Print the commands of the stream, one a line, and change nothing. Times are in UTC.
    #[arg(long, conflicts_with = "dir")]
    dump: bool,
    #[command(flatten)]
    devices: Devices,
}

pub(crate) fn run(args: Args, ui: &Ui) -> Result<Exit> {
    let input: Box<dyn Read> = match &args.file {
        Some(path) => Box::new(File::open(path).context(|| path.display().to_string())?),
        None if std::io::stdin().is_terminal() => {
            let what = "not reading a stream from a terminal, give a file with -f or redirect one";
            return Err(Failure::new(Exit::Usage, what));
        }
        None => Box::new(std::io::stdin().lock()),
    };
    let input = BufReader::with_capacity(1 << 20, input);
    if args.dump {
        return dump(input, ui).context(|| "failed to dump the send stream");
    }
    let _ = args.devices;
    Err(Failure::new(Exit::Unsupported, "receive is not there yet"))
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
            // What was read is shown, also in front of an error.
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
