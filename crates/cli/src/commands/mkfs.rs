//! `buttress mkfs`: makes a volume, empty or filled from a folder or a tar archive.
//!
//! # Invariants
//!
//! - **M1** All arguments are checked before a device is opened for writing. So after a failure
//!   with exit code 2 (wrong command line) or 6 (refused), no device is changed, and no file is
//!   made or grown.

mod brings;
mod fill;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use buttress_block::{Device, OpenOptions, probe};
use buttress_format::{CsumType, Profile, limits};
use buttress_fs::make::{FEATURES, Features, MakeOptions, MakeReport, make_on};
use buttress_fs::{Codec, Timespec, be_repeatable};
use buttress_remote::{Asked, Inside, host_file, is_remote};
use buttress_volume::Uuid;

use crate::cached::{self, Cached};
use crate::closing;
use crate::execute;
use crate::exit::{Context, Exit, Failure, Result};
use crate::interrupted;
use crate::names;
use crate::size;
use crate::transfer::{Census, Chain, Clones};
use crate::ui::Ui;
use fill::{Brings, Source};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The image file or block device. An image file that does not exist is created as a sparse
    /// file.
    #[arg(value_name = "IMG", required_unless_present = "list_features")]
    image: Option<PathBuf>,
    /// Further image files or devices, for a volume on several devices.
    #[arg(value_name = "MORE")]
    more: Vec<PathBuf>,
    #[command(flatten)]
    cached: Cached,
    /// Bytes to use on each device, as in 4G or 512M. The default is the whole file or device.
    #[arg(long, short = 'b', alias = "byte-count", value_parser = size::parse)]
    size: Option<u64>,
    /// Label of the volume, up to 255 bytes.
    #[arg(long, short = 'L', default_value = "")]
    label: String,
    /// Checksum algorithm: crc32c, xxhash, sha256 or blake2.
    #[arg(long, alias = "checksum", default_value = "crc32c", value_parser = csum)]
    csum: CsumType,
    /// Profile of metadata: single, dup, raid0, raid1, raid1c3, raid1c4, raid10, raid5 or raid6.
    /// The default is dup, raid1 on several devices, and single with --mixed.
    #[arg(long, short, value_name = "PROFILE", value_parser = profile)]
    metadata: Option<Profile>,
    /// Profile of data, with the same values as for metadata. The default is single.
    #[arg(long, short, value_name = "PROFILE", value_parser = profile)]
    data: Option<Profile>,
    /// Store data and metadata in the same block groups, for very small volumes.
    #[arg(long, short = 'M')]
    mixed: bool,
    /// Size of tree nodes: 4k, 8k, 16k, 32k or 64k. The default is 16k, and 4k with --mixed.
    #[arg(long, short, value_parser = nodesize)]
    nodesize: Option<u32>,
    /// Size of sectors, the smallest piece of data: 4k, 8k, 16k, 32k or 64k. The default is 4k.
    /// Nodes are at least as large.
    #[arg(long, short, value_name = "SIZE", value_parser = nodesize)]
    sectorsize: Option<u32>,
    /// Features to enable, or to disable with ^ before the name. `list-all` prints their names.
    #[arg(long, short = 'O', default_value = "")]
    features: String,
    /// UUID of the volume. The default is a random one.
    #[arg(long, short = 'U')]
    uuid: Option<uuid::Uuid>,
    /// Fill the volume with everything in this folder.
    #[arg(long, short, value_name = "DIR", group = "source")]
    rootdir: Option<PathBuf>,
    /// Fill the volume with everything in this tar archive, or with - from standard input. Owners,
    /// modes, times, links, devices, holes and extended attributes are kept.
    #[arg(long, value_name = "FILE", group = "source")]
    from_tar: Option<PathBuf>,
    /// Make a subvolume of a folder of --rootdir or --from-tar. Can be given several times. A role
    /// in front makes the subvolume read-only (ro:), the default subvolume (default:), or both
    /// (default-ro:).
    #[arg(long, short = 'u', value_name = "[ROLE:]DIR", requires = "source",
        value_parser = brings::subvolume)]
    subvol: Vec<brings::Subvolume>,
    /// Set flags of a file or folder of --rootdir or --from-tar: nodatacow, nodatasum, or both with
    /// a comma between. Everything in a folder gets the same flags. Can be given several times.
    #[arg(long, value_name = "FLAGS:PATH", requires = "source", value_parser = brings::flagged)]
    inode_flags: Vec<brings::Flagged>,
    /// Compress the copied files with zlib, lzo or zstd, optionally with a level as in zstd:9. The
    /// value no turns compression off.
    #[arg(long, value_name = "ALG[:LEVEL]", requires = "source", value_parser = codec)]
    compress: Option<Packing>,
    /// Make the filled volume as small as its chunks allow, and cut the image file to this size.
    #[arg(long, requires = "source", conflicts_with_all = ["more", "cache"])]
    shrink: bool,
    /// Share the data of the files in --rootdir with the image in place of a copy. Both lie on one
    /// btrfs, xfs or other file system that can share data.
    #[arg(long, requires = "rootdir", conflicts_with_all = ["more", "cache", "compress", "seed"])]
    reflink: bool,
    /// Memory for filling the volume. The default is a sixteenth of the machine, at least 128M, but
    /// at most a quarter of the limit of the control group.
    #[arg(long, value_name = "SIZE", requires = "source", value_parser = size::parse)]
    memory: Option<u64>,
    /// Take over a volume in a store of objects from another writer, even if that writer seems to
    /// be alive.
    #[arg(long)]
    takeover: bool,
    /// Go on without writes that only a local log has and that cannot be replayed.
    #[arg(long)]
    discard_local: bool,
    /// Derive all identifiers except --uuid from this text. With SOURCE_DATE_EPOCH set, two runs
    /// create the same bytes. No time is then later than SOURCE_DATE_EPOCH. Without --seed, the
    /// identifiers come from the content.
    #[arg(long, value_name = "TEXT")]
    seed: Option<String>,
    /// Overwrite an existing filesystem or partition table.
    #[arg(long, short)]
    force: bool,
    /// List the features.
    #[arg(long, hide = true)]
    list_features: bool,
}

/// Settings with which two runs create the same bytes.
#[derive(Clone, Copy)]
struct Recipe {
    seed: u64,
    /// The latest time that a file may have, in seconds since 1970.
    epoch: Option<i64>,
}

impl Recipe {
    /// Reads `--seed` and SOURCE_DATE_EPOCH. Returns `None` if neither is given.
    fn of(args: &Args, places: &Places<'_>) -> Result<Option<Self>> {
        let text = std::env::var_os("SOURCE_DATE_EPOCH").filter(|text| !text.is_empty());
        let epoch = match text {
            Some(text) => {
                let number = text.to_str().and_then(|text| text.parse().ok());
                let is_one = |second: &i64| *second >= 0;
                Some(number.filter(is_one).ok_or_else(|| {
                    let what = "SOURCE_DATE_EPOCH is no number of seconds since 1970";
                    Failure::new(Exit::Usage, what)
                })?)
            }
            None => None,
        };
        let mut chain = Chain::default();
        match (&args.seed, epoch) {
            (None, None) => return Ok(None),
            (Some(text), _) => chain.add(text.as_bytes()),
            (None, Some(_)) => {
                let named = (&args.label, args.size, args.csum, args.metadata, args.data);
                let more = (args.mixed, args.nodesize, &args.features, args.more.len());
                chain.add(format!("{named:?} {more:?}").as_bytes());
                let special = (&args.subvol, &args.inode_flags, args.shrink);
                if special != (&Vec::new(), &Vec::new(), false) {
                    chain.add(format!("{special:?}").as_bytes());
                }
                if let Some(source) = Source::of(args) {
                    source.add_to(&mut chain, &places.identities())?;
                }
            }
        }
        Ok(Some(Self { seed: chain.number(), epoch }))
    }
}

/// The files and devices on which the volume is made.
struct Places<'a> {
    paths: Vec<&'a Path>,
    /// Files that did not exist before. They are removed if making the volume fails.
    fresh: Vec<&'a Path>,
}

impl<'a> Places<'a> {
    fn of(args: &'a Args) -> Self {
        let paths: Vec<&Path> = args.image.iter().chain(&args.more).map(PathBuf::as_path).collect();
        let is_new = |path: &&&Path| matches!(path.metadata(), Err(e) if e.kind() == std::io::ErrorKind::NotFound);
        let is_here = |path: &&Path| !is_remote(path) && Inside::of(path).is_none();
        let fresh = paths.iter().filter(is_new).copied().filter(is_here).collect();
        Self { paths, fresh }
    }

    /// Returns the device and inode numbers of the existing files.
    fn identities(&self) -> Vec<(u64, u64)> {
        let found = self.paths.iter().filter_map(|path| host_file(path).metadata().ok());
        found.map(|metadata| (metadata.dev(), metadata.ino())).collect()
    }
}

pub(crate) fn run(args: Args, ui: &Ui) -> Result<Exit> {
    if args.list_features || args.features == "list-all" {
        list_features(ui)?;
        return Ok(Exit::Success);
    }
    let places = Places::of(&args);
    let mut options = options(&args)?;
    let special = brings::special(&args.subvol, &args.inode_flags)?;
    let mut census = match Source::of(&args) {
        Some(source) => source.survey(&special)?,
        None => None,
    };
    let recipe = Recipe::of(&args, &places)?;
    if let Some(recipe) = recipe {
        options.seed = Some(recipe.seed);
        options.time = recipe.epoch.map(|sec| Timespec { sec, nsec: 0 });
        be_repeatable(recipe.seed, recipe.epoch.and_then(|sec| u64::try_from(sec).ok()));
        if let Some(census) = &mut census {
            // The space that a file takes on the host depends on the host's file system, so the
            // estimate uses the file's size.
            census.data_bytes = census.sector_bytes;
        }
    }
    if args.reflink && recipe.is_some() {
        let what = "--reflink and SOURCE_DATE_EPOCH exclude each other";
        return Err(Failure::new(Exit::Usage, what));
    }
    let made = make(&args, &places, options, census, recipe, ui);
    if made.is_err() {
        // An incomplete volume in a new file is of no use.
        for path in &places.fresh {
            let _ = std::fs::remove_file(path);
        }
    }
    made?;
    Ok(Exit::Success)
}

fn make(
    args: &Args,
    places: &Places<'_>,
    mut options: MakeOptions,
    census: Option<Census>,
    recipe: Option<Recipe>,
    ui: &Ui,
) -> Result<()> {
    let first = places.paths[0];
    let name = names::of_path(first);
    if let (None, Some(fresh)) = (options.size, places.fresh.first()) {
        let Some(census) = census else {
            let fresh = fresh.display();
            let what = format!("{fresh}: does not exist; --size makes it, as in --size 4G");
            return Err(Failure::new(Exit::Usage, what));
        };
        options.size = Some(fill::estimate(census, args.shrink));
    }
    let paths = places.paths.iter().copied();
    buttress_remote::check_alone(paths, true).map_err(Failure::of_remote)?;
    args.cached.refuse_remote(first)?;
    if !args.force {
        places.paths.iter().try_for_each(|path| execute::expect_empty(path))?;
    }
    let mut devices: Vec<Arc<dyn Device>> = Vec::new();
    for path in &places.paths {
        let (takeover, discard_local) = (args.takeover, args.discard_local);
        let asked = Asked { takeover, discard_local, ..Asked::default() };
        let device = open(path, options.size, &asked)?;
        let name = || path.display().to_string();
        if !args.force
            && let Some(found) = probe::identify(&*device).context(name)?
        {
            return Err(execute::holds(path, &found));
        }
        devices.push(device);
    }
    let (first_device, cache) = args.cached.wrap(Arc::clone(&devices[0]), OpenOptions::WRITE)?;
    devices[0] = first_device;
    let parts: Vec<&dyn Device> = devices.iter().map(|device| &**device).collect();
    let mut report = make_on(&parts, &options).context(|| &name)?;
    if let Some(source) = Source::of(args) {
        let clones = args.reflink.then(|| Clones::of(first)).transpose()?;
        if let Some(clones) = &clones {
            devices[0] = clones.device(Arc::clone(&devices[0]));
        }
        let census = census.unwrap_or_default();
        let brings = Brings { source, census, recipe, clones: clones.as_deref() };
        let least = fill::fill(std::mem::take(&mut devices), args, &brings, first, ui)?;
        report.size = least.unwrap_or(report.size);
    }
    if let Some(cache) = cache {
        cached::close(&cache)?;
    }
    report.warning().into_iter().for_each(|warning| ui.note(warning));
    print(&name, args, &report, ui)
}

fn open(path: &Path, size: Option<u64>, asked: &Asked) -> Result<Arc<dyn Device>> {
    let open = || match size {
        Some(size) => buttress_remote::create(path, size, asked),
        None => buttress_remote::open(path, OpenOptions::WRITE, asked),
    };
    let open = || interrupted::opening(path, open);
    Ok(closing::when_free(path, true, open)?.device())
}

fn options(args: &Args) -> Result<MakeOptions> {
    let features = Features::parse(&args.features)
        .map_err(|error| Failure::new(Exit::Usage, error.to_string()))?;
    Ok(MakeOptions {
        size: args.size,
        label: args.label.clone().into_bytes(),
        csum: args.csum,
        metadata: args.metadata,
        data: args.data,
        mixed: args.mixed,
        nodesize: nodesize_of(args),
        sectorsize: sectorsize_of(args),
        features,
        fsid: args.uuid.map(uuid::Uuid::into_bytes),
        ..MakeOptions::default()
    })
}

fn print(name: &str, args: &Args, report: &MakeReport, ui: &Ui) -> Result<()> {
    let fsid = Uuid(report.fsid);
    if ui.json() {
        return ui.document(&serde_json::json!({
            "image": name,
            "uuid": fsid.to_string(),
            "label": args.label,
            "size": report.size,
            "nodesize": nodesize_of(args),
            "sectorsize": sectorsize_of(args),
            "devices": 1 + args.more.len(),
            "data_profile": report.data.name(),
            "metadata_profile": report.metadata.name(),
            "csum": args.csum.name(),
        }));
    }
    let row = |profile: Profile, len| {
        let profile = match profile.name() {
            "single" => "single".to_owned(),
            other => other.to_uppercase(),
        };
        format!("{profile:<16} {:>10}", size::human(len))
    };
    let mut rows = vec![
        ("Label:", if args.label.is_empty() { "(null)" } else { &args.label }.to_owned()),
        ("UUID:", fsid.to_string()),
        ("Node size:", nodesize_of(args).to_string()),
        ("Sector size:", sectorsize_of(args).to_string()),
        ("Filesystem size:", size::human(report.size)),
        ("Block group profiles:", String::new()),
    ];
    if args.mixed {
        rows.push(("  Data+Metadata:", row(report.metadata, report.metadata_len)));
    } else {
        rows.push(("  Data:", row(report.data, report.data_len)));
        rows.push(("  Metadata:", row(report.metadata, report.metadata_len)));
    }
    rows.push(("  System:", row(report.metadata, report.system_len)));
    rows.push(("Checksum:", args.csum.name().to_owned()));
    rows.push(("Number of devices:", (1 + args.more.len()).to_string()));
    for (what, value) in rows {
        ui.line(format!("{what:<22}{value}").trim_end())?;
    }
    Ok(())
}

fn list_features(ui: &Ui) -> Result<()> {
    for feature in FEATURES {
        let default = if feature.default { " (default)" } else { "" };
        ui.line(format!("{:<20} - {}{default}", feature.name, feature.about))?;
    }
    Ok(())
}

pub(super) fn csum(text: &str) -> Result<CsumType, String> {
    Ok(match text.to_ascii_lowercase().as_str() {
        "crc32c" => CsumType::Crc32c,
        "xxhash" | "xxhash64" => CsumType::Xxhash64,
        "sha256" => CsumType::Sha256,
        "blake2" | "blake2b" => CsumType::Blake2b,
        _ => return Err("one of crc32c, xxhash, sha256, blake2".to_owned()),
    })
}

/// A compression, or none.
#[derive(Clone, Copy, Debug)]
struct Packing(Option<Codec>);

fn codec(text: &str) -> Result<Packing, String> {
    match text {
        "no" | "none" => Ok(Packing(None)),
        text => Codec::parse(text)
            .map(|codec| Packing(Some(codec)))
            .ok_or_else(|| "one of zlib[:1-9], lzo, zstd[:1-15], no".to_owned()),
    }
}

fn profile(text: &str) -> Result<Profile, String> {
    Profile::parse(text).ok_or_else(|| {
        let known: Vec<_> = Profile::ALL.iter().map(|profile| profile.name()).collect();
        format!("one of {}", known.join(", "))
    })
}

fn nodesize_of(args: &Args) -> u32 {
    let sector = sectorsize_of(args);
    args.nodesize.unwrap_or(if args.mixed { sector } else { sector.max(16384) })
}

fn sectorsize_of(args: &Args) -> u32 {
    args.sectorsize.unwrap_or(limits::SECTOR)
}

fn nodesize(text: &str) -> Result<u32, String> {
    match size::parse(text)? {
        bytes @ (4096 | 8192 | 16384 | 32768 | 65536) => {
            Ok(u32::try_from(bytes).expect("at most 64 KiB"))
        }
        _ => Err("one of 4k, 8k, 16k, 32k, 64k".to_owned()),
    }
}
