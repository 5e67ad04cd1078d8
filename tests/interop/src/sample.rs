//! A tree with a little of everything, equal through every front end. It is made from one seed and
//! changed in rounds.
//!
//! # Invariants
//!
//! - **P1** Equal scale, seed and round give equal trees, for any writer.

mod bytes;
mod collide;
mod fill;
mod folder;
mod library;
mod rounds;

pub use bytes::{noise, words};
pub use collide::colliding_names;
pub use fill::fill;
pub use folder::Folder;
pub use library::Library;
pub use rounds::change;

/// The amounts of each kind of object.
#[derive(Clone, Debug)]
pub struct Scale {
    /// The seed of all random choices.
    pub seed: u64,
    /// Directories of small files.
    pub dirs: u64,
    /// Small files in each of these directories.
    pub files: u64,
    /// Length of each big file.
    pub big_bytes: u64,
    /// Hard links of one file in one directory.
    pub links: u64,
    /// Names with one hash in one directory.
    pub collisions: usize,
}

impl Default for Scale {
    fn default() -> Self {
        // 400 names of one inode overflow its first item with nodes of 16 KiB.
        Self { seed: 7, dirs: 12, files: 30, big_bytes: 5 << 20, links: 400, collisions: 20 }
    }
}

/// A place to which a tree can be written. Paths are relative, of bytes, with slashes. Every method
/// panics on failure.
#[allow(missing_docs)]
pub trait Target {
    fn make_dir(&self, path: &[u8], mode: u32);
    fn make_file(&self, path: &[u8], mode: u32);
    fn write(&self, path: &[u8], offset: u64, data: &[u8]);
    fn set_len(&self, path: &[u8], len: u64);
    fn allocate(&self, path: &[u8], offset: u64, len: u64, keep_size: bool);
    fn punch(&self, path: &[u8], offset: u64, len: u64);
    fn make_symlink(&self, path: &[u8], target: &[u8]);
    /// `mode` has type bits.
    fn make_node(&self, path: &[u8], mode: u32, major: u32, minor: u32);
    fn link(&self, path: &[u8], new: &[u8]);
    fn rename(&self, path: &[u8], new: &[u8]);
    fn exchange(&self, path: &[u8], other: &[u8]);
    fn remove_file(&self, path: &[u8]);
    fn remove_dir(&self, path: &[u8]);
    fn set_xattr(&self, path: &[u8], name: &str, value: &[u8]);
    fn remove_xattr(&self, path: &[u8], name: &str);
    fn set_owner(&self, path: &[u8], uid: u32, gid: u32);
    fn set_mode(&self, path: &[u8], mode: u32);
    /// Sets the times of the last read and of the last change.
    fn set_times(&self, path: &[u8], seconds: i64, nanoseconds: u32);
    /// Makes everything durable.
    fn sync(&self);
}

/// Copies a path for formatting with `format!`: `at!("small/{dir}/{file}")` as bytes.
macro_rules! at {
    ($($word:tt)*) => { format!($($word)*).as_bytes() };
}
use at;
