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

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use buttress_fs::{Filesystem, InodeId};
use fuser::{Config, SessionACL};

use crate::aside::{Aside, Kernel};
use crate::crew::Crew;
use crate::door::{Door, Node, place};
use crate::mount::{Link, Mount, Unmounted};
use crate::node::Nodes;
use crate::{Error, Options};

/// A volume that is mounted; programs that look into it wait until it is served.
#[derive(Debug)]
pub struct Session {
    loops: fuser::Session<Door>,
    unmounter: Unmounter,
    beside: Beside,
}

/// For whoever changes a mounted volume beside the kernel: keeps both of one mind. Not to be used by a thread that
/// serves requests.
#[derive(Clone, Debug)]
pub struct Beside {
    mount: Arc<Mount>,
    kernel: Kernel,
    nodes: Arc<Nodes<Arc<Node>>>,
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
    let beside =
        Beside { mount: Arc::clone(&unmounter.mount), kernel: kernel.clone(), nodes: door.nodes() };

    let loops =
        fuser::Session::from_fd(door, device, SessionACL::All, config).map_err(|error| {
            drop(unmounter.unmount());
            Error::Session(error)
        })?;
    kernel.is_there(loops.notifier());
    if let Err(error) = unmounter.mount.set_read_ahead(options.read_ahead_kib) {
        tracing::debug!(%error, "the kernel keeps its own readahead");
    }
    Ok(Session { loops, unmounter, beside })
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

    /// Returns what keeps the kernel and the volume of one mind.
    #[must_use]
    pub fn beside(&self) -> Beside {
        self.beside.clone()
    }

    /// Serves until the mount is gone. All handles on the volume are dropped then.
    ///
    /// # Errors
    ///
    /// [`Error::Session`] when the conversation with the kernel broke.
    pub fn serve(self) -> Result<(), Error> {
        let Self { loops, unmounter, .. } = self;
        loops.run().map_err(|error| {
            drop(unmounter.unmount());
            Error::Session(error)
        })
    }
}

impl Beside {
    /// Has the kernel hand over what programs have written and it still holds: what was acknowledged by then is in
    /// the volume, though not durable.
    ///
    /// # Errors
    ///
    /// When the mount cannot be opened, or a write fails.
    pub fn gather(&self) -> std::io::Result<()> {
        let top = File::open(self.mount.target())?;
        rustix::fs::syncfs(&top)?;
        // That begins all the writes, and does not wait for those of FUSE. Giving up a file's pages does; a file
        // that nobody has open for writing was waited for when it was closed.
        for id in self.nodes.ids(|node| node.is_written()) {
            self.kernel.give_up(id);
        }
        Ok(())
    }

    /// Has the kernel look again at a name that came or went.
    pub fn changed(&self, dir: InodeId, name: &[u8]) {
        self.kernel.forget_name(self.nodes.id_of(place(dir)), OsStr::from_bytes(name));
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
