//! Reads nodes through the map of chunks, or from the addresses that a scan found.

use std::error::Error as _;
use std::sync::Arc;

use buttress_format::TreeId;
use buttress_tree::{Error as TreeError, Expect, Node, NodeSource};

use crate::salvage::Salvage;
use crate::scan;

impl Salvage {
    /// The node that a pointer names, from any copy of it.
    pub(crate) fn node(&self, owner: TreeId, expect: &Expect) -> Result<Arc<Node>, String> {
        let error = match self.store.node(owner, expect) {
            Ok(node) => return Ok(node),
            Err(error) => error,
        };
        let copies = self.scan_if_done().map_or(&[][..], |scan| scan.copies(&expect.ptr));
        for copy in copies {
            if let Some(node) = scan::read_copy(&self.devices, &self.geometry, copy, expect) {
                let node = Arc::new(node);
                self.store.remember(Arc::clone(&node));
                return Ok(node);
            }
        }
        Err(reason(expect, &error))
    }
}

/// Describes in one line why a node cannot be read.
fn reason(expect: &Expect, error: &TreeError) -> String {
    let at = expect.ptr.logical;
    match error {
        TreeError::Damaged { why, .. } => format!("the tree node at {at} is damaged: {why}"),
        TreeError::Volume(source) => {
            let mut text = format!("the tree node at {at} cannot be read: {source}");
            let mut cause = source.source();
            while let Some(next) = cause {
                text = format!("{text}: {next}");
                cause = next.source();
            }
            text
        }
        other => format!("the tree node at {at}: {other}"),
    }
}
