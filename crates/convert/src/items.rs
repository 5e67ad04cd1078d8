//! Items of the volume's trees, as the last commit has them.

use buttress_format::{Chunk, Generation, Key, Kind, Logical, TreeId, ids};
use buttress_fs::{Filesystem, Searched};

use crate::error::{Error, Result};

/// Shows the items between two keys of a tree.
pub(crate) fn each_item(
    fs: &Filesystem,
    tree: TreeId,
    keys: (Key, Key),
    mut visit: impl FnMut(&Key, &[u8]),
) -> Result<()> {
    let generations = (Generation(0), Generation(u64::MAX));
    fs.search(Searched { tree, keys, generations }, &mut |item| {
        visit(&item.key, item.bytes);
        true
    })?;
    Ok(())
}

/// All chunks with their addresses, ascending.
pub(crate) fn chunks(fs: &Filesystem) -> Result<Vec<(Logical, Chunk)>> {
    let key = |at| Key::new(ids::FIRST_CHUNK_TREE, Kind::CHUNK_ITEM, at);
    let mut found = Ok(Vec::new());
    each_item(fs, TreeId::CHUNK, (key(0), key(u64::MAX)), |key, bytes| {
        match (&mut found, Chunk::parse(key, bytes)) {
            (Ok(chunks), Ok(chunk)) => chunks.push((Logical(key.offset), chunk)),
            (_, Err(error)) => found = Err(Error::Damaged(error.to_string())),
            (Err(_), Ok(_)) => {}
        }
    })?;
    found
}
