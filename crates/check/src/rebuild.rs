//! Writes the extent tree anew, from the trees that refer to extents; the trees of block groups and
//! of free space follow from it.
//!
//! # How
//!
//! One walk over all other trees makes a record of each use of an extent. The records are sorted by
//! address, on disk if memory is too small. One pass makes the items and finds free space. The
//! number of new nodes follows from the sizes of all items, which include the items of the new
//! nodes.
//!
//! # Invariants
//!
//! - **RB1** Nothing is written if a part of a tree that refers to extents cannot be read, or if
//!   two uses contradict each other.
//! - **RB2** New nodes overwrite nothing: neither extents of the trees that stay, nor old nodes of
//!   the trees that are replaced. So the volume does not change until the superblock is written.
//! - **RB3** Nodes are durable before superblocks.

mod collect;
mod free;
mod owned;
mod pack;
mod place;
mod roots;
mod sources;
mod sums;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use buttress_base::{RangeSet, SectorSet};
use buttress_block::Device;
use buttress_format::{CompatRo, Extent, Generation, Incompat, Kind, Superblock, TreeId};
use buttress_sorter::Sorter;
use buttress_sorter::spool::Item;
use buttress_tree::{Expect, Geometry};
use buttress_volume::{OpenOptions, Volume};

use crate::context::{Context, Tree};
use crate::error::{Error, Result};
use crate::memo::Memo;
use crate::options::{NoProgress, Options};
use crate::record::WORDS;
use crate::report::Findings;
use crate::walk::{Counts, Walk};
use buttress_issue::Issue;
use collect::{Collected, Collector};
use pack::NodeWriter;
use place::{Room, anew};
use sources::{Sources, own_items};
use sums::{Sums, Wanted};

/// The result of a rebuild: the superblock to write, and the changes.
pub(crate) struct Rebuilt {
    pub(crate) superblock: Superblock,
    /// The changes, as sentences.
    pub(crate) done: Vec<String>,
    /// Addresses of data that cannot be read. The new checksum tree has no checksums for this data.
    pub(crate) unreadable: RangeSet,
}

/// Writes the new trees. `announce` is called with each sentence of [`Rebuilt::done`] before the
/// first write. The caller writes the superblocks afterwards. With `with_sums`, the checksum tree
/// is made anew, too.
///
/// # Errors
///
/// [`Error::Rebuild`] with the reason, when the trees cannot be derived. In that case nothing was
/// written.
pub(crate) fn rebuild(
    devices: &[Arc<dyn Device>],
    options: &Options,
    with_sums: bool,
    announce: &mut dyn FnMut(&str),
) -> Result<Rebuilt> {
    // New checksums need the data. An image of metadata alone lacks the data, and `repairs: false`
    // refuses such an image.
    let opening = OpenOptions { writable: true, repairs: !with_sums, ..OpenOptions::default() };
    let opened = Volume::open(devices.to_vec(), opening);
    let (volume, superblock) = opened.map_err(|error| Error::Rebuild(error.to_string()))?;
    expect_writable(&superblock)?;
    expect_whole(&volume)?;
    let findings = Findings::new();
    let context = Context::new(&findings, &volume, &superblock, options, &NoProgress);
    context.rebuilds_sums.store(with_sums, Ordering::Relaxed);
    let work = Work::prepare(&context, with_sums)?;
    drop(context);
    // Chunks that contradict each other make a volume read-only, and all chunks are known only now.
    if let Some(why) = volume.read_only_reason() {
        return Err(Error::Rebuild(format!("the volume is read-only: {why}")));
    }
    work.write(&volume, &superblock, announce)
}

/// Ranges of metadata chunks that no tree, no log and no superblock uses. Trees that a rebuild
/// replaces count as users, too.
///
/// # Errors
///
/// The errors of [`rebuild`].
pub(crate) fn gaps(devices: &[Arc<dyn Device>], options: &Options) -> Result<Vec<Extent>> {
    let opening = OpenOptions { repairs: true, degraded: true, ..OpenOptions::default() };
    let (volume, superblock) = Volume::open(devices.to_vec(), opening)?;
    let findings = Findings::new();
    let context = Context::new(&findings, &volume, &superblock, options, &NoProgress);
    Ok(Work::prepare(&context, false)?.collected.gaps)
}

/// Refuses a device that missed writes: a new superblock would make it count as whole.
fn expect_whole(volume: &Volume) -> Result<()> {
    match volume.devices().iter().find(|device| !device.trust().has_all()) {
        Some(device) => {
            let name = device.device.name();
            Err(Error::Rebuild(format!("{name} missed writes: scrub the volume first")))
        }
        None => Ok(()),
    }
}

fn expect_writable(superblock: &Superblock) -> Result<()> {
    let refuse = |why: String| Err(Error::Rebuild(why));
    let unknown = superblock.compat_ro.without(CompatRo::WRITABLE);
    if unknown.0 != 0 {
        return refuse(format!("this program does not know {}", unknown.names().join(", ")));
    }
    if superblock.incompat.has(Incompat::SIMPLE_QUOTA) {
        return refuse("simple quotas are kept in the extent tree alone".to_owned());
    }
    Ok(())
}

/// The results of everything that is done before the first write.
struct Work {
    geometry: Geometry,
    collected: Collected,
    root_items: Vec<Item>,
    roots: crate::roots::Roots,
    /// The new checksums, if the caller wants them.
    sums: Option<Sums>,
}

impl Work {
    fn prepare(context: &Context<'_>, with_sums: bool) -> Result<Self> {
        let anew = anew(with_sums);
        crate::chunks::load(context);
        let roots = crate::roots::load(context);
        let all = roots.trees(context);
        let stays = |tree: &&Tree| tree.id == TreeId::ROOT || !anew.contains(&tree.id);
        let trees: Vec<Tree> =
            all.iter().filter(stays).map(|tree| tree.clone().for_extents()).collect();
        let owned = owned::find(context, &trees, &roots.last_snapshots());
        let _ = context.owned_nodes.set(owned);

        let records = Sorter::<WORDS>::new(context.sort_bytes(), context.threads + 1);
        let (memo, counts) = (Memo::new(0), Counts::default());
        let walk = Walk { records: &records, memo: &memo, counts: &counts };
        walk.run(context, &trees, &mut |_, _| {})?;
        if let Some(issue) = context.findings.find(|issue| blocks(issue, &anew)) {
            return Err(Error::Rebuild(issue.to_string()));
        }

        let mut avoid = RangeSet::default();
        for tree in all.iter().filter(|tree| anew.contains(&tree.id)) {
            old_nodes(context, &Expect::root(tree.root), &SectorSet::default(), &mut avoid);
        }
        // The log is valid until the new superblocks are written.
        let mut keep = |extent: Extent| avoid.insert(extent.start.0..extent.end().0);
        let logged = crate::log::check(context, &mut keep);
        logged.nodes.iter().for_each(|range| avoid.insert(range));
        let chunks = context.volume.chunks();
        if chunks.iter().any(|chunk| context.volume.has_parity(chunk.logical) && !is_data(chunk)) {
            return Err(Error::Rebuild("metadata with parity is not written here".to_owned()));
        }
        let collector = Collector::new(context.superblock, &chunks, &anew, &avoid)?;
        let mut collected = collector.run(records.merge()?)?;
        let (root_items, chunk_tree_uuid) = roots::items(context)?;
        let geometry = Geometry { chunk_tree_uuid, ..context.source.geometry };
        let mut sums = None;
        if with_sums {
            let wanted = std::mem::replace(&mut collected.wanted, Wanted::new()?);
            sums = Some(wanted.sums(context.volume, &geometry)?);
        }
        Ok(Self { geometry, collected, root_items, roots, sums })
    }

    fn write(
        self,
        volume: &Volume,
        old: &Superblock,
        announce: &mut dyn FnMut(&str),
    ) -> Result<Rebuilt> {
        let Self { geometry, mut collected, root_items, roots, sums } = self;
        let generation = old.generation.next();
        let room = Room::find(&collected, &root_items, sums.as_ref(), &geometry, old)?;
        collected.use_places(&room.places, u64::from(old.nodesize));
        let done = sentences(&collected, &room, sums.as_ref(), generation);
        for line in &done {
            announce(line);
        }
        let unreadable = sums.as_ref().map(|sums| sums.unreadable.clone()).unwrap_or_default();
        let bytes_used = collected.groups.iter().map(|group| group.used).sum();
        let roots_now = roots::patched(root_items, &room, generation, old.nodesize);
        let mut sources = Sources::new(collected, roots_now, sums, &room, old)?;
        let mut own = own_items(&room, old, generation, &[]);
        if !old.incompat.has(Incompat::SKINNY_METADATA) {
            // Without `SKINNY_METADATA`, the extent item of a node contains the node's first key.
            // This first pass builds the nodes to find these keys.
            let mut firsts = Vec::new();
            for tree in &room.trees {
                let builder = tree.builder(&geometry, generation, sources.bytes(tree, &own));
                firsts.extend(builder.build(sources.items(tree, &own)?, &mut |_| Ok(()))?);
            }
            own = own_items(&room, old, generation, &firsts);
        }
        let mut writer = NodeWriter::new(volume);
        for tree in &room.trees {
            let builder = tree.builder(&geometry, generation, sources.bytes(tree, &own));
            builder.build(sources.items(tree, &own)?, &mut |node| writer.put(node))?;
        }
        writer.flush()?;
        volume.flush()?;
        expect_whole(volume)?;
        let superblock = roots::superblock(old, &room, &roots, bytes_used);
        Ok(Rebuilt { superblock, done, unreadable })
    }
}

fn is_data(chunk: &buttress_format::Chunk) -> bool {
    chunk.flags.kind() == buttress_format::BlockGroupFlags::DATA
}

/// Sentences that describe the changes.
fn sentences(
    collected: &Collected,
    room: &Room,
    sums: Option<&Sums>,
    generation: Generation,
) -> Vec<String> {
    let nodes = |id| room.trees.iter().find(|tree| tree.owner == id).map(|tree| tree.shape.nodes());
    let mut lines = vec![format!(
        "extent tree: {} extents and {} block groups, written anew in {} nodes",
        collected.extents,
        collected.groups.len(),
        nodes(TreeId::EXTENT).unwrap_or(0) + nodes(TreeId::BLOCK_GROUP).unwrap_or(0),
    )];
    if let Some(count) = nodes(TreeId::FREE_SPACE) {
        lines.push(format!("free-space tree: written anew in {count} nodes"));
    }
    if let Some(Sums { sectors, unreadable, .. }) = sums {
        let mut line = format!("checksum tree: {sectors} sectors of data read and summed");
        if !unreadable.is_empty() {
            let bytes = unreadable.total();
            line += &format!(", {bytes} bytes cannot be read and have no checksum");
        }
        lines.push(line);
    }
    let count = nodes(TreeId::ROOT).unwrap_or(0);
    lines.push(format!("root tree: {count} nodes at new places, in transaction {generation}"));
    lines
}

/// Whether an issue leaves a use of an extent in doubt (RB1).
fn blocks(issue: &Issue, anew: &[TreeId]) -> bool {
    match issue {
        Issue::NodeDamaged { tree, .. } | Issue::RootMissing { tree } => {
            *tree == TreeId::ROOT || !anew.contains(tree)
        }
        Issue::NodeBounds { .. }
        | Issue::NodeShared { .. }
        | Issue::ChunkInvalid { .. }
        | Issue::DeviceMissing { .. } => true,
        Issue::ItemMalformed { key, .. } => {
            matches!(key.kind, Kind::EXTENT_DATA | Kind::ROOT_ITEM | Kind::CHUNK_ITEM)
        }
        _ => false,
    }
}

/// The places of the nodes of a replaced tree (RB2), as far as the tree can be read.
fn old_nodes(context: &Context<'_>, expect: &Expect, met: &SectorSet, out: &mut RangeSet) {
    let at = expect.ptr.logical;
    if !met.insert(at.0) {
        return;
    }
    let extent = Extent::new(at, context.nodesize());
    out.insert(extent.start.0..extent.end().0);
    if expect.ptr.level == 0 {
        return;
    }
    if let Ok(node) = context.source.read_quietly(expect, false) {
        for slot in 0..node.len() {
            old_nodes(context, &node.expect_child(slot), met, out);
        }
    }
}
