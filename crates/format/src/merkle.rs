//! Merkle trees of fs-verity: hashes of blocks, where the hashes lie, and how a tree is made.
//!
//! # The tree
//!
//! A file is cut into blocks; zeros fill the last one. The hashes of its blocks, one after the
//! other, are cut into blocks of the same size: level 0 of the tree. The hashes of these blocks are
//! level 1, and so on, until a level has one block. The hash of that block is the root hash. A file
//! of one block has no tree: the root hash is the hash of the block. The root hash of an empty file
//! is zeros.
//!
//! The levels are stored from the top one to level 0, each from its first block.
//!
//! The salt, padded with zeros to whole input blocks of the hash function, is hashed before each
//! block.

use sha2::{Digest as _, Sha256, Sha512};

/// A hash function of fs-verity, by its number on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum HashKind {
    /// SHA-256: 32 bytes.
    #[default]
    Sha256 = 1,
    /// SHA-512: 64 bytes.
    Sha512 = 2,
}

impl HashKind {
    /// The function with this number.
    #[must_use]
    pub fn from_disk(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Sha256),
            2 => Some(Self::Sha512),
            _ => None,
        }
    }

    /// The function with this name, as the program `fsverity` has it.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Sha256, Self::Sha512].into_iter().find(|kind| kind.name() == name)
    }

    /// The name of the function.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
        }
    }

    /// Bytes of a hash.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha512 => 64,
        }
    }

    /// Bytes of a block of the function.
    fn input_block(self) -> usize {
        match self {
            Self::Sha256 => 64,
            Self::Sha512 => 128,
        }
    }

    /// The hash of some bytes.
    #[must_use]
    pub fn digest(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Self::Sha256 => Sha256::digest(bytes).to_vec(),
            Self::Sha512 => Sha512::digest(bytes).to_vec(),
        }
    }
}

/// A hash state that has the salt already, because each block begins with it.
#[derive(Clone, Debug)]
enum Salted {
    Sha256(Sha256),
    Sha512(Sha512),
}

/// Hashes blocks of a file and of its tree.
#[derive(Clone, Debug)]
pub struct MerkleHasher {
    salted: Salted,
    block_size: usize,
}

impl MerkleHasher {
    /// A hasher of blocks of `block_size` bytes.
    #[must_use]
    pub fn new(kind: HashKind, block_size: usize, salt: &[u8]) -> Self {
        let mut salt = salt.to_vec();
        salt.resize(salt.len().next_multiple_of(kind.input_block()), 0);
        let salted = match kind {
            HashKind::Sha256 => Salted::Sha256(Sha256::new_with_prefix(&salt)),
            HashKind::Sha512 => Salted::Sha512(Sha512::new_with_prefix(&salt)),
        };
        Self { salted, block_size }
    }

    /// The hash of a block. Zeros fill up a block that is shorter, as the last one of a file is.
    ///
    /// # Panics
    ///
    /// When there are more bytes than a block has: the caller's bug.
    #[must_use]
    pub fn block(&self, bytes: &[u8]) -> Vec<u8> {
        const ZEROS: [u8; 512] = [0; 512];
        let mut missing = self.block_size.checked_sub(bytes.len()).expect("one block at a time");
        let mut state = self.salted.clone();
        state.update(bytes);
        while missing > 0 {
            let part = missing.min(ZEROS.len());
            state.update(&ZEROS[..part]);
            missing -= part;
        }
        state.finish()
    }
}

impl Salted {
    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(state) => state.update(bytes),
            Self::Sha512(state) => state.update(bytes),
        }
    }

    fn finish(self) -> Vec<u8> {
        match self {
            Self::Sha256(state) => state.finalize().to_vec(),
            Self::Sha512(state) => state.finalize().to_vec(),
        }
    }
}

/// Where the blocks of a tree lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeShape {
    log_block: u8,
    hash_size: u64,
    data_blocks: u64,
    /// For each level from level 0 on: its first byte in the tree, and its number of blocks.
    levels: Vec<(u64, u64)>,
    bytes: u64,
}

impl TreeShape {
    /// The shape for a file of `data_size` bytes. A block is a power of two between 2^10 and 2^16,
    /// so it holds at least sixteen hashes and the number of levels is small.
    #[must_use]
    pub fn new(kind: HashKind, log_block: u8, data_size: u64) -> Self {
        let (block, hash_size) = (1_u64 << log_block, kind.size() as u64);
        let data_blocks = data_size.div_ceil(block);
        let (mut counts, mut below) = (Vec::new(), data_blocks);
        while below > 1 {
            below = below.div_ceil(block / hash_size);
            counts.push(below);
        }
        let mut bytes = 0;
        let mut levels: Vec<(u64, u64)> = Vec::with_capacity(counts.len());
        for count in counts.into_iter().rev() {
            levels.push((bytes, count));
            bytes += count * block;
        }
        levels.reverse();
        Self { log_block, hash_size, data_blocks, levels, bytes }
    }

    /// Bytes of the whole tree. A tree is at most a sixteenth of its file, and a little more.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Blocks of the file.
    #[must_use]
    pub fn data_blocks(&self) -> u64 {
        self.data_blocks
    }

    /// The number of levels of the tree.
    #[must_use]
    pub fn levels(&self) -> usize {
        self.levels.len()
    }

    /// The first byte, within the tree, of a block of a level. `None` past the level's last block.
    #[must_use]
    pub fn block_at(&self, level: usize, index: u64) -> Option<u64> {
        let (start, count) = *self.levels.get(level)?;
        (index < count).then(|| start + (index << self.log_block))
    }

    /// The block of the next level that has the hash of block `index`, and the place of the hash in
    /// that block, in bytes.
    #[must_use]
    pub fn hash_at(&self, index: u64) -> (u64, usize) {
        let each = (1 << self.log_block) / self.hash_size;
        (index / each, ((index % each) * self.hash_size) as usize)
    }
}

/// Makes a tree while the blocks of a file are hashed in order.
///
/// The memory is one block for each level. Each block of the tree comes out once, when it is full.
/// So blocks of different levels come mixed.
#[derive(Debug)]
pub struct MerkleBuilder {
    hasher: MerkleHasher,
    shape: TreeShape,
    block_size: usize,
    /// For each level: the block that is being filled, and its index.
    open: Vec<(Vec<u8>, u64)>,
    /// The hash of the only block of a file of one block, or of the top block.
    root: Option<Vec<u8>>,
}

impl MerkleBuilder {
    /// Begins the tree of a file of `data_size` bytes.
    #[must_use]
    pub fn new(kind: HashKind, log_block: u8, salt: &[u8], data_size: u64) -> Self {
        let block_size = 1 << log_block;
        let shape = TreeShape::new(kind, log_block, data_size);
        let open = vec![(Vec::with_capacity(block_size), 0); shape.levels()];
        let hasher = MerkleHasher::new(kind, block_size, salt);
        Self { hasher, shape, block_size, open, root: None }
    }

    /// The shape of the tree.
    #[must_use]
    pub fn shape(&self) -> &TreeShape {
        &self.shape
    }

    /// Adds the next block of the file. `put` gets each finished block of the tree with the place
    /// of its first byte in the tree.
    pub fn add(&mut self, block: &[u8], put: &mut impl FnMut(u64, Vec<u8>)) {
        let hash = self.hasher.block(block);
        self.up(0, hash, put);
    }

    fn up(&mut self, level: usize, hash: Vec<u8>, put: &mut impl FnMut(u64, Vec<u8>)) {
        let Some((open, _)) = self.open.get_mut(level) else {
            self.root = Some(hash);
            return;
        };
        open.extend_from_slice(&hash);
        if open.len() >= self.block_size {
            self.close(level, put);
        }
    }

    /// Finishes the open block of a level.
    fn close(&mut self, level: usize, put: &mut impl FnMut(u64, Vec<u8>)) {
        let (open, index) = &mut self.open[level];
        let mut block = std::mem::replace(open, Vec::with_capacity(self.block_size));
        block.resize(self.block_size, 0);
        let at = self.shape.block_at(level, *index);
        *index += 1;
        let hash = self.hasher.block(&block);
        // If a caller adds too many blocks, tree blocks beyond the shape are dropped.
        if let Some(at) = at {
            put(at, block);
        }
        self.up(level + 1, hash, put);
    }

    /// Ends the tree after the last block. Returns the root hash, with zeros after it.
    #[must_use]
    pub fn finish(mut self, put: &mut impl FnMut(u64, Vec<u8>)) -> [u8; 64] {
        for level in 0..self.open.len() {
            if !self.open[level].0.is_empty() {
                self.close(level, put);
            }
        }
        let mut root = [0; 64];
        if let Some(hash) = &self.root {
            root[..hash.len()].copy_from_slice(hash);
        }
        root
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree made level by level, in memory: the definition.
    fn model(kind: HashKind, log_block: u8, salt: &[u8], data: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let block = 1 << log_block;
        let hash = |bytes: &[u8]| {
            let mut whole = salt.to_vec();
            whole.resize(salt.len().next_multiple_of(kind.size() * 2), 0);
            whole.extend_from_slice(bytes);
            whole.resize(whole.len() + block - bytes.len(), 0);
            kind.digest(&whole)
        };
        if data.is_empty() {
            return (Vec::new(), vec![0; kind.size()]);
        }
        let (mut tree, mut level) = (Vec::new(), data.to_vec());
        while level.len() > block {
            level = level.chunks(block).flat_map(hash).collect();
            level.resize(level.len().next_multiple_of(block), 0);
            tree.splice(0..0, level.iter().copied());
        }
        (tree, hash(&level))
    }

    /// Trees of files of many lengths are those of the definition, also with several levels.
    #[test]
    fn trees_are_those_of_the_definition() {
        let data: Vec<u8> = (0..300_000_u32).map(|at| (at * 7 + at / 251) as u8).collect();
        let sizes = [0, 1, 1023, 1024, 1025, 2048, 16_384, 32_768, 32_769, 65_537, 300_000];
        let salts: [&[u8]; 3] = [b"", b"pepper", &[9; 32]];
        for (kind, log_block) in
            [(HashKind::Sha256, 10), (HashKind::Sha256, 12), (HashKind::Sha512, 10)]
        {
            for (size, salt) in sizes.into_iter().flat_map(|size| salts.map(|salt| (size, salt))) {
                let data = &data[..size];
                let mut builder = MerkleBuilder::new(kind, log_block, salt, size as u64);
                let mut tree = vec![0xff; builder.shape().bytes() as usize];
                let mut put = |at: u64, block: Vec<u8>| {
                    tree[at as usize..at as usize + block.len()].copy_from_slice(&block);
                };
                for block in data.chunks(1 << log_block) {
                    builder.add(block, &mut put);
                }
                let root = builder.finish(&mut put);
                let (expected, expected_root) = model(kind, log_block, salt, data);
                assert_eq!(tree, expected, "{kind:?} {log_block} {size}");
                assert_eq!(root[..kind.size()], expected_root, "{kind:?} {log_block} {size}");
            }
        }
    }

    /// The largest file has a tree with few levels, and no number overflows.
    #[test]
    fn the_largest_file_has_a_shape() {
        for kind in [HashKind::Sha256, HashKind::Sha512] {
            for log_block in 10..=16 {
                let shape = TreeShape::new(kind, log_block, i64::MAX as u64);
                assert!(shape.levels() <= 14, "{kind:?} {log_block}: {}", shape.levels());
                assert!(shape.bytes() < 1 << 60);
                assert_eq!(shape.block_at(shape.levels() - 1, 0), Some(0), "the top comes first");
                assert_eq!(shape.block_at(shape.levels() - 1, 1), None);
                assert_eq!(shape.block_at(shape.levels(), 0), None);
            }
        }
    }
}
