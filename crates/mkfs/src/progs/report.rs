//! The table that `mkfs.btrfs` prints of a new volume.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use buttress_format::{CsumType, Profile};
use buttress_fs::make::MakeReport;
use buttress_volume::Uuid;

use super::features::Chosen;
use super::said::Said;
use crate::args::{Args, nodesize_of, sectorsize_of};
use crate::size::human;

/// Prints the table. `places` are the devices and the bytes that the volume uses of each.
pub(super) fn print(
    args: &Args,
    places: (&[&Path], &[u64]),
    chosen: &Chosen,
    made: &MakeReport,
    said: &Said<'_>,
) {
    let row = |name: Profile, len| format!("{:<8} {:>16}", profile(name), human(len));
    let mut implied = Vec::new();
    for profile in [made.metadata, made.data] {
        if profile.spread().parity > 0 {
            implied.push("raid56");
        }
        if matches!(profile, Profile::Raid1c3 | Profile::Raid1c4) {
            implied.push("raid1c34");
        }
    }
    if args.mixed {
        implied.push("mixed-bg");
    }
    let label = if args.label.is_empty() { "(null)" } else { &args.label };
    let (paths, lens) = places;
    let is_ssd = if is_ssd(paths[0]) { "yes" } else { "no" };
    let mut rows = vec![
        ("Label:", label.to_owned()),
        ("UUID:", Uuid(made.fsid).to_string()),
        ("Node size:", nodesize_of(args).to_string()),
        ("Sector size:", sectorsize_of(args).to_string()),
        ("Filesystem size:", human(lens.iter().sum())),
        ("Block group profiles:", String::new()),
    ];
    if args.mixed {
        rows.push(("  Data+Metadata:", row(made.metadata, made.metadata_len)));
    } else {
        rows.push(("  Data:", row(made.data, made.data_len)));
        rows.push(("  Metadata:", row(made.metadata, made.metadata_len)));
    }
    rows.extend([
        ("  System:", row(made.metadata, made.system_len)),
        ("SSD detected:", is_ssd.to_owned()),
        ("Zoned device:", "no".to_owned()),
        ("Incompat features:", chosen.names(false, &implied)),
        ("Runtime features:", chosen.names(true, &implied)),
        ("Checksum:", csum(args.csum).to_owned()),
        ("Number of devices:", paths.len().to_string()),
        ("Devices:", String::new()),
    ]);
    for (what, value) in rows {
        match value.is_empty() && !what.starts_with("Runtime") {
            true => said.line(what),
            false => said.line(format!("{what:<20}{value}")),
        }
    }
    said.line("   ID        SIZE  PATH");
    for (id, (path, len)) in (1..).zip(paths.iter().zip(lens)) {
        said.line(format!("  {id:>3}  {:>10}  {}", human(*len), path.display()));
    }
    said.line("");
}

/// The name of a profile as btrfs-progs print it.
pub(super) fn profile(profile: Profile) -> String {
    match profile {
        Profile::Single => "single".to_owned(),
        other => other.name().to_uppercase(),
    }
}

/// The name of a checksum as btrfs-progs print it.
fn csum(csum: CsumType) -> &'static str {
    match csum {
        CsumType::Xxhash64 => "xxhash64",
        CsumType::Blake2b => "blake2",
        other => other.name(),
    }
}

/// Whether the place is a block device.
pub(super) fn is_block_device(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.file_type().is_block_device())
}

/// Whether the kernel says that a block device does not rotate.
fn is_ssd(path: &Path) -> bool {
    let Ok(metadata) = path.metadata() else { return false };
    if !is_block_device(path) {
        return false;
    }
    let number = metadata.rdev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let place = format!("/sys/dev/block/{major}:{minor}");
    // A partition has no queue of its own.
    ["queue/rotational", "../queue/rotational"].iter().any(|file| {
        std::fs::read_to_string(format!("{place}/{file}")).is_ok_and(|text| text.trim() == "0")
    })
}
