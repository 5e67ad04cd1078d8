//! Orders on fs-verity.

use serde::{Deserialize, Serialize};

/// How a Merkle tree is made, as the command line says it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerityTree {
    /// The name of the hash function.
    pub hash: String,
    /// Bytes of a block.
    pub block_size: u32,
    /// Bytes that are hashed before each block.
    pub salt: Vec<u8>,
}

/// An action on fs-verity of a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VerityAct {
    /// Make the Merkle tree. The content then never changes.
    Enable {
        /// How to make it.
        tree: VerityTree,
        /// A signature to store with the tree.
        signature: Vec<u8>,
    },
    /// Report the digest of a file that has a tree.
    Measure,
    /// Compute the digest that a file would have.
    Digest {
        /// How to make the tree.
        tree: VerityTree,
    },
}
