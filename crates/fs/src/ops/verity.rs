//! fs-verity: gives a file a Merkle tree, after which its content never changes.
//!
//! # Invariants
//!
//! - **FV1** The handle that puts the descriptor also sets the inode's flag and removes the orphan
//!   item. So after a crash a file has fs-verity as a whole, or it is the file from before.
//! - **FV2** Items of a tree are put only while the inode has an orphan item. After a crash the
//!   cleaner finds the inode by that item and removes what is left of the tree. A snapshot that is
//!   made meanwhile has the orphan item, too.
//! - **FV3** The flag is set when all content is on the device, because the tree has the hashes of
//!   the content and of its length.
//! - **FV4** The cleaner removes items of no inode that has a cell. It looks for the cell with its
//!   lock `removing` held. The first step here takes that lock once, and then has a cell.

use buttress_base::interrupt;
use buttress_format::{
    CompatRo, HashKind, InodeFlags, Key, Kind, MerkleBuilder, VERITY_DESCRIPTOR_MAX,
    VERITY_ITEM_MAX, VERITY_SALT_MAX, VerityDescriptor, VerityItem,
};
use buttress_items::{Error, NameError, Result, orphan};
use buttress_txn::{Cost, Handle, ReserveClass};

use crate::cell::InodeCell;
use crate::inode::Inode;
use buttress_make::clock::now_after;

/// Bytes of content that are read at once: a whole number of blocks of any size.
const READ_BYTES: usize = 1 << 20;

/// Bytes of a tree that one handle puts.
const PUT_BYTES: usize = 64 << 10;

/// The smallest block of a Merkle tree.
const BLOCK_MIN: u32 = 1024;

/// How the Merkle tree of a file is made.
///
/// Plain data: every value may be given, and [`Inode::enable_verity`] refuses the wrong ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerityOptions {
    /// The hash function.
    pub hash: HashKind,
    /// Bytes of a block: a power of two, from 1024 to the sector size of the volume.
    pub block_size: u32,
    /// Bytes that are hashed before each block; 32 at most.
    pub salt: Vec<u8>,
    /// A signature of the file's digest, for programs that verify it; 16,128 bytes at most.
    pub signature: Vec<u8>,
}

impl Default for VerityOptions {
    fn default() -> Self {
        let (hash, block_size) = (HashKind::Sha256, 4096);
        Self { hash, block_size, salt: Vec::new(), signature: Vec::new() }
    }
}

impl VerityOptions {
    /// Base-2 logarithm of the block size, after all options were checked.
    fn log_block(&self, sector: u32) -> Result<u8> {
        let size = self.block_size;
        if !size.is_power_of_two() || !(BLOCK_MIN..=sector).contains(&size) {
            return Err(Error::invalid("the block size of fs-verity"));
        }
        if self.salt.len() > VERITY_SALT_MAX {
            return Err(Error::invalid("the salt of fs-verity is too long"));
        }
        if self.signature.len() > VERITY_DESCRIPTOR_MAX - VerityDescriptor::LEN {
            return Err(Error::invalid("the signature of fs-verity is too long"));
        }
        Ok(size.trailing_zeros() as u8)
    }
}

/// Blocks of a tree that no handle has put yet.
#[derive(Default)]
struct Waiting {
    items: Vec<(u64, Vec<u8>)>,
    bytes: usize,
}

impl Waiting {
    fn add(&mut self, at: u64, block: &[u8]) {
        self.bytes += block.len();
        let offsets = (at..).step_by(VERITY_ITEM_MAX);
        let pieces = block.chunks(VERITY_ITEM_MAX).map(<[u8]>::to_vec);
        self.items.extend(offsets.zip(pieces));
    }
}

impl Inode {
    /// Gives a regular file a Merkle tree of its content, and returns the descriptor of the tree.
    /// From then on the content never changes, and each read compares it with the tree. Owner,
    /// mode, names and extended attributes can still change.
    ///
    /// The call reads the whole file. Other threads can read it meanwhile, and wait with changes.
    /// The caller makes sure that no program has the file open for writing. The result is durable
    /// after the next commit; [`Inode::sync`] makes one.
    ///
    /// # Errors
    ///
    /// `Exists` if the file has a tree already; `NotPermitted` for an immutable or append-only
    /// file; `Invalid` for options that the format does not allow, and for anything but a regular
    /// file; `ReadOnly`, `NoSpace`, `Io`, `Interrupted`. The file is then as it was.
    pub fn enable_verity(&self, options: &VerityOptions) -> Result<VerityDescriptor> {
        let (cell, mount) = (&self.cell, self.mount());
        cell.expect_regular()?;
        cell.expect_writable(&mount.status)?;
        let log_block = options.log_block(mount.superblock.sectorsize)?;
        // Waits for a removal that began before this cell was in the table. A thread that has this
        // lock takes locks of inodes, so it comes first.
        drop(mount.cleaner.hold_removals());
        let _lock = cell.lock.write();
        if cell.file.has_verity() {
            return Err(NameError::Exists.into());
        }
        cell.expect_removable()?;
        mount.files.writeback().write_back(&cell.file, 0..u64::MAX)?;
        if let Some(error) = cell.file.take_error() {
            return Err(buttress_data::Error::Lost(error.into()).into());
        }
        mount.files.remove_verity(&cell.file)?;
        self.put_orphan()?;
        let made = self.make_tree(options, log_block).and_then(|made| {
            self.finish_verity(&made)?;
            Ok(made)
        });
        if made.is_err() {
            // A failure here leaves the orphan item, so the next mount removes the rest.
            let left = mount.files.remove_verity(&cell.file).map_err(Error::from);
            if let Err(error) = left.and_then(|_| self.remove_orphan()) {
                tracing::warn!(ino = %cell.ino(), %error, "a part of a Merkle tree is left");
            }
        }
        made
    }

    /// Whether the file has fs-verity, so that its content never changes.
    #[must_use]
    pub fn has_verity(&self) -> bool {
        self.cell.file.has_verity()
    }

    /// The descriptor of a file with fs-verity; `None` for a file without it.
    ///
    /// # Errors
    ///
    /// `Io` if the descriptor is missing or damaged.
    pub fn verity(&self) -> Result<Option<VerityDescriptor>> {
        let (cell, mount) = (&self.cell, self.mount());
        if !cell.file.has_verity() {
            return Ok(None);
        }
        Ok(Some(mount.files.reader().verity(&cell.file)?.descriptor().clone()))
    }

    /// Puts the orphan item (FV2). A file without names has it already.
    fn put_orphan(&self) -> Result<()> {
        let (cell, mount) = (&self.cell, self.mount());
        if cell.nlink() > 0 {
            let handle =
                mount.engine.begin(mount.space.reserve(Cost::of(1, 0), ReserveClass::Normal)?);
            handle.put(cell.tree(), orphan::key(cell.ino()), Vec::new());
        }
        Ok(())
    }

    fn remove_orphan(&self) -> Result<()> {
        let (cell, mount) = (&self.cell, self.mount());
        if cell.nlink() > 0 {
            let handle =
                mount.engine.begin(mount.space.reserve(Cost::of(1, 0), ReserveClass::Free)?);
            handle.delete(cell.tree(), orphan::key(cell.ino()));
        }
        Ok(())
    }

    /// Reads the content and puts the items of its tree.
    fn make_tree(&self, options: &VerityOptions, log_block: u8) -> Result<VerityDescriptor> {
        let (cell, mount) = (&self.cell, self.mount());
        let size = cell.file.size();
        let mut builder = MerkleBuilder::new(options.hash, log_block, &options.salt, size);
        let mut buffer = vec![0; READ_BYTES.min(usize::try_from(size).unwrap_or(READ_BYTES))];
        let (mut at, mut waiting) = (0, Waiting::default());
        while at < size {
            if interrupt::is_interrupted() {
                return Err(buttress_txn::Error::Interrupted.into());
            }
            let len = mount.files.reader().read_direct(&cell.file, at, &mut buffer)?;
            if len == 0 {
                let what = "it ends before its length";
                return Err(Error::Item { tree: cell.tree(), ino: cell.ino(), what });
            }
            for block in buffer[..len].chunks(1 << log_block) {
                builder.add(block, &mut |at, block| waiting.add(at, &block));
            }
            at += len as u64;
            if waiting.bytes >= PUT_BYTES {
                self.put_items(std::mem::take(&mut waiting))?;
            }
        }
        let root = builder.finish(&mut |at, block| waiting.add(at, &block));
        self.put_items(waiting)?;
        Ok(VerityDescriptor {
            hash: options.hash,
            log_block,
            salt: options.salt.clone(),
            data_size: size,
            root,
            signature: options.signature.clone(),
        })
    }

    fn put_items(&self, waiting: Waiting) -> Result<()> {
        let (cell, mount) = (&self.cell, self.mount());
        let cost = Cost::of(waiting.items.len() as u32, waiting.bytes as u32);
        let handle = mount.engine.begin(mount.space.reserve(cost, ReserveClass::Normal)?);
        for (at, piece) in waiting.items {
            let key = Key::new(cell.ino().0, Kind::VERITY_MERKLE_ITEM, at);
            handle.put(cell.tree(), key, piece);
        }
        Ok(())
    }

    /// Puts the descriptor and sets the flag (FV1).
    fn finish_verity(&self, made: &VerityDescriptor) -> Result<()> {
        let (cell, mount) = (&self.cell, self.mount());
        let bytes = made.to_bytes();
        let pieces = bytes.len().div_ceil(VERITY_ITEM_MAX) as u32;
        let cost = Cost::of(3 + pieces, (bytes.len() + VerityItem::LEN + 160) as u32);
        let reservation = mount.space.reserve(cost, ReserveClass::Normal)?;
        mount.engine.commits().need_feature_ro(CompatRo::VERITY);
        let handle = mount.engine.begin(reservation);
        put_descriptor(&handle, cell, &bytes);
        if cell.nlink() > 0 {
            handle.delete(cell.tree(), orphan::key(cell.ino()));
        }
        cell.file.update(&handle, |item| {
            item.flags |= InodeFlags::RO_VERITY;
            item.ctime = now_after(item.ctime);
        });
        cell.file.note_verity();
        Ok(())
    }
}

fn put_descriptor(handle: &Handle<'_>, cell: &InodeCell, bytes: &[u8]) {
    let key = |offset| Key::new(cell.ino().0, Kind::VERITY_DESC_ITEM, offset);
    let item = VerityItem { size: bytes.len() as u64 };
    handle.put(cell.tree(), key(0), item.to_bytes());
    for (index, piece) in bytes.chunks(VERITY_ITEM_MAX).enumerate() {
        handle.put(cell.tree(), key(1 + (index * VERITY_ITEM_MAX) as u64), piece);
    }
}

impl InodeCell {
    /// Returns an error for a file with fs-verity, because its content never changes.
    pub(crate) fn expect_changeable(&self) -> Result<()> {
        if self.file.has_verity() { Err(NameError::NotPermitted.into()) } else { Ok(()) }
    }
}
