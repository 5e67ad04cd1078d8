//! A mounted volume that is unmounted and judged when a test is done with it.

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use buttress_fs::Filesystem;
use buttress_fuse::{Error, Options, Unmounted, Unmounter};

use crate::volume::Volume;

/// A volume that is mounted and served.
pub(crate) struct Mounted {
    volume: Option<Volume>,
    path: PathBuf,
    fs: Option<Filesystem>,
    unmounter: Unmounter,
    serving: Option<JoinHandle<Result<(), Error>>>,
}

/// Mounts a new volume; `None`, loudly, where that cannot be done.
pub(crate) fn mounted() -> Option<Mounted> {
    mounted_with(&Options::default())
}

/// Mounts a new volume with options.
pub(crate) fn mounted_with(options: &Options) -> Option<Mounted> {
    can_mount().then(|| Mounted::new(Volume::new(), options))
}

/// Mounts a new volume of `len` bytes.
pub(crate) fn mounted_small(len: u64) -> Option<Mounted> {
    can_mount().then(|| Mounted::new(Volume::with_len(len), &Options::default()))
}

fn can_mount() -> bool {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        eprintln!("SKIPPED: needs root and /dev/fuse");
        return false;
    }
    true
}

impl Mounted {
    fn new(volume: Volume, options: &Options) -> Self {
        let fs = volume.open();
        let path = volume.mount_point();
        let session = buttress_fuse::mount(fs.clone(), &path, options).expect("root may mount");
        let unmounter = session.unmounter();
        let serving = Some(std::thread::spawn(|| session.serve()));
        Self { volume: Some(volume), path, fs: Some(fs), unmounter, serving }
    }

    /// A path in the volume.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The mounted volume itself, past the kernel.
    pub(crate) fn fs(&self) -> &Filesystem {
        self.fs.as_ref().expect("it is open while it is mounted")
    }

    /// Ends the mount as a signal would; says whether anybody still used it.
    pub(crate) fn unmount(&self) -> Unmounted {
        self.unmounter.unmount().expect("root may unmount")
    }

    /// Waits for the end of a session whose mount is gone, and closes the volume.
    pub(crate) fn finish(&mut self) {
        if let Some(serving) = self.serving.take() {
            let served = serving.join().expect("serving does not panic");
            served.expect("the session ends well");
        }
        if let Some(fs) = self.fs.take() {
            fs.close().expect("the last commit succeeds");
        }
    }

    /// Unmounts, and mounts the same volume again.
    pub(crate) fn again(mut self) -> Self {
        assert_eq!(self.unmount(), Unmounted::Clean);
        self.finish();
        let volume = self.volume.take().expect("it is there until the end");
        Self::new(volume, &Options::default())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The test has failed already; leave no mount behind, and judge nothing.
            drop(self.unmounter.unmount());
            return;
        }
        if self.serving.is_some() {
            assert_eq!(self.unmount(), Unmounted::Clean, "a test leaves nothing open");
            self.finish();
        }
        if let Some(volume) = &self.volume {
            volume.judge();
        }
    }
}
