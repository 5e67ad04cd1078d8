//! The problems of a volume: one variant for each kind of problem, with place and values.
//!
//! # Place
//!
//! Every step of the checker (`check`) makes issues, and its repairs answer them. The program
//! prints them, and scripts read their codes. A released code keeps its meaning.
//!
//! # Invariants
//!
//! - **Q1** An issue only has facts: addresses, keys, names, found and expected values.
//! - **Q2** Codes are unique.

#![forbid(unsafe_code)]

use std::fmt;

use buttress_format::{DeviceId, Extent, Generation, Ino, Key, Logical, QuotaGroup, TreeId};
use serde::ser::SerializeMap;

/// The severity of an issue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Nothing is wrong, but the fact is useful.
    Note,
    /// A problem that healthy volumes can show after a crash, or that a mount repairs.
    Warning,
    /// The volume contradicts itself or has lost data or metadata.
    Error,
}

impl Severity {
    /// The name of the severity.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// A name on the volume, with any bytes. The text form escapes the bytes, so that they do no harm
/// to a terminal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Name(pub Vec<u8>);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = &self.0[..];
        loop {
            match std::str::from_utf8(rest) {
                Ok(text) => return write!(f, "{}", text.escape_debug()),
                Err(error) => {
                    let (good, bad) = rest.split_at(error.valid_up_to());
                    write!(f, "{}", std::str::from_utf8(good).unwrap_or_default().escape_debug())?;
                    let len = error.error_len().unwrap_or(bad.len());
                    write!(f, "{}", bad[..len].escape_ascii())?;
                    rest = &bad[len..];
                }
            }
        }
    }
}

/// A field value in the form for scripts.
trait Fact {
    fn put<M: SerializeMap>(&self, name: &'static str, map: &mut M) -> Result<(), M::Error>;
}

macro_rules! facts {
    (numbers: $($number:ty),*; texts: $($text:ty),*; plain: $($plain:ty),*) => {
        $(impl Fact for $number {
            fn put<M: SerializeMap>(&self, name: &'static str, map: &mut M) -> Result<(), M::Error> {
                map.serialize_entry(name, &self.0)
            }
        })*
        $(impl Fact for $text {
            fn put<M: SerializeMap>(&self, name: &'static str, map: &mut M) -> Result<(), M::Error> {
                map.serialize_entry(name, &self.to_string())
            }
        })*
        $(impl Fact for $plain {
            fn put<M: SerializeMap>(&self, name: &'static str, map: &mut M) -> Result<(), M::Error> {
                map.serialize_entry(name, self)
            }
        })*
    };
}

/// Encodes the name without loss, as the other commands of the program do.
impl Fact for Name {
    fn put<M: SerializeMap>(&self, name: &'static str, map: &mut M) -> Result<(), M::Error> {
        map.serialize_entry(name, &buttress_base::text::encode(&self.0))
    }
}

facts! {
    numbers: Logical, Generation, Ino, DeviceId, TreeId;
    texts: Key, Extent, QuotaGroup;
    plain: u64, u32, u8, String, &'static str
}

macro_rules! issues {
    ($($(#[$doc:meta])* $variant:ident { $($field:ident: $type:ty),* $(,)? }
        = $code:literal, $severity:ident, $text:literal;)*) => {
        /// One problem of a volume.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[allow(missing_docs, reason = "the fields are what the variant's text names")]
        pub enum Issue {
            $($(#[$doc])* $variant { $($field: $type),* },)*
        }

        impl Issue {
            /// All codes.
            pub const CODES: &'static [&'static str] = &[$($code),*];

            /// The name by which scripts know the issue.
            #[must_use]
            pub fn code(&self) -> &'static str {
                match self { $(Self::$variant { .. } => $code,)* }
            }

            /// The severity of the issue.
            #[must_use]
            pub fn severity(&self) -> Severity {
                match self { $(Self::$variant { .. } => Severity::$severity,)* }
            }

            fn put_facts<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
                match self {
                    $(Self::$variant { $($field),* } => { $($field.put(stringify!($field), map)?;)* })*
                }
                Ok(())
            }
        }

        impl fmt::Display for Issue {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self { $(Self::$variant { $($field),* } => write!(f, $text),)* }
            }
        }
    };
}

impl serde::Serialize for Issue {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("code", self.code())?;
        map.serialize_entry("severity", self.severity().name())?;
        self.put_facts(&mut map)?;
        map.serialize_entry("text", &self.to_string())?;
        map.end()
    }
}

issues! {
    /// A superblock copy is invalid.
    SuperCopyDamaged { device: String, offset: u64, why: String }
        = "super-copy-damaged", Error, "superblock at {offset} of {device}: {why}";
    /// A superblock copy was never written: its place has other bytes.
    SuperCopyMissing { device: String, offset: u64 }
        = "super-copy-missing", Warning, "superblock at {offset} of {device} was never written";
    /// A superblock copy is older than the commit that the volume uses.
    SuperCopyStale { device: String, offset: u64, found: Generation, newest: Generation }
        = "super-copy-stale", Warning,
        "superblock at {offset} of {device} has generation {found}, the newest is {newest}";
    /// A superblock copy contradicts the copy that the check uses: same generation with other
    /// content, a newer generation, or another volume.
    SuperCopyMismatch { device: String, offset: u64 }
        = "super-copy-mismatch", Error, "superblock at {offset} of {device} differs from the first";
    /// A sum in the superblock differs from the sum over the trees.
    SuperField { field: &'static str, found: u64, expected: u64 }
        = "super-field", Error, "superblock: {field} is {found}, expected {expected}";
    /// The superblock's own list of chunks contradicts the chunk tree.
    SuperChunk { chunk: Logical, why: &'static str }
        = "super-chunk", Error, "superblock: chunk {chunk} {why}";
    /// The volume was not unmounted after an fsync.
    LogPresent { log: Logical }
        = "log-present", Note, "there is a log tree at {log}: it is replayed at the next mount";
    /// A log tree cannot be read, so the last fsyncs cannot be replayed.
    LogDamaged { logical: Logical, why: String }
        = "log-damaged", Error, "the log tree at {logical} is damaged: {why}";
    /// The content of a log contradicts itself or the trees, so a replay of it fails or does harm.
    LogItem { subvolume: TreeId, why: String }
        = "log-item", Error, "the log of subvolume {subvolume}: {why}";
    /// A log of a subvolume that is not there. A replay leaves this log out.
    LogUnused { subvolume: TreeId }
        = "log-unused", Warning, "there is a log of subvolume {subvolume}, which is not there";
    /// A log uses space that it must not use.
    LogExtent { extent: Extent, why: &'static str }
        = "log-extent", Error, "the logs use {extent}: {why}";
    /// Data of a log has no checksum, and its file needs one.
    LogCsumMissing { subvolume: TreeId, ino: Ino, at: Logical }
        = "log-csum-missing", Error,
        "the log of subvolume {subvolume}: data of inode {ino} at {at} has no checksum";

    /// The chunk tree names a device that was not given.
    DeviceMissing { device: DeviceId }
        = "device-missing", Error, "device {device} is missing";
    /// A device was given that the chunk tree does not name.
    DeviceUnknown { device: DeviceId }
        = "device-unknown", Error, "device {device} has no device item";
    /// A device item contradicts the superblock of the device.
    DeviceField { device: DeviceId, field: &'static str, found: u64, expected: u64 }
        = "device-field", Error,
        "device {device}: {field} is {found} in its item, {expected} in its superblock";
    /// A device item's used bytes differ from the sum of its device extents.
    DeviceUsed { device: DeviceId, found: u64, expected: u64 }
        = "device-used", Error, "device {device}: {found} bytes used recorded, its extents have {expected}";
    /// A chunk's stripe has no device extent.
    DevExtentMissing { device: DeviceId, offset: u64, chunk: Logical }
        = "dev-extent-missing", Error,
        "device {device}: no device extent at {offset} for the stripe of chunk {chunk}";
    /// A device extent belongs to no chunk's stripe.
    DevExtentUnused { device: DeviceId, offset: u64, chunk: Logical }
        = "dev-extent-unused", Error,
        "device {device}: extent at {offset} is no stripe of chunk {chunk}";
    /// A device extent has another length than its chunk's stripe.
    DevExtentLength { device: DeviceId, offset: u64, found: u64, expected: u64 }
        = "dev-extent-length", Error,
        "device {device}: extent at {offset} has {found} bytes, its stripe {expected}";
    /// Two device extents share bytes.
    DevExtentOverlap { device: DeviceId, offset: u64 }
        = "dev-extent-overlap", Error, "device {device}: extent at {offset} overlaps the one before";
    /// A device extent ends past the end of the device.
    DevExtentPastEnd { device: DeviceId, offset: u64, end: u64, device_end: u64 }
        = "dev-extent-past-end", Error,
        "device {device}: extent at {offset} ends at {end}, the device at {device_end}";
    /// A chunk item is invalid or cannot be used.
    ChunkInvalid { chunk: Logical, why: String }
        = "chunk-invalid", Error, "chunk {chunk}: {why}";
    /// A chunk has no block group.
    BlockGroupMissing { chunk: Extent }
        = "block-group-missing", Error, "chunk {chunk} has no block group";
    /// A block group has no chunk.
    ChunkMissing { group: Extent }
        = "chunk-missing", Error, "block group {group} has no chunk";
    /// A block group contradicts its chunk.
    BlockGroupMismatch { group: Logical, field: &'static str, found: u64, expected: u64 }
        = "block-group-mismatch", Error,
        "block group {group}: {field} is {found:#x}, its chunk's is {expected:#x}";
    /// A block group's used bytes differ from the sum of its extents.
    BlockGroupUsed { group: Logical, found: u64, expected: u64 }
        = "block-group-used", Error,
        "block group {group}: {found} bytes used recorded, its extents have {expected}";

    /// One copy of a node is bad, and another copy is good.
    NodeCopyDamaged { logical: Logical, mirror: u32, why: String }
        = "node-copy-damaged", Error, "node {logical}, mirror {mirror}: {why}; another copy is good";
    /// No copy of a node is good.
    NodeDamaged { tree: TreeId, logical: Logical, why: String }
        = "node-damaged", Error, "{tree}: node {logical}: {why}";
    /// A node in this tree was written for another tree.
    NodeOwner { tree: TreeId, logical: Logical, found: TreeId }
        = "node-owner", Error, "{tree}: node {logical} was written for {found}";
    /// A node's header has flags or a back-reference revision that are not possible in its tree.
    NodeFlags { tree: TreeId, logical: Logical, flags: u64, revision: u8 }
        = "node-flags", Error,
        "{tree}: node {logical} has the flags {flags:#x}, and back references of revision {revision}";
    /// The tree that a node was written for has no reference to the node. The tree must have a
    /// reference, because it was the first user of the node.
    NodeOwnerRef { logical: Logical, owner: TreeId }
        = "node-owner-ref", Error,
        "node {logical} was written for {owner}, which has no reference to it";
    /// A node is newer than the superblock.
    NodeGeneration { tree: TreeId, logical: Logical, found: Generation, newest: Generation }
        = "node-generation", Error,
        "{tree}: node {logical} has generation {found}, the superblock {newest}";
    /// A node has a key that is not below the next key in its parent.
    NodeBounds { tree: TreeId, logical: Logical, key: Key }
        = "node-bounds", Error, "{tree}: node {logical}: {key} lies outside its parent's range";
    /// Two pointers lead to the same node, in a tree that must not share nodes.
    NodeShared { tree: TreeId, logical: Logical }
        = "node-shared", Error, "{tree}: node {logical} is part of two trees";
    /// An item's bytes are invalid.
    ItemMalformed { tree: TreeId, logical: Logical, key: Key, why: String }
        = "item-malformed", Error, "{tree}: leaf {logical}: {key}: {why}";
    /// An item of a kind that the tree does not hold.
    ItemUnexpected { tree: TreeId, logical: Logical, key: Key }
        = "item-unexpected", Error, "{tree}: leaf {logical}: {key} has no place in this tree";
    /// An item is newer than the superblock.
    ItemGeneration { tree: TreeId, key: Key, found: Generation, newest: Generation }
        = "item-generation", Error, "{tree}: {key} has generation {found}, the superblock {newest}";

    /// A tree or file uses an extent that is not recorded.
    ExtentMissing { extent: Logical, user: String }
        = "extent-missing", Error, "extent {extent} is used by {user}, but not recorded";
    /// A recorded extent that nothing uses.
    ExtentUnused { extent: Extent }
        = "extent-unused", Error, "extent {extent} is recorded, but nothing uses it";
    /// Two recorded extents share bytes.
    ExtentOverlap { extent: Extent, before: Extent }
        = "extent-overlap", Error, "extent {extent} overlaps {before}";
    /// The record of an extent contradicts its use.
    ExtentMismatch { extent: Logical, field: &'static str, found: u64, expected: u64 }
        = "extent-mismatch", Error, "extent {extent}: {field} is {found}, expected {expected}";
    /// The reference count of an extent differs from the sum of its recorded references.
    ExtentRefs { extent: Logical, found: u64, expected: u64 }
        = "extent-refs", Error,
        "extent {extent}: {found} references counted, {expected} recorded one by one";
    /// A use that the extent's record does not name.
    BackrefMissing { extent: Logical, user: String, uses: u64 }
        = "backref-missing", Error, "extent {extent}: {user} uses it {uses} times, not recorded";
    /// A recorded reference without a user.
    BackrefUnused { extent: Logical, user: String, recorded: u64 }
        = "backref-unused", Error,
        "extent {extent}: {recorded} references by {user} recorded, none exists";
    /// A recorded reference with a wrong count.
    BackrefCount { extent: Logical, user: String, recorded: u64, uses: u64 }
        = "backref-count", Error,
        "extent {extent}: {recorded} references by {user} recorded, {uses} exist";
    /// A reference is at a place where a search does not find it, or is of the wrong kind for its
    /// extent.
    BackrefOrder { extent: Logical, key: Key, why: &'static str }
        = "backref-order", Error, "extent {extent}: {key}: {why}";
    /// An extent that lies in no block group.
    ExtentOutside { extent: Extent }
        = "extent-outside", Error, "extent {extent} does not lie within one block group";
    /// A node is in a block group for data, or data is in a block group for nodes. Or a node of the
    /// chunk tree is outside of system groups, or another node is in a system group.
    ExtentGroup { extent: Logical, group: Logical }
        = "extent-group", Error, "extent {extent} is of another kind than its block group {group}";

    /// The free-space tree is marked invalid.
    FreeSpaceInvalid { tree: TreeId }
        = "free-space-invalid", Note, "{tree} is not valid: it is rebuilt at the next mount";
    /// A block group has no record in the free-space tree.
    FreeSpaceInfoMissing { group: Logical }
        = "free-space-info-missing", Error, "free space of block group {group} is not recorded";
    /// Free space is recorded outside of any block group, and not as mkfs.btrfs leaves it.
    FreeSpaceUnexpected { key: Key }
        = "free-space-unexpected", Warning, "free space: {key} belongs to no block group";
    /// The recorded free space differs from the space between the extents.
    FreeSpaceMismatch { group: Logical, at: Logical, what: &'static str }
        = "free-space-mismatch", Error, "free space of block group {group}: {at} {what}";
    /// The count of free runs is wrong.
    FreeSpaceCount { group: Logical, found: u64, expected: u64 }
        = "free-space-count", Error,
        "free space of block group {group}: {found} runs counted, {expected} recorded one by one";

    /// A tree is missing that every volume with these features has.
    RootMissing { tree: TreeId }
        = "root-missing", Error, "there is no {tree}";
    /// A root item names the wrong root directory. Every tree of files has the same root directory.
    RootDirectory { tree: TreeId, ino: Ino }
        = "root-directory", Error, "{tree}: inode {ino} is said to be its root directory";
    /// A subvolume that no reference leads to.
    RootUnreferenced { tree: TreeId }
        = "root-unreferenced", Error, "subvolume {tree}: nothing refers to it";
    /// A reference to a subvolume that is not there.
    RootRefDangling { tree: TreeId, parent: TreeId }
        = "root-ref-dangling", Error, "subvolume {tree} is referred to by {parent}, but not there";
    /// One direction of a reference between subvolumes is missing, the two differ, or the parent
    /// does not exist.
    RootRefMismatch { tree: TreeId, parent: TreeId, why: &'static str }
        = "root-ref-mismatch", Error, "subvolume {tree} in {parent}: {why}";
    /// A subvolume's reference names a directory entry that is not there.
    RootEntryMissing { tree: TreeId, parent: TreeId, dir: Ino, name: Name }
        = "root-entry-missing", Error,
        "subvolume {tree}: no entry \"{name}\" for it in directory {dir} of {parent}";
    /// The directory of the root tree does not name an existing default subvolume.
    DefaultMissing { why: &'static str }
        = "default-missing", Error, "default subvolume: {why}";
    /// The uuid tree has no entry for a subvolume.
    UuidMissing { tree: TreeId }
        = "uuid-missing", Warning, "subvolume {tree} is not found by its uuid";
    /// The uuid tree names a subvolume that has another uuid, or is not there.
    UuidStale { tree: TreeId, key: Key }
        = "uuid-stale", Warning, "{key} names subvolume {tree}, which has another uuid or is gone";

    /// Items of an inode that is not there.
    InodeMissing { tree: TreeId, ino: Ino }
        = "inode-missing", Error, "{tree}: inode {ino} has items but is not there";
    /// An inode's mode is invalid: no file type, a type that contradicts the inode's items, or
    /// unknown bits.
    InodeMode { tree: TreeId, ino: Ino, mode: u32 }
        = "inode-mode", Error, "{tree}: inode {ino} has mode {mode:o}";
    /// An inode's link count differs from the number of its names.
    InodeLinks { tree: TreeId, ino: Ino, found: u64, expected: u64 }
        = "inode-links", Error, "{tree}: inode {ino} says {found} links, {expected} names lead to it";
    /// A directory's size differs from the sum over its names.
    DirSize { tree: TreeId, ino: Ino, found: u64, expected: u64 }
        = "dir-size", Error, "{tree}: directory {ino} has size {found}, its names make {expected}";
    /// An inode's count of bytes differs from the sum of its extents.
    InodeBytes { tree: TreeId, ino: Ino, found: u64, expected: u64 }
        = "inode-bytes", Error, "{tree}: inode {ino} says {found} bytes, its extents have {expected}";
    /// An inode has no name, and no orphan item makes a mount remove it.
    OrphanMissing { tree: TreeId, ino: Ino }
        = "orphan-missing", Error, "{tree}: inode {ino} has no name and no orphan item";
    /// An inode has items or flags that do not fit its type.
    InodeOdd { tree: TreeId, ino: Ino, why: &'static str }
        = "inode-odd", Error, "{tree}: inode {ino}: {why}";
    /// An inode has a name that its directory does not list.
    DirEntryMissing { tree: TreeId, dir: Ino, ino: Ino, name: Name }
        = "dir-entry-missing", Error,
        "{tree}: inode {ino} says it is \"{name}\" in directory {dir}, which has no such entry";
    /// A directory has an entry for which the inode has no reference.
    InodeRefMissing { tree: TreeId, dir: Ino, ino: Ino, name: Name }
        = "inode-ref-missing", Error,
        "{tree}: directory {dir} has \"{name}\" for inode {ino}, which does not know this name";
    /// A directory has several names. Only one is possible.
    DirNames { tree: TreeId, ino: Ino, names: u64 }
        = "dir-names", Error, "{tree}: directory {ino} states {names} names for itself";
    /// A lookup in a directory finds a name twice, for the same inode.
    DirItemDoubled { tree: TreeId, dir: Ino, name: Name }
        = "dir-item-doubled", Error, "{tree}: a lookup in directory {dir} finds \"{name}\" twice";
    /// A name of a directory leads to a second inode.
    NameDoubled { tree: TreeId, dir: Ino, ino: Ino, name: Name }
        = "name-doubled", Error,
        "{tree}: \"{name}\" in directory {dir} leads to another inode and to {ino}";
    /// An entry says another file type than its inode.
    DirEntryKind { tree: TreeId, dir: Ino, ino: Ino, name: Name }
        = "dir-entry-kind", Error,
        "{tree}: entry \"{name}\" of directory {dir} has another file type than inode {ino}";
    /// A name that a directory lists and cannot look up.
    DirItemMissing { tree: TreeId, dir: Ino, name: Name }
        = "dir-item-missing", Error, "{tree}: directory {dir} lists \"{name}\", and cannot look it up";
    /// A name that a directory can look up and does not list.
    DirIndexMissing { tree: TreeId, dir: Ino, name: Name }
        = "dir-index-missing", Error, "{tree}: directory {dir} does not list \"{name}\"";
    /// An item with a key that is not the hash of its name.
    NameHash { tree: TreeId, key: Key, name: Name }
        = "name-hash", Error, "{tree}: {key} is not where \"{name}\" belongs";
    /// Two extents of a file share bytes.
    FileOverlap { tree: TreeId, ino: Ino, offset: u64 }
        = "file-overlap", Error, "{tree}: inode {ino}: the extent at {offset} overlaps the one before";
    /// A hole without an item, on a volume that has items for holes.
    FileHole { tree: TreeId, ino: Ino, offset: u64 }
        = "file-hole", Error, "{tree}: inode {ino}: nothing says what is at {offset}";
    /// An extent past the end of a file.
    FileBeyondEnd { tree: TreeId, ino: Ino, end: u64, size: u64 }
        = "file-beyond-end", Warning, "{tree}: inode {ino} has size {size} and an extent up to {end}";
    /// The descriptor or the Merkle tree of a file with fs-verity is wrong, so its reads fail.
    VerityDamaged { tree: TreeId, ino: Ino, why: &'static str }
        = "verity-damaged", Error, "{tree}: inode {ino}: fs-verity: {why}";
    /// A file without fs-verity has a part of a Merkle tree, and no orphan item makes a mount
    /// remove it.
    VerityLeft { tree: TreeId, ino: Ino }
        = "verity-left", Warning,
        "{tree}: inode {ino} has a part of a Merkle tree, and no fs-verity";
    /// An invalid extent of a file.
    FileExtentInvalid { tree: TreeId, ino: Ino, offset: u64, why: &'static str }
        = "file-extent-invalid", Error, "{tree}: inode {ino}: extent at {offset}: {why}";

    /// Data without checksums, although its file has checksums.
    CsumMissing { tree: TreeId, ino: Ino, offset: u64, at: Logical }
        = "csum-missing", Error, "{tree}: inode {ino} at {offset}: no checksum for {at}";
    /// Checksums of data, although its file has no checksums.
    CsumUnexpected { tree: TreeId, ino: Ino, offset: u64, at: Logical }
        = "csum-unexpected", Error, "{tree}: inode {ino} at {offset} has no checksums, but {at} has";
    /// Checksums of bytes that belong to no extent.
    CsumUnused { at: Extent }
        = "csum-unused", Error, "checksums for {at}, where no data is";
    /// A record of free inode numbers by an old kernel. Newer kernels do not read it.
    InodeCache { tree: TreeId, key: Key }
        = "inode-cache", Warning, "{tree}: {key} is left of the inode cache of an old kernel";
    /// Two checksum items for the same bytes.
    CsumOverlap { at: Logical }
        = "csum-overlap", Error, "checksums at {at} overlap those before";
    /// A stripe item says that data lies where it cannot lie.
    StripeInvalid { at: Extent, why: &'static str }
        = "stripe-invalid", Error, "the stripe item of {at}: {why}";
    /// Written data without a stripe item, in a group with stripe items.
    StripeMissing { tree: TreeId, ino: Ino, offset: u64, at: Logical }
        = "stripe-missing", Error, "{tree}: inode {ino} at {offset}: no stripe item for {at}";
    /// A stripe item of bytes that belong to no extent. Linux may leave such an item behind when
    /// it overwrites data in place.
    StripeUnused { at: Extent }
        = "stripe-unused", Warning, "a stripe item for {at}, where no data is";
    /// A stripe item that reaches past the end of its extent.
    StripeCrosses { at: Extent }
        = "stripe-crosses", Warning, "the stripe item of {at} reaches past the end of its extent";
    /// Two stripe items for the same bytes. Linux makes them when it overwrites data in place.
    StripeOverlap { at: Logical }
        = "stripe-overlap", Warning, "the stripe item at {at} overlaps the one before";
    /// Data that does not match its checksum.
    DataDamaged { at: Logical, mirror: u32 }
        = "data-damaged", Error, "data at {at}, mirror {mirror}: checksum does not match";
    /// Data that cannot be read.
    DataUnreadable { at: Logical, mirror: u32, why: String }
        = "data-unreadable", Error, "data at {at}, mirror {mirror}: {why}";

    /// Parity that does not match its data, which is right. A scrub writes the parity anew.
    ParityMismatch { row: Extent, device: DeviceId, offset: u64, bytes: u64 }
        = "parity-mismatch", Error,
        "parity of {row}: {bytes} bytes on device {device}, from {offset} on, do not match the data";

    /// Quotas are marked inconsistent: the next mount counts them again.
    QuotaInconsistent { flags: u64 }
        = "quota-inconsistent", Note, "quotas are marked inconsistent (flags {flags:#x})";
    /// A quota group counts other bytes than its subvolume created (simple quotas).
    QuotaCount { subvolume: TreeId, field: &'static str, found: u64, expected: u64 }
        = "quota-count", Error,
        "quota group of {subvolume}: {field} is {found}, what it made and lives is {expected}";
    /// A quota group counts other bytes than its subvolumes reach (full quotas).
    QuotaReach { group: QuotaGroup, field: &'static str, found: u64, expected: u64 }
        = "quota-reach", Error,
        "quota group {group}: {field} is {found}, its subvolumes reach {expected}";
    /// A part of the volume that was not checked.
    NotChecked { what: &'static str }
        = "not-checked", Note, "not checked: {what}";
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Q2, and each code is one word in lower case with hyphens.
    #[test]
    fn codes_are_unique_words() {
        let mut codes = Issue::CODES.to_vec();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), Issue::CODES.len(), "Q2");
        let word = |byte: u8| byte.is_ascii_lowercase() || byte == b'-';
        assert!(codes.iter().all(|code| code.bytes().all(word)));
    }

    /// Every field of an issue is in its serialised form, beside code, severity and text.
    #[test]
    fn scripts_read_facts() {
        let name = Name(b"a\xff\n".to_vec());
        let issue = Issue::DirIndexMissing { tree: TreeId::FS, dir: Ino(256), name };
        let value = serde_json::to_value(&issue).expect("plain facts");
        assert_eq!(value["code"], "dir-index-missing");
        assert_eq!(value["severity"], "error");
        assert_eq!(value["tree"], 5);
        assert_eq!(value["name"], "a\u{fffd}ff\n");
        assert!(value["text"].as_str().is_some_and(|text| text.contains("FS_TREE")));
    }
}
