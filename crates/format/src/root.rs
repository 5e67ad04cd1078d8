//! Root items of trees, and the references between subvolumes.

use crate::{
    Generation, Ino, InodeItem, Key, Logical, Result, Timespec,
    bytes::{Reader, Writer},
    limits::{MAX_LEVEL, NAME_MAX},
};

/// Flags of a root item.
pub struct RootFlags;

impl RootFlags {
    /// The subvolume cannot be changed.
    pub const READONLY: u64 = 1;
    /// The subvolume is being deleted.
    pub const DEAD: u64 = 1 << 48;
}

/// A tree's root item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RootItem {
    /// A stub of the root directory, which today's programs do not read.
    pub inode: InodeItem,
    /// Transaction that wrote the root node.
    pub generation: Generation,
    /// The root directory: 256 for subvolumes, else 0.
    pub root_dirid: Ino,
    /// Address of the root node.
    pub bytenr: Logical,
    /// Unused. Always zero.
    pub byte_limit: u64,
    /// Bytes of the tree's nodes.
    pub bytes_used: u64,
    /// Transaction of the tree's last snapshot.
    pub last_snapshot: Generation,
    /// [`RootFlags`].
    pub flags: u64,
    /// References to the tree. Zero during its deletion.
    pub refs: u32,
    /// The key that a deletion has reached.
    pub drop_progress: Key,
    /// The level of `drop_progress`.
    pub drop_level: u8,
    /// Level of the root node.
    pub level: u8,
    /// Equal to `generation` if the last writer knew the fields from this one on. Otherwise these
    /// fields are stale, and the parser zeroes them.
    pub generation_v2: Generation,
    /// Uuid of the subvolume.
    pub uuid: [u8; 16],
    /// Uuid of the subvolume of which this subvolume is a snapshot.
    pub parent_uuid: [u8; 16],
    /// Uuid of the sent subvolume from which this subvolume was received.
    pub received_uuid: [u8; 16],
    /// Transaction of the subvolume's last change.
    pub ctransid: Generation,
    /// Transaction of the subvolume's creation.
    pub otransid: Generation,
    /// Transaction of the sent original.
    pub stransid: Generation,
    /// Transaction of reception.
    pub rtransid: Generation,
    /// Time of the last change.
    pub ctime: Timespec,
    /// Time of creation.
    pub otime: Timespec,
    /// Time of the sent original.
    pub stime: Timespec,
    /// Time of reception.
    pub rtime: Timespec,
}

impl RootItem {
    /// Bytes on disk.
    pub const LEN: usize = 439;
    /// Bytes of an item that an old kernel wrote.
    pub const OLD_LEN: usize = 239;

    /// Reads an item, old or new.
    ///
    /// # Errors
    ///
    /// If the item has neither [`Self::LEN`] nor [`Self::OLD_LEN`] bytes, or an impossible level.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new("root item", bytes);
        let mut item = Self {
            inode: InodeItem::read(&mut r)?,
            generation: Generation(r.u64()?),
            root_dirid: Ino(r.u64()?),
            bytenr: Logical(r.u64()?),
            byte_limit: r.u64()?,
            bytes_used: r.u64()?,
            last_snapshot: Generation(r.u64()?),
            flags: r.u64()?,
            refs: r.u32()?,
            drop_progress: Key::parse(r.take(Key::LEN)?)?,
            drop_level: r.u8()?,
            level: r.u8()?,
            ..Self::default()
        };
        if item.level >= MAX_LEVEL {
            return Err(r.field("level", item.level.into()));
        }
        if r.left() == 0 {
            return Ok(item);
        }
        item.generation_v2 = Generation(r.u64()?);
        item.uuid = r.array()?;
        item.parent_uuid = r.array()?;
        item.received_uuid = r.array()?;
        item.ctransid = Generation(r.u64()?);
        item.otransid = Generation(r.u64()?);
        item.stransid = Generation(r.u64()?);
        item.rtransid = Generation(r.u64()?);
        item.ctime = Timespec::read(&mut r)?;
        item.otime = Timespec::read(&mut r)?;
        item.stime = Timespec::read(&mut r)?;
        item.rtime = Timespec::read(&mut r)?;
        r.skip(64)?;
        r.end()?;
        if item.generation_v2 != item.generation {
            // An old kernel changed the item without these fields, so they are stale.
            item = Self {
                generation_v2: Generation(0),
                uuid: [0; 16],
                parent_uuid: [0; 16],
                received_uuid: [0; 16],
                ctransid: Generation(0),
                otransid: Generation(0),
                stransid: Generation(0),
                rtransid: Generation(0),
                ctime: Timespec::default(),
                otime: Timespec::default(),
                stime: Timespec::default(),
                rtime: Timespec::default(),
                ..item
            };
        }
        Ok(item)
    }

    /// The item's bytes, always in the new form.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(Self::LEN);
        self.inode.write(&mut w);
        w.u64(self.generation.0).u64(self.root_dirid.0).u64(self.bytenr.0).u64(self.byte_limit);
        w.u64(self.bytes_used).u64(self.last_snapshot.0).u64(self.flags).u32(self.refs);
        w.bytes(&self.drop_progress.to_bytes()).u8(self.drop_level).u8(self.level);
        w.u64(self.generation.0);
        w.bytes(&self.uuid).bytes(&self.parent_uuid).bytes(&self.received_uuid);
        for id in [self.ctransid, self.otransid, self.stransid, self.rtransid] {
            w.u64(id.0);
        }
        for time in [self.ctime, self.otime, self.stime, self.rtime] {
            time.write(&mut w);
        }
        w.zeros(64);
        w.0
    }
}

/// A subvolume's name in its parent. ROOT_REF and ROOT_BACKREF items have the same form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootRef {
    /// The directory.
    pub dirid: Ino,
    /// The index of the name in the directory.
    pub sequence: u64,
    /// The name.
    pub name: Vec<u8>,
}

impl RootRef {
    /// Reads an item.
    ///
    /// # Errors
    ///
    /// When the name is cut short, empty or too long.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new("root reference", bytes);
        let (dirid, sequence, len) = (Ino(r.u64()?), r.u64()?, r.u16()?);
        if len == 0 || usize::from(len) > NAME_MAX {
            return Err(r.field("name_len", len.into()));
        }
        let name = r.take(usize::from(len))?.to_vec();
        r.end()?;
        Ok(Self { dirid, sequence, name })
    }

    /// The item's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(18 + self.name.len());
        w.u64(self.dirid.0).u64(self.sequence).u16(self.name.len() as u16).bytes(&self.name);
        w.0
    }
}
