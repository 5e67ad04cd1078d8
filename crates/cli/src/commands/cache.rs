//! `buttress cache`: makes, shows, verifies and drains write-back caches without the kernel, also
//! caches of Linux's dm-writecache.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use buttress_block::{Device, FileDevice, OpenOptions};
use buttress_cache::inspect::{self, Fate, Scan};
use buttress_cache::{CacheDevice, CacheOptions, Mode};
use serde_json::json;

use crate::cached::{self, failure};
use crate::closing;
use crate::exit::{Context, Exit, Failure, Result};
use crate::live;
use crate::names;
use crate::size;
use crate::ui::{Tone, Ui};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Create an empty cache on a file or block device.
    Format(Format),
    /// Show the state of a cache.
    Status(Place),
    /// Write everything in a cache back to its origin, and keep the cache.
    Flush(Drain),
    /// Verify the superblock and the entries, and that the cache belongs to the origin.
    Check(Place),
    /// Print the superblock and the entries.
    Dump(Dump),
    /// Write everything back and remove the cache. The origin can then be used alone.
    Detach(Drain),
    /// Send a message to the cache of a running mount: flush, flush_on_suspend, cleaner or
    /// clear_stats.
    Message(Message),
}

#[derive(Debug, clap::Args)]
struct Message {
    /// The cache, the image, or a directory where the volume is mounted.
    #[arg(value_name = "PLACE")]
    place: PathBuf,
    /// The message. flush: write everything back now. flush_on_suspend: write everything back when
    /// the cache is closed. cleaner: add no new blocks and write back all cached ones. clear_stats:
    /// reset the counts.
    #[arg(value_name = "WORD")]
    word: String,
}

#[derive(Debug, clap::Args)]
struct Place {
    /// The file or block device that holds the cache.
    #[arg(value_name = "CACHE")]
    cache: PathBuf,
    /// The image or block device that is cached.
    #[arg(long, value_name = "ORIGIN")]
    origin: Option<PathBuf>,
    /// Start of the cache on its device, in sectors of 512 bytes.
    #[arg(long, value_name = "SECTOR", default_value_t = 0)]
    start_sector: u64,
}

#[derive(Debug, clap::Args)]
struct Format {
    #[command(flatten)]
    place: Place,
    /// Kind of the cache device: ssd, or pmem for persistent memory. The format on disk is the
    /// same.
    #[arg(long, default_value = "ssd", value_parser = mode)]
    mode: Mode,
    /// Block size in bytes: 512 to 4096, or 64k for machines with pages of that size.
    #[arg(long, short = 'b', value_name = "N", default_value = "4096", value_parser = size::parse)]
    block_size: u64,
    /// Create a sparse file of this size if it does not exist.
    #[arg(long, value_name = "N", value_parser = size::parse)]
    size: Option<u64>,
    /// Overwrite existing data.
    #[arg(long, short)]
    force: bool,
}

#[derive(Debug, clap::Args)]
struct Drain {
    /// The file or block device that holds the cache.
    #[arg(value_name = "CACHE")]
    cache: PathBuf,
    /// The image or block device that is cached.
    #[arg(long, value_name = "ORIGIN")]
    origin: PathBuf,
    /// Kind of the cache device: ssd or pmem.
    #[arg(long, default_value = "ssd", value_parser = mode)]
    mode: Mode,
    /// Start of the cache on its device, in sectors of 512 bytes.
    #[arg(long, value_name = "SECTOR", default_value_t = 0)]
    start_sector: u64,
    /// Further cache options, as for dm-writecache.
    #[arg(long, short = 'o', value_name = "OPTIONS", default_value = "")]
    options: String,
    /// Drain even if the cache belongs to another origin, and drop blocks past the origin's end.
    #[arg(long, short, visible_alias = "force-cache")]
    force: bool,
}

#[derive(Debug, clap::Args)]
struct Dump {
    #[command(flatten)]
    place: Place,
    /// Print free slots as well.
    #[arg(long)]
    all: bool,
}

pub(crate) fn run(args: Args, ui: &Ui) -> Result<Exit> {
    match args.verb {
        Verb::Format(args) => format(&args, ui),
        Verb::Status(place) => status(&place, ui),
        Verb::Flush(args) => drain(&args, ui).map(|_| Exit::Success),
        Verb::Check(place) => check(&place, ui),
        Verb::Dump(args) => dump(&args, ui),
        Verb::Detach(args) => detach(&args, ui),
        Verb::Message(args) => {
            live::tell_cache(&live::must_find(&args.place)?.0, &args.word).map(|()| Exit::Success)
        }
    }
}

fn mode(text: &str) -> Result<Mode, String> {
    match text {
        "ssd" | "s" => Ok(Mode::Ssd),
        "pmem" | "p" => Ok(Mode::Pmem),
        _ => Err("one of ssd, pmem".to_owned()),
    }
}

fn format(args: &Format, ui: &Ui) -> Result<Exit> {
    let path = &args.place.cache;
    let name = names::of_path(path);
    if let Some(size) = args.size {
        FileDevice::create(path, size).map_err(Failure::of_device)?;
    }
    let device = cached::open_medium(path, args.mode, OpenOptions::WRITE)?;
    let origin = args.place.open_origin()?;
    let block_size = u32::try_from(args.block_size)
        .map_err(|_| Failure::new(Exit::Usage, "--block-size: 512 to 65536"))?;
    let start = args.place.start_sector;
    let made = buttress_cache::format(device, origin.as_deref(), block_size, start, args.force);
    let geometry = made.map_err(|error| match error {
        buttress_cache::Error::BlockSize { .. } => {
            Failure::with_source(Exit::Usage, "--block-size", error)
        }
        error => failure(&name, error),
    })?;
    let bytes = u64::from(geometry.slots()) * geometry.block_size();
    if ui.json() {
        ui.document(&json!({
            "cache": name,
            "block_size": geometry.block_size(),
            "blocks": geometry.slots(),
            "bytes": bytes,
            "data_start": geometry.data_start(),
        }))?;
        return Ok(Exit::Success);
    }
    let blocks = geometry.slots();
    let each = geometry.block_size();
    ui.line(format!("{name}: a cache of {}, {blocks} blocks of {each} bytes", size::human(bytes)))?;
    Ok(Exit::Success)
}

impl Place {
    fn name(&self) -> String {
        names::of_path(&self.cache)
    }

    fn open_origin(&self) -> Result<Option<Arc<dyn Device>>> {
        self.origin.as_deref().map(peek).transpose()
    }

    /// Checks all entries, also while another program has the cache open.
    fn scan(&self) -> Result<Scan> {
        let device = peek(&self.cache)?;
        let origin = self.open_origin()?;
        inspect::scan(device, origin.as_deref(), self.start_sector)
            .map_err(|error| failure(&self.name(), error))
    }
}

fn peek(path: &Path) -> Result<Arc<dyn Device>> {
    let how = OpenOptions { lock: false, ..OpenOptions::READ };
    Ok(closing::open_device(path, how)?.device())
}

fn count(scan: &Scan, fate: Fate) -> usize {
    scan.entries.iter().filter(|(_, found)| *found == fate).count()
}

fn status(place: &Place, ui: &Ui) -> Result<Exit> {
    let scan = place.scan()?;
    let superblock = scan.superblock;
    let geometry = superblock.geometry;
    let dirty = count(&scan, Fate::Kept);
    let uncommitted = count(&scan, Fate::Uncommitted);
    let superseded = count(&scan, Fate::Superseded);
    let stamp = superblock.stamp;
    let bytes = dirty as u64 * geometry.block_size();
    let origin_alone = cached::origin_alone(stamp.map(|stamp| stamp.cut), dirty == 0);
    let live = live::find(&place.cache).ok().flatten().map(|(_, answer)| answer);
    if ui.json() {
        ui.document(&json!({
            "cache": place.name(),
            "block_size": geometry.block_size(),
            "blocks": geometry.slots(),
            "dirty": dirty,
            "dirty_bytes": bytes,
            "uncommitted": uncommitted,
            "superseded": superseded,
            "seq_count": superblock.epoch.0,
            "origin_identity": stamp.map(|stamp| format!("{:016x}", stamp.origin)),
            "origin_alone": origin_alone,
            "in_use_by": live.as_ref().map(|answer| answer.pid),
            "faults": scan.faults.iter().map(ToString::to_string).collect::<Vec<_>>(),
        }))?;
        return Ok(Exit::Success);
    }
    let total = geometry.slots() as usize;
    let share = dirty as f64 * 100.0 / total as f64;
    let identity =
        stamp.map_or("not recorded".to_owned(), |stamp| format!("{:016x}", stamp.origin));
    let rows = [
        ("Block size:", geometry.block_size().to_string()),
        ("Blocks:", total.to_string()),
        ("Dirty:", format!("{dirty} ({}, {share:.1}%)", size::human(bytes))),
        ("Uncommitted:", uncommitted.to_string()),
        ("Superseded:", superseded.to_string()),
        ("Sequence count:", superblock.epoch.to_string()),
        ("Origin identity:", identity),
        ("Origin alone:", origin_alone),
    ];
    for (what, value) in rows {
        ui.line(format!("{what:<18}{value}"))?;
    }
    if let Some(answer) = live {
        let figures = answer.sections.iter().flat_map(|section| &section.figures);
        let line = figures.filter(|(name, _)| name == "status").find_map(|(_, line)| line.as_str());
        ui.line(format!("{:<18}process {}; buttress stats shows more", "In use by:", answer.pid))?;
        ui.line(format!("{:<18}{}", "Status line:", line.unwrap_or_default()))?;
    }
    Ok(Exit::Success)
}

fn check(place: &Place, ui: &Ui) -> Result<Exit> {
    let scan = place.scan()?;
    let dirty = count(&scan, Fate::Kept);
    let exit = if scan.faults.is_empty() { Exit::Success } else { Exit::Corrupt };
    if ui.json() {
        ui.document(&json!({
            "cache": place.name(),
            "dirty": dirty,
            "faults": scan.faults.iter().map(ToString::to_string).collect::<Vec<_>>(),
        }))?;
        return Ok(exit);
    }
    for fault in &scan.faults {
        ui.line(ui.tint(Tone::Bad, &fault.to_string()))?;
    }
    let entries = scan.entries.len();
    let verdict = match scan.faults.len() {
        0 => ui.tint(Tone::Good, "no faults found"),
        faults => ui.tint(Tone::Bad, &format!("{faults} faults found")),
    };
    ui.line(format!("{}: {entries} entries, {dirty} dirty blocks, {verdict}", place.name()))?;
    Ok(exit)
}

fn dump(args: &Dump, ui: &Ui) -> Result<Exit> {
    let scan = args.place.scan()?;
    let superblock = scan.superblock;
    let geometry = superblock.geometry;
    let word = |fate: Fate| match fate {
        Fate::Free => "free",
        Fate::Kept => "committed",
        Fate::Uncommitted => "uncommitted",
        Fate::Superseded => "superseded",
        Fate::PastOrigin => "past the origin",
    };
    let entries = scan.entries.iter().enumerate();
    let entries = entries.filter(|(_, (_, fate))| args.all || *fate != Fate::Free);
    let mut out = ui.writer();
    let mut print = |line: String| writeln!(out, "{line}").context(|| "standard output");
    if ui.json() {
        print(
            json!({
                "block_size": geometry.block_size(),
                "n_blocks": geometry.slots(),
                "seq_count": superblock.epoch.0,
                "data_start": geometry.data_start(),
            })
            .to_string(),
        )?;
        for (slot, (entry, fate)) in entries {
            let epoch = (*fate != Fate::Free).then_some(entry.epoch.0);
            let sector = (*fate != Fate::Free).then_some(entry.sector);
            let line =
                json!({ "slot": slot, "sector": sector, "seq_count": epoch, "state": word(*fate) });
            print(line.to_string())?;
        }
    } else {
        print(format!(
            "superblock: block_size {} n_blocks {} seq_count {} data_start {}",
            geometry.block_size(),
            geometry.slots(),
            superblock.epoch,
            geometry.data_start()
        ))?;
        if let Some(stamp) = superblock.stamp {
            let (origin, next, cut) = (stamp.origin, stamp.next, stamp.cut);
            print(format!("stamp: origin {origin:016x} next {next:016x} cut {cut:?}"))?;
        }
        for (slot, (entry, fate)) in entries {
            if *fate == Fate::Free {
                print(format!("slot {slot} free"))?;
            } else {
                let (sector, epoch) = (entry.sector, entry.epoch);
                print(format!("slot {slot} sector {sector} seq_count {epoch} {}", word(*fate)))?;
            }
        }
    }
    out.flush().context(|| "standard output")?;
    Ok(Exit::Success)
}

/// Opens the cache and writes everything back.
fn drain(args: &Drain, ui: &Ui) -> Result<CacheDevice> {
    let name = names::of_path(&args.cache);
    let wrong = |error| failure("--options", error);
    let mut options = CacheOptions::parse(&args.options).map_err(wrong)?;
    options.mode = args.mode;
    options.start_sector = args.start_sector;
    options.force |= args.force;
    let how = OpenOptions::WRITE;
    let origin = closing::open_device(&args.origin, how)?.device();
    // With this watermark, the cache writes nothing back before the progress bar is shown.
    options.high_watermark = 100;
    let device = cached::open(origin, &args.cache, options, how)?;
    let blocks = device.cached_blocks();
    let block_size = device.block_size();
    let bar = ui.bytes_bar("flushing", blocks * block_size);
    bar.tick();
    let drained = device.drain(|done| bar.add(done * block_size));
    let drained = drained.map_err(|error| failure(&name, error))?;
    drop(bar);
    cached::close(&device)?;
    let bytes = drained.blocks * block_size;
    if ui.json() {
        ui.document(&json!({ "cache": name, "blocks": drained.blocks, "bytes": bytes }))?;
    } else {
        let origin = args.origin.display();
        ui.line(format!("{name}: {} written to {origin}", size::human(bytes)))?;
    }
    Ok(device)
}

fn detach(args: &Drain, ui: &Ui) -> Result<Exit> {
    // The cache is closed before its device is opened again below.
    drop(drain(args, ui)?);
    let device = cached::open_medium(&args.cache, args.mode, OpenOptions::WRITE)?;
    let name = || names::of_path(&args.cache);
    device.write_at(args.start_sector * 512, &[0; 512]).context(name)?;
    device.flush().context(name)?;
    Ok(Exit::Success)
}
