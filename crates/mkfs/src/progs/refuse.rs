//! What btrfs-progs refuse or warn of, in their words.

use std::io::Write;
use std::path::Path;

use buttress_format::Profile;
use buttress_remote::{host_file, is_remote};

use super::report;
use crate::args::{Args, nodesize_of};
use crate::exit::{Exit, Failure, Result};

const MIB: u64 = 1 << 20;

/// Prints a warning.
pub(super) fn warn(text: &str) {
    // Standard error may be closed.
    let _ = writeln!(std::io::stderr(), "WARNING: {text}");
}

/// A refusal, with a line for each error.
pub(super) fn refusal<const N: usize>(lines: [String; N]) -> Failure {
    Failure::new(Exit::Failure, lines.join("\n"))
}

/// Refuses a device that does not exist, in the words of btrfs-progs.
pub(super) fn expect_there(path: &Path, force: bool) -> Result<()> {
    if is_remote(path) || host_file(path).exists() {
        return Ok(());
    }
    let name = path.display();
    let why = "No such file or directory";
    Err(match force {
        true => refusal([
            format!("mount check: cannot open {name}: {why}"),
            format!("cannot check mount status of {name}: {why}"),
        ]),
        false => refusal([
            format!("probe of {name} failed, cannot detect existing filesystem"),
            format!("use the -f option to force overwrite of {name}"),
        ]),
    })
}

/// The refusal of a device with content.
pub(super) fn holds(path: &Path, found: &str) -> Failure {
    let what = match found {
        found if found.contains("GPT") => "a partition table (gpt)".to_owned(),
        found if found.contains("MBR") => "a partition table (dos)".to_owned(),
        found => format!("an existing filesystem ({found})"),
    };
    let name = path.display();
    refusal([
        format!("{name} appears to contain {what}"),
        format!("use the -f option to force overwrite of {name}"),
    ])
}

/// The profiles of metadata and data: those of the command line, or those that a volume gets.
fn profiles(args: &Args) -> (Profile, Profile) {
    let usual = match (args.mixed, args.more.len()) {
        (true, _) => Profile::Single,
        (false, 0) => Profile::Dup,
        (false, _) => Profile::Raid1,
    };
    let metadata = args.metadata.or(args.data.filter(|_| args.mixed)).unwrap_or(usual);
    let data = args.data.unwrap_or(if args.mixed { metadata } else { Profile::Single });
    (metadata, data)
}

/// Warns of profiles, or refuses those that differ in mixed block groups.
pub(super) fn check_profiles(args: &Args) -> Result<()> {
    let (metadata, data) = profiles(args);
    if args.mixed && metadata != data {
        let what = "with mixed block groups data and metadata profiles must be the same";
        return Err(refusal([what.to_owned()]));
    }
    if metadata.spread().parity > 0 || data.spread().parity > 0 {
        let what = "RAID5/6 support has known problems is strongly discouraged\n\t to be used \
                    besides testing or evaluation.\n";
        warn(what);
    }
    Ok(())
}

/// Refuses profiles that need more devices than there are.
pub(super) fn check_count(args: &Args) -> Result<()> {
    let (metadata, data) = profiles(args);
    let devices = 1 + args.more.len();
    for (profile, what) in [(metadata, "metadata"), (data, "data")] {
        let needed = profile.spread().least;
        if devices < needed {
            let name = report::profile(profile);
            return Err(refusal([format!(
                "unable to create FS with {what} profile {name} (have {devices} devices but \
                 {needed} devices are required)"
            )]));
        }
    }
    if devices > 1 && (metadata == Profile::Dup || data == Profile::Dup) {
        warn("DUP is not recommended on filesystem with multiple devices");
    }
    Ok(())
}

/// Refuses a device that is too small.
pub(super) fn check_len(path: &Path, len: u64, args: &Args) -> Result<()> {
    let name = path.display();
    if let Some(wanted) = args.size.filter(|wanted| *wanted > len) {
        return Err(refusal([format!(
            "{name} is smaller than requested size, expected {wanted}, found {len}"
        )]));
    }
    let least = least_len(args);
    if len < least {
        return Err(refusal([
            format!("'{name}' is too small to make a usable filesystem"),
            format!("minimum size for each btrfs device is {least}"),
        ]));
    }
    Ok(())
}

/// The bytes of the smallest device that btrfs-progs take.
pub(super) fn least_len(args: &Args) -> u64 {
    let (metadata, data) = profiles(args);
    if args.mixed {
        return 2 * (4 * MIB + u64::from(nodesize_of(args)) * 1024);
    }
    let metadata = match metadata {
        Profile::Single => 16,
        Profile::Dup => 80,
        _ => 40,
    };
    let data = match data {
        Profile::Single => 8,
        Profile::Dup => 128,
        _ => 64,
    };
    (21 + metadata + data) * MIB
}
