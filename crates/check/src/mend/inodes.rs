//! Proposes repairs of inodes: missing items, modes, counts, and lost files.
//!
//! # Invariants
//!
//! - **MI1** A mode keeps its bits for access. Its type is the type that directory entries state.
//!   If there are no entries, the type is the only one that can have the inode's items.
//! - **MI2** An inode without a name gets a name in `lost+found`. Nothing is added to a read-only
//!   subvolume, or to a leaf that snapshots share.

use buttress_format::{
    FileExtent, FileKind, Ino, InodeFlags, InodeItem, Key, Kind, RootFlags, RootItem, TreeId,
};

use crate::error::Result;
use crate::mend::editor::{Edit, Editor, Fix};
use crate::mend::listing;
use crate::mend::names::{self, Stated};
use buttress_issue::Name;

/// The two flags that forbid changes.
const FROZEN: u64 = InodeFlags::IMMUTABLE | InodeFlags::APPEND;
const ACCESS: u32 = 0o7777;
/// The directory for inodes without another name.
const LOST: &[u8] = b"lost+found";

pub(super) fn key(ino: Ino) -> Key {
    Key::new(ino.0, Kind::INODE_ITEM, 0)
}

/// Changes the item of an inode.
fn changed(
    editor: &Editor,
    tree: TreeId,
    ino: Ino,
    change: impl FnOnce(&mut InodeItem),
    says: String,
) -> Result<Option<Fix>> {
    let Some(mut item) = names::inode(editor, tree, ino)? else { return Ok(None) };
    change(&mut item);
    Ok(Some(Fix { says, edits: vec![Edit::Put(tree, key(ino), item.to_bytes())] }))
}

pub(super) fn size(editor: &Editor, tree: TreeId, ino: Ino, size: u64) -> Result<Option<Fix>> {
    let says = format!("{tree}: directory {ino} has size {size}");
    changed(editor, tree, ino, |item| item.size = size, says)
}

pub(super) fn bytes(editor: &Editor, tree: TreeId, ino: Ino, count: u64) -> Result<Option<Fix>> {
    let says = format!("{tree}: inode {ino} has {count} bytes");
    changed(editor, tree, ino, |item| item.nbytes = count, says)
}

pub(super) fn links(editor: &Editor, tree: TreeId, ino: Ino, links: u64) -> Result<Option<Fix>> {
    let Ok(count) = u32::try_from(links) else { return Ok(None) };
    let kind = names::inode(editor, tree, ino)?.map(|item| FileKind::from_mode(item.mode));
    if kind == Some(FileKind::Directory) && count != 1 {
        return Ok(None);
    }
    let says = format!("{tree}: inode {ino} has {links} links");
    changed(editor, tree, ino, |item| item.nlink = count, says)
}

/// Sets generations that are newer than the volume to the generation of the volume.
pub(super) fn generation(editor: &Editor, tree: TreeId, ino: Ino) -> Result<Option<Fix>> {
    let newest = editor.superblock.generation;
    let says = format!("{tree}: inode {ino} is of transaction {newest}, not of a later one");
    let change = |item: &mut InodeItem| {
        item.generation = item.generation.min(newest);
        item.transid = item.transid.min(newest);
    };
    changed(editor, tree, ino, change, says)
}

/// Removes the flags that make a symbolic link immutable, since a link cannot be immutable.
pub(super) fn thaw(editor: &Editor, tree: TreeId, ino: Ino) -> Result<Option<Fix>> {
    let says = format!("{tree}: inode {ino} is neither immutable nor only appended to");
    changed(editor, tree, ino, |item| item.flags &= !FROZEN, says)
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
    changed(editor, tree, ino, |item| item.mode = mode, says)
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
    let mut fresh = fresh(editor, tree, ino, kind)?;
    for (at, item) in editor.items(tree, ino.0, Kind::EXTENT_DATA)? {
        let Ok(extent) = FileExtent::parse(&item) else { return Ok(None) };
        fresh.size = fresh.size.max(at.offset.saturating_add(extent.file_len()));
    }
    fresh.nlink = u32::try_from(all.len()).unwrap_or(1).max(1);
    let says = format!("{tree}: inode {ino} is made anew, for the names and items that it has");
    Ok(Some(Fix { says, edits: vec![Edit::Put(tree, key(ino), fresh.to_bytes())] }))
}

/// An inode item with the times of the top directory.
fn fresh(editor: &Editor, tree: TreeId, ino: Ino, kind: FileKind) -> Result<InodeItem> {
    let top = names::inode(editor, tree, Ino::ROOT_DIR)?;
    let top = top.filter(|_| ino != Ino::ROOT_DIR).unwrap_or_default();
    let access = if kind == FileKind::Directory { 0o755 } else { 0o600 };
    Ok(InodeItem {
        generation: editor.superblock.generation,
        transid: editor.superblock.generation,
        nlink: 1,
        mode: kind.mode_bits() | access,
        atime: top.atime,
        ctime: top.ctime,
        mtime: top.mtime,
        otime: top.otime,
        ..InodeItem::default()
    })
}

/// Gives an inode without a name a name in `lost+found` (MI2).
pub(super) fn lost(editor: &Editor, tree: TreeId, ino: Ino) -> Result<Option<Fix>> {
    let Some(item) = names::inode(editor, tree, ino)? else { return Ok(None) };
    let kind = FileKind::from_mode(item.mode);
    if kind == FileKind::Unknown || !names::stated(editor, tree, ino)?.is_empty() {
        return Ok(None);
    }
    // A read-only snapshot stays as it was made, and can be the source of a stream.
    let root = editor.root_item(tree)?.and_then(|(_, bytes)| RootItem::parse(&bytes).ok());
    let Some(root) = root.filter(|root| root.flags & RootFlags::READONLY == 0) else {
        return Ok(None);
    };
    let top = Ino::ROOT_DIR;
    // Leaves are overwritten where they lie. A name in a shared leaf would be in snapshots, too.
    let behind_top = Key::new(top.0, Kind(u8::MAX), u64::MAX);
    if root.last_snapshot.0 != 0
        && !(editor.owns_path(tree, &key(ino))? && editor.owns_path(tree, &behind_top)?)
    {
        return Ok(None);
    }
    let lists = listing::of(editor, tree, top)?;
    let found = lists.named(LOST).next();
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
            let item = fresh(editor, tree, dir, FileKind::Directory)?;
            edits.push(Edit::Put(tree, key(dir), item.to_bytes()));
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
