//! The FUSE door: a mounted volume for every program on the machine.
//!
//! Protocol in, calls to the library out. [`mount`] puts a [`buttress_fs::Filesystem`] into the
//! directory tree, [`Session::serve`] answers the kernel until it is unmounted.

mod error;
mod options;

mod acl;
mod attr;
mod errno;
mod node;

mod mount;

mod aside;
mod crew;
mod dispatch;
mod door;
mod session;

pub use error::Error;
pub use mount::Unmounted;
pub use options::{KNOWN as KNOWN_OPTIONS, Options};
pub use session::{Session, Unmounter, mount};
