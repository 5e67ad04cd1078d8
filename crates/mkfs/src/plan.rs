//! What is to be made from a command line, and making it.
//!
//! # Invariants
//!
//! - **PL1** If making a volume fails, a file that did not exist before does not exist afterwards.
//! - **PL2** All devices are opened, and their content is looked at, before one of them is changed.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use buttress_block::{Device, OpenOptions};
use buttress_fs::make::{MakeOptions, MakeReport, make_on};
use buttress_fs::{Filesystem, MountOptions, Timespec, be_repeatable};
use buttress_remote::{Inside, OpenRequest, host_file, is_remote};

use crate::args::Args;
use crate::brings;
use crate::cached;
use crate::closing;
use crate::exit::{Context, Exit, Failure, Result};
use crate::fill::{self, Brings};
use crate::interrupted;
use crate::names;
use crate::recipe::Recipe;
use crate::source::Source;
use crate::transfer::{Census, Clones};
use crate::ui::Ui;

/// The files and devices on which the volume is made.
pub(crate) struct Places<'a> {
    pub(crate) paths: Vec<&'a Path>,
    /// Files that did not exist before. They are removed if making the volume fails.
    pub(crate) fresh: Vec<&'a Path>,
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
    pub(crate) fn identities(&self) -> Vec<(u64, u64)> {
        let found = self.paths.iter().filter_map(|path| host_file(path).metadata().ok());
        found.map(|metadata| (metadata.dev(), metadata.ino())).collect()
    }
}

/// How a new volume counts the space of its subvolumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counting {
    /// By full quotas.
    Full,
    /// By simple quotas.
    Simple,
}

/// A volume that is to be made.
pub(crate) struct Plan<'a> {
    pub(crate) places: Places<'a>,
    pub(crate) options: MakeOptions,
    pub(crate) census: Option<Census>,
    recipe: Option<Recipe>,
    /// If set, quotas are on from the beginning.
    pub(crate) counting: Option<Counting>,
}

impl<'a> Plan<'a> {
    /// Looks at the arguments and the source. Changes nothing.
    pub(crate) fn of(args: &'a Args, mut options: MakeOptions) -> Result<Self> {
        let places = Places::of(args);
        let special = brings::special(&args.subvol, &args.inode_flags)?;
        let mut census = match Source::of(args) {
            Some(source) => source.survey(&special)?,
            None => None,
        };
        let recipe = Recipe::of(args, &places.identities())?;
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
        if args.reflink && is_remote(places.paths[0]) {
            let what = "--reflink needs an image file: a store shares no data with files";
            return Err(Failure::new(Exit::Usage, what));
        }
        if args.reflink && recipe.is_some() {
            let what = "--reflink and SOURCE_DATE_EPOCH exclude each other";
            return Err(Failure::new(Exit::Usage, what));
        }
        Ok(Self { places, options, census, recipe, counting: None })
    }

    /// Carries out `make`. If it fails, removes files that did not exist before (PL1).
    pub(crate) fn carry_out<R>(&self, make: impl FnOnce() -> Result<R>) -> Result<R> {
        make().inspect_err(|_| {
            for path in &self.places.fresh {
                let _ = std::fs::remove_file(path);
            }
        })
    }

    /// Makes the volume on its devices, and fills it.
    pub(crate) fn make(
        &self,
        mut devices: Vec<Arc<dyn Device>>,
        args: &Args,
        ui: &Ui,
    ) -> Result<MakeReport> {
        let first = self.places.paths[0];
        let name = names::of_path(first);
        let (wrapped, cache) = args.cached.wrap(Arc::clone(&devices[0]), OpenOptions::WRITE)?;
        devices[0] = wrapped;
        let parts: Vec<&dyn Device> = devices.iter().map(|device| &**device).collect();
        // An image that shares no data is refused before it is written.
        let clones = args.reflink.then(|| Clones::of(first)).transpose()?;
        let mut report = make_on(&parts, &self.options).context(|| &name)?;
        if let Some(counting) = self.counting {
            let fs = Filesystem::open(devices.clone(), MountOptions::default());
            let fs = fs.context(|| &name)?;
            fs.enable_quotas(counting == Counting::Simple).context(|| &name)?;
            fs.close().context(|| &name)?;
        }
        if let Some(source) = Source::of(args) {
            if let Some(clones) = &clones {
                devices[0] = clones.device(Arc::clone(&devices[0]));
            }
            let (census, recipe) = (self.census.unwrap_or_default(), self.recipe);
            let brings = Brings { source, census, recipe, clones: clones.as_deref() };
            let least = fill::fill(std::mem::take(&mut devices), args, &brings, first, ui)?;
            report.size = least.unwrap_or(report.size);
        }
        if let Some(cache) = cache {
            cached::close(&cache)?;
        }
        Ok(report)
    }
}

/// Opens all devices of a new volume by `open`, and looks at each by `check`. With a size, files
/// are made, or made longer: after all devices that are there were opened and looked at. So if one
/// of them is in use or has content, no file was changed (PL2).
pub(crate) fn open_all(
    paths: &[&Path],
    size: Option<u64>,
    open: impl Fn(&Path, Option<u64>) -> Result<Arc<dyn Device>>,
    check: impl Fn(&Path, &dyn Device) -> Result<()>,
) -> Result<Vec<Arc<dyn Device>>> {
    let open_and_check = |path: &Path, size| {
        let device = open(path, size)?;
        check(path, &*device)?;
        Ok(device)
    };
    let mut first = Vec::with_capacity(paths.len());
    for path in paths {
        let device = match size.map_or(Change::None, |size| Change::of(path, size)) {
            Change::None => Some(open_and_check(path, size)?),
            Change::Made => None,
            Change::Grown { is_empty } => match open(path, None) {
                Ok(device) => check(path, &*device).map(|()| None)?,
                // An empty file is no device yet.
                Err(failure) if is_empty && failure.is_empty_file() => None,
                Err(failure) => return Err(failure),
            },
        };
        first.push(device);
    }
    let all = first.into_iter().zip(paths);
    all.map(|(device, path)| device.map_or_else(|| open_and_check(path, size), Ok)).collect()
}

/// What opening a device with a size does to it.
enum Change {
    /// It stays as it is.
    None,
    /// The file does not exist, and is made.
    Made,
    /// The file is shorter, and grows.
    Grown { is_empty: bool },
}

impl Change {
    fn of(path: &Path, size: u64) -> Self {
        if is_remote(path) || Inside::of(path).is_some() {
            return Self::None;
        }
        match path.metadata() {
            Ok(found) if found.is_file() && found.len() < size => {
                Self::Grown { is_empty: found.len() == 0 }
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Self::Made,
            _ => Self::None,
        }
    }
}

/// Opens a device for a new volume. With a size, a file is made, or made longer.
pub(crate) fn open(path: &Path, size: Option<u64>, asked: &OpenRequest) -> Result<Arc<dyn Device>> {
    let open = || match size {
        Some(size) => buttress_remote::create(path, size, asked),
        None => buttress_remote::open(path, OpenOptions::WRITE, asked),
    };
    let open = || interrupted::opening(path, open);
    Ok(closing::when_free(path, true, open)?.device())
}
