//! The items of every tree of a new volume.
//!
//! # Invariants
//!
//! - **F1** The number of nodes depends only on the items' sizes. The sizes depend on the number of
//!   nodes, which only grows. Each added node adds at most a few small items, so after some rounds
//!   no tree needs another node, and nothing changes.

use buttress_format::{
    BackRef, BlockGroupItem, DevExtent, DeviceId, DeviceItem, DirEntry, ExtentFlags, ExtentItem,
    FileKind, FreeSpaceInfo, Generation, Ino, InodeItem, InodeRef, InodeRefs, Key, Kind, Logical,
    RootItem, Timespec, TreeId, UuidItem, ids, name_hash,
};

use super::error::MakeError;
use super::layout::{Layout, Placed};
use super::nodes::{Item, Shape};
use super::options::{FIRST, Identity, MakeOptions};

/// More rounds than any combination of options takes; see F1.
const ROUNDS_MAX: u32 = 16;

/// Directory that holds the name of the default subvolume.
pub(super) const ROOT_DIR: u64 = TreeId::ROOT_DIR.0;

/// One tree, ready to be encoded.
pub(super) struct Tree {
    pub id: TreeId,
    pub items: Vec<Item>,
    pub shape: Shape,
    pub addresses: Vec<Logical>,
}

impl Tree {
    /// Address of the root node.
    pub(super) fn root(&self) -> Logical {
        *self.addresses.last().expect("a tree has at least one node")
    }
}

/// Builds every tree: the chunk tree in the system chunk, and all other trees in the metadata
/// chunk.
pub(super) fn build(
    layout: &Layout,
    identity: &Identity,
    options: &MakeOptions,
) -> Result<Vec<Tree>, MakeError> {
    let nodesize = options.nodesize;
    let mut trees: Vec<Tree> = tree_ids(options)
        .into_iter()
        .map(|id| Tree {
            id,
            items: Vec::new(),
            shape: Shape::of(&[], nodesize),
            addresses: Vec::new(),
        })
        .collect();
    for _ in 0..ROUNDS_MAX {
        address(&mut trees, layout, nodesize);
        let items: Vec<_> = trees
            .iter()
            .map(|tree| Builder { layout, identity, options, trees: &trees }.items(tree.id))
            .collect();
        let mut settled = true;
        for (tree, items) in trees.iter_mut().zip(items) {
            let shape = Shape::of(&items, nodesize);
            settled &= shape == tree.shape && items == tree.items;
            tree.items = items;
            tree.shape = shape;
        }
        if settled {
            return Ok(trees);
        }
    }
    Err(MakeError::Unsettled { rounds: ROUNDS_MAX })
}

fn tree_ids(options: &MakeOptions) -> Vec<TreeId> {
    let mut ids = vec![
        TreeId::CHUNK,
        TreeId::ROOT,
        TreeId::EXTENT,
        TreeId::DEV,
        TreeId::FS,
        TreeId::CSUM,
        TreeId::UUID,
        TreeId::DATA_RELOC,
    ];
    if options.features.free_space_tree {
        ids.push(TreeId::FREE_SPACE);
    }
    if options.features.block_group_tree {
        ids.push(TreeId::BLOCK_GROUP);
    }
    if options.features.raid_stripe_tree {
        ids.push(TreeId::RAID_STRIPE);
    }
    ids
}

/// Gives an address to every node that the trees have in this round.
fn address(trees: &mut [Tree], layout: &Layout, nodesize: u32) {
    for (chunk, system) in [(&layout.system, true), (&layout.metadata, false)] {
        let mine = |tree: &Tree| (tree.id == TreeId::CHUNK) == system;
        let count = trees.iter().filter(|tree| mine(tree)).map(|tree| tree.shape.nodes.len()).sum();
        let mut free = chunk.node_addresses(nodesize, count).into_iter();
        for tree in trees.iter_mut().filter(|tree| mine(tree)) {
            tree.addresses = free.by_ref().take(tree.shape.nodes.len()).collect();
        }
    }
}

/// The input for the items of one round.
struct Builder<'a> {
    layout: &'a Layout,
    identity: &'a Identity,
    options: &'a MakeOptions,
    trees: &'a [Tree],
}

impl Builder<'_> {
    fn items(&self, tree: TreeId) -> Vec<Item> {
        let mut items = match tree {
            TreeId::CHUNK => self.chunk_tree(),
            TreeId::ROOT => self.root_tree(),
            TreeId::EXTENT => self.extent_tree(),
            TreeId::DEV => self.device_tree(),
            TreeId::FS => root_directory(self.options, self.identity, true),
            TreeId::DATA_RELOC => root_directory(self.options, self.identity, false),
            TreeId::UUID => vec![uuid_item(self.identity)],
            TreeId::FREE_SPACE => self.free_space_tree(),
            TreeId::BLOCK_GROUP => self.block_groups(),
            _ => Vec::new(),
        };
        items.sort_by_key(|item| item.key);
        items
    }

    fn chunk_tree(&self) -> Vec<Item> {
        let mut items: Vec<Item> = (0..self.layout.sizes.len())
            .map(|index| device_item(self.layout, self.identity, index))
            .map(|device| Item {
                key: Key::new(ids::DEV_ITEMS, Kind::DEV_ITEM, device.devid.0),
                data: device.to_bytes(),
            })
            .collect();
        for placed in self.layout.chunks() {
            items.push(Item { key: chunk_key(placed), data: placed.chunk.to_bytes() });
        }
        items
    }

    fn device_tree(&self) -> Vec<Item> {
        let mut items = Vec::new();
        for placed in self.layout.chunks() {
            for stripe in &placed.chunk.stripes {
                let extent = DevExtent {
                    chunk_tree: TreeId::CHUNK.0,
                    chunk_objectid: ids::FIRST_CHUNK_TREE,
                    chunk_offset: placed.chunk.logical,
                    length: placed.stripe_bytes,
                    chunk_tree_uuid: self.identity.chunk_tree_uuid,
                };
                items.push(Item {
                    key: Key::new(stripe.device.0, Kind::DEV_EXTENT, stripe.offset),
                    data: extent.to_bytes(),
                });
            }
        }
        items
    }

    fn root_tree(&self) -> Vec<Item> {
        let listed = |id: TreeId| id != TreeId::ROOT && id != TreeId::CHUNK;
        let mut items: Vec<Item> = self
            .trees
            .iter()
            .filter(|tree| listed(tree.id))
            .map(|tree| Item {
                key: Key::new(tree.id.0, Kind::ROOT_ITEM, 0),
                data: self.root_item(tree).to_bytes(),
            })
            .collect();
        items.extend(default_subvolume(self.options, self.identity));
        items
    }

    fn root_item(&self, tree: &Tree) -> RootItem {
        let has_files = tree.id == TreeId::FS || tree.id == TreeId::DATA_RELOC;
        let is_subvolume = tree.id == TreeId::FS;
        let nodesize = u64::from(self.options.nodesize);
        let now = if is_subvolume { self.identity.now } else { Timespec::default() };
        RootItem {
            // Linux and btrfs-progs store this directory, which is never read.
            inode: InodeItem {
                generation: FIRST,
                size: 3,
                nbytes: nodesize,
                nlink: 1,
                mode: 0o40755,
                ..InodeItem::default()
            },
            generation: FIRST,
            root_dirid: if has_files { Ino::ROOT_DIR } else { Ino(0) },
            bytenr: tree.root(),
            bytes_used: tree.shape.nodes.len() as u64 * nodesize,
            refs: 1,
            level: tree.shape.level(),
            generation_v2: FIRST,
            uuid: if is_subvolume { self.identity.fs_tree_uuid } else { [0; 16] },
            ctime: now,
            otime: now,
            ..RootItem::default()
        }
    }

    fn extent_tree(&self) -> Vec<Item> {
        let mut items = Vec::new();
        for tree in self.trees {
            let keys = tree.shape.first_keys(&tree.items);
            for ((span, &bytenr), first) in tree.shape.nodes.iter().zip(&tree.addresses).zip(keys) {
                items.push(self.tree_block(tree.id, bytenr, span.level, first));
            }
        }
        if !self.options.features.block_group_tree {
            items.extend(self.block_groups());
        }
        items
    }

    fn tree_block(&self, owner: TreeId, bytenr: Logical, level: u8, first: Key) -> Item {
        let skinny = self.options.features.skinny_metadata;
        let key = if skinny {
            Key::new(bytenr.0, Kind::METADATA_ITEM, u64::from(level))
        } else {
            Key::new(bytenr.0, Kind::EXTENT_ITEM, u64::from(self.options.nodesize))
        };
        let item = ExtentItem {
            refs: 1,
            generation: FIRST,
            flags: ExtentFlags::TREE_BLOCK,
            tree_block: (!skinny).then_some((first, level)),
            inline: vec![BackRef::TreeBlock { root: owner }],
        };
        Item { key, data: item.to_bytes() }
    }

    fn block_groups(&self) -> Vec<Item> {
        let groups = self.layout.chunks().into_iter().map(|placed| {
            let item = BlockGroupItem {
                used: self.used(placed).iter().map(|(start, end)| end - start).sum(),
                chunk_objectid: ids::FIRST_CHUNK_TREE,
                flags: placed.chunk.flags,
            };
            Item {
                key: Key::new(placed.chunk.logical.0, Kind::BLOCK_GROUP_ITEM, placed.chunk.len),
                data: item.to_bytes(),
            }
        });
        groups.collect()
    }

    /// Returns the free space between nodes. Superblock copies count as free (`make::K3`).
    fn free_space_tree(&self) -> Vec<Item> {
        let mut items = Vec::new();
        for placed in self.layout.chunks() {
            let mut free = Vec::new();
            let mut from = placed.chunk.logical.0;
            for (start, end) in self.used(placed) {
                if from < start {
                    free.push((from, start - from));
                }
                from = end;
            }
            let end = placed.chunk.logical.0 + placed.chunk.len;
            if from < end {
                free.push((from, end - from));
            }
            let extent_count = u32::try_from(free.len()).expect("a few nodes leave a few gaps");
            items.push(Item {
                key: Key::new(placed.chunk.logical.0, Kind::FREE_SPACE_INFO, placed.chunk.len),
                data: FreeSpaceInfo { extent_count, flags: 0 }.to_bytes(),
            });
            items.extend(free.into_iter().map(|(start, len)| Item {
                key: Key::new(start, Kind::FREE_SPACE_EXTENT, len),
                data: Vec::new(),
            }));
        }
        items
    }

    /// The node addresses in a chunk, sorted and joined.
    fn used(&self, placed: &Placed) -> Vec<(u64, u64)> {
        let nodesize = u64::from(self.options.nodesize);
        let mut starts: Vec<u64> = self
            .trees
            .iter()
            .flat_map(|tree| tree.addresses.iter().map(|address| address.0))
            .filter(|start| {
                (placed.chunk.logical.0..placed.chunk.logical.0 + placed.chunk.len).contains(start)
            })
            .collect();
        starts.sort_unstable();
        let mut joined: Vec<(u64, u64)> = Vec::new();
        for start in starts {
            match joined.last_mut() {
                Some((_, end)) if *end == start => *end += nodesize,
                _ => joined.push((start, start + nodesize)),
            }
        }
        joined
    }
}

/// The root tree's directory, with the name of the default subvolume.
fn default_subvolume(options: &MakeOptions, identity: &Identity) -> Vec<Item> {
    let name = b"default";
    let entry = DirEntry {
        // Linux looks up the subvolume by number alone. An offset of -1 means any offset of the
        // key.
        location: Key::new(TreeId::FS.0, Kind::ROOT_ITEM, u64::MAX),
        transid: Generation(0),
        kind: FileKind::Directory,
        name: name.to_vec(),
        data: Vec::new(),
    };
    vec![
        Item {
            key: Key::new(ROOT_DIR, Kind::INODE_ITEM, 0),
            data: directory(identity, u64::from(options.nodesize)).to_bytes(),
        },
        Item { key: Key::new(ROOT_DIR, Kind::INODE_REF, ROOT_DIR), data: own_parent() },
        Item {
            key: Key::new(ROOT_DIR, Kind::DIR_ITEM, name_hash(name)),
            data: DirEntry::encode_all(&[entry]),
        },
        Item {
            key: Key::new(TreeId::FS.0, Kind::INODE_REF, ROOT_DIR),
            data: InodeRefs::encode(&[InodeRef { index: 0, name: name.to_vec() }]),
        },
    ]
}

/// The root directory of a tree of files, which is its own parent.
fn root_directory(options: &MakeOptions, identity: &Identity, visible: bool) -> Vec<Item> {
    let nbytes = if visible { u64::from(options.nodesize) } else { 0 };
    let dir = Ino::ROOT_DIR.0;
    vec![
        Item {
            key: Key::new(dir, Kind::INODE_ITEM, 0),
            data: directory(identity, nbytes).to_bytes(),
        },
        Item { key: Key::new(dir, Kind::INODE_REF, dir), data: own_parent() },
    ]
}

fn own_parent() -> Vec<u8> {
    InodeRefs::encode(&[InodeRef { index: 0, name: b"..".to_vec() }])
}

fn directory(identity: &Identity, nbytes: u64) -> InodeItem {
    InodeItem {
        generation: FIRST,
        nbytes,
        nlink: 1,
        mode: 0o40755,
        atime: identity.now,
        ctime: identity.now,
        mtime: identity.now,
        otime: identity.now,
        ..InodeItem::default()
    }
}

/// The item that maps the first subvolume's uuid to its tree.
fn uuid_item(identity: &Identity) -> Item {
    let half = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&identity.fs_tree_uuid[at..at + 8]);
        u64::from_le_bytes(bytes)
    };
    Item {
        key: Key::new(half(0), Kind::UUID_KEY_SUBVOL, half(8)),
        data: UuidItem(vec![TreeId::FS]).to_bytes(),
    }
}

/// Key of a chunk's item, in the chunk tree and in the superblock.
pub(super) fn chunk_key(placed: &Placed) -> Key {
    Key::new(ids::FIRST_CHUNK_TREE, Kind::CHUNK_ITEM, placed.chunk.logical.0)
}

/// The item of a device in the chunk tree and in its superblock. The first device has number 1.
pub(super) fn device_item(layout: &Layout, identity: &Identity, index: usize) -> DeviceItem {
    let devid = DeviceId(index as u64 + 1);
    DeviceItem {
        devid,
        total_bytes: layout.sizes[index],
        bytes_used: layout.device_bytes(devid),
        io_align: layout.sectorsize,
        io_width: layout.sectorsize,
        sector_size: layout.sectorsize,
        uuid: identity.device_uuids[index],
        fsid: identity.fsid,
        ..DeviceItem::default()
    }
}
