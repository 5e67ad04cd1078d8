//! Finds nodes by examining every place where a node may lie.
//!
//! # Invariants
//!
//! - **SC1** Every listed node was read completely, and passed all checks of `tree::Node`.

use std::sync::Arc;

use buttress_base::AlignedBuf;
use buttress_block::{Content, Device};
use buttress_format::{Generation, Header, Key, Logical, TreeId, header::HEADER_LEN};
use buttress_tree::{Expect, Geometry, Node, NodePtr};

use crate::progress::{Progress, Step};

/// Bytes of one read.
const WINDOW: u64 = 4 << 20;
/// Alignment at which nodes may begin: the smallest sector of any volume.
const STEP: u64 = 4096;

/// One node, where it was found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundNode {
    pub(crate) logical: Logical,
    pub(crate) generation: Generation,
    pub(crate) owner: TreeId,
    pub(crate) level: u8,
    /// Index of the device.
    pub(crate) device: u32,
    /// Offset on the device, in bytes.
    pub(crate) physical: u64,
    pub(crate) first: Key,
    pub(crate) last: Key,
}

impl FoundNode {
    /// The pointer to this node.
    pub(crate) fn ptr(&self) -> NodePtr {
        NodePtr { logical: self.logical, generation: self.generation, level: self.level }
    }
}

/// All nodes on the devices of a volume, of any age. They are sorted by address, and at one address
/// the newest node is first. Copies of one node are neighbours.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    pub(crate) nodes: Vec<FoundNode>,
}

impl Scan {
    /// Scans the devices from beginning to end.
    pub(crate) fn run(
        devices: &[Arc<dyn Device>],
        geometry: &Geometry,
        progress: &dyn Progress,
    ) -> Self {
        let total = devices.iter().map(|device| device.len()).sum();
        progress.step(Step::Scan, total);
        let mut nodes = Vec::new();
        for (index, device) in devices.iter().enumerate() {
            scan_device(&**device, index as u32, geometry, progress, &mut nodes);
        }
        nodes.sort_unstable_by_key(|node| {
            (node.logical, std::cmp::Reverse(node.generation), node.device, node.physical)
        });
        Self { nodes }
    }

    /// The copies of a node.
    pub(crate) fn copies(&self, ptr: &NodePtr) -> &[FoundNode] {
        let order = |node: &FoundNode| {
            (node.logical, std::cmp::Reverse(node.generation))
                .cmp(&(ptr.logical, std::cmp::Reverse(ptr.generation)))
        };
        let start = self.nodes.partition_point(|node| order(node).is_lt());
        let len = self.nodes[start..].partition_point(|node| order(node).is_eq());
        &self.nodes[start..start + len]
    }

    /// Each node once.
    pub(crate) fn each(&self) -> impl Iterator<Item = &FoundNode> {
        let mut before = None;
        self.nodes.iter().filter(move |node| {
            let this = Some((node.logical, node.generation));
            std::mem::replace(&mut before, this) != this
        })
    }

    /// The probable root of a tree: the highest of its newest nodes.
    pub(crate) fn newest_top(&self, tree: TreeId, until: Generation) -> Option<NodePtr> {
        let of_tree = self.each().filter(|node| node.owner == tree && node.generation <= until);
        of_tree.max_by_key(|node| (node.generation, node.level)).map(FoundNode::ptr)
    }
}

fn scan_device(
    device: &dyn Device,
    index: u32,
    geometry: &Geometry,
    progress: &dyn Progress,
    nodes: &mut Vec<FoundNode>,
) {
    let nodesize = u64::from(geometry.nodesize);
    let len = device.len();
    let mut at = 0;
    let mut buf = vec![0; (WINDOW + nodesize) as usize];
    while at < len && progress.goes_on() {
        let want = WINDOW.min(len - at);
        if let Ok(extent) = device.extent_at(at, want)
            && extent.content == Content::Hole
            && extent.len >= STEP
        {
            // No node begins in a hole, and a node that begins before the hole was read already.
            let skip = extent.len / STEP * STEP;
            progress.advance(skip);
            at += skip;
            continue;
        }
        let read = (want + nodesize).min(len - at) as usize;
        let window = &mut buf[..read];
        if device.read_at(at, window).is_err() {
            read_pieces(device, at, window);
        }
        for start in (0..want).step_by(STEP as usize) {
            let end = start + nodesize;
            let Some(bytes) = window.get(start as usize..end as usize) else { break };
            if bytes[32..48] != geometry.fsid {
                continue;
            }
            if let Some((header, first, last)) = inspect(bytes, geometry) {
                nodes.push(FoundNode {
                    logical: header.bytenr,
                    generation: header.generation,
                    owner: header.owner,
                    level: header.level,
                    device: index,
                    physical: at + start,
                    first,
                    last,
                });
            }
        }
        progress.advance(want);
        at += want;
    }
}

/// Reads a window piece by piece. Pieces that cannot be read become zeros.
fn read_pieces(device: &dyn Device, at: u64, window: &mut [u8]) {
    for (index, piece) in window.chunks_mut(STEP as usize).enumerate() {
        if device.read_at(at + index as u64 * STEP, piece).is_err() {
            piece.fill(0);
        }
    }
}

/// The header, first key and last key of a node. `None` if the bytes are not a valid node.
pub(crate) fn inspect(bytes: &[u8], geometry: &Geometry) -> Option<(Header, Key, Key)> {
    let header = Header::parse(bytes).ok()?;
    let (logical, generation) = (header.bytenr, header.generation);
    let ptr = NodePtr { logical, generation, level: header.level };
    let header = Node::inspect(bytes, geometry, &Expect::root(ptr), true).ok()?;
    let stride = if header.level == 0 { 25 } else { 33 };
    let key = |slot: u32| {
        let at = HEADER_LEN + slot as usize * stride;
        bytes.get(at..).and_then(|rest| Key::parse(rest).ok())
    };
    match header.nritems {
        0 => Some((header, Key::MIN, Key::MIN)),
        count => Some((header, key(0)?, key(count - 1)?)),
    }
}

/// Reads a copy that was found.
pub(crate) fn read_copy(
    devices: &[Arc<dyn Device>],
    geometry: &Geometry,
    found: &FoundNode,
    expect: &Expect,
) -> Option<Node> {
    let mut buf = AlignedBuf::zeroed(geometry.nodesize as usize);
    devices.get(found.device as usize)?.read_at(found.physical, &mut buf).ok()?;
    Node::verify(buf, geometry, expect, true).ok()
}
