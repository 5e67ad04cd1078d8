//! Trees and superblocks as JSON, for scripts.
//!
//! # Place
//!
//! The text of an item is included as lines. Names and values are also included separately, in
//! full, in the form that all verbs use for names in JSON.

use std::io::{Result, Write};

use buttress_base::text;
use buttress_format::{DirEntry, InodeExtrefs, InodeRefs, Key, Kind, RootRef, TreeId};
use buttress_tree::{Geometry, Node};
use buttress_volume::Uuid;
use serde_json::{Value, json};

use super::items;

/// A list that is written while it grows: each entry on a line of its own.
pub(super) struct List<W: Write> {
    out: W,
    has_some: bool,
}

impl<W: Write> List<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out, has_some: false }
    }

    pub(super) fn add(&mut self, value: &Value) -> Result<()> {
        let before = if self.has_some { ",\n" } else { "[\n" };
        self.has_some = true;
        write!(self.out, "{before}{value}")
    }

    pub(super) fn end(mut self) -> Result<()> {
        writeln!(self.out, "{}", if self.has_some { "\n]" } else { "[]" })?;
        self.out.flush()
    }
}

/// Returns a node as JSON: its tree, and its items or children.
pub(super) fn node(tree: TreeId, node: &Node, geometry: &Geometry) -> Value {
    let header = node.header();
    let mut value = json!({
        "tree": tree.0,
        "bytenr": header.bytenr.0,
        "level": header.level,
        "generation": header.generation.0,
        "owner": header.owner.0,
        "flags": header.flags,
        "fsid": Uuid(header.fsid).to_string(),
        "chunk_tree_uuid": Uuid(header.chunk_tree_uuid).to_string(),
    });
    let slots = 0..node.len();
    if node.level() == 0 {
        value["items"] = slots.map(|at| item(&node.key(at), node.item(at), geometry)).collect();
    } else {
        let child = |slot| {
            let child = node.child(slot);
            let (block, generation) = (child.logical.0, child.generation.0);
            json!({ "key": key(&node.key(slot)), "block": block, "generation": generation })
        };
        value["children"] = slots.map(child).collect();
    }
    value
}

fn key(key: &Key) -> Value {
    json!({ "objectid": key.objectid, "type": key.kind.0, "offset": key.offset,
        "text": items::key(key) })
}

fn item(at: &Key, bytes: &[u8], geometry: &Geometry) -> Value {
    let mut lines = Vec::new();
    // Writing into memory cannot fail.
    let _ = items::print(at, bytes, geometry, items::Form::default(), &mut lines);
    let lines = String::from_utf8_lossy(&lines);
    let lines: Vec<&str> = lines.lines().map(str::trim_start).collect();
    let mut value = json!({ "key": key(at), "size": bytes.len(), "lines": lines });
    if let Some(names) = names(at, bytes) {
        value["names"] = names;
    }
    value
}

/// Returns the names in an item, or `None` for an item that has none or does not parse.
fn names(at: &Key, bytes: &[u8]) -> Option<Value> {
    let name = |name: &[u8]| json!({ "name": text::encode(name) });
    Some(match at.kind {
        Kind::INODE_REF => {
            InodeRefs::parse(bytes).ok()?.into_iter().map(|found| name(&found.name)).collect()
        }
        Kind::INODE_EXTREF => {
            InodeExtrefs::parse(bytes).ok()?.into_iter().map(|found| name(&found.name)).collect()
        }
        Kind::ROOT_REF | Kind::ROOT_BACKREF => json!([name(&RootRef::parse(bytes).ok()?.name)]),
        Kind::DIR_ITEM | Kind::DIR_INDEX | Kind::XATTR_ITEM => {
            let entry = |entry: DirEntry| {
                let mut value = name(&entry.name);
                if at.kind == Kind::XATTR_ITEM {
                    value["value"] = text::encode(&entry.data).into();
                }
                value
            };
            DirEntry::parse_all(bytes).ok()?.into_iter().map(entry).collect()
        }
        _ => return None,
    })
}

/// A superblock: its fields in the form and the order of the text.
pub(super) fn superblock(device: &str, label: &[u8], lines: &[u8]) -> Value {
    let lines = String::from_utf8_lossy(lines);
    let lines: Vec<&str> = lines.lines().collect();
    json!({ "device": device, "label": text::encode(label), "lines": lines })
}
