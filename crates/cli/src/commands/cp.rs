//! `buttress cp`: copies between the host, mounts and volumes, in all directions.

mod whole;

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use buttress_fs::{ErrorKind, FileKind, Filesystem, Inode, NameError};

use crate::exit::{Context, Exit, Failure, Result};
use crate::image::{self, Access, Devices};
use crate::location::{Location, VolumePath};
use crate::transfer::{Across, Export, Import, Job, Keep, Reflink};
use crate::transfer::{Within, mounted, open_dir, survey};
use crate::ui::Ui;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The files and directories to copy, as host paths, also on a mount, or IMG:/path.
    ///
    /// A name that exists on the host is that file, even if it contains colons.
    #[arg(required = true)]
    sources: Vec<OsString>,
    /// The target, as a host path or IMG:/path. If it is an existing directory, the copies are
    /// created in it.
    ///
    /// A volume in a store of objects, given without a path, is copied as a whole, to or from an
    /// image file.
    target: OsString,
    /// Copy directories with everything in them.
    #[arg(long, short)]
    recursive: bool,
    /// Preserve modes, access control lists and times.
    #[arg(long, short)]
    preserve: bool,
    /// Copy recursively and preserve owners, modes, times, extended attributes and hard links.
    #[arg(long, short)]
    archive: bool,
    /// Share data within a volume or a mount instead of copying it. always: fail if data cannot be
    /// shared. auto: copy data that cannot be shared. never: always copy.
    #[arg(long, value_name = "WHEN", value_enum, num_args = 0..=1, require_equals = true,
        default_value = "auto", default_missing_value = "always")]
    reflink: Reflink,
    #[command(flatten)]
    devices: Devices,
}

/// The volumes in use. Each one is opened once.
struct Volumes {
    devices: Devices,
    open: HashMap<PathBuf, Filesystem>,
}

impl Volumes {
    fn get(&mut self, image: &Path, access: Access) -> Result<Filesystem> {
        if let Some(fs) = self.open.get(image) {
            return Ok(fs.clone());
        }
        let fs = image::open(image, &self.devices, access)?;
        self.open.insert(image.to_owned(), fs.clone());
        Ok(fs)
    }
}

pub(crate) fn run(args: Args, ui: &Ui) -> Result<Exit> {
    if let [source] = &*args.sources
        && let Some((from, to)) = whole::named(source, &args.target)
    {
        return whole::copy(&from, &to, ui);
    }
    let keep = Keep { attributes: args.preserve || args.archive, everything: args.archive };
    let recursive = args.recursive || args.archive;
    let sources: Vec<Location> = args.sources.iter().map(|s| Location::parse(s)).collect();
    let target = Location::parse(&args.target);
    if let Location::Host(target) = &target {
        expect_mount(&sources, target)?;
    }
    let mut volumes = Volumes { devices: args.devices, open: HashMap::new() };
    // Opens the target first. A volume that is source and target is opened for writing.
    let target = match &target {
        Location::Host(path) => Target::host(path)?,
        Location::Volume(place) => {
            Target::volume(volumes.get(&place.image, Access::Write)?, place)?
        }
    };
    if sources.len() > 1 && target.name().is_some() {
        let what = "several sources need a directory as target";
        return Err(Failure::new(Exit::Usage, what));
    }
    let bar = ui.bytes_bar("copying", total(&sources)?);
    bar.tick();
    let mut job = Job::new(keep, recursive, &bar);
    job.reflink = args.reflink;
    volumes.open.keys().for_each(|image| job.leave_out(image));
    for source in &sources {
        one(&mut job, source, &target, &mut volumes)?;
    }
    let tally = job.tally;
    drop(target);
    for (path, fs) in volumes.open {
        image::close(fs, &path)?;
    }
    drop(bar);
    if ui.json() {
        ui.document(&serde_json::json!({
            "files": tally.files,
            "directories": tally.directories,
            "others": tally.others,
            "bytes": tally.bytes,
        }))?;
    }
    Ok(Exit::Success)
}

/// Refuses a copy between two places of the host, unless one of them is on a mount.
fn expect_mount(sources: &[Location], target: &Path) -> Result<()> {
    let mut on_host = sources.iter().filter_map(|source| match source {
        Location::Host(path) => Some(path),
        Location::Volume(_) => None,
    });
    let Some(first) = on_host.next() else { return Ok(()) };
    if mounted::holds(target)? {
        return Ok(());
    }
    for path in std::iter::once(first).chain(on_host) {
        if !mounted::holds(path)? {
            let what = "neither side names a volume as IMG:/path, or a place on a mount; cp does \
                        that better";
            return Err(Failure::new(Exit::Usage, what));
        }
    }
    Ok(())
}

/// Sums up the bytes of sources on the host. The bytes in volumes are not counted beforehand.
fn total(sources: &[Location]) -> Result<u64> {
    let mut bytes = 0;
    for source in sources {
        let Location::Host(path) = source else { continue };
        let metadata = path.symlink_metadata().map_err(|error| {
            let errno = rustix::io::Errno::from_io_error(&error);
            mounted::failed(&path.display().to_string(), errno.unwrap_or(rustix::io::Errno::IO))
        })?;
        bytes += if metadata.is_dir() {
            survey(open_dir(path)?, &|_| false)?.file_bytes
        } else if metadata.is_file() {
            metadata.len()
        } else {
            0
        };
    }
    Ok(bytes)
}

/// The target of copies: a directory and a name. Without a name, copies keep the names of the
/// sources.
enum Target {
    Host { dir: OwnedFd, name: Option<OsString> },
    Volume { fs: Filesystem, dir: Inode, name: Option<Vec<u8>> },
}

impl Target {
    fn host(path: &Path) -> Result<Self> {
        if path.is_dir() {
            return Ok(Self::Host { dir: open_dir(path)?, name: None });
        }
        let Some(name) = path.file_name() else {
            let what = format!("{}: is no directory", path.display());
            return Err(Failure::new(Exit::Failure, what));
        };
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let dir = open_dir(parent.unwrap_or(Path::new(".")))?;
        Ok(Self::Host { dir, name: Some(name.to_owned()) })
    }

    fn volume(fs: Filesystem, place: &VolumePath) -> Result<Self> {
        match fs.resolve(&place.path) {
            Ok(dir) if dir.attr().kind == FileKind::Directory => {
                Ok(Self::Volume { fs, dir, name: None })
            }
            Err(error) if error.kind() != ErrorKind::Name(NameError::NotFound) => {
                Err(Failure::of_volume(place.show(), error))
            }
            _ => {
                let (dir, name) = image::resolve_parent(&fs, place)?;
                Ok(Self::Volume { fs, dir, name: Some(name.to_vec()) })
            }
        }
    }

    fn name(&self) -> Option<&[u8]> {
        match self {
            Self::Host { name, .. } => name.as_ref().map(|name| name.as_bytes()),
            Self::Volume { name, .. } => name.as_deref(),
        }
    }
}

fn one(job: &mut Job<'_>, source: &Location, target: &Target, volumes: &mut Volumes) -> Result<()> {
    match source {
        Location::Host(path) => from_host(job, path, target),
        Location::Volume(place) => {
            let fs = volumes.get(&place.image, Access::Read)?;
            let inode = image::resolve(&fs, place)?;
            let own_name = place.components().last().map(|name| name.to_vec());
            let name = match (target.name(), &own_name) {
                (Some(name), _) => name,
                (None, Some(name)) => name,
                // The root of a volume has no name, so its entries are copied.
                (None, None) => {
                    let entries = crate::listing::entries(&inode).context(|| place.show())?;
                    return to(job, entries.into_iter().map(|e| (e.inode, e.name)), target);
                }
            };
            to(job, [(inode, name.to_vec())], target)
        }
    }
}

fn from_host(job: &mut Job<'_>, path: &Path, target: &Target) -> Result<()> {
    // `.`, `..`, `/` and `dir/.` have no name of their own, so their entries are copied.
    let names_contents = path.as_os_str().as_bytes().ends_with(b"/.");
    let Some(own_name) = path.file_name().filter(|_| !names_contents) else {
        let source = open_dir(path)?;
        let dot = OsStr::new(".");
        return match target {
            Target::Host { dir, name: None } => Across::new(job).contents(&source, dir),
            Target::Host { dir, name: Some(name) } => {
                Across::new(job).entry(&source, dot, dir, name)
            }
            Target::Volume { fs, dir, name: None } => Import::new(job, fs).contents(source, dir),
            Target::Volume { fs, dir, name: Some(name) } => {
                Import::new(job, fs).entry(&source, dot, dir, name)
            }
        };
    };
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let source = open_dir(parent.unwrap_or(Path::new(".")))?;
    let name = target.name().unwrap_or(own_name.as_bytes());
    match target {
        Target::Host { dir, .. } => {
            Across::new(job).entry(&source, own_name, dir, OsStr::from_bytes(name))
        }
        Target::Volume { fs, dir, .. } => Import::new(job, fs).entry(&source, own_name, dir, name),
    }
}

fn to(
    job: &mut Job<'_>,
    inodes: impl IntoIterator<Item = (Inode, Vec<u8>)>,
    target: &Target,
) -> Result<()> {
    match target {
        Target::Host { dir, .. } => {
            // One export handles all sources, because several of them may be names of the same
            // file.
            let mut export = Export::new(job);
            for (inode, name) in inodes {
                export.entry(&inode, dir, OsStr::from_bytes(&name))?;
            }
        }
        Target::Volume { fs, dir, .. } => {
            let mut within = Within::new(job, fs);
            for (inode, name) in inodes {
                within.entry(&inode, dir, &name)?;
            }
        }
    }
    Ok(())
}
