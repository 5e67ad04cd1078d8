//! The superblock of the next commit.

use buttress_format::{Chunk, Key, Logical, RootBackup, Superblock, TreeId, limits};
use buttress_tree::{NodePtr, Roots};

use crate::{Error, Result, found_log};

/// The superblock that makes `roots` the volume's state.
pub(super) fn next(
    last: &Superblock,
    roots: &Roots,
    used_delta: i64,
    sys_chunks: Vec<(Key, Chunk)>,
) -> Result<Superblock> {
    let must = |tree: TreeId| {
        roots.find(tree).ok_or_else(|| Error::Malformed(format!("there is no {tree}")))
    };
    let (root, chunk) = (must(TreeId::ROOT)?, must(TreeId::CHUNK)?);
    let mut sb = last.clone();
    sb.generation = roots.generation;
    found_log::without_log(&mut sb);
    (sb.root, sb.root_level) = (root.logical, root.level);
    (sb.chunk_root, sb.chunk_root_level) = (chunk.logical, chunk.level);
    sb.chunk_root_generation = chunk.generation;
    sb.bytes_used = last.bytes_used.checked_add_signed(used_delta).ok_or_else(|| {
        Error::Malformed("more is freed than the superblock says is in use".into())
    })?;
    sb.sys_chunks = sys_chunks;
    if sb.sys_array_len() > limits::SYS_CHUNK_ARRAY {
        return Err(Error::NoSpace("system chunks in the superblock"));
    }
    // This engine keeps the uuid tree valid, so the uuid tree's generation increases with each
    // commit. The generation of the version 1 free-space cache stays the same, which marks that
    // cache as stale.
    if last.uuid_tree_generation == last.generation.0 {
        sb.uuid_tree_generation = roots.generation.0;
    }
    let oldest = oldest_backup(&sb.backups);
    sb.backups[oldest] = backup(&sb, roots);
    Ok(sb)
}

/// The slot after the youngest backup. The first slot follows the last slot.
fn oldest_backup(backups: &[RootBackup; 4]) -> usize {
    let youngest = (0..4).max_by_key(|slot| backups[*slot].tree_root_gen).unwrap_or(3);
    if backups[youngest].tree_root_gen.0 == 0 { 0 } else { (youngest + 1) % 4 }
}

fn backup(sb: &Superblock, roots: &Roots) -> RootBackup {
    let none =
        NodePtr { logical: Logical(0), generation: buttress_format::Generation(0), level: 0 };
    let of = |tree: TreeId| roots.find(tree).unwrap_or(none);
    let (tree, chunk, extent) = (of(TreeId::ROOT), of(TreeId::CHUNK), of(TreeId::EXTENT));
    let (fs, dev, csum) = (of(TreeId::FS), of(TreeId::DEV), of(TreeId::CSUM));
    RootBackup {
        tree_root: tree.logical,
        tree_root_gen: tree.generation,
        tree_root_level: tree.level,
        chunk_root: chunk.logical,
        chunk_root_gen: chunk.generation,
        chunk_root_level: chunk.level,
        extent_root: extent.logical,
        extent_root_gen: extent.generation,
        extent_root_level: extent.level,
        fs_root: fs.logical,
        fs_root_gen: fs.generation,
        fs_root_level: fs.level,
        dev_root: dev.logical,
        dev_root_gen: dev.generation,
        dev_root_level: dev.level,
        csum_root: csum.logical,
        csum_root_gen: csum.generation,
        csum_root_level: csum.level,
        total_bytes: sb.total_bytes,
        bytes_used: sb.bytes_used,
        num_devices: sb.num_devices,
    }
}
