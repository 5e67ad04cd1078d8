//! One mount, from the moment the kernel knows of it to the moment all is durable.
//!
//! # Place
//!
//! `cli` opens a volume and hands a clone of it to [`mount`]; [`Session::serve`] returns when the
//! mount is gone, and `cli` closes the volume. An [`Unmounter`] ends a session from another thread.
//!
//! # Failure
//!
//! However serving ends, nothing here holds the volume afterwards: closing it commits what was
//! written. Only a process that is killed leaves it to the next mount, at the last commit, and leaves
//! a dead mount behind that answers `ENOTCONN` until somebody unmounts it.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use buttress_fs::Filesystem;
use fuser::{Config, SessionACL};

use crate::aside::{Aside, Kernel};
use crate::crew::Crew;
use crate::door::Door;
use crate::mount::{Link, Mount, Unmounted};
use crate::{Error, Options};

/// A volume that is mounted; programs that look into it wait until it is served.
#[derive(Debug)]
pub struct Session {
    loops: fuser::Session<Door>,
    unmounter: Unmounter,
}

/// Ends a session from any thread.
#[derive(Clone, Debug)]
pub struct Unmounter {
    mount: Arc<Mount>,
    link: Link,
}

/// Mounts a volume on the directory `target`.
///
/// # Errors
///
/// All of [`Error`] but `Unmount`.
pub fn mount(fs: Filesystem, target: &Path, options: &Options) -> Result<Session, Error> {
    let (mount, device) = Mount::new(target, options)?;
    let link = Link::new(&device).map_err(Error::Session)?;
    let unmounter = Unmounter { mount: Arc::new(mount), link: link.clone() };
    let mut config = Config::default();
    let threads = options.thread_count();
    config.n_threads = Some(threads);
    config.clone_fd = true;
    // Who may come in is the kernel's to decide, by allow_other; its own requests have no owner.
    let crew = Crew::new(link, threads, options);
    let kernel = Kernel::default();
    let aside = Aside::new(kernel.clone()).map_err(Error::Session)?;
    let door = Door::new(fs, crew, aside, options.clone());

    let loops =
        fuser::Session::from_fd(door, device, SessionACL::All, config).map_err(|error| {
            drop(unmounter.unmount());
            Error::Session(error)
        })?;
    kernel.is_there(loops.notifier());
    if let Err(error) = unmounter.mount.set_read_ahead(options.read_ahead_kib) {
        tracing::debug!(%error, "the kernel keeps its own readahead");
    }
    Ok(Session { loops, unmounter })
}

/// Serves a connection that somebody else made: `device` is where requests come from and answers go to, one a
/// read and one a write. Returns when it ends.
///
/// # Errors
///
/// [`Error::Session`] when the conversation broke.
pub fn serve_connection(fs: Filesystem, device: OwnedFd, options: &Options) -> Result<(), Error> {
    let mut config = Config::default();
    config.n_threads = Some(1);
    let link = Link::new(&device).map_err(Error::Session)?;
    let crew = Crew::new(link, 1, options);
    let kernel = Kernel::default();
    let aside = Aside::new(kernel.clone()).map_err(Error::Session)?;
    let door = Door::new(fs, crew, aside, options.clone());
    let loops = fuser::Session::from_fd(door, device, SessionACL::All, config);
    let loops = loops.map_err(Error::Session)?;
    kernel.is_there(loops.notifier());
    loops.run().map_err(Error::Session)
}

impl Session {
    /// Returns what ends this session.
    #[must_use]
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// Serves until the mount is gone. All handles on the volume are dropped then.
    ///
    /// # Errors
    ///
    /// [`Error::Session`] when the conversation with the kernel broke.
    pub fn serve(self) -> Result<(), Error> {
        let Self { loops, unmounter } = self;
        loops.run().map_err(|error| {
            drop(unmounter.unmount());
            Error::Session(error)
        })
    }
}

impl Unmounter {
    /// Where the volume is mounted.
    #[must_use]
    pub fn target(&self) -> &Path {
        self.mount.target()
    }

    /// Takes the mount away; lazily, if programs still use it. A mount that is gone is left alone,
    /// and so is whatever was mounted at its place since.
    ///
    /// # Errors
    ///
    /// [`Error::Unmount`].
    pub fn unmount(&self) -> Result<Unmounted, Error> {
        if self.link.is_gone() { Ok(Unmounted::Clean) } else { self.mount.unmount() }
    }
}
