//! The command line of `mkfs.btrfs`.

use std::path::PathBuf;

use super::features::Chosen;
use super::refuse::{least_len, refusal, warn};
use crate::args::{Args, LABEL_MAX, nodesize_of, sectorsize_of};
use crate::brings;
use crate::cached::Cached;
use crate::exit::{Exit, Failure, Result};
use crate::size;
use crate::values::{codec, csum, profile};

/// The size of pages of most kernels. Only those with large pages mount larger sectors for sure.
const PAGE: u32 = 4096;
/// The length of an identifier with hyphens, in characters.
const UUID_LEN: usize = 36;
/// The usual size of nodes, in bytes.
const NODE: u64 = 16384;
/// Sizes of sectors and nodes, in bytes.
const SECTORS: std::ops::RangeInclusive<u64> = 4096..=65536;

/// Makes a btrfs volume on a device or several devices, with the options of btrfs-progs.
#[derive(Debug, clap::Parser)]
#[command(name = "mkfs.btrfs", max_term_width = 100, disable_version_flag = true)]
#[command(infer_long_args = true, args_override_self = true)]
pub(super) struct Line {
    /// Profile of data: single, dup, raid0, raid1, raid1c3, raid1c4, raid10, raid5 or raid6.
    #[arg(short, long, value_name = "PROFILE")]
    data: Option<String>,
    /// Profile of metadata, with the same values as for data.
    #[arg(short, long, value_name = "PROFILE")]
    metadata: Option<String>,
    /// Store data and metadata in the same block groups.
    #[arg(short = 'M', long)]
    mixed: bool,
    /// Checksum algorithm: crc32c, xxhash, sha256 or blake2.
    #[arg(short, long, alias = "checksum", value_name = "TYPE")]
    csum: Option<String>,
    /// Size of tree nodes.
    #[arg(short, long, value_name = "SIZE")]
    nodesize: Option<String>,
    /// Size of sectors, the smallest piece of data.
    #[arg(short, long, value_name = "SIZE")]
    sectorsize: Option<String>,
    /// Features, separated by commas. A ^ before a name disables it. `list-all` prints the names.
    #[arg(short = 'O', long, value_name = "LIST")]
    features: Vec<String>,
    /// The same as --features.
    #[arg(short = 'R', long, value_name = "LIST")]
    runtime_features: Vec<String>,
    /// Label of the volume, up to 255 bytes.
    #[arg(short = 'L', long, allow_hyphen_values = true)]
    label: Option<String>,
    /// UUID of the volume.
    #[arg(short = 'U', long)]
    uuid: Option<String>,
    /// UUID of the only device.
    #[arg(long, value_name = "UUID")]
    device_uuid: Option<String>,
    /// Bytes to use on each device.
    #[arg(short, long, value_name = "SIZE")]
    byte_count: Option<String>,
    /// Fill the volume with everything in this folder. A file that does not exist is made.
    #[arg(short, long, value_name = "DIR")]
    rootdir: Option<PathBuf>,
    /// Make a subvolume of a folder of --rootdir. A role may stand in front: ro, rw, default or
    /// default-ro.
    #[arg(short = 'u', long, value_name = "[ROLE:]DIR")]
    subvol: Vec<String>,
    /// Set flags of a file or folder of --rootdir: nodatacow, nodatasum, or both with a comma
    /// between.
    #[arg(long, value_name = "FLAGS:PATH")]
    inode_flags: Vec<String>,
    /// Compress the files of --rootdir with zlib, lzo or zstd, optionally with a level.
    #[arg(long, value_name = "ALG[:LEVEL]")]
    compress: Option<String>,
    /// Share the data of the files of --rootdir with the image.
    #[arg(long)]
    reflink: bool,
    /// Make a volume of --rootdir as small as possible.
    #[arg(long)]
    shrink: bool,
    /// Do not tell the devices that their former content is not needed.
    #[arg(short = 'K', long)]
    pub(super) nodiscard: bool,
    /// Overwrite an existing filesystem or partition table.
    #[arg(short, long)]
    force: bool,
    /// Print only errors.
    #[arg(short, long)]
    pub(super) quiet: bool,
    /// Print more. There is nothing more to print.
    #[arg(short, long, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Print the version.
    #[arg(short = 'V', long)]
    pub(super) version: bool,
    /// Btrfs-progs have no longer this name for --nodesize.
    #[arg(short, long, hide = true, value_name = "SIZE")]
    leafsize: Option<String>,
    /// Image files or block devices.
    #[arg(value_name = "DEVICE",
        required_unless_present_any = ["version", "features", "runtime_features", "leafsize"])]
    devices: Vec<PathBuf>,
}

impl Line {
    /// Whether the line asks for the names of all features.
    pub(super) fn lists_features(&self) -> bool {
        self.features.iter().chain(&self.runtime_features).any(|list| list == "list-all")
    }

    /// Reads the values of the options.
    pub(super) fn read(&self) -> Result<(Args, Chosen)> {
        if self.leafsize.is_some() {
            return Err(wrong("--leafsize has been removed in 6.0, use --nodesize"));
        }
        let chosen = Chosen::parse(self.features.iter().chain(&self.runtime_features))?;
        let profile_of = |text: &Option<String>, what| match text {
            None => Ok(None),
            Some(text) => {
                profile(text).map(Some).map_err(|_| wrong(format!("unknown {what} profile {text}")))
            }
        };
        let sum = self.csum.as_deref().unwrap_or("crc32c");
        let csum = csum(sum).map_err(|_| wrong(format!("unknown csum type {sum}")))?;
        let (sectorsize, nodesize) = (bytes(&self.sectorsize)?, bytes(&self.nodesize)?);
        if let Some(sector) = sectorsize {
            if !sector.is_power_of_two() {
                return Err(wrong(format!("invalid sectorsize {sector}, must be power of 2")));
            }
            if !SECTORS.contains(&sector) {
                let what = format!("invalid sectorsize {sector}, expected range is [4K, 64K]");
                return Err(wrong(what));
            }
        }
        let small = |size: Option<u64>| size.map(|size| u32::try_from(size).unwrap_or(u32::MAX));
        // The feature alone leaves nodes as they are. Only -M makes them as small as sectors.
        let is_by_feature = chosen.mixed() && !self.mixed;
        let unmixed = is_by_feature.then(|| sectorsize.unwrap_or(0).max(NODE));
        let compress = self.compress.as_deref().map(codec).transpose().map_err(wrong)?;
        let (image, more) = self.devices.split_first().ok_or_else(|| wrong("no device given"))?;
        let args = Args {
            image: Some(image.clone()),
            more: more.to_vec(),
            cached: Cached::default(),
            size: bytes(&self.byte_count)?.filter(|size| *size > 0),
            label: self.label.clone().unwrap_or_default(),
            csum,
            metadata: profile_of(&self.metadata, "metadata")?,
            data: profile_of(&self.data, "data")?,
            mixed: self.mixed || chosen.mixed(),
            nodesize: small(nodesize.or(unmixed)),
            sectorsize: small(sectorsize),
            features: String::new(),
            uuid: self.uuid.as_deref().and_then(|text| identifier(text).ok()),
            rootdir: self.rootdir.clone(),
            from_tar: None,
            subvol: all(&self.subvol, brings::subvolume)?,
            inode_flags: all(&self.inode_flags, brings::flagged)?,
            compress,
            shrink: self.shrink,
            reflink: self.reflink,
            memory: None,
            takeover: false,
            discard_local: false,
            seed: None,
            force: self.force,
            list_features: false,
        };
        Ok((args, chosen))
    }

    /// Refuses options that do not fit together.
    pub(super) fn check(&self, args: &Args, chosen: &Chosen) -> Result<()> {
        if args.label.len() > LABEL_MAX {
            let label = &args.label;
            return Err(wrong(format!("label {label} is too long (max {LABEL_MAX})")));
        }
        if self.shrink && self.rootdir.is_none() {
            return Err(wrong("the option --shrink must be used with --rootdir"));
        }
        let needs_source =
            !self.subvol.is_empty() || !self.inode_flags.is_empty() || self.compress.is_some();
        if (needs_source || self.reflink) && self.rootdir.is_none() {
            let what = "--subvol, --inode-flags, --compress and --reflink need --rootdir";
            return Err(wrong(what));
        }
        if self.reflink && self.compress.is_some() {
            return Err(wrong("--reflink and --compress exclude each other"));
        }
        if self.rootdir.is_some() && !args.more.is_empty() {
            return Err(wrong("the option -r is limited to a single device"));
        }
        if let Some(text) = self.uuid.as_deref().filter(|text| !text.is_empty())
            && args.uuid.is_none()
        {
            identifier(text)?;
        }
        self.device_uuid()?;
        let (node, sector) = (nodesize_of(args), sectorsize_of(args));
        if sector != PAGE {
            warn(&format!(
                "the filesystem may not be mountable, sectorsize {sector} doesn't match page size \
                 {PAGE}"
            ));
        }
        let illegal = |why| Err(wrong(format!("illegal nodesize {node} ({why})")));
        if node < sector {
            return illegal(format!("smaller than {sector}"));
        }
        if u64::from(node) > *SECTORS.end() {
            return illegal(format!("larger than {}", SECTORS.end()));
        }
        if !node.is_multiple_of(sector) {
            return illegal(format!("not aligned to {sector}"));
        }
        if args.mixed && node != sector {
            return illegal(format!("not equal to {sector} for mixed block group"));
        }
        chosen.features().check().map_err(|error| wrong(error.to_string()))?;
        let least = least_len(args);
        if let Some(size) = args.size.filter(|size| *size < least) {
            return Err(refusal([
                format!("size {size} is too small to make a usable filesystem"),
                format!("minimum size for btrfs filesystem is {least}"),
            ]));
        }
        Ok(())
    }

    /// The identifier of the only device.
    pub(super) fn device_uuid(&self) -> Result<Option<[u8; 16]>> {
        let Some(text) = self.device_uuid.as_deref() else { return Ok(None) };
        if self.devices.len() > 1 {
            return Err(wrong("the option --device-uuid is limited to a single device"));
        }
        identifier(text).map(|uuid| Some(uuid.into_bytes()))
    }
}

/// Reads an identifier in its usual form, with hyphens. Characters after it count for nothing.
fn identifier(text: &str) -> Result<uuid::Uuid> {
    let text = text.get(..UUID_LEN).unwrap_or(text);
    let uuid = uuid::Uuid::try_parse(text).ok().filter(|_| text.len() == UUID_LEN);
    uuid.ok_or_else(|| wrong(format!("could not parse UUID: {text}")))
}

fn wrong(what: impl Into<String>) -> Failure {
    Failure::new(Exit::Usage, what)
}

/// Reads all words of an option.
fn all<T>(words: &[String], read: fn(&str) -> Result<T, String>) -> Result<Vec<T>> {
    words.iter().map(|word| read(word).map_err(wrong)).collect()
}

/// Reads a size.
fn bytes(text: &Option<String>) -> Result<Option<u64>> {
    let Some(text) = text else { return Ok(None) };
    let text = text.trim();
    if !text.starts_with(|first: char| first.is_ascii_digit()) {
        return Err(wrong(format!("size value '{text}' is invalid")));
    }
    size::parse(text).map(Some).map_err(wrong)
}
