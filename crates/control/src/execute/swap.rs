//! Makes files for the kernel's swap space.
//!
//! # On disk
//!
//! The kernel writes to the places of the file without asking the file system. So the file has no
//! holes, checksums, compression or copies on write. Its first page, of 4096 bytes, has the header:
//!
//! ```text
//! 1024   version, always 1 (4 bytes)
//! 1028   number of the last page (4 bytes)
//! 1036   UUID (16 bytes)
//! 4086   "SWAPSPACE2"
//! ```

use buttress_format::InodeFlags;
use buttress_fs::{FallocateMode, Filesystem, Inode, NewInode};
use buttress_fuse::KernelSync;
use serde_json::Value;

use crate::exit::{Context, Exit, Failure, Result};
use crate::order::PathInVolume;

/// Bytes of a page of swap space.
pub const PAGE: u64 = 4096;
/// The least length of a file, in bytes.
pub const SIZE_MIN: u64 = 40 << 10;

const VERSION_AT: usize = 1024;
const LAST_PAGE_AT: usize = 1028;
const UUID_AT: usize = 1036;
const MAGIC: &[u8; 10] = b"SWAPSPACE2";

/// Makes the file. A file that could not be made completely is removed.
pub(super) fn make(
    fs: &Filesystem,
    (at, uid, gid): (&PathInVolume, u32, u32),
    (size, uuid): (u64, &[u8; 16]),
    kernel_sync: Option<&KernelSync>,
) -> Result<Value> {
    let header = header(size, uuid)?;
    let (dir, name) = at.parent(fs)?;
    let file = dir.create(name, NewInode::file(0o600).owner(uid, gid));
    let file = file.context(|| "cannot create new swapfile")?;
    let filled = fill(&file, size, &header);
    if filled.is_err()
        && let Err(error) = dir.unlink(name)
    {
        tracing::warn!(%error, "an incomplete swapfile stays");
    }
    if let Some(kernel_sync) = kernel_sync {
        kernel_sync.invalidate_name(dir.id(), name);
    }
    filled.map(|()| Value::Null)
}

fn fill(file: &Inode, size: u64, header: &[u8]) -> Result<()> {
    // The flag has an effect only on a file without content.
    file.set_flags(InodeFlags::NODATACOW).context(|| "cannot set NOCOW flag")?;
    let all = FallocateMode::Allocate { keep_size: false };
    file.fallocate(0, size, all).context(|| "cannot fallocate file")?;
    file.write_at(0, header).context(|| "cannot write swap header")?;
    file.sync().context(|| "cannot write swapfile")
}

fn header(size: u64, uuid: &[u8; 16]) -> Result<Vec<u8>> {
    let last = (size / PAGE).checked_sub(1).and_then(|last| u32::try_from(last).ok());
    let last = last.filter(|_| size >= SIZE_MIN && size.is_multiple_of(PAGE));
    let last = last
        .ok_or_else(|| Failure::new(Exit::Usage, format!("{size} bytes: no size of a swapfile")))?;
    let mut page = vec![0; PAGE as usize];
    page[VERSION_AT..VERSION_AT + 4].copy_from_slice(&1_u32.to_le_bytes());
    page[LAST_PAGE_AT..LAST_PAGE_AT + 4].copy_from_slice(&last.to_le_bytes());
    page[UUID_AT..UUID_AT + uuid.len()].copy_from_slice(uuid);
    let end = page.len();
    page[end - MAGIC.len()..].copy_from_slice(MAGIC);
    Ok(page)
}
