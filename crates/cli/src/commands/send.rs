//! `buttress send`: a read-only subvolume as a stream.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use buttress_fs::{Filesystem, Ino, TreeId};
use buttress_send::stream::Version;
use buttress_send::{SendOptions, Sendable};

use crate::exit::{Context, Exit, Failure, Result};
use crate::image::{self, Access, Devices};
use crate::location::{VolumePath, show};
use crate::ui::{Progress, Ui};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The subvolume, as IMG:/path; read-only.
    #[arg(value_name = "IMG:/SUBVOLUME")]
    subvolume: OsString,
    /// Send what differs from this subvolume, which the receiver has; IMG:/path, or a path of the
    /// same volume.
    #[arg(short, long, value_name = "SUBVOLUME")]
    parent: Option<OsString>,
    /// Take data from this subvolume, too, which the receiver has; may be given several times.
    ///
    /// Without a parent, the one of them that is the nearest relative becomes the parent.
    #[arg(short = 'c', long = "clone-source", value_name = "SUBVOLUME")]
    clone_sources: Vec<OsString>,
    /// Version of the stream: 1 is understood everywhere, 2 keeps holes, allocated space and
    /// compressed data.
    #[arg(long, value_name = "N", default_value = "1", value_parser = version)]
    proto: Version,
    /// Send compressed data as it is; version 2.
    #[arg(long)]
    compressed_data: bool,
    /// Write the stream to this file instead of standard output.
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    file: Option<PathBuf>,
    /// Say where file data is in place of the data: enough to see what changed.
    #[arg(long)]
    no_data: bool,
    /// Say nothing but errors.
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
    if args.compressed_data && args.proto < Version::Two {
        let what = "--compressed-data needs --proto 2";
        return Err(Failure::new(Exit::Usage, what));
    }
    let place = VolumePath::parse(&args.subvolume);
    let fs = image::open(&place.image, &args.devices, Access::Read)?;
    let chosen = choose(&fs, &args, &place)?;
    if !args.quiet {
        // In the words that scripts look for.
        let _ = writeln!(std::io::stderr(), "At subvol {}", place.show());
    }
    let bar = ui.stream_bar("sending");
    bar.tick();
    let output = Counted { output: Output::open(&args)?, bar: &bar, bytes: 0 };
    let sent = buttress_send::send(&fs, &chosen, output).context(|| place.show())?;
    let bytes = sent.bytes;
    sent.output.close(&args)?;
    drop(bar);
    image::close(fs, &place.image)?;
    if ui.json() && args.file.is_some() {
        ui.document(&serde_json::json!({ "bytes": bytes }))?;
    }
    Ok(Exit::Success)
}

/// Looks at every subvolume that was named, and says in which role one cannot be used.
fn choose(fs: &Filesystem, args: &Args, place: &VolumePath) -> Result<SendOptions> {
    let (id, sent) = subvolume(fs, place, "subvolume")?;
    let mut options = SendOptions::new(id);
    options.version = args.proto;
    options.compressed_data = args.compressed_data;
    options.no_data = args.no_data;
    if let Some(parent) = &args.parent {
        let place = same_volume(place, parent)?;
        options.parent = Some(subvolume(fs, &place, "parent subvolume")?.0);
    }
    let mut nearest: Option<(u64, TreeId)> = None;
    for source in &args.clone_sources {
        let place = same_volume(place, source)?;
        let (id, source) = subvolume(fs, &place, "cloned subvolume")?;
        options.clone_sources.push(id);
        if is_relative(&sent, &source) {
            let distance = sent.source.ctransid.abs_diff(source.source.ctransid);
            if nearest.is_none_or(|(best, _)| distance < best) {
                nearest = Some((distance, id));
            }
        }
    }
    if options.parent.is_none() && !args.clone_sources.is_empty() {
        let Some((_, parent)) = nearest else {
            let what = format!("parent determination failed for {}", place.show());
            return Err(Failure::new(Exit::Failure, what));
        };
        options.parent = Some(parent);
    }
    Ok(options)
}

/// Whether one is a snapshot of the other, or both are of a third.
fn is_relative(one: &Sendable, other: &Sendable) -> bool {
    let none = [0; 16];
    one.parent_uuid == other.uuid
        || other.parent_uuid == one.uuid
        || one.parent_uuid != none && one.parent_uuid == other.parent_uuid
}

fn subvolume(fs: &Filesystem, place: &VolumePath, role: &str) -> Result<(TreeId, Sendable)> {
    let id = image::resolve(fs, place)?.id();
    if id.ino != Ino::ROOT_DIR {
        let what = format!("not a subvolume: {}", place.show());
        return Err(Failure::new(Exit::Failure, what));
    }
    match buttress_send::sendable(fs, id.tree) {
        Ok(found) => Ok((id.tree, found)),
        Err(buttress_send::Error::NotReadOnly) => {
            let what = format!("{role} {} is not read-only", place.show());
            Err(Failure::new(Exit::Failure, what))
        }
        Err(error) => Err(error).context(|| place.show()),
    }
}

/// A place of the volume that `first` names: with or without the volume's name.
fn same_volume(first: &VolumePath, argument: &OsStr) -> Result<VolumePath> {
    let image = first.image.clone();
    let bytes = argument.as_bytes();
    if bytes.first() == Some(&b'/') && VolumePath::parse(argument).image != image {
        return Ok(VolumePath { image, path: bytes.to_vec() });
    }
    let place = VolumePath::parse(argument);
    if place.image != image {
        let what = format!("{}: lies in another volume than {}", show(bytes), first.show());
        return Err(Failure::new(Exit::Usage, what));
    }
    Ok(place)
}

fn version(text: &str) -> Result<Version, String> {
    match text {
        "1" => Ok(Version::One),
        "2" | "0" => Ok(Version::Two),
        _ => Err(format!(
            "stream version {text} is not known; known are 1 and 2, and 0 for the highest"
        )),
    }
}

/// Where the stream goes.
enum Output {
    File(File),
    Standard(std::io::StdoutLock<'static>),
}

impl Output {
    fn open(args: &Args) -> Result<Self> {
        let Some(path) = &args.file else { return Ok(Self::Standard(std::io::stdout().lock())) };
        let mut options = File::options();
        // A stream holds what the files of all owners hold.
        options.write(true).create(true).truncate(true).mode(0o600);
        let file = options.open(path).context(|| path.display().to_string())?;
        Ok(Self::File(file))
    }

    fn close(self, args: &Args) -> Result<()> {
        match (self, &args.file) {
            // Pipes and devices have nothing that could be made durable.
            (Self::File(file), Some(path)) if path.is_file() => {
                file.sync_all().context(|| path.display().to_string())
            }
            _ => Ok(()),
        }
    }
}

/// Shows how much there was.
struct Counted<'b> {
    output: Output,
    bar: &'b Progress,
    bytes: u64,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let len = match &mut self.output {
            Output::File(file) => file.write(bytes)?,
            Output::Standard(out) => out.write(bytes)?,
        };
        self.bytes += len as u64;
        self.bar.add(len as u64);
        Ok(len)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match &mut self.output {
            Output::File(file) => file.flush(),
            Output::Standard(out) => out.flush(),
        }
    }
}
