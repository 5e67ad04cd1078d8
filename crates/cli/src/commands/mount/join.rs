//! Mounts a volume that a server of this user has mounted already, by joining that server.
//!
//! # Invariants
//!
//! - **J1** The new mount has its own subvolume, and its own `ro`, `nosuid`, `nodev` and `noexec`.
//!   All other options are those of the first mount. Requested options that differ from the first
//!   mount's options are reported.

use std::path::Path;

use buttress_fs::MountOptions;
use buttress_fuse::{Listed, Options};

use super::{Args, for_volume, store, volume_options, words};
use crate::closing;
use crate::exit::{Context, Exit, Failure, Result};
use crate::live::{self, JoinRequest, Joining};
use crate::ui::Ui;

/// Mounts through the server that has the volume, if there is one. Returns the number of its
/// process.
///
/// # Errors
///
/// When the server refuses, or the mount cannot be put at its place.
pub(super) fn join(
    args: &Args,
    image: &Path,
    (fuse, volume): (&Options, &MountOptions),
    ui: &Ui,
) -> Result<Option<u32>> {
    let Some((socket, answer)) = live::find(image)? else { return Ok(None) };
    let Some(first) = answer.subject.target.clone() else { return Ok(None) };
    let name = image.display();
    let at = first.display();
    let request = JoinRequest {
        subvol: volume.subvol.clone(),
        subvolid: volume.subvolid.map(|tree| tree.0),
        read_only: fuse.read_only,
        words: words(&args.options).map(str::to_owned).collect(),
    };
    let told = |failure: Failure| {
        let what = format!("{name}: mounted at {at} by process {}: {failure}", answer.pid);
        Failure::new(failure.exit, what)
    };
    let Some(joining) = live::join(&socket, &request).map_err(told)? else {
        closing::until_closed(image);
        return Ok(None);
    };
    let Joining { subtree, top, differing, .. } = &joining;
    if let Ok(target) = args.target.canonicalize()
        && let Some(seen) = Listed::at(&target).context(|| "the list of mounts")?
        && answer.subject.device == Some(seen.device_number())
        && seen.top == *top
    {
        if args.is_there_fine {
            return Ok(Some(answer.pid));
        }
        let what = format!("{name}: is mounted on {} already", target.display());
        return Err(Failure::new(Exit::Failure, what));
    }
    subtree.attach(&args.target, fuse).map_err(std::io::Error::other).context(String::new)?;
    if !differing.is_empty() {
        let list = differing.join(", ");
        ui.note(format!("{name}: it has the options of its mount at {at}, and not {list}"));
    }
    if args.cached.cache.is_some() {
        ui.note(format!("{name}: it was mounted at {at} before: --cache has no effect"));
    }
    Ok(Some(answer.pid))
}

/// Returns the options among `wished` that differ from the options of the first mount (J1).
pub(super) fn differing(first: &[String], wished: &[String]) -> Vec<String> {
    let with = |more: Option<&str>| -> Option<(MountOptions, String)> {
        let words: Vec<&str> = first.iter().map(String::as_str).chain(more).collect();
        let mut fuse = Options::default();
        let mut volume = volume_options(&for_volume(&words, &mut fuse).ok()?, None).ok()?;
        // Leaves out options that belong to each mount by itself or have no effect.
        volume.without_effect.clear();
        (volume.subvol, volume.subvolid, volume.read_only) = (None, None, false);
        (fuse.read_only, fuse.suid, fuse.dev, fuse.exec) = (false, true, true, true);
        Some((volume, format!("{fuse:?}")))
    };
    let own = with(None);
    let differs = |word: &&String| {
        if store::takes(word) {
            return !first.contains(word);
        }
        !word.starts_with("device=") && with(Some(word)).is_some_and(|other| Some(other) != own)
    };
    wished.iter().filter(differs).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each option of a second mount in an fstab belongs to that mount, or equals the first mount's
    /// option, or is reported.
    #[test]
    fn options_that_differ_are_named() {
        let list = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
        let first = list("subvol=@,compress=zstd:1,noatime,x-systemd.growfs,max-lag=9");
        let same = "subvol=@home,ro,nosuid,nodev,compress=zstd:1,noatime,defaults,nofail,ssd,\
                    device=/dev/x,max-lag=9";
        assert_eq!(differing(&first, &list(same)), Vec::<String>::new());
        let other =
            list("compress=lzo,nodatacow,relatime,datacow,commit=5,threads=3,user,max-lag=8");
        let named = list("compress=lzo,nodatacow,relatime,commit=5,threads=3,max-lag=8");
        assert_eq!(differing(&first, &other), named);
    }
}
