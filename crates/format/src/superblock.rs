//! The superblock: the addresses of the root tree and the chunk tree, and the volume's parameters.
//!
//! # On disk
//!
//! A superblock has 4096 bytes. Its copies lie at 64 KiB, 64 MiB and 256 GiB of each device, if the
//! device is long enough. The checksum covers all bytes after it.

use crate::{
    Chunk, CompatRo, CsumType, DeviceItem, Error, Generation, Incompat, Key, Logical, Result,
    bytes::{Reader, Writer},
    limits::{MAX_LEVEL, NODE_MAX, NODE_MIN, SUPER_SIZE, SYS_CHUNK_ARRAY},
};

const MAGIC: &[u8; 8] = b"_BHRfS_M";

/// A copy of the roots of one of the last four commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "address, generation and level of each tree")]
pub struct RootBackup {
    pub tree_root: Logical,
    pub tree_root_gen: Generation,
    pub chunk_root: Logical,
    pub chunk_root_gen: Generation,
    pub extent_root: Logical,
    pub extent_root_gen: Generation,
    pub fs_root: Logical,
    pub fs_root_gen: Generation,
    pub dev_root: Logical,
    pub dev_root_gen: Generation,
    pub csum_root: Logical,
    pub csum_root_gen: Generation,
    pub total_bytes: u64,
    pub bytes_used: u64,
    pub num_devices: u64,
    pub tree_root_level: u8,
    pub chunk_root_level: u8,
    pub extent_root_level: u8,
    pub fs_root_level: u8,
    pub dev_root_level: u8,
    pub csum_root_level: u8,
}

impl RootBackup {
    fn read(r: &mut Reader<'_>) -> Result<Self> {
        let backup = Self {
            tree_root: Logical(r.u64()?),
            tree_root_gen: Generation(r.u64()?),
            chunk_root: Logical(r.u64()?),
            chunk_root_gen: Generation(r.u64()?),
            extent_root: Logical(r.u64()?),
            extent_root_gen: Generation(r.u64()?),
            fs_root: Logical(r.u64()?),
            fs_root_gen: Generation(r.u64()?),
            dev_root: Logical(r.u64()?),
            dev_root_gen: Generation(r.u64()?),
            csum_root: Logical(r.u64()?),
            csum_root_gen: Generation(r.u64()?),
            total_bytes: r.u64()?,
            bytes_used: r.u64()?,
            num_devices: r.u64()?,
            tree_root_level: {
                r.skip(32)?;
                r.u8()?
            },
            chunk_root_level: r.u8()?,
            extent_root_level: r.u8()?,
            fs_root_level: r.u8()?,
            dev_root_level: r.u8()?,
            csum_root_level: r.u8()?,
        };
        r.skip(10)?;
        Ok(backup)
    }

    fn write(&self, w: &mut Writer) {
        for (at, generation) in [
            (self.tree_root, self.tree_root_gen),
            (self.chunk_root, self.chunk_root_gen),
            (self.extent_root, self.extent_root_gen),
            (self.fs_root, self.fs_root_gen),
            (self.dev_root, self.dev_root_gen),
            (self.csum_root, self.csum_root_gen),
        ] {
            w.u64(at.0).u64(generation.0);
        }
        w.u64(self.total_bytes).u64(self.bytes_used).u64(self.num_devices).zeros(32);
        w.u8(self.tree_root_level).u8(self.chunk_root_level).u8(self.extent_root_level);
        w.u8(self.fs_root_level).u8(self.dev_root_level).u8(self.csum_root_level).zeros(10);
    }
}

/// The superblock of a volume, as it is stored on one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The checksum algorithm of the volume.
    pub csum_type: CsumType,
    /// The id that users see.
    pub fsid: [u8; 16],
    /// Device offset of this copy.
    pub bytenr: u64,
    /// Flags.
    pub flags: u64,
    /// Generation of the last commit.
    pub generation: Generation,
    /// Address of the root tree.
    pub root: Logical,
    /// Address of the chunk tree.
    pub chunk_root: Logical,
    /// Address of the log tree. Zero if there is none.
    pub log_root: Logical,
    /// Transaction of the log; unused by Linux.
    pub log_root_transid: u64,
    /// Bytes of all devices.
    pub total_bytes: u64,
    /// Bytes in use.
    pub bytes_used: u64,
    /// Object id of the root tree's directory: 6.
    pub root_dir_objectid: u64,
    /// Number of devices.
    pub num_devices: u64,
    /// Bytes of a sector.
    pub sectorsize: u32,
    /// Bytes of a node.
    pub nodesize: u32,
    /// Bytes of a stripe, informational.
    pub stripesize: u32,
    /// Transaction of the chunk tree's root.
    pub chunk_root_generation: Generation,
    /// Flags that a program may ignore.
    pub compat: u64,
    /// Flags that a program must support to write the volume.
    pub compat_ro: CompatRo,
    /// Flags that a program must support to read the volume.
    pub incompat: Incompat,
    /// Level of the root tree.
    pub root_level: u8,
    /// Level of the chunk tree.
    pub chunk_root_level: u8,
    /// Level of the log tree.
    pub log_root_level: u8,
    /// The device that this copy is on.
    pub dev_item: DeviceItem,
    /// The label, padded with zeros.
    pub label: [u8; 256],
    /// Transaction for which the version 1 free space cache is valid.
    pub cache_generation: u64,
    /// Transaction for which the uuid tree is valid.
    pub uuid_tree_generation: u64,
    /// The id in the headers of nodes, if it differs from `fsid`.
    pub metadata_uuid: [u8; 16],
    /// Number of global roots (extent tree v2).
    pub nr_global_roots: u64,
    /// Chunks that hold the chunk tree.
    pub sys_chunks: Vec<(Key, Chunk)>,
    /// The roots of the last four commits.
    pub backups: [RootBackup; 4],
}

impl Superblock {
    /// Reads a copy and checks that it is a valid superblock.
    ///
    /// # Errors
    ///
    /// In this order: no btrfs magic, unknown checksum type, wrong checksum, wrong offset,
    /// impossible fields.
    pub fn parse(bytes: &[u8], at_offset: u64) -> Result<Self> {
        if bytes.len() < SUPER_SIZE {
            let found = bytes.len();
            return Err(Error::Short { what: "superblock", needed: SUPER_SIZE, found });
        }
        let bytes = &bytes[..SUPER_SIZE];
        if &bytes[64..72] != MAGIC {
            return Err(Error::BadMagic);
        }
        let csum_type = CsumType::from_disk(u16::from_le_bytes([bytes[0xC4], bytes[0xC5]]))?;
        let size = csum_type.size();
        if csum_type.digest(&bytes[32..])[..size] != bytes[..size] {
            return Err(Error::SuperChecksum);
        }
        let sb = Self::read(csum_type, &mut Reader::new("superblock", bytes))?;
        if sb.bytenr != at_offset {
            return Err(Error::SuperPlace { expected: at_offset, found: sb.bytenr });
        }
        Ok(sb)
    }

    fn read(csum_type: CsumType, r: &mut Reader<'_>) -> Result<Self> {
        r.skip(32)?;
        let (fsid, bytenr, flags) = (r.array()?, r.u64()?, r.u64()?);
        r.skip(8)?;
        let generation = Generation(r.u64()?);
        let (root, chunk_root, log_root) =
            (Logical(r.u64()?), Logical(r.u64()?), Logical(r.u64()?));
        let log_root_transid = r.u64()?;
        let (total_bytes, bytes_used) = (r.u64()?, r.u64()?);
        let (root_dir_objectid, num_devices) = (r.u64()?, r.u64()?);
        let (sectorsize, nodesize) = (r.u32()?, r.u32()?);
        r.skip(4)?;
        let stripesize = r.u32()?;
        let array_len = r.u32()?;
        let chunk_root_generation = Generation(r.u64()?);
        let (compat, compat_ro, incompat) = (r.u64()?, CompatRo(r.u64()?), Incompat(r.u64()?));
        r.skip(2)?;
        let (root_level, chunk_root_level, log_root_level) = (r.u8()?, r.u8()?, r.u8()?);
        let dev_item = DeviceItem::read(r)?;
        let label = r.array()?;
        let (cache_generation, uuid_tree_generation) = (r.u64()?, r.u64()?);
        let metadata_uuid = r.array()?;
        let nr_global_roots = r.u64()?;
        r.skip(27 * 8)?;
        if array_len as usize > SYS_CHUNK_ARRAY {
            return Err(r.field("sys_chunk_array_size", array_len.into()));
        }
        let array = r.take(SYS_CHUNK_ARRAY)?;
        let sys_chunks = Self::read_chunks(&array[..array_len as usize])?;
        let mut backups = [RootBackup::default(); 4];
        for backup in &mut backups {
            *backup = RootBackup::read(r)?;
        }
        let sane_size = |x: u32| x.is_power_of_two() && (NODE_MIN..=NODE_MAX).contains(&x);
        if !sane_size(sectorsize) {
            return Err(r.field("sectorsize", sectorsize.into()));
        }
        if !sane_size(nodesize) || nodesize < sectorsize {
            return Err(r.field("nodesize", nodesize.into()));
        }
        for (field, level) in [
            ("root_level", root_level),
            ("chunk_root_level", chunk_root_level),
            ("log_root_level", log_root_level),
        ] {
            if level >= MAX_LEVEL {
                return Err(r.field(field, level.into()));
            }
        }
        for (field, at) in [("root", root), ("chunk_root", chunk_root)] {
            if at.0 == 0 || !at.0.is_multiple_of(u64::from(sectorsize)) {
                return Err(r.field(field, at.0));
            }
        }
        if num_devices == 0 {
            return Err(r.field("num_devices", 0));
        }
        Ok(Self {
            csum_type,
            fsid,
            bytenr,
            flags,
            generation,
            root,
            chunk_root,
            log_root,
            log_root_transid,
            total_bytes,
            bytes_used,
            root_dir_objectid,
            num_devices,
            sectorsize,
            nodesize,
            stripesize,
            chunk_root_generation,
            compat,
            compat_ro,
            incompat,
            root_level,
            chunk_root_level,
            log_root_level,
            dev_item,
            label,
            cache_generation,
            uuid_tree_generation,
            metadata_uuid,
            nr_global_roots,
            sys_chunks,
            backups,
        })
    }

    fn read_chunks(array: &[u8]) -> Result<Vec<(Key, Chunk)>> {
        let mut r = Reader::new("superblock's chunk array", array);
        let mut chunks = Vec::new();
        while r.left() > 0 {
            let key = Key::parse(r.take(Key::LEN)?)?;
            let chunk = Chunk::read(&key, &mut r)?;
            chunks.push((key, chunk));
        }
        Ok(chunks)
    }

    /// The id in the headers of nodes.
    #[must_use]
    pub fn tree_fsid(&self) -> [u8; 16] {
        if self.incompat.has(Incompat::METADATA_UUID) { self.metadata_uuid } else { self.fsid }
    }

    /// The label as text.
    #[must_use]
    pub fn label_text(&self) -> String {
        String::from_utf8_lossy(self.label_bytes()).into_owned()
    }

    /// The label without the trailing zeros.
    #[must_use]
    pub fn label_bytes(&self) -> &[u8] {
        let end = self.label.iter().position(|b| *b == 0).unwrap_or(self.label.len());
        &self.label[..end]
    }

    /// Bytes of the encoded array of system chunks.
    #[must_use]
    pub fn sys_array_len(&self) -> usize {
        self.sys_chunks.iter().map(|(_, c)| Key::LEN + c.to_bytes().len()).sum()
    }

    /// The bytes of the copy at `offset`, with its checksum.
    ///
    /// # Panics
    ///
    /// If the array of chunks is longer than its field. Code that adds chunks must check the length
    /// first.
    #[must_use]
    pub fn to_bytes(&self, offset: u64) -> Vec<u8> {
        let mut w = Writer::with_capacity(SUPER_SIZE);
        w.zeros(32).bytes(&self.fsid).u64(offset).u64(self.flags).bytes(MAGIC);
        w.u64(self.generation.0).u64(self.root.0).u64(self.chunk_root.0).u64(self.log_root.0);
        w.u64(self.log_root_transid).u64(self.total_bytes).u64(self.bytes_used);
        w.u64(self.root_dir_objectid).u64(self.num_devices);
        w.u32(self.sectorsize).u32(self.nodesize).u32(self.nodesize).u32(self.stripesize);
        let mut array = Writer::with_capacity(SYS_CHUNK_ARRAY);
        for (key, chunk) in &self.sys_chunks {
            array.bytes(&key.to_bytes()).bytes(&chunk.to_bytes());
        }
        let array_len = array.0.len();
        assert!(array_len <= SYS_CHUNK_ARRAY, "{array_len} bytes of system chunks");
        w.u32(array_len as u32).u64(self.chunk_root_generation.0);
        w.u64(self.compat).u64(self.compat_ro.0).u64(self.incompat.0);
        w.u16(self.csum_type as u16);
        w.u8(self.root_level).u8(self.chunk_root_level).u8(self.log_root_level);
        w.bytes(&self.dev_item.to_bytes()).bytes(&self.label);
        w.u64(self.cache_generation).u64(self.uuid_tree_generation).bytes(&self.metadata_uuid);
        w.u64(self.nr_global_roots).zeros(27 * 8);
        array.zeros(SYS_CHUNK_ARRAY - array_len);
        w.bytes(&array.0);
        for backup in &self.backups {
            backup.write(&mut w);
        }
        let mut out = w.0;
        out.resize(SUPER_SIZE, 0);
        let digest = self.csum_type.digest(&out[32..]);
        out[..32].copy_from_slice(&digest);
        out
    }
}
