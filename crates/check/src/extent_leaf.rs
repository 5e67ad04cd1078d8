//! Items of the extent tree, and of the tree of block groups.

use std::io;

use buttress_format::{
    BackRef, Error as FormatError, Extent, ExtentFlags, ExtentItem, Key, Kind, Logical, TreeId,
    limits::MAX_LEVEL,
};
use buttress_sorter::Writer;

use crate::context::Context;
use crate::facts::Item;
use crate::record::{self, User, WORDS};
use buttress_issue::Issue;

/// The largest distance of a reference's key from its hash. References with colliding hashes lie at
/// the next offsets.
const COLLISIONS_MAX: u64 = 1024;

/// Makes records of an item of the extent tree.
pub(crate) fn item(
    context: &Context<'_>,
    records: &mut Writer<'_, WORDS>,
    item: &Item<'_>,
) -> io::Result<()> {
    let key = item.key;
    let outcome = match key.kind {
        Kind::EXTENT_ITEM | Kind::METADATA_ITEM => extent(context, item),
        Kind::TREE_BLOCK_REF
        | Kind::SHARED_BLOCK_REF
        | Kind::EXTENT_DATA_REF
        | Kind::SHARED_DATA_REF => keyed(context, item),
        Kind::BLOCK_GROUP_ITEM if !context.has_group_tree() => {
            context.add_group(TreeId::EXTENT, key, item.bytes, item.leaf);
            Ok(Vec::new())
        }
        _ => {
            let (tree, logical) = (TreeId::EXTENT, item.leaf);
            context.add(Issue::ItemUnexpected { tree, logical, key });
            Ok(Vec::new())
        }
    };
    match outcome {
        Ok(found) => found.into_iter().try_for_each(|record| records.put(record)),
        Err(error) => {
            let (tree, logical, why) = (TreeId::EXTENT, item.leaf, error.to_string());
            context.add(Issue::ItemMalformed { tree, logical, key, why });
            Ok(())
        }
    }
}

fn extent(context: &Context<'_>, item: &Item<'_>) -> Result<Vec<record::Record>, FormatError> {
    let key = item.key;
    let found = ExtentItem::parse(&key, item.bytes)?;
    let start = Logical(key.objectid);
    let is_node = found.flags & ExtentFlags::TREE_BLOCK != 0;
    let is_data = found.flags & ExtentFlags::DATA != 0;
    let (len, level) = if key.kind == Kind::METADATA_ITEM {
        (context.nodesize(), u8::try_from(key.offset).ok())
    } else {
        (key.offset, found.tree_block.map(|(_, level)| level))
    };
    let extent = Extent::new(start, len);
    let mismatch = |field, found, expected| {
        context.add(Issue::ExtentMismatch { extent: start, field, found, expected });
    };
    let known = ExtentFlags::DATA | ExtentFlags::TREE_BLOCK | ExtentFlags::FULL_BACKREF;
    if is_node == is_data
        || found.flags & !known != 0
        || (is_data && found.flags & ExtentFlags::FULL_BACKREF != 0)
        || (is_data && key.kind == Kind::METADATA_ITEM)
    {
        let expected = if is_node { ExtentFlags::TREE_BLOCK } else { ExtentFlags::DATA };
        mismatch("flags", found.flags, expected);
    }
    if is_node && len != context.nodesize() {
        mismatch("length", len, context.nodesize());
    }
    if is_node && level.is_none_or(|level| level >= MAX_LEVEL) {
        mismatch("level", level.map_or(key.offset, u64::from), 0);
    }
    if !context.is_aligned(start.0) || !context.is_aligned(len) || len == 0 {
        mismatch("length", len, 0);
    }
    context.check_generation(TreeId::EXTENT, key, found.generation);
    check_order(context, start, &key, &found.inline);
    // The sets take only addresses that a chunk maps. So crafted items cannot make the sets larger
    // than the chunks allow.
    let is_mapped = context.volume.mirrors(start) > 0;
    if is_mapped && is_node && found.flags & ExtentFlags::FULL_BACKREF != 0 {
        context.full_backrefs.insert(start.0);
    }
    if is_mapped && is_node && found.refs > 1 {
        context.shared.insert(start.0);
    }
    let mut records = Vec::with_capacity(1 + found.inline.len());
    records.push(record::item(extent, found.refs, found.flags, level, found.generation));
    for reference in &found.inline {
        if let (BackRef::Owner { root }, Some(owned)) = (reference, context.owned.get()) {
            owned.add(*root, found.generation, len);
        }
        if let Some((user, count)) = User::of(reference) {
            records.push(record::recorded(start, user, count));
            if is_of_node(reference) != is_node {
                let why = "a reference of data on a node, or of a node on data";
                context.add(Issue::BackrefOrder { extent: start, key, why });
            }
        }
    }
    Ok(records)
}

/// Checks the order of inline references: by kind, and within a kind by descending hash. A search
/// relies on this order to end early.
fn check_order(context: &Context<'_>, extent: Logical, key: &Key, inline: &[BackRef]) {
    for pair in inline.windows(2) {
        let [first, second] = pair else { continue };
        let order = first.kind().cmp(&second.kind()).then(second.hash().cmp(&first.hash()));
        if order == std::cmp::Ordering::Greater {
            let why = "inline references are out of order";
            context.add(Issue::BackrefOrder { extent, key: *key, why });
            return;
        }
    }
}

fn keyed(context: &Context<'_>, item: &Item<'_>) -> Result<Vec<record::Record>, FormatError> {
    let key = item.key;
    let reference = BackRef::keyed_parse(&key, item.bytes)?;
    let extent = Logical(key.objectid);
    if reference.count() == 0 {
        let why = "a reference that counts nothing";
        context.add(Issue::BackrefOrder { extent, key, why });
    }
    if key.offset.wrapping_sub(reference.hash()) > COLLISIONS_MAX {
        let why = "it is not where its hash belongs";
        context.add(Issue::BackrefOrder { extent, key, why });
    }
    let found = User::of(&reference).map(|(user, count)| record::recorded(extent, user, count));
    Ok(found.into_iter().collect())
}

/// Returns whether a recorded reference is a reference to a node.
fn is_of_node(reference: &BackRef) -> bool {
    matches!(reference, BackRef::TreeBlock { .. } | BackRef::SharedBlock { .. })
}
