//! Opens volumes for the verbs that work without mounting.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use buttress_block::{Device, OpenOptions};
use buttress_fs::{Filesystem, Inode, MountOptions, TreeId};
use buttress_remote::OpenRequest;
use buttress_volume::{Parity, Volume};

use crate::closing;
use crate::exit::{Context, Exit, Failure, Result};
use crate::live;
use crate::location::VolumePath;
use crate::memory;
use crate::size;
use crate::ui;

/// The other devices of a volume that has several devices.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Devices {
    /// Another device of the same volume. Can be given several times.
    #[arg(long = "device", value_name = "IMG")]
    pub devices: Vec<PathBuf>,
    /// Write nothing to RAID5 and RAID6 block groups. Data there can be read and freed; new data is
    /// mirrored.
    #[arg(long)]
    pub raid56_mirror: bool,
    /// Open the volume although devices are missing.
    #[arg(long)]
    pub degraded: bool,
    /// Take over a volume in a store of objects from another writer, even if that writer seems to
    /// be alive.
    #[arg(long)]
    pub takeover: bool,
    /// Go on without writes that only a local log has and that cannot be replayed.
    #[arg(long)]
    pub discard_local: bool,
    /// Memory for nodes, data and sorting. Sorting beyond it uses temporary files. The default is a
    /// sixteenth of the machine, at least 128M, but at most a quarter of the limit of the control
    /// group.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub memory: Option<u64>,
    /// Ways to read a damaged volume, with colons between them, for commands that only read:
    /// usebackuproot, ignorebadroots, ignoredatacsums, nologreplay, ignoremetacsums, all.
    #[arg(long, value_name = "WORDS", value_parser = rescue_words)]
    pub rescue: Option<String>,
}

/// Accepts the words of the mount option `rescue=`.
fn rescue_words(words: &str) -> std::result::Result<String, String> {
    let list = format!("ro,rescue={words}");
    MountOptions::parse(&list).map(|_| words.to_owned()).map_err(|error| error.to_string())
}

impl Devices {
    /// How a volume in a store is to be opened.
    pub fn asked(&self) -> OpenRequest {
        let (takeover, discard_local) = (self.takeover, self.discard_local);
        OpenRequest { takeover, discard_local, ..OpenRequest::default() }
    }

    /// Returns the mount options for `--rescue` and `--memory`.
    pub fn rescue_options(&self) -> MountOptions {
        let mut options = memory::options(self.memory);
        if let Some(words) = &self.rescue {
            let parsed = options.parse_more(&format!("ro,rescue={words}"));
            debug_assert!(parsed.is_ok(), "the command line was parsed with it");
        }
        options
    }

    /// Refuses `--rescue`, for a verb that has no use for it.
    pub fn expect_no_rescue(&self) -> Result<()> {
        match &self.rescue {
            None => Ok(()),
            Some(words) => {
                let what = format!("--rescue {words} is for verbs that read files");
                Err(Failure::new(Exit::Usage, what))
            }
        }
    }
}

/// The access to a volume that a verb needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Only reads.
    Read,
    /// Only reads, in spite of another writer's lock. The verb sees the last commit, or a commit
    /// that is made while the verb reads.
    Peek,
    /// Changes the volume; refused if another program has the volume open.
    Write,
}

/// Opens the first device and the other devices. For a verb that only reads, `image` may also be a
/// folder on a mount of this user: the verb then reads the last commit, with all that was written.
pub fn open_devices(
    image: &Path,
    others: &Devices,
    access: Access,
) -> Result<Vec<Arc<dyn Device>>> {
    if access != Access::Write
        && image.is_dir()
        && !buttress_remote::is_remote(image)
        && let Some(devices) = live::held_devices(image)?
    {
        return Ok(devices);
    }
    let paths = std::iter::once(image).chain(others.devices.iter().map(PathBuf::as_path));
    buttress_remote::check_alone(paths.clone(), access == Access::Write)
        .map_err(Failure::of_remote)?;
    let are_several = !others.devices.is_empty();
    let open = |path: &Path| {
        let is_only_read = are_several && access == Access::Write && is_seed(path);
        let access = if is_only_read { Access::Read } else { access };
        open_device(path, access, &others.asked())
    };
    paths.map(open).collect()
}

/// Whether a local file or block device belongs to a seed. Several sprouts may read one seed at the
/// same time. So a seed that is one device of several is opened only for reading.
#[must_use]
pub fn is_seed(path: &Path) -> bool {
    if buttress_remote::is_remote(path) || path.is_dir() {
        return false;
    }
    let how = OpenOptions { write: false, lock: false, ..OpenOptions::default() };
    let opened = buttress_remote::open(path, how, &OpenRequest::default());
    opened.is_ok_and(|opened| buttress_volume::holds_seed(&*opened.device()))
}

fn open_device(path: &Path, access: Access, asked: &OpenRequest) -> Result<Arc<dyn Device>> {
    let options = OpenOptions {
        write: access == Access::Write,
        lock: access != Access::Peek,
        ..OpenOptions::default()
    };
    if path.is_dir() {
        return Err(live::no_image(path));
    }
    Ok(closing::open_asked(path, options, asked)?.device())
}

/// Opens a volume as a filesystem. For a verb that writes, the function fails early with the reason
/// if the volume cannot be written.
pub fn open(image: &Path, others: &Devices, access: Access) -> Result<Filesystem> {
    open_at(image, others, access, None)
}

/// Opens a volume as [`open`] does. `root` is the subvolume to show in place of the default one.
pub fn open_at(
    image: &Path,
    others: &Devices,
    access: Access,
    root: Option<TreeId>,
) -> Result<Filesystem> {
    if access == Access::Write {
        others.expect_no_rescue()?;
    }
    let devices = open_devices(image, others, access)?;
    let mut options = others.rescue_options();
    options.read_only = access != Access::Write;
    options.subvolid = root;
    options.degraded = others.degraded;
    if others.raid56_mirror {
        options.parity = Parity::Mirror;
    }
    let first = Arc::clone(&devices[0]);
    let superblock = Volume::read_superblock(&*first).ok();
    let has_log = superblock.as_ref().is_some_and(|superblock| superblock.log_root.0 != 0);
    if has_log && access != Access::Write {
        let image = image.display();
        ui::note(format!(
            "{image}: was not unmounted: what fsync wrote since the last commit is left out"
        ));
        options.nologreplay = true;
    }
    let given = devices.len() as u64;
    let fs = Filesystem::open(devices, options).map_err(|error| {
        not_opened(image, error, superblock.is_some_and(|found| found.num_devices > given))
    })?;
    if access == Access::Write
        && let Some(why) = fs.read_only_reason()
    {
        let what = format!("{}: can only be read: {why}", image.display());
        return Err(Failure::new(Exit::Unsupported, what));
    }
    Ok(fs)
}

/// Makes the failure for a volume that cannot be opened. Its exit code says that the volume is
/// damaged or missing, not that the command line is wrong.
fn not_opened(image: &Path, error: buttress_fs::Error, wants_more: bool) -> Failure {
    let hint = if wants_more { " (--device names another device of a volume)" } else { "" };
    let mut failure = Failure::of_volume(format!("{}{hint}", image.display()), error);
    if failure.exit == Exit::Usage {
        failure.exit = Exit::Corrupt;
    }
    failure
}

/// Finds the inode that a place names. Does not follow symbolic links.
pub fn resolve(fs: &Filesystem, place: &VolumePath) -> Result<Inode> {
    fs.resolve(&place.path).context(|| place.show())
}

/// Finds the directory that contains a place, and the name of the place in that directory.
pub fn resolve_parent<'a>(fs: &Filesystem, place: &'a VolumePath) -> Result<(Inode, &'a [u8])> {
    let mut parts = place.components();
    let Some(name) = parts.pop().filter(|name| *name != b"..") else {
        let what = format!("{}: names no entry of a directory", place.show());
        return Err(Failure::new(Exit::Usage, what));
    };
    let dir = fs.resolve(parts.join(&b'/')).context(|| place.show())?;
    Ok((dir, name))
}

/// Commits and closes, so that a failed commit ends the program with an error.
pub fn close(fs: Filesystem, image: &Path) -> Result<()> {
    fs.close().context(|| format!("{}: closing", image.display()))
}
