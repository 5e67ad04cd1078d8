//! The arguments of the verb `mkfs`, which those of `mkfs.btrfs` become, too.

use std::path::PathBuf;

use buttress_format::{CsumType, Profile, limits};
use buttress_fs::make::{Features, MakeError, MakeOptions};

use crate::brings;
use crate::cached::Cached;
use crate::exit::{Exit, Failure, Result};
use crate::size;
use crate::values::{Packing, codec, csum, nodesize, profile};

/// The longest label, in bytes.
pub(crate) const LABEL_MAX: usize = 255;

/// The command line of the verb.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The image file or block device. An image file that does not exist is created as a sparse
    /// file.
    #[arg(value_name = "IMG", required_unless_present = "list_features")]
    pub(crate) image: Option<PathBuf>,
    /// Further image files or devices, for a volume on several devices.
    #[arg(value_name = "MORE")]
    pub(crate) more: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) cached: Cached,
    /// Bytes to use on each device, as in 4G or 512M. The default is the whole file or device.
    #[arg(long, short = 'b', alias = "byte-count", value_parser = size::parse)]
    pub(crate) size: Option<u64>,
    /// Label of the volume, up to 255 bytes.
    #[arg(long, short = 'L', default_value = "")]
    pub(crate) label: String,
    /// Checksum algorithm: crc32c, xxhash, sha256 or blake2.
    #[arg(long, alias = "checksum", default_value = "crc32c", value_parser = csum)]
    pub(crate) csum: CsumType,
    /// Profile of metadata: single, dup, raid0, raid1, raid1c3, raid1c4, raid10, raid5 or raid6.
    /// The default is dup, raid1 on several devices, and single with --mixed.
    #[arg(long, short, value_name = "PROFILE", value_parser = profile)]
    pub(crate) metadata: Option<Profile>,
    /// Profile of data, with the same values as for metadata. The default is single.
    #[arg(long, short, value_name = "PROFILE", value_parser = profile)]
    pub(crate) data: Option<Profile>,
    /// Store data and metadata in the same block groups, for very small volumes.
    #[arg(long, short = 'M')]
    pub(crate) mixed: bool,
    /// Size of tree nodes: 4k, 8k, 16k, 32k or 64k. The default is 16k, and 4k with --mixed.
    #[arg(long, short, value_parser = nodesize)]
    pub(crate) nodesize: Option<u32>,
    /// Size of sectors, the smallest piece of data: 4k, 8k, 16k, 32k or 64k. The default is 4k.
    /// Nodes are at least as large.
    #[arg(long, short, value_name = "SIZE", value_parser = nodesize)]
    pub(crate) sectorsize: Option<u32>,
    /// Features to enable, or to disable with ^ before the name. `list-all` prints their names.
    #[arg(long, short = 'O', default_value = "")]
    pub(crate) features: String,
    /// UUID of the volume. The default is a random one.
    #[arg(long, short = 'U')]
    pub(crate) uuid: Option<uuid::Uuid>,
    /// Fill the volume with everything in this folder.
    #[arg(long, short, value_name = "DIR", group = "source")]
    pub(crate) rootdir: Option<PathBuf>,
    /// Fill the volume with everything in this tar archive, or with - from standard input. Owners,
    /// modes, times, links, devices, holes and extended attributes are kept.
    #[arg(long, value_name = "FILE", group = "source")]
    pub(crate) from_tar: Option<PathBuf>,
    /// Make a subvolume of a folder of --rootdir or --from-tar. Can be given several times. A role
    /// in front makes the subvolume read-only (ro:), the default subvolume (default:), or both
    /// (default-ro:).
    #[arg(long, short = 'u', value_name = "[ROLE:]DIR", requires = "source",
        value_parser = brings::subvolume)]
    pub(crate) subvol: Vec<brings::Subvolume>,
    /// Set flags of a file or folder of --rootdir or --from-tar: nodatacow, nodatasum, or both with
    /// a comma between. Everything in a folder gets the same flags. Can be given several times.
    #[arg(long, value_name = "FLAGS:PATH", requires = "source", value_parser = brings::flagged)]
    pub(crate) inode_flags: Vec<brings::Flagged>,
    /// Compress the copied files with zlib, lzo or zstd, optionally with a level as in zstd:9. The
    /// value no turns compression off.
    #[arg(long, value_name = "ALG[:LEVEL]", requires = "source", value_parser = codec)]
    pub(crate) compress: Option<Packing>,
    /// Make the filled volume as small as its chunks allow, and cut the image file to this size.
    #[arg(long, requires = "source", conflicts_with_all = ["more", "cache"])]
    pub(crate) shrink: bool,
    /// Share the data of the files in --rootdir with the image in place of a copy. Both lie on one
    /// btrfs, xfs or other file system that can share data.
    #[arg(long, requires = "rootdir", conflicts_with_all = ["more", "cache", "compress", "seed"])]
    pub(crate) reflink: bool,
    /// Memory for filling the volume. The default is a sixteenth of the machine, at least 128M, but
    /// at most a quarter of the limit of the control group.
    #[arg(long, value_name = "SIZE", requires = "source", value_parser = size::parse)]
    pub(crate) memory: Option<u64>,
    /// Take over a volume in a store of objects from another writer, even if that writer seems to
    /// be alive.
    #[arg(long)]
    pub(crate) takeover: bool,
    /// Go on without writes that only a local log has and that cannot be replayed.
    #[arg(long)]
    pub(crate) discard_local: bool,
    /// Derive all identifiers except --uuid from this text. With SOURCE_DATE_EPOCH set, two runs
    /// create the same bytes. No time is then later than SOURCE_DATE_EPOCH. Without --seed, the
    /// identifiers come from the content.
    #[arg(long, value_name = "TEXT")]
    pub(crate) seed: Option<String>,
    /// Overwrite an existing filesystem or partition table.
    #[arg(long, short)]
    pub(crate) force: bool,
    /// List the features.
    #[arg(long, hide = true)]
    pub(crate) list_features: bool,
}

/// The options of the empty volume.
pub(crate) fn options(args: &Args) -> Result<MakeOptions> {
    let label = args.label.as_bytes();
    if label.len() > LABEL_MAX || label.contains(&b'\n') {
        let refused = MakeError::Label { len: label.len() };
        return Err(Failure::new(Exit::Failure, refused.to_string()));
    }
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

pub(crate) fn nodesize_of(args: &Args) -> u32 {
    let sector = sectorsize_of(args);
    args.nodesize.unwrap_or(if args.mixed { sector } else { sector.max(16384) })
}

pub(crate) fn sectorsize_of(args: &Args) -> u32 {
    args.sectorsize.unwrap_or(limits::SECTOR)
}
