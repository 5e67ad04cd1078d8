//! Options for opening and for making a volume.

use std::path::Path;
use std::sync::Arc;

use buttress_block::{Device, FileDevice};
use buttress_fs::MountOptions;

use crate::error::{Context, Error, ErrorKind, Result};
use crate::filesystem::Filesystem;

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

    /// Opens the volume in an image file or on a block device.
    ///
    /// # Errors
    ///
    /// `NotFound`; `Busy` while another program has the volume open; `Corrupt` and `Unsupported`
    /// for its content.
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
        let mut devices: Vec<Arc<dyn Device>> = Vec::with_capacity(paths.len());
        for path in paths {
            let device =
                FileDevice::open(path, how(path)).map_err(|error| of_device(path, error))?;
            devices.push(Arc::new(device));
        }
        let first = paths.first().copied().unwrap_or(Path::new(""));
        self.open_devices_at(devices, first)
    }

    /// Opens a volume on devices that the program implements.
    ///
    /// # Errors
    ///
    /// The errors of [`OpenOptions::open_all`].
    pub fn open_devices(self, devices: Vec<Arc<dyn Device>>) -> Result<Filesystem> {
        self.open_devices_at(devices, Path::new(""))
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

    /// Lets `change` set any other option of `mkfs`, in [`MakeOptions`](buttress_fs::MakeOptions).
    pub fn with(mut self, change: impl FnOnce(&mut buttress_fs::MakeOptions)) -> Self {
        change(&mut self.make);
        self
    }

    /// Makes the volume in a new image file, and opens it for writing.
    ///
    /// # Errors
    ///
    /// `AlreadyExists` if the file exists and is not empty; `InvalidInput` if the volume cannot be
    /// made, for example because `size` is too small; `Io`.
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
        let device = FileDevice::create(path, self.size).map_err(|error| of_device(path, error))?;
        self.create_at(Arc::new(device), path)
    }

    /// Makes the volume on a device that the program implements, and opens it. The data on the
    /// device is lost.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if the volume cannot be made; otherwise the errors of
    /// [`OpenOptions::open_devices`].
    pub fn create_on(self, device: Arc<dyn Device>) -> Result<Filesystem> {
        self.create_at(device, Path::new(""))
    }

    fn create_at(self, device: Arc<dyn Device>, path: &Path) -> Result<Filesystem> {
        let made = buttress_fs::Filesystem::make(&*device, &self.make);
        made.map_err(|error| Error::new(ErrorKind::InvalidInput, "create", Some(path), error))?;
        OpenOptions::new().open_devices_at(vec![device], path)
    }
}

fn of_device(path: &Path, error: buttress_block::Error) -> Error {
    use std::error::Error as _;
    let io = error.source().and_then(|source| source.downcast_ref::<std::io::Error>());
    let kind = match io.map(std::io::Error::kind) {
        Some(std::io::ErrorKind::NotFound) => ErrorKind::NotFound,
        Some(std::io::ErrorKind::PermissionDenied) => ErrorKind::PermissionDenied,
        _ if error.is_in_use() => ErrorKind::Busy,
        _ => ErrorKind::Io,
    };
    Error::new(kind, "open", Some(path), error)
}
