//! Answers to the commands, byte by byte.

use super::{ARGUMENT_LEN, NAME_LEN, SearchKey};
use crate::{Errno, WireTime};

/// Length of the answers that are not [`ARGUMENT_LEN`] long, in bytes.
const VOLUME_LEN: usize = 1024;
const SUBVOLUME_LEN: usize = 504;
/// Offset of a device's path, and the largest length of the path with its zero byte.
const DEVICE_PATH_AT: usize = 3072;
const DEVICE_PATH_LEN: usize = 1024;
/// The most references in one answer.
const REFS_MAX: usize = 255;
/// Offset of the number of references.
const REF_COUNT_AT: usize = 4088;
/// The longest paths with the zero byte at their ends.
const INODE_PATH_LEN: usize = 4080;
const SUBVOLUME_PATH_LEN: usize = 3824;
/// Length of the header of an item that a search shows, in bytes.
pub const SEARCH_ITEM_LEN: usize = 32;

/// Bytes that grow field by field.
struct Answer(Vec<u8>);

impl Answer {
    fn new() -> Self {
        Self(Vec::with_capacity(ARGUMENT_LEN))
    }

    fn u64(mut self, value: u64) -> Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    fn u32(mut self, value: u32) -> Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    fn u16(mut self, value: u16) -> Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// A text in a field of `len` bytes that ends with a zero byte. A longer text is cut off.
    fn text(mut self, text: &[u8], len: usize) -> Self {
        let end = self.0.len() + len;
        self.0.extend_from_slice(&text[..text.len().min(len - 1)]);
        self.0.resize(end, 0);
        self
    }

    fn time(self, time: WireTime) -> Self {
        self.u64(time.sec.cast_unsigned()).u32(time.nsec).u32(0)
    }

    /// All bytes, filled up with zeros to `len` bytes.
    fn up_to(mut self, len: usize) -> Self {
        self.0.resize(len, 0);
        self
    }
}

/// Facts about a volume.
#[derive(Clone, Copy, Debug, Default)]
pub struct VolumeFacts {
    /// The largest number of a device.
    pub device_max: u64,
    /// Number of devices.
    pub devices: u64,
    /// The id that users see.
    pub fsid: [u8; 16],
    /// The id in the headers of nodes.
    pub metadata_uuid: [u8; 16],
    /// Bytes of a node.
    pub nodesize: u32,
    /// Bytes of a sector.
    pub sectorsize: u32,
    /// The number of the checksum type, and the length of a checksum in bytes.
    pub csum: (u16, u16),
    /// Number of the transaction.
    pub generation: u64,
}

impl VolumeFacts {
    /// Flags for all fields that a program may ask for. The kernel does not pass the program's
    /// flags along with this command, so every answer has all fields.
    const ALL: u64 = 1 | 1 << 1 | 1 << 2;

    /// The answer.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let answer = Answer::new().u64(self.device_max).u64(self.devices).bytes(&self.fsid);
        let answer = answer.u32(self.nodesize).u32(self.sectorsize).u32(self.sectorsize);
        let answer = answer.u16(self.csum.0).u16(self.csum.1).u64(Self::ALL).u64(self.generation);
        answer.bytes(&self.metadata_uuid).up_to(VOLUME_LEN).0
    }
}

/// Facts about a device.
#[derive(Clone, Debug, Default)]
pub struct DeviceFacts {
    /// Its number.
    pub id: u64,
    /// Its uuid.
    pub uuid: [u8; 16],
    /// Bytes that chunks take.
    pub used: u64,
    /// Bytes that the volume may use.
    pub total: u64,
    /// The id of the volume.
    pub fsid: [u8; 16],
    /// Its name on this machine.
    pub path: Vec<u8>,
}

impl DeviceFacts {
    /// The answer.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let answer = Answer::new().u64(self.id).bytes(&self.uuid).u64(self.used).u64(self.total);
        let answer = answer.bytes(&self.fsid).up_to(DEVICE_PATH_AT);
        answer.text(&self.path, DEVICE_PATH_LEN).0
    }
}

/// Feature flags of a volume.
#[derive(Clone, Copy, Debug, Default)]
pub struct Features {
    /// Flags that are safe to ignore.
    pub compat: u64,
    /// Flags that a writer must know.
    pub compat_ro: u64,
    /// Flags that a reader must know.
    pub incompat: u64,
}

impl Features {
    /// The answer.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        Answer::new().u64(self.compat).u64(self.compat_ro).u64(self.incompat).0
    }
}

/// Facts about a subvolume.
#[derive(Clone, Debug, Default)]
pub struct SubvolumeFacts {
    /// Its number.
    pub tree: u64,
    /// Its name; empty for the top level.
    pub name: Vec<u8>,
    /// The subvolume and the directory that have the name; zero for the top level.
    pub place: (u64, u64),
    /// Transaction that wrote the root of its tree.
    pub generation: u64,
    /// Flags of its root item.
    pub flags: u64,
    /// Its own uuid, the uuid of its source, and the uuid of the original if it was received.
    pub uuids: [[u8; 16]; 3],
    /// Transactions of the last change, the creation, the sending and the reception.
    pub transactions: [u64; 4],
    /// Times of the same four events.
    pub times: [WireTime; 4],
}

impl SubvolumeFacts {
    /// The answer.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let answer = Answer::new().u64(self.tree).text(&self.name, NAME_LEN);
        let answer = answer.u64(self.place.0).u64(self.place.1);
        let answer = answer.u64(self.generation).u64(self.flags);
        let answer = self.uuids.iter().fold(answer, |answer, uuid| answer.bytes(uuid));
        let answer = self.transactions.iter().fold(answer, |answer, number| answer.u64(*number));
        let answer = self.times.iter().fold(answer, |answer, time| answer.time(*time));
        answer.up_to(SUBVOLUME_LEN).0
    }
}

/// The answer that lists the subvolumes within another subvolume, each with the directory that has
/// its name. If not all of them fit, the answer lists the first of them, and the error of the
/// command is `EOVERFLOW`.
#[must_use]
pub fn subvolume_refs(from: u64, found: &[(u64, u64)]) -> (Vec<u8>, Option<Errno>) {
    let shown = &found[..found.len().min(REFS_MAX)];
    let next = shown.last().map_or(from, |(tree, _)| tree.saturating_add(1));
    let answer = Answer::new().u64(next);
    let answer = shown.iter().fold(answer, |answer, (tree, dir)| answer.u64(*tree).u64(*dir));
    let mut bytes = answer.up_to(ARGUMENT_LEN).0;
    bytes[REF_COUNT_AT] = u8::try_from(shown.len()).unwrap_or(u8::MAX);
    (bytes, (found.len() > REFS_MAX).then_some(Errno::EOVERFLOW))
}

/// The names of a path, each with a slash behind it.
fn path(way: &[Vec<u8>], len: usize) -> Result<Vec<u8>, Errno> {
    let path: Vec<u8> = way.iter().flat_map(|name| name.iter().copied().chain([b'/'])).collect();
    if path.len() < len { Ok(path) } else { Err(Errno::ENAMETOOLONG) }
}

/// The answer with the path to an inode.
///
/// # Errors
///
/// `ENAMETOOLONG` where the path does not fit.
pub fn inode_path(tree: u64, ino: u64, way: &[Vec<u8>]) -> Result<Vec<u8>, Errno> {
    let answer = Answer::new().u64(tree).u64(ino);
    Ok(answer.text(&path(way, INODE_PATH_LEN)?, INODE_PATH_LEN).0)
}

/// The answer with the name of a subvolume, and the path to the directory that has the name.
///
/// # Errors
///
/// `ENAMETOOLONG` where the path does not fit.
pub fn subvolume_path(dir: u64, tree: u64, name: &[u8], way: &[Vec<u8>]) -> Result<Vec<u8>, Errno> {
    let answer = Answer::new().u64(dir).u64(tree).text(name, NAME_LEN);
    Ok(answer.text(&path(way, SUBVOLUME_PATH_LEN)?, SUBVOLUME_PATH_LEN).0)
}

/// The answer of a search, item by item.
#[derive(Debug)]
pub struct SearchPage {
    bytes: Vec<u8>,
    count: u32,
    count_max: u32,
}

impl SearchPage {
    /// Begins an answer with the key, as the argument has it.
    ///
    /// # Errors
    ///
    /// `EINVAL` for an argument that is too short.
    pub fn new(argument: &[u8], key: &SearchKey) -> Result<Self, Errno> {
        let front = argument.get(..SearchKey::LEN).ok_or(Errno::EINVAL)?;
        let bytes = Answer::new().bytes(front).0;
        Ok(Self { bytes, count: 0, count_max: key.count })
    }

    /// Adds an item if it fits, and returns whether another item may be added. An item that is too
    /// long for any answer is added only as the first item, without its bytes. Such an item ends
    /// the answer.
    pub fn add(&mut self, key: (u64, u8, u64), generation: u64, item: &[u8]) -> bool {
        const ROOM: usize = ARGUMENT_LEN - SearchKey::LEN;
        let is_too_long = SEARCH_ITEM_LEN + item.len() > ROOM;
        let left = ARGUMENT_LEN - self.bytes.len();
        if is_too_long && self.count > 0 || !is_too_long && SEARCH_ITEM_LEN + item.len() > left {
            return false;
        }
        let item = if is_too_long { &[][..] } else { item };
        let len = u32::try_from(item.len()).unwrap_or(u32::MAX);
        let (object, kind, offset) = key;
        let answer = Answer(std::mem::take(&mut self.bytes)).u64(generation).u64(object);
        self.bytes = answer.u64(offset).u32(kind.into()).u32(len).bytes(item).0;
        self.count += 1;
        !is_too_long && self.count < self.count_max
    }

    /// The number of items that were added.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The answer.
    #[must_use]
    pub fn into_bytes(mut self) -> Vec<u8> {
        let at = SearchKey::COUNT_AT;
        self.bytes[at..at + 4].copy_from_slice(&self.count.to_ne_bytes());
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn u64_at(bytes: &[u8], at: usize) -> u64 {
        u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
    }

    /// Fields are at the offsets of the kernel's header.
    #[test]
    fn fields_lie_where_linux_has_them() {
        let volume = VolumeFacts {
            csum: (1, 8),
            generation: 9,
            metadata_uuid: [7; 16],
            ..Default::default()
        };
        let bytes = volume.to_bytes();
        assert_eq!((bytes.len(), bytes[44], bytes[46], bytes[64]), (1024, 1, 8, 7));
        assert_eq!((u64_at(&bytes, 48), u64_at(&bytes, 56)), (7, 9));

        let device = DeviceFacts { used: 3, path: vec![b'x'; 2000], ..Default::default() };
        let bytes = device.to_bytes();
        assert_eq!((bytes.len(), u64_at(&bytes, 24), bytes[3072]), (4096, 3, b'x'));
        assert_eq!((bytes[4094], bytes[4095]), (b'x', 0));

        let time = WireTime { sec: 5, nsec: 6 };
        let subvolume = SubvolumeFacts {
            place: (256, 257),
            flags: 1,
            transactions: [1, 2, 3, 4],
            times: [time; 4],
            ..Default::default()
        };
        let bytes = subvolume.to_bytes();
        assert_eq!(bytes.len(), 504);
        let at = [264, 272, 288, 344, 368, 376, 424, 432];
        assert_eq!(at.map(|at| u64_at(&bytes, at)), [256, 257, 1, 1, 4, 5, 5, 6]);
    }

    #[test]
    fn references_that_do_not_fit_are_told() {
        let found: Vec<_> = (0..256).map(|number| (300 + number, 256)).collect();
        let (bytes, error) = subvolume_refs(0, &found);
        assert_eq!((bytes.len(), bytes[4088], error), (4096, 255, Some(Errno::EOVERFLOW)));
        assert_eq!(u64_at(&bytes, 0), 300 + 255);
        let (bytes, error) = subvolume_refs(7, &[]);
        assert_eq!((u64_at(&bytes, 0), bytes[4088], error), (7, 0, None));
    }

    #[test]
    fn paths_are_never_cut() {
        let way = |len| [vec![b'a'; len]];
        assert!(inode_path(5, 257, &way(4078)).is_ok_and(|bytes| bytes.len() == 4096));
        assert_eq!(inode_path(5, 257, &way(4079)), Err(Errno::ENAMETOOLONG));
        let path = subvolume_path(256, 300, b"name", &way(3822)).expect("it fits");
        assert_eq!((path.len(), path[272], path[4094], path[4095]), (4096, b'a', b'/', 0));
        assert_eq!(subvolume_path(256, 300, b"", &way(3823)), Err(Errno::ENAMETOOLONG));
    }

    /// Items fill the room. An item that is longer than the whole room comes without its bytes.
    #[test]
    fn searches_fill_their_room() {
        let key = SearchKey {
            tree: 1,
            from: (0, 0, 0),
            to: (u64::MAX, u8::MAX, u64::MAX),
            generations: (0, u64::MAX),
            count: u32::MAX,
        };
        let page = || SearchPage::new(&[0; 4096], &key).expect("a key");
        let mut full = page();
        while full.add((1, 2, 3), 4, &[5; 100]) {}
        let bytes = full.into_bytes();
        assert_eq!(bytes.len(), 104 + 132 * (3992 / 132));
        assert_eq!(bytes[64], 30);
        let mut long = page();
        assert!(!long.add((1, 2, 3), 4, &[0; 4000]));
        let bytes = long.into_bytes();
        assert_eq!((bytes.len(), bytes[64], bytes[104 + 28]), (136, 1, 0));
        let mut few = SearchPage::new(&[0; 104], &SearchKey { count: 1, ..key }).expect("a key");
        assert!(!few.add((1, 2, 3), 4, &[]));
        assert!(SearchPage::new(&[0; 103], &key).is_err());
    }
}
