//! Opens the devices of a volume that is to be mounted, and the volume on them.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use buttress_block::{Device, OpenOptions};
use buttress_cache::{CacheDevice, CacheOptions};
use buttress_fs::{Filesystem, MountOptions};
use buttress_remote::{OpenRequest, Opened};

use super::{Args, block_device, store, words};
use crate::cached;
use crate::closing;
use crate::exit::{Context, Failure, Result};
use crate::image;
use crate::scan;

/// A volume and its devices.
///
/// Plain data: it never changes.
pub(super) struct Whole {
    pub(super) fs: Filesystem,
    pub(super) cache: Option<Arc<CacheDevice>>,
    /// The devices that this process has locked, except a cache.
    pub(super) files: Vec<Opened>,
    /// Their names.
    pub(super) names: Vec<PathBuf>,
}

/// Returns the named devices, the first one first.
fn paths<'a>(args: &'a Args, image: &'a Path) -> impl Iterator<Item = &'a Path> {
    let by_option = words(&args.options).filter_map(|word| word.strip_prefix("device="));
    let more = args.more.iter().chain(&args.devices.devices).map(PathBuf::as_path);
    std::iter::once(image).chain(more).chain(by_option.map(Path::new))
}

/// Opens the devices, and the volume on these devices. The other devices of a volume on block
/// devices need not be named ([`scan`]).
pub(super) fn open(
    args: &Args,
    image: &Path,
    mut options: MountOptions,
    cache: CacheOptions,
    asked: &OpenRequest,
) -> Result<Whole> {
    let how = if options.read_only { OpenOptions::READ } else { OpenOptions::WRITE };
    let how = |path: &Path| OpenOptions { direct: args.direct.applies_to(path), ..how };
    let mut seen = HashSet::new();
    // The options in an fstab often name the first device once more.
    let mut is_new =
        |path: &&Path| seen.insert(closing::full_name(path).unwrap_or_else(|_| path.to_path_buf()));
    let files = paths(args, image).filter(|path| is_new(path));
    let mut files: Vec<&Path> = files.collect();
    let found = match files.as_slice() {
        [one] => scan::others(one, options.degraded)?,
        _ => Vec::new(),
    };
    files.extend(found.iter().map(PathBuf::as_path));
    buttress_remote::check_alone(files.iter().copied(), !options.read_only)
        .map_err(Failure::of_remote)?;
    // A seed is only read, and other volumes may use it at the same time.
    let is_only_read = |path: &Path| files.len() > 1 && image::is_seed(path);
    let how = |path: &Path| match options.read_only || !is_only_read(path) {
        true => how(path),
        false => OpenOptions { write: false, ..how(path) },
    };
    let names = files.iter().map(|path| path.to_path_buf()).collect();
    let files = files.iter().map(|path| closing::open_asked(path, how(path), asked));
    let files =
        files.collect::<Result<Vec<_>>>().inspect_err(|_| block_device::note_mounts_of(image))?;
    options.may_begin_writing &= !files.iter().any(store::is_followed);
    let mut devices: Vec<Arc<dyn Device>> = files.iter().map(Opened::device).collect();
    let mut cached = None;
    if let Some(path) = &args.cached.cache {
        // The cache belongs to the first device, which was named as the image.
        let origin = Arc::clone(&devices[0]);
        let device = Arc::new(cached::open(origin, path, cache, how(path))?);
        devices[0] = Arc::clone(&device) as Arc<dyn Device>;
        cached = Some(device);
    }
    let fs = Filesystem::open(devices, options).context(|| image.display().to_string())?;
    Ok(Whole { fs, cache: cached, files, names })
}
