//! The operations of the demo on a volume, mounted or not. Paths have no slash at the front.

use crate::exit::Result;

/// A way into the volume.
pub(super) trait Access {
    /// Makes a directory.
    fn mkdir(&mut self, path: &str) -> Result<()>;
    /// Makes a file with this content.
    fn write(&mut self, path: &str, content: &[u8]) -> Result<()>;
    /// Appends to a file that `write` has created. `offset` is its present length.
    fn append(&mut self, path: &str, offset: u64, content: &[u8]) -> Result<()>;
    /// Reads from a file. Returns fewer bytes than asked for only at the end of the file.
    fn read(&mut self, path: &str, offset: u64, buffer: &mut [u8]) -> Result<usize>;
    /// Renames a file.
    fn rename(&mut self, from: &str, to: &str) -> Result<()>;
    /// Removes a file.
    fn remove(&mut self, path: &str) -> Result<()>;
    /// Counts the names in a directory.
    fn count(&mut self, path: &str) -> Result<usize>;
    /// Makes everything durable.
    fn sync(&mut self) -> Result<()>;
    /// Closes the volume and opens it again, so that later reads come from the image.
    fn reopen(&mut self) -> Result<()>;
    /// Leaves the volume open after this program ends. Returns whether that is possible.
    fn keep(&mut self) -> bool;
    /// Closes the volume. Returns an error if not everything became durable.
    fn close(self: Box<Self>) -> Result<()>;
}
