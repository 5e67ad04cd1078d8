//! Access to a volume's trees without a filesystem on top. Verbs that look at the format itself use
//! this access. The access works even if mounting would fail.

use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;

use buttress_format::{Key, Kind, RootItem, Superblock, TreeId};
use buttress_tree::{Cursor, Geometry, NodePtr, Store, boot};
use buttress_volume::{OpenOptions, Volume};

use crate::client;
use crate::exit::{Context, Exit, Failure, Result};
use crate::image::{self, Access, Devices};
use crate::ui::{self, Progress, Ui};

/// Memory for nodes that may be read again.
const CACHE_BYTES: u64 = 32 << 20;

/// An opened volume.
pub struct Inspect {
    /// The superblock by which it was opened.
    pub superblock: Superblock,
    /// The devices.
    pub volume: Arc<Volume>,
    /// Reads nodes.
    pub store: Store,
    /// The items of the chunk tree.
    pub chunks: boot::ChunkTree,
    /// The bar that moves with each node that a verb reads.
    pub bar: Progress,
    name: String,
}

/// Replaces the roots by the newest roots that can be read. Does nothing if none can be read.
fn use_backup_root(store: &Store, superblock: &mut Superblock) {
    let mut candidates = vec![superblock.clone()];
    candidates.extend(boot::backups(superblock).iter().map(|backup| {
        let mut older = superblock.clone();
        boot::go_back(&mut older, backup);
        older
    }));
    let can_be_read = |candidate: &&Superblock| {
        // The root tree may lie in a chunk that the superblock does not name.
        let load = boot::load_chunks(store, candidate);
        load.is_ok() && store.root(TreeId::ROOT, boot::root_tree_root(candidate)).is_ok()
    };
    if let Some(found) = candidates.iter().find(can_be_read) {
        *superblock = found.clone();
    }
}

/// A tree that the root tree lists.
pub struct ListedTree {
    /// The key of its root item.
    pub key: Key,
    /// Its root item.
    pub item: RootItem,
    /// Its root node.
    pub root: NodePtr,
}

impl Inspect {
    /// Opens a volume for reading, also if devices are missing or another program writes it.
    pub fn open(path: &Path, devices: &Devices) -> Result<Self> {
        Self::open_and(path, devices, |failure| {
            ui::note(format!("{failure}: what it commits meanwhile may be missed"));
        })
    }

    /// Opens a volume as [`Inspect::open`] does, but prints no note if another program has the
    /// volume open for writing. Verbs that users also run on mounts call this function.
    pub fn open_quietly(path: &Path, devices: &Devices) -> Result<Self> {
        Self::open_and(path, devices, |_| {})
    }

    fn open_and(path: &Path, devices: &Devices, say: impl FnOnce(&Failure)) -> Result<Self> {
        let name = path.display().to_string();
        let opened = image::open_devices(path, devices, Access::Read).or_else(|failure| {
            if !failure.is_locked() {
                return Err(failure);
            }
            client::commit(path);
            say(&failure);
            image::open_devices(path, devices, Access::Peek)
        })?;
        let options = OpenOptions { degraded: true, ..OpenOptions::default() };
        let (volume, mut superblock) = Volume::open(opened, options).context(|| &name)?;
        let volume = Arc::new(volume);
        let geometry = Geometry::of(&superblock);
        let rescue = devices.rescue_options();
        let store = Store::new(Arc::clone(&volume), geometry, CACHE_BYTES)
            .ignoring_csums(rescue.ignore_meta_csums);
        if rescue.use_backup_root {
            use_backup_root(&store, &mut superblock);
        }
        let chunks = boot::load_chunks(&store, &superblock).context(|| &name)?;
        Ok(Self { superblock, volume, store, chunks, bar: Progress::hidden(), name })
    }

    /// Shows a bar over the nodes of the trees with files, or of one tree. Lines on a terminal
    /// would mix with the bar, so it is shown only while they go elsewhere.
    ///
    /// # Errors
    ///
    /// A root tree that cannot be read.
    pub fn show_progress(&mut self, what: &str, only: Option<TreeId>, ui: &Ui) -> Result<()> {
        if !ui.shows_bars() || std::io::stdout().is_terminal() {
            return Ok(());
        }
        let trees = self.trees()?;
        let is_wanted = |tree: &&ListedTree| only.is_none_or(|id| tree.key.objectid == id.0);
        let total = trees.iter().filter(is_wanted).map(|tree| tree.item.bytes_used).sum();
        self.bar = ui.bytes_bar(what, total);
        self.bar.tick();
        Ok(())
    }

    /// The name of the volume, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Every tree that the root tree lists, in the order of the keys.
    pub fn trees(&self) -> Result<Vec<ListedTree>> {
        self.listed_in(TreeId::ROOT, boot::root_tree_root(&self.superblock))
    }

    /// Returns the root of the tree that lists the log trees. `None` if there are no log trees. The
    /// generation of the root is one more than the generation of the superblock.
    pub fn log_root(&self) -> Option<NodePtr> {
        let superblock = &self.superblock;
        (superblock.log_root.0 != 0).then(|| NodePtr {
            logical: superblock.log_root,
            generation: superblock.generation.next(),
            level: superblock.log_root_level,
        })
    }

    /// Every tree that a tree of roots lists, in the order of the keys.
    pub fn listed_in(&self, tree: TreeId, root: NodePtr) -> Result<Vec<ListedTree>> {
        let mut trees = Vec::new();
        self.each(tree, root, |key, bytes| {
            if key.kind == Kind::ROOT_ITEM {
                let item = RootItem::parse(bytes).context(|| format!("{}: {key}", self.name))?;
                let root = NodePtr {
                    logical: item.bytenr,
                    generation: item.generation,
                    level: item.level,
                };
                trees.push(ListedTree { key, item, root });
            }
            Ok(())
        })?;
        Ok(trees)
    }

    /// Finds a tree by its number. The superblock has the root tree and the chunk tree; the root
    /// tree lists all others.
    pub fn tree(&self, id: TreeId) -> Result<NodePtr> {
        match id {
            TreeId::ROOT => Ok(boot::root_tree_root(&self.superblock)),
            TreeId::CHUNK => Ok(boot::chunk_root(&self.superblock)),
            _ => Ok(self.listed(id)?.root),
        }
    }

    /// Finds a tree that the root tree lists.
    pub fn listed(&self, id: TreeId) -> Result<ListedTree> {
        let found = self.trees()?.into_iter().find(|tree| tree.key.objectid == id.0);
        found.ok_or_else(|| {
            Failure::new(Exit::Failure, format!("{}: there is no tree {id}", self.name))
        })
    }

    /// Walks over all items of a tree.
    pub fn each(
        &self,
        tree: TreeId,
        root: NodePtr,
        mut visit: impl FnMut(Key, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut cursor = Cursor::seek(&self.store, tree, root, &Key::MIN).context(|| &self.name)?;
        while let Some((key, item)) = cursor.key().zip(cursor.item()) {
            visit(key, item)?;
            cursor.advance().context(|| &self.name)?;
        }
        Ok(())
    }

    /// Finds one item of a tree.
    pub fn find(&self, tree: TreeId, root: NodePtr, key: &Key) -> Result<Option<Vec<u8>>> {
        let found = Cursor::find(&self.store, tree, root, key).context(|| &self.name)?;
        Ok(found.map(|(node, slot)| node.item(slot).to_vec()))
    }
}
