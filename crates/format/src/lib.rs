//! The btrfs disk format as checked types: bytes and their meaning, no I/O.
//!
//! Every reader parses bytes from a disk into one of these types before it computes with them. A
//! parser checks the fields, so each parsed value is valid. Every writer is the inverse of its
//! parser.

mod balance;
mod block_group;
mod bytes;
mod chunk;
mod csum;
mod device;
mod dir;
mod error;
mod extent;
mod feature;
mod file_extent;
mod free_space;
pub mod header;
pub mod ids;
mod inode;
mod key;
pub mod limits;
mod merkle;
mod misc;
mod profile;
mod quota;
mod replace;
mod root;
mod stripe;
mod superblock;
mod units;
mod verity;

pub use balance::{BalanceArgs, BalanceItem};
pub use block_group::BlockGroupItem;
pub use chunk::{BlockGroupFlags, Chunk, Stripe};
pub use csum::{CsumType, crc32c_raw, extent_data_ref_hash, extref_hash, name_hash};
pub use device::{DevExtent, DeviceItem};
pub use dir::{DirEntry, FileKind};
pub use error::{Error, Result};
pub use extent::{BackRef, ExtentFlags, ExtentItem};
pub use feature::{CompatRo, Incompat};
pub use file_extent::{Body, Compression, FileExtent, Region};
pub use free_space::FreeSpaceInfo;
pub use header::Header;
pub use ids::objectid_name;
pub use inode::{InodeExtref, InodeExtrefs, InodeFlags, InodeItem, InodeRef, InodeRefs, Timespec};
pub use key::{Key, Kind};
pub use merkle::{HashKind, MerkleBuilder, MerkleHasher, TreeShape};
pub use misc::{DevStats, UuidItem};
pub use profile::{Profile, Spread};
pub use quota::{QuotaGroup, QuotaInfo, QuotaLimit, QuotaStatus};
pub use replace::{ReplaceItem, ReplacePhase};
pub use root::{RootFlags, RootItem, RootRef};
pub use stripe::{Stride, StripeItem};
pub use superblock::{RootBackup, Superblock};
pub use units::{DeviceId, Extent, Generation, Ino, Logical, TreeId};
pub use verity::{
    VERITY_DESCRIPTOR_MAX, VERITY_ITEM_MAX, VERITY_SALT_MAX, VerityDescriptor, VerityItem,
    join_pieces,
};
