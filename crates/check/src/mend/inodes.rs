//! Proposes repairs of inodes: missing items, modes, counts, and lost files.
//!
//! # Invariants
//!
//! - **MI1** A mode keeps its bits for access. Its type is the one that directory entries have, or
//!   else the only one that fits the inode's items.
//! - **MI2** An inode without a name gets a name in `lost+found`.

use buttress_format::{FileKind, Ino, Key, Kind, TreeId};

use crate::error::Result;
use crate::issue::Name;
use crate::mend::editor::{Edit, Editor, Fix};
use crate::mend::names::{self, Stated};

/// Where fields lie in an inode item.
const GENERATION_AT: usize = 0;
const TRANSID_AT: usize = 8;
const SIZE_AT: usize = 16;
const BYTES_AT: usize = 24;
const LINKS_AT: usize = 40;
const MODE_AT: usize = 52;
const FLAGS_AT: usize = 64;
/// The offset of the times.
const TIMES_AT: usize = 112;
const INODE_LEN: usize = 160;
/// The two flags that forbid changes.
const FROZEN: u64 = buttress_format::InodeFlags::IMMUTABLE | buttress_format::InodeFlags::APPEND;
const ACCESS: u32 = 0o7777;
/// The directory for inodes without another name.
const LOST: &[u8] = b"lost+found";

pub(super) fn key(ino: Ino) -> Key {
    Key::new(ino.0, Kind::INODE_ITEM, 0)
}

/// Sets bytes of an inode item.
fn patched(
    editor: &Editor,
    tree: TreeId,
    ino: Ino,
    change: impl FnOnce(&mut [u8]),
    says: String,
) -> Result<Option<Fix>> {
    let Some(mut bytes) = editor.get(tree, &key(ino))?.filter(|item| item.len() >= INODE_LEN)
    else {
        return Ok(None);
    };
    change(&mut bytes);
    Ok(Some(Fix { says, edits: vec![Edit::Put(tree, key(ino), bytes)] }))
}

pub(super) fn put64(bytes: &mut [u8], at: usize, number: u64) {
    bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
}

fn put32(bytes: &mut [u8], at: usize, number: u32) {
    bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
}

fn get64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}

pub(super) fn size(editor: &Editor, tree: TreeId, ino: Ino, size: u64) -> Result<Option<Fix>> {
    let says = format!("{tree}: directory {ino} has size {size}");
    patched(editor, tree, ino, |bytes| put64(bytes, SIZE_AT, size), says)
}

pub(super) fn bytes(editor: &Editor, tree: TreeId, ino: Ino, count: u64) -> Result<Option<Fix>> {
    let says = format!("{tree}: inode {ino} has {count} bytes");
    patched(editor, tree, ino, |bytes| put64(bytes, BYTES_AT, count), says)
}

pub(super) fn links(editor: &Editor, tree: TreeId, ino: Ino, links: u64) -> Result<Option<Fix>> {
    let Ok(count) = u32::try_from(links) else { return Ok(None) };
    let kind = names::inode(editor, tree, ino)?.map(|item| FileKind::from_mode(item.mode));
    if kind == Some(FileKind::Directory) && count != 1 {
        return Ok(None);
    }
    let says = format!("{tree}: inode {ino} has {links} links");
    patched(editor, tree, ino, |bytes| put32(bytes, LINKS_AT, count), says)
}

/// Sets generations that are newer than the volume to the generation of the volume.
pub(super) fn generation(editor: &Editor, tree: TreeId, ino: Ino) -> Result<Option<Fix>> {
    let newest = editor.superblock.generation.0;
    let says = format!("{tree}: inode {ino} is of transaction {newest}, not of a later one");
    let change = |bytes: &mut [u8]| {
        for at in [GENERATION_AT, TRANSID_AT] {
            let found = get64(bytes, at);
            put64(bytes, at, found.min(newest));
        }
    };
    patched(editor, tree, ino, change, says)
}

/// Removes the flags that make a symbolic link immutable, since a link cannot be immutable.
pub(super) fn thaw(editor: &Editor, tree: TreeId, ino: Ino) -> Result<Option<Fix>> {
    let says = format!("{tree}: inode {ino} is neither immutable nor only appended to");
    let change = |bytes: &mut [u8]| {
        let flags = get64(bytes, FLAGS_AT);
        put64(bytes, FLAGS_AT, flags & !FROZEN);
    };
    patched(editor, tree, ino, change, says)
}

/// The type that an inode must have (MI1).
fn kind_of(editor: &Editor, tree: TreeId, ino: Ino, all: &[Stated]) -> Result<Option<FileKind>> {
    let has = |kind| editor.items(tree, ino.0, kind).map(|items| !items.is_empty());
    let is_dir = has(Kind::DIR_INDEX)? || has(Kind::DIR_ITEM)?;
    let is_file = has(Kind::EXTENT_DATA)?;
    let mut said = Vec::new();
    for one in all {
        let at = Key::new(one.dir, Kind::DIR_INDEX, one.index);
        let entries = editor.entries(tree, &at)?;
        let same = entries
            .into_iter()
            .find(|entry| entry.name == one.name && entry.location.objectid == ino.0);
        said.extend(same.map(|entry| entry.kind));
    }
    said.dedup();
    let fits = |kind: &FileKind| match kind {
        FileKind::Directory => !is_file,
        FileKind::Regular | FileKind::Symlink => !is_dir,
        FileKind::Unknown | FileKind::Xattr => false,
        _ => !is_dir && !is_file,
    };
    let is_top = ino == Ino::ROOT_DIR && tree.is_fs_tree();
    Ok(match said[..] {
        _ if is_top && !is_file => Some(FileKind::Directory),
        [kind] if fits(&kind) => Some(kind),
        [] if is_dir && !is_file => Some(FileKind::Directory),
        // The inodes of the root tree are those of the old free-space cache.
        [] if !is_dir && (is_file || tree == TreeId::ROOT) => Some(FileKind::Regular),
        _ => None,
    })
}

pub(super) fn mode(editor: &Editor, tree: TreeId, ino: Ino) -> Result<Option<Fix>> {
    let Some(item) = names::inode(editor, tree, ino)? else { return Ok(None) };
    let all = names::stated(editor, tree, ino)?;
    let found = FileKind::from_mode(item.mode);
    // If neither entries nor items decide, the type in the mode stays, and only the other bits of
    // the mode are mended.
    let kind = kind_of(editor, tree, ino, &all)?;
    let kind = kind.or(Some(found).filter(|kind| *kind != FileKind::Unknown));
    let Some(kind) = kind else { return Ok(None) };
    let is_cache = tree == TreeId::ROOT && kind == FileKind::Regular;
    let access = if is_cache { 0o600 } else { item.mode & ACCESS };
    let mode = kind.mode_bits() | access;
    if mode == item.mode {
        return Ok(None);
    }
    let says = format!("{tree}: inode {ino} has mode {mode:o}, not {:o}", item.mode);
    patched(editor, tree, ino, |bytes| put32(bytes, MODE_AT, mode), says)
}

/// Makes the item of an inode anew.
pub(super) fn missing(editor: &Editor, tree: TreeId, ino: Ino) -> Result<Option<Fix>> {
    if editor.get(tree, &key(ino))?.is_some() {
        return Ok(None);
    }
    let all = names::stated(editor, tree, ino)?;
    let Some(kind) = kind_of(editor, tree, ino, &all)? else { return Ok(None) };
    if !matches!(kind, FileKind::Directory | FileKind::Regular | FileKind::Symlink) {
        return Ok(None);
    }
    let mut bytes = fresh(editor, tree, ino, kind)?;
    let mut end = 0;
    for (at, item) in editor.items(tree, ino.0, Kind::EXTENT_DATA)? {
        let Ok(extent) = buttress_format::FileExtent::parse(&item) else { return Ok(None) };
        end = end.max(at.offset.saturating_add(extent.file_len()));
    }
    put64(&mut bytes, SIZE_AT, end);
    put32(&mut bytes, LINKS_AT, u32::try_from(all.len()).unwrap_or(1).max(1));
    let says = format!("{tree}: inode {ino} is made anew, for the names and items that it has");
    Ok(Some(Fix { says, edits: vec![Edit::Put(tree, key(ino), bytes)] }))
}

/// An inode item with the times of the top directory.
fn fresh(editor: &Editor, tree: TreeId, ino: Ino, kind: FileKind) -> Result<Vec<u8>> {
    let mut bytes = vec![0; INODE_LEN];
    let top = editor.get(tree, &key(Ino::ROOT_DIR))?;
    if let Some(top) = top.filter(|top| ino != Ino::ROOT_DIR && top.len() >= INODE_LEN) {
        bytes[TIMES_AT..].copy_from_slice(&top[TIMES_AT..INODE_LEN]);
    }
    put64(&mut bytes, GENERATION_AT, editor.superblock.generation.0);
    put64(&mut bytes, TRANSID_AT, editor.superblock.generation.0);
    put32(&mut bytes, LINKS_AT, 1);
    let access = if kind == FileKind::Directory { 0o755 } else { 0o600 };
    put32(&mut bytes, MODE_AT, kind.mode_bits() | access);
    Ok(bytes)
}

/// Gives an inode without a name a name in `lost+found` (MI2).
pub(super) fn lost(editor: &Editor, tree: TreeId, ino: Ino) -> Result<Option<Fix>> {
    let Some(item) = names::inode(editor, tree, ino)? else { return Ok(None) };
    let kind = FileKind::from_mode(item.mode);
    if kind == FileKind::Unknown || !names::stated(editor, tree, ino)?.is_empty() {
        return Ok(None);
    }
    let top = Ino::ROOT_DIR;
    let lists = names::listed(editor, tree, top)?;
    let found = lists.iter().find(|(_, entry)| entry.name == LOST);
    let mut edits = Vec::new();
    let dir = match found {
        Some((_, entry))
            if entry.kind == FileKind::Directory && entry.location.kind == Kind::INODE_ITEM =>
        {
            Ino(entry.location.objectid)
        }
        Some(_) => return Ok(None),
        None => {
            let after = Key::new(Ino::LAST_FREE.0, Kind(0), 0);
            let Some(last) = editor.last_below(tree, &after)? else { return Ok(None) };
            let dir = Ino(last.objectid.max(top.0) + 1);
            let bytes = fresh(editor, tree, dir, FileKind::Directory)?;
            edits.push(Edit::Put(tree, key(dir), bytes));
            name(editor, tree, top, dir, FileKind::Directory, LOST, &mut edits)?;
            dir
        }
    };
    let text = ino.to_string().into_bytes();
    name(editor, tree, dir, ino, kind, &text, &mut edits)?;
    let name = Name(text);
    let says = format!("{tree}: inode {ino} gets the name \"lost+found/{name}\"");
    Ok(Some(Fix { says, edits }))
}

/// The three items of a name.
fn name(
    editor: &Editor,
    tree: TreeId,
    dir: Ino,
    ino: Ino,
    kind: FileKind,
    name: &[u8],
    edits: &mut Vec<Edit>,
) -> Result<()> {
    let index = names::free_index(editor, tree, dir)?;
    let entry = names::entry(editor, ino, kind, name);
    edits.push(names::put_index(tree, dir, index, &entry));
    edits.push(names::put_lookup(editor, tree, dir, &entry)?);
    let one = buttress_format::InodeRef { index, name: name.to_vec() };
    edits.push(names::put_stated(editor, tree, ino, dir, |all| all.push(one))?);
    Ok(())
}
