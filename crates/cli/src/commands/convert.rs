//! `buttress convert`: turns ext4 into btrfs in place, and back, with the options of btrfs-convert.

use std::path::PathBuf;

use buttress_convert::{Error, Label, Options, Step, Tally, convert, rollback};
use buttress_format::CsumType;
use serde_json::json;

use crate::exit::{Exit, Failure, Result};
use crate::image::{self, Access, Devices};
use crate::memory::Memory;
use crate::size;
use crate::ui::{Progress, Ui};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The image file or block device with ext2, ext3 or ext4. It must not be mounted.
    #[arg(value_name = "IMG")]
    image: PathBuf,
    /// Restore the file system that was converted. All changes since the conversion are lost.
    #[arg(long, short)]
    rollback: bool,
    /// Make no checksums of data.
    #[arg(long, short = 'd', conflicts_with = "rollback")]
    no_datasum: bool,
    /// Label of the new volume.
    #[arg(long, short, conflicts_with_all = ["rollback", "copy_label"])]
    label: Option<String>,
    /// Use the label of the converted file system.
    #[arg(long, short = 'L', conflicts_with = "rollback")]
    copy_label: bool,
    /// Checksum algorithm: crc32c, xxhash, sha256 or blake2.
    #[arg(long, alias = "checksum", default_value = "crc32c", value_parser = buttress_mkfs::csum)]
    csum: CsumType,
    /// Bytes of a tree node.
    #[arg(long, short = 'N', default_value = "16K", value_parser = size::parse)]
    nodesize: u64,
    #[command(flatten)]
    memory: Memory,
}

pub(crate) fn run(args: Args, ui: &Ui) -> Result<Exit> {
    let name = || args.image.display().to_string();
    let devices = image::open_devices(&args.image, &Devices::default(), Access::Write)?;
    let [device] = &devices[..] else {
        return Err(Failure::new(Exit::Usage, "a conversion has one device"));
    };
    if args.rollback {
        let bar = ui.wait_bar("rolling back");
        let back =
            rollback(device, args.memory.options()).map_err(|error| failure(name(), error))?;
        drop(bar);
        if ui.json() {
            let answer =
                json!({ "kept_bytes": back.kept_bytes, "written_bytes": back.written_bytes });
            ui.document(&answer)?;
        } else {
            let (kept, written) = (size::human(back.kept_bytes), size::human(back.written_bytes));
            ui.line(format!("rolled back: {kept} had stayed in place, {written} were written"))?;
        }
        return Ok(Exit::Success);
    }
    let options = Options {
        label: match (args.label, args.copy_label) {
            (Some(label), _) => Label::New(label.into_bytes()),
            (None, true) => Label::Same,
            (None, false) => Label::None,
        },
        has_sums: !args.no_datasum,
        csum: args.csum,
        nodesize: u32::try_from(args.nodesize).unwrap_or(u32::MAX),
        mount: args.memory.options(),
        check_bytes: args.memory.bytes(),
    };
    let mut bar = Bar { ui, progress: ui.count_bar("looking", 1), done: 0 };
    let tally = convert(device.clone(), &options, &mut |step| bar.show(step));
    drop(bar);
    answer(&tally.map_err(|error| failure(name(), error))?, ui)?;
    Ok(Exit::Success)
}

/// The failure that ends the program after an error of a conversion.
fn failure(name: String, error: Error) -> Failure {
    let exit = match error {
        Error::NotExt | Error::NotClean(_) | Error::Damaged(_) => Exit::Corrupt,
        Error::Feature(_) => Exit::Unsupported,
        Error::NoRoom(_) => Exit::NoSpace,
        Error::NoWayBack(_) | Error::Taken | Error::Already => Exit::Refused,
        Error::Volume(error) => return Failure::of_volume(name, error),
        _ => Exit::Failure,
    };
    Failure::with_source(exit, name, error)
}

/// A bar for the step under way.
struct Bar<'a> {
    ui: &'a Ui,
    progress: Progress,
    done: u64,
}

impl Bar<'_> {
    fn show(&mut self, step: Step) {
        match step {
            Step::Looking => {}
            Step::Content(total) => self.progress = self.ui.bytes_bar("content", total),
            Step::Names(0, total) => {
                self.progress = self.ui.count_bar("names", total);
                self.done = 0;
            }
            Step::Names(done, _) => {
                self.progress.add(done - self.done);
                self.done = done;
            }
            Step::Checking => self.progress = self.ui.count_bar("checking", 1),
        }
    }
}

fn answer(tally: &Tally, ui: &Ui) -> Result<()> {
    let Tally { inodes, directories, kept_bytes, copied_bytes, .. } = *tally;
    if ui.json() {
        return ui.document(&json!({
            "inodes": inodes,
            "directories": directories,
            "kept_bytes": kept_bytes,
            "copied_bytes": copied_bytes,
        }));
    }
    let (kept, copied) = (size::human(kept_bytes), size::human(copied_bytes));
    ui.line(format!("converted {inodes} inodes: {kept} stayed in place, {copied} were copied"))?;
    ui.line("ext2_saved has the old file system; delete it when all is well")
}
