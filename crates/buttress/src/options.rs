//! Options for opening and for making a volume.

use std::path::Path;
use std::sync::Arc;

use buttress_block::{Device, FileDevice};
use buttress_fs::MountOptions;

use crate::error::{Context, Error, ErrorKind, Result};
use crate::filesystem::Filesystem;
use crate::place::Named;

/// The default memory of a volume in a program: 64 MiB.
const MEMORY_DEFAULT: u64 = 64 << 20;

/// How to open a volume: a builder.
///
/// ```no_run
/// # fn main() -> buttress::Result<()> {
/// let fs = buttress::OpenOptions::new().read_only(true).open("disk.img")?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "options do nothing before a volume is opened with them"]
pub struct OpenOptions {
    mount: MountOptions,
    memory: u64,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl OpenOptions {
    /// Options for reading and writing, with 64 MiB of memory and no background threads.
    pub fn new() -> Self {
        let mut mount = MountOptions::default();
        mount.background = false;
        Self { mount, memory: MEMORY_DEFAULT }
    }

    /// Whether the volume is opened read-only: nothing is written to the devices.
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.mount.read_only = read_only;
        self
    }

    /// Memory for tree nodes, pages, dirty data and changes that are not committed, in bytes; at
    /// least 8 MiB.
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = bytes;
        self
    }

    /// Whether background threads write back, commit and read ahead. Without these threads, calls
    /// of the program do this work when the memory is full. A change is sure to be durable only
    /// after [`Filesystem::sync`], [`File::sync_all`](crate::File::sync_all) or
    /// [`Filesystem::close`].
    pub fn background(mut self, background: bool) -> Self {
        self.mount.background = background;
        self
    }

    /// Opens the subvolume at this path below the top level instead of the default subvolume.
    pub fn subvolume(mut self, path: impl AsRef<Path>) -> Self {
        use std::os::unix::ffi::OsStrExt;
        self.mount.subvol = Some(path.as_ref().as_os_str().as_bytes().to_vec());
        self
    }

    /// Adds options in the syntax of `mount -o`, such as `compress=zstd:3,degraded`.
    ///
    /// # Errors
    ///
    /// `InvalidInput`, with the option that is not known or does not parse.
    pub fn mount_options(mut self, list: &str) -> Result<Self> {
        let added = self.mount.parse_more(list);
        added.map_err(|error| Error::new(ErrorKind::InvalidInput, "options", None, error))?;
        Ok(self)
    }

    /// Opens the volume in an image file or on a block device. With the feature `stores`, `path` is
    /// any name of a volume: also a part of a disk, such as `disk.img#2`, or a place in a store of
    /// objects, such as `s3://bucket/volume`.
    ///
    /// # Errors
    ///
    /// `NotFound`; `Busy` while another program has the volume open; `Corrupt` and `Unsupported`
    /// for its content; `Io` if the device or the store fails.
    pub fn open(self, path: impl AsRef<Path>) -> Result<Filesystem> {
        self.open_all(&[path.as_ref()])
    }

    /// Opens a volume that lies on several image files or block devices.
    ///
    /// # Errors
    ///
    /// The errors of [`OpenOptions::open`]; `InvalidInput` if the devices do not belong to one
    /// volume.
    pub fn open_all(self, paths: &[&Path]) -> Result<Filesystem> {
        // A seed is only read, and other volumes may use it at the same time. So it is not locked.
        let unlocked =
            buttress_block::OpenOptions { lock: false, ..buttress_block::OpenOptions::READ };
        let is_seed = |path: &Path| {
            let opened = FileDevice::open(path, unlocked);
            paths.len() > 1 && opened.is_ok_and(|device| buttress_fs::holds_seed(&device))
        };
        let how = |path: &Path| match self.mount.read_only || is_seed(path) {
            true => buttress_block::OpenOptions::READ,
            false => buttress_block::OpenOptions::WRITE,
        };
        Named::expect_together(paths, !self.mount.read_only)?;
        let open = |path: &&Path| Named::open(path, how(path), self.memory);
        let named = paths.iter().map(open).collect::<Result<Vec<_>>>()?;
        self.open_named(named, paths)
    }

    /// Opens a volume on devices that the program implements.
    ///
    /// # Errors
    ///
    /// The errors of [`OpenOptions::open_all`].
    pub fn open_devices(self, devices: Vec<Arc<dyn Device>>) -> Result<Filesystem> {
        self.open_devices_at(devices, Path::new(""))
    }

    fn open_named(mut self, named: Vec<Named>, paths: &[&Path]) -> Result<Filesystem> {
        self.memory = Named::memory_left(paths, self.memory);
        let path = paths.first().copied().unwrap_or(Path::new(""));
        let devices = named.iter().map(Named::device).collect();
        Ok(self.open_devices_at(devices, path)?.with_named(named))
    }

    fn open_devices_at(self, devices: Vec<Arc<dyn Device>>, path: &Path) -> Result<Filesystem> {
        let options = self.mount.with_memory(self.memory);
        let fs = buttress_fs::Filesystem::open(devices, options).context("open", path)?;
        Ok(Filesystem::new(fs))
    }
}

impl Filesystem {
    /// Opens the volume in an image file or on a block device, for reading and writing.
    ///
    /// # Errors
    ///
    /// The errors of [`OpenOptions::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        OpenOptions::new().open(path)
    }
}

/// How to make a volume: a builder.
///
/// ```no_run
/// # fn main() -> buttress::Result<()> {
/// let fs = buttress::CreateOptions::new(1 << 30).label("notes").create("notes.img")?;
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "mkfs")]
#[derive(Clone, Debug)]
#[must_use = "options do nothing before a volume is made with them"]
pub struct CreateOptions {
    size: u64,
    make: buttress_fs::MakeOptions,
}

#[cfg(feature = "mkfs")]
impl CreateOptions {
    /// A volume of `size` bytes. Its image file is sparse, so unused parts take no space.
    pub fn new(size: u64) -> Self {
        let make = buttress_fs::MakeOptions { size: Some(size), ..Default::default() };
        Self { size, make }
    }

    /// The volume's name, at most 255 bytes.
    pub fn label(mut self, label: &str) -> Self {
        self.make.label = label.as_bytes().to_vec();
        self
    }

    /// Derives every identifier from a seed and takes all times from `time`, so two runs give the
    /// same bytes.
    pub fn reproducible(mut self, seed: u64, time: buttress_fs::Timespec) -> Self {
        self.make.seed = Some(seed);
        self.make.time = Some(time);
        self
    }

    /// Lets `change` set any other option of `mkfs`, in [`MakeOptions`](crate::MakeOptions).
    pub fn with(mut self, change: impl FnOnce(&mut buttress_fs::MakeOptions)) -> Self {
        change(&mut self.make);
        self
    }

    /// Makes the volume in a new image file, and opens it for writing. With the feature `stores`,
    /// `path` can also be a part of a disk or a place in a store, as for [`OpenOptions::open`].
    ///
    /// # Errors
    ///
    /// `AlreadyExists` if the file exists and is not empty, or if the place holds a file system;
    /// `InvalidInput` if the volume cannot be made, for example because `size` is too small; `Io`.
    pub fn create(self, path: impl AsRef<Path>) -> Result<Filesystem> {
        let path = path.as_ref();
        if std::fs::metadata(path).is_ok_and(|found| found.len() > 0) {
            return Err(Error::new(
                ErrorKind::AlreadyExists,
                "create",
                Some(path),
                "the file exists and is not empty",
            ));
        }
        let named = Named::create(path, self.size, MEMORY_DEFAULT)?;
        let device = named.device();
        let found = buttress_block::probe::identify(&*device);
        let found =
            found.map_err(|error| Error::new(ErrorKind::Io, "create", Some(path), error))?;
        if let Some(found) = found {
            let why = format!("there is {found} already");
            return Err(Error::new(ErrorKind::AlreadyExists, "create", Some(path), why));
        }
        self.make_on(&*device, path)?;
        OpenOptions::new().open_named(vec![named], &[path])
    }

    /// Makes the volume on a device that the program implements, and opens it. The data on the
    /// device is lost.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the volume cannot be made; otherwise the errors of
    /// [`OpenOptions::open_devices`].
    pub fn create_on(self, device: Arc<dyn Device>) -> Result<Filesystem> {
        self.make_on(&*device, Path::new(""))?;
        OpenOptions::new().open_devices(vec![device])
    }

    fn make_on(&self, device: &dyn Device, path: &Path) -> Result<()> {
        let made = buttress_fs::Filesystem::make(device, &self.make);
        made.map_err(|error| Error::new(ErrorKind::InvalidInput, "create", Some(path), error))?;
        Ok(())
    }
}
