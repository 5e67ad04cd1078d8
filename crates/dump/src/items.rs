//! Every kind of item as text.
//!
//! An item that does not parse is printed with the parser's error, and the dump continues. Most
//! dumps are taken from damaged volumes.

use std::io::{Result, Write};

use buttress_format::{
    BackRef, BlockGroupItem, Body, Chunk, Compression, DevExtent, DevStats, DeviceItem, DirEntry,
    ExtentFlags, ExtentItem, FileExtent, FileKind, FreeSpaceInfo, InodeExtrefs, InodeItem,
    InodeRefs, Key, Kind, ReplaceItem, RootFlags, RootItem, RootRef, StripeItem, Timespec,
    UuidItem, ids,
};
use buttress_tree::Geometry;
use buttress_volume::Uuid;

use crate::form::{csums, each_csum};
use crate::{quota, when};

pub use crate::form::{Form, csum};

/// A key, with its numbers in the form of dump-tree.
pub fn key(key: &Key) -> String {
    match key.kind {
        Kind::UUID_KEY_SUBVOL | Kind::UUID_KEY_RECEIVED_SUBVOL => {
            let (kind, offset) = (key.kind.name().unwrap_or_default(), key.offset);
            format!("({} {kind} 0x{offset:016x})", ids::objectid_name(key.objectid, key.kind))
        }
        Kind::QGROUP_RELATION | Kind::QGROUP_INFO | Kind::QGROUP_LIMIT => {
            let name = match key.kind {
                Kind::QGROUP_RELATION => ids::objectid_name(key.objectid, key.kind),
                _ => key.objectid.to_string(),
            };
            let (kind, offset) = (key.kind.name().unwrap_or_default(), key.offset);
            format!("({name} {kind} {}/{})", offset >> 48, offset & ((1 << 48) - 1))
        }
        // In a key of the root tree, an offset of -1 means "the newest".
        Kind::ROOT_ITEM if key.offset == u64::MAX => {
            let name = ids::objectid_name(key.objectid, key.kind);
            format!("({name} ROOT_ITEM {})", key.offset)
        }
        _ => key.to_string(),
    }
}

/// Prints the content of an item.
pub fn print(
    key: &Key,
    bytes: &[u8],
    geometry: &Geometry,
    form: Form,
    out: &mut impl Write,
) -> Result<()> {
    let text = |name: &[u8]| form.text(name);
    let parsed = match key.kind {
        Kind::INODE_ITEM => InodeItem::parse(bytes).map(|item| inode(&item)),
        Kind::INODE_REF => InodeRefs::parse(bytes).map(|refs| {
            let line = |r: &buttress_format::InodeRef| {
                format!("index {} namelen {} name: {}", r.index, r.name.len(), text(&r.name))
            };
            refs.iter().map(line).collect()
        }),
        Kind::INODE_EXTREF => InodeExtrefs::parse(bytes).map(|refs| {
            let line = |r: &buttress_format::InodeExtref| {
                let (index, parent, len) = (r.index, r.parent, r.name.len());
                format!("index {index} parent {parent} namelen {len} name: {}", text(&r.name))
            };
            refs.iter().map(line).collect()
        }),
        Kind::DIR_ITEM | Kind::DIR_INDEX | Kind::XATTR_ITEM => {
            let lines =
                |entries: Vec<DirEntry>| entries.iter().flat_map(|one| entry(one, form)).collect();
            DirEntry::parse_all(bytes).map(lines)
        }
        Kind::ROOT_ITEM => RootItem::parse(bytes).map(|item| root(&item, bytes.len())),
        Kind::ROOT_REF | Kind::ROOT_BACKREF => RootRef::parse(bytes).map(|r| {
            let back = if key.kind == Kind::ROOT_BACKREF { "back" } else { "" };
            let (dirid, sequence) = (r.dirid, r.sequence);
            let name = text(&r.name);
            vec![format!("root {back}ref key dirid {dirid} sequence {sequence} name {name}")]
        }),
        Kind::EXTENT_ITEM | Kind::METADATA_ITEM => {
            ExtentItem::parse(key, bytes).map(|item| extent(key, &item))
        }
        Kind::TREE_BLOCK_REF
        | Kind::SHARED_BLOCK_REF
        | Kind::EXTENT_DATA_REF
        | Kind::SHARED_DATA_REF
        | Kind::EXTENT_OWNER_REF => {
            BackRef::keyed_parse(key, bytes).map(|r| vec![keyed_reference(&r)])
        }
        Kind::EXTENT_DATA => FileExtent::parse(bytes).map(|item| file_extent(&item, bytes.len())),
        Kind::BLOCK_GROUP_ITEM => BlockGroupItem::parse(bytes).map(|item| {
            vec![format!(
                "block group used {} chunk_objectid {} flags {}",
                item.used,
                item.chunk_objectid,
                group_flags(item.flags)
            )]
        }),
        Kind::FREE_SPACE_INFO => FreeSpaceInfo::parse(bytes).map(|info| {
            let (count, flags) = (info.extent_count, info.flags);
            vec![format!("free space info extent count {count} flags {flags}")]
        }),
        Kind::FREE_SPACE_EXTENT => Ok(vec!["free space extent".to_owned()]),
        Kind::FREE_SPACE_BITMAP => Ok(vec!["free space bitmap".to_owned()]),
        Kind::CHUNK_ITEM => Chunk::parse(key, bytes).map(|item| chunk(&item)),
        Kind::DEV_ITEM => DeviceItem::parse(bytes).map(|item| device(&item)),
        Kind::DEV_EXTENT => DevExtent::parse(bytes).map(|item| {
            vec![
                format!("dev extent chunk_tree {}", item.chunk_tree),
                format!(
                    "chunk_objectid {} chunk_offset {} length {}",
                    item.chunk_objectid, item.chunk_offset, item.length
                ),
                format!("chunk_tree_uuid {}", Uuid(item.chunk_tree_uuid)),
            ]
        }),
        Kind::PERSISTENT_ITEM => DevStats::parse(bytes).map(|item| device_stats(key, &item)),
        Kind::DEV_REPLACE => ReplaceItem::parse(bytes).map(|item| replacement(&item)),
        Kind::UUID_KEY_SUBVOL | Kind::UUID_KEY_RECEIVED_SUBVOL => UuidItem::parse(bytes)
            .map(|item| item.0.iter().map(|tree| format!("subvol_id {}", tree.0)).collect()),
        Kind::RAID_STRIPE => StripeItem::parse(bytes).map(|item| stripes(&item)),
        Kind::EXTENT_CSUM => {
            let mut lines = vec![csums(key, bytes.len(), geometry)];
            if form.shows_csums {
                lines.extend(each_csum(key, bytes, geometry));
            }
            Ok(lines)
        }
        Kind::ORPHAN_ITEM => Ok(vec!["orphan item".to_owned()]),
        _ => Ok(quota::lines(key, bytes).unwrap_or_default()),
    };
    match parsed {
        Ok(lines) => lines.iter().try_for_each(|line| writeln!(out, "\t\t{line}")),
        Err(error) => writeln!(out, "\t\tdoes not parse: {error}"),
    }
}

fn inode(item: &InodeItem) -> Vec<String> {
    vec![
        format!(
            "generation {} transid {} size {} nbytes {}",
            item.generation, item.transid, item.size, item.nbytes
        ),
        format!(
            "block group {} mode {:o} links {} uid {} gid {} rdev {}",
            item.block_group, item.mode, item.nlink, item.uid, item.gid, item.rdev
        ),
        format!("sequence {} flags {:#x}({})", item.sequence, item.flags, inode_flags(item.flags)),
        time("atime", item.atime),
        time("ctime", item.ctime),
        time("mtime", item.mtime),
        time("otime", item.otime),
    ]
}

fn stripes(item: &StripeItem) -> Vec<String> {
    let line = |(index, stride): (usize, &buttress_format::Stride)| {
        let (device, offset) = (stride.device, stride.offset);
        format!("\tstripe {index} devid {device} physical {offset}")
    };
    item.0.iter().enumerate().map(line).collect()
}

fn inode_flags(flags: u64) -> String {
    const NAMES: [&str; 12] = [
        "NODATASUM",
        "NODATACOW",
        "READONLY",
        "NOCOMPRESS",
        "PREALLOC",
        "SYNC",
        "IMMUTABLE",
        "APPEND",
        "NODUMP",
        "NOATIME",
        "DIRSYNC",
        "COMPRESS",
    ];
    let low = NAMES.iter().enumerate().map(|(bit, name)| (1_u64 << bit, *name));
    let named = low.chain([(1 << 31, "ROOT_ITEM_INIT")]);
    joined(named.filter(|(bit, _)| flags & bit != 0).map(|(_, name)| name))
}

fn joined<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    if names.is_empty() { "none".to_owned() } else { names.join("|") }
}

fn time(name: &str, time: Timespec) -> String {
    format!("{name} {}.{} ({})", time.sec, time.nsec, when::date_time(time.sec))
}

fn entry(entry: &DirEntry, form: Form) -> Vec<String> {
    let kind = match entry.kind {
        FileKind::Unknown => "UNKNOWN",
        FileKind::Regular => "FILE",
        FileKind::Directory => "DIR",
        FileKind::CharDevice => "CHRDEV",
        FileKind::BlockDevice => "BLKDEV",
        FileKind::Fifo => "FIFO",
        FileKind::Socket => "SOCK",
        FileKind::Symlink => "SYMLINK",
        FileKind::Xattr => "XATTR",
    };
    let mut lines = vec![
        format!("location key {} type {kind}", key(&entry.location)),
        format!(
            "transid {} data_len {} name_len {}",
            entry.transid,
            entry.data.len(),
            entry.name.len()
        ),
        format!("name: {}", form.text(&entry.name)),
    ];
    if !entry.data.is_empty() {
        lines.push(format!("data {}", form.text(&entry.data)));
    }
    lines
}

fn root(item: &RootItem, len: usize) -> Vec<String> {
    let flags = [(RootFlags::READONLY, "RDONLY"), (RootFlags::DEAD, "DEAD")];
    let names = flags.into_iter().filter(|(bit, _)| item.flags & bit != 0).map(|(_, name)| name);
    let mut lines = vec![
        format!(
            "generation {} root_dirid {} bytenr {} byte_limit {} bytes_used {}",
            item.generation, item.root_dirid, item.bytenr, item.byte_limit, item.bytes_used
        ),
        format!(
            "last_snapshot {} flags {:#x}({}) refs {}",
            item.last_snapshot,
            item.flags,
            joined(names),
            item.refs
        ),
        format!("drop_progress key {} drop_level {}", key(&item.drop_progress), item.drop_level),
    ];
    if len < RootItem::LEN {
        lines.push(format!("level {}", item.level));
        return lines;
    }
    lines.extend([
        format!("level {} generation_v2 {}", item.level, item.generation_v2),
        format!("uuid {}", Uuid(item.uuid)),
        format!("parent_uuid {}", Uuid(item.parent_uuid)),
        format!("received_uuid {}", Uuid(item.received_uuid)),
        format!(
            "ctransid {} otransid {} stransid {} rtransid {}",
            item.ctransid, item.otransid, item.stransid, item.rtransid
        ),
        time("ctime", item.ctime),
        time("otime", item.otime),
        time("stime", item.stime),
        time("rtime", item.rtime),
    ]);
    lines
}

fn extent(at: &Key, item: &ExtentItem) -> Vec<String> {
    let flags = [
        (ExtentFlags::DATA, "DATA"),
        (ExtentFlags::TREE_BLOCK, "TREE_BLOCK"),
        (ExtentFlags::FULL_BACKREF, "FULL_BACKREF"),
    ];
    let names = flags.into_iter().filter(|(bit, _)| item.flags & bit != 0).map(|(_, name)| name);
    let mut lines =
        vec![format!("refs {} gen {} flags {}", item.refs, item.generation, joined(names))];
    if at.kind == Kind::METADATA_ITEM {
        lines.push(format!("tree block skinny level {}", at.offset));
    } else if let Some((first, level)) = &item.tree_block {
        lines.push(format!("tree block {} level {level}", key_words(first)));
    }
    lines.extend(item.inline.iter().map(inline_reference));
    lines
}

fn key_words(first: &Key) -> String {
    format!("key {}", key(first))
}

fn inline_reference(reference: &BackRef) -> String {
    match reference {
        BackRef::TreeBlock { root } => format!("tree block backref root {root}"),
        BackRef::SharedBlock { parent } => format!("shared block backref parent {parent}"),
        BackRef::Data { .. } => keyed_reference(reference),
        BackRef::SharedData { parent, count } => {
            format!("shared data backref parent {parent} count {count}")
        }
        BackRef::Owner { root } => format!("extent owner root {root}"),
    }
}

/// A reference in an item of its own, without the fields that the key already shows.
fn keyed_reference(reference: &BackRef) -> String {
    match reference {
        BackRef::TreeBlock { .. } => "tree block backref".to_owned(),
        BackRef::SharedBlock { .. } => "shared block backref".to_owned(),
        BackRef::Data { root, ino, offset, count } => {
            format!("extent data backref root {root} objectid {ino} offset {offset} count {count}")
        }
        BackRef::SharedData { count, .. } => format!("shared data backref count {count}"),
        BackRef::Owner { root } => format!("extent owner root {root}"),
    }
}

fn file_extent(item: &FileExtent, len: usize) -> Vec<String> {
    let compression = match item.compression {
        Compression::None => (0, "none"),
        Compression::Zlib => (1, "zlib"),
        Compression::Lzo => (2, "lzo"),
        Compression::Zstd => (3, "zstd"),
    };
    let (number, name) = compression;
    let head = |kind: &str| format!("generation {} type {kind}", item.generation);
    match &item.body {
        Body::Inline(_) => vec![
            head("0 (inline)"),
            format!(
                "inline extent data size {} ram_bytes {} compression {number} ({name})",
                len.saturating_sub(FileExtent::INLINE_HEAD),
                item.ram_bytes
            ),
        ],
        Body::Regular(region) => vec![
            head("1 (regular)"),
            format!("extent data disk byte {} nr {}", region.disk, region.disk_len),
            format!(
                "extent data offset {} nr {} ram {}",
                region.offset, region.len, item.ram_bytes
            ),
            format!("extent compression {number} ({name})"),
        ],
        Body::Prealloc(region) => vec![
            head("2 (prealloc)"),
            format!("prealloc data disk byte {} nr {}", region.disk, region.disk_len),
            format!("prealloc data offset {} nr {}", region.offset, region.len),
        ],
    }
}

/// `DATA|single`: kinds and profile.
pub fn group_flags(flags: buttress_format::BlockGroupFlags) -> String {
    use buttress_format::BlockGroupFlags as Flags;
    let kinds = [(Flags::DATA, "DATA"), (Flags::SYSTEM, "SYSTEM"), (Flags::METADATA, "METADATA")];
    let mut names: Vec<&str> =
        kinds.into_iter().filter(|(bit, _)| flags.has(*bit)).map(|(_, name)| name).collect();
    let profiles = [
        (Flags::RAID0, "RAID0"),
        (Flags::RAID1, "RAID1"),
        (Flags::DUP, "DUP"),
        (Flags::RAID10, "RAID10"),
        (Flags::RAID5, "RAID5"),
        (Flags::RAID6, "RAID6"),
        (Flags::RAID1C3, "RAID1C3"),
        (Flags::RAID1C4, "RAID1C4"),
    ];
    let profile = profiles.into_iter().find(|(bit, _)| flags.has(*bit));
    names.push(profile.map_or("single", |(_, name)| name));
    names.join("|")
}

/// Prints a chunk, from the chunk tree or from the superblock.
pub fn chunk(item: &Chunk) -> Vec<String> {
    let mut lines = vec![
        format!(
            "length {} owner {} stripe_len {} type {}",
            item.len,
            item.owner,
            item.stripe_len,
            group_flags(item.flags)
        ),
        format!(
            "io_align {} io_width {} sector_size {}",
            item.io_align, item.io_width, item.sector_size
        ),
        format!("num_stripes {} sub_stripes {}", item.stripes.len(), item.sub_stripes),
    ];
    for (index, stripe) in item.stripes.iter().enumerate() {
        let (device, offset) = (stripe.device, stripe.offset);
        lines.push(format!("\tstripe {index} devid {device} offset {offset}"));
        lines.push(format!("\tdev_uuid {}", Uuid(stripe.dev_uuid)));
    }
    lines
}

fn device(item: &DeviceItem) -> Vec<String> {
    vec![
        format!(
            "devid {} total_bytes {} bytes_used {}",
            item.devid, item.total_bytes, item.bytes_used
        ),
        format!(
            "io_align {} io_width {} sector_size {} type {}",
            item.io_align, item.io_width, item.sector_size, item.kind
        ),
        format!(
            "generation {} start_offset {} dev_group {}",
            item.generation, item.start_offset, item.dev_group
        ),
        format!("seek_speed {} bandwidth {}", item.seek_speed, item.bandwidth),
        format!("uuid {}", Uuid(item.uuid)),
        format!("fsid {}", Uuid(item.fsid)),
    ]
}

fn device_stats(key: &Key, item: &DevStats) -> Vec<String> {
    let [write, read, flush, corruption, generation] = item.counts;
    vec![
        format!("persistent item objectid DEV_STATS offset {}", key.offset),
        "device stats".to_owned(),
        format!(
            "write_errs {write} read_errs {read} flush_errs {flush} corruption_errs {corruption} \
             generation {generation}"
        ),
    ]
}

fn replacement(item: &ReplaceItem) -> Vec<String> {
    let mode = match item.mode {
        0 => "ALWAYS".to_owned(),
        1 => "AVOID".to_owned(),
        other => other.to_string(),
    };
    vec![
        format!(
            "src devid {} cursor left {} cursor right {} mode {mode}",
            item.source.0, item.cursor_left, item.cursor_right
        ),
        format!(
            "state {} write errors {} uncorrectable read errors {}",
            format!("{:?}", item.phase).to_uppercase(),
            item.write_errors,
            item.read_errors
        ),
        format!("start time {} stop time {}", item.started, item.stopped),
    ]
}
