//! The envelope: 64 bytes at the start of every object, with its kind and length.
//!
//! # Format
//!
//! ```text
//! offset length
//!      0      8  "BUTTRESS"
//!      8      2  kind
//!     10      2  version of the format
//!     12      4  crc32c of these 64 bytes, with this field zero
//!     16      8  length of the whole object
//!     24     16  identity of the volume that made it
//!     40      8  number
//!     48      4  epoch
//!     52      4  count of sectors, of data objects
//!     56      4  count of extents, of data objects
//!     60      4  crc32c of the body; of data objects, of their extents
//! ```

use crate::error::{Error, Result};

/// The version that this program writes, and the newest that it reads.
pub(crate) const VERSION: u16 = 1;
/// The version of a `key/NUMBER` object.
pub(crate) const VERSION_KEY: u16 = 2;
/// The version of manifests and pins of a volume with a base in another bucket.
pub(crate) const VERSION_BUCKETS: u16 = 2;
/// The version of all files of a sealed local cache, also of files without sealed content.
pub(crate) const VERSION_SEALED: u16 = 2;
/// The version of the index of lines in clear text. Version 1 had no checksums of pieces.
const VERSION_LINES: u16 = 3;
/// Bytes of an envelope.
pub(crate) const LEN: usize = 64;
const MAGIC: &[u8; 8] = b"BUTTRESS";
/// The first bytes of an encrypted object.
pub(crate) const SEALED: &[u8; 8] = b"BUTTSEAL";

/// The kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Kind {
    Manifest = 1,
    Data = 2,
    Map = 3,
    Pin = 4,
    Writer = 5,
    Trial = 6,
    Lease = 7,
    /// The identity of a folder with a local log.
    Cache = 8,
    /// A file of a local log.
    Log = 9,
    /// The key of an encrypted volume, encrypted by a passphrase or a file.
    Key = 10,
}

impl Kind {
    /// The version that this program writes, unless the caller names another one.
    fn version(self) -> u16 {
        if self == Self::Key { VERSION_KEY } else { VERSION }
    }

    /// The newest version that this program reads.
    fn newest(self) -> u16 {
        match self {
            Self::Key => VERSION_KEY,
            Self::Cache => VERSION_LINES,
            Self::Log => VERSION_SEALED,
            Self::Manifest | Self::Pin => VERSION_BUCKETS,
            _ => VERSION,
        }
    }
}

/// The identity of a volume in a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct VolumeId(pub(crate) [u8; 16]);

/// The first bytes of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Envelope {
    pub(crate) kind: Kind,
    /// The version of the object. It is lower than [`VERSION`] if an older program made the object.
    pub(crate) version: u16,
    pub(crate) len: u64,
    pub(crate) volume: VolumeId,
    pub(crate) number: u64,
    pub(crate) epoch: u32,
    pub(crate) sectors: u32,
    pub(crate) extents: u32,
    pub(crate) body_crc: u32,
}

impl Envelope {
    pub(crate) fn encode(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..10].copy_from_slice(&(self.kind as u16).to_le_bytes());
        bytes[10..12].copy_from_slice(&self.version.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.len.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.volume.0);
        bytes[40..48].copy_from_slice(&self.number.to_le_bytes());
        bytes[48..52].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[52..56].copy_from_slice(&self.sectors.to_le_bytes());
        bytes[56..60].copy_from_slice(&self.extents.to_le_bytes());
        bytes[60..64].copy_from_slice(&self.body_crc.to_le_bytes());
        let crc = crc_fast::crc32_iscsi(&bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads and checks the first bytes of the object `name`.
    pub(crate) fn decode(name: &str, bytes: &[u8]) -> Result<Self> {
        let Some(Ok(mut header)) = bytes.get(..LEN).map(<[u8; LEN]>::try_from) else {
            return Err(damaged(name, format!("{} bytes are no object", bytes.len())));
        };
        if header.starts_with(SEALED) {
            return Err(Error::Encrypted { name: name.to_owned() });
        }
        if &header[..8] != MAGIC {
            return Err(damaged(name, "it does not begin as an object of a volume".to_owned()));
        }
        let crc = u32_at(&header, 12);
        header[12..16].fill(0);
        if crc_fast::crc32_iscsi(&header) != crc {
            return Err(damaged(name, "the checksum of its first bytes is wrong".to_owned()));
        }
        let found = u16::from_le_bytes([header[10], header[11]]);
        let newer = |known| Error::Version { name: name.to_owned(), found, known };
        let kind = match u16::from_le_bytes([header[8], header[9]]) {
            1 => Kind::Manifest,
            2 => Kind::Data,
            3 => Kind::Map,
            4 => Kind::Pin,
            5 => Kind::Writer,
            6 => Kind::Trial,
            7 => Kind::Lease,
            8 => Kind::Cache,
            9 => Kind::Log,
            10 => Kind::Key,
            _ if found > VERSION_KEY => return Err(newer(VERSION)),
            other => return Err(damaged(name, format!("there is no kind {other}"))),
        };
        if found > kind.newest() {
            return Err(newer(kind.newest()));
        }
        let mut volume = [0; 16];
        volume.copy_from_slice(&header[24..40]);
        Ok(Self {
            kind,
            version: found,
            len: u64_at(&header, 16),
            volume: VolumeId(volume),
            number: u64_at(&header, 40),
            epoch: u32_at(&header, 48),
            sectors: u32_at(&header, 52),
            extents: u32_at(&header, 56),
            body_crc: u32_at(&header, 60),
        })
    }
}

/// Wraps a body into an object.
pub(crate) fn wrap(kind: Kind, volume: VolumeId, number: u64, epoch: u32, body: &[u8]) -> Vec<u8> {
    wrap_as(kind.version(), kind, volume, (number, epoch), body)
}

/// Wraps a body into a file of a local cache. The version tells whether the cache is sealed.
pub(crate) fn wrap_local(
    is_sealed: bool,
    kind: Kind,
    volume: VolumeId,
    numbers: (u64, u32),
    body: &[u8],
) -> Vec<u8> {
    let version = if is_sealed { VERSION_SEALED } else { VERSION };
    wrap_as(version, kind, volume, numbers, body)
}

/// The version of the index of lines that were read.
pub(crate) fn lines_version(is_sealed: bool) -> u16 {
    if is_sealed { VERSION_SEALED } else { VERSION_LINES }
}

/// Wraps the head of that index.
pub(crate) fn wrap_lines(is_sealed: bool, volume: VolumeId, body: &[u8]) -> Vec<u8> {
    wrap_as(lines_version(is_sealed), Kind::Cache, volume, (0, 0), body)
}

/// Wraps a manifest, or a pin. Programs that know of one bucket refuse a volume with a base in
/// another bucket by the version.
pub(crate) fn wrap_manifest(
    is_elsewhere: bool,
    kind: Kind,
    volume: VolumeId,
    numbers: (u64, u32),
    body: &[u8],
) -> Vec<u8> {
    let version = if is_elsewhere { VERSION_BUCKETS } else { VERSION };
    wrap_as(version, kind, volume, numbers, body)
}

fn wrap_as(
    version: u16,
    kind: Kind,
    volume: VolumeId,
    (number, epoch): (u64, u32),
    body: &[u8],
) -> Vec<u8> {
    let envelope = Envelope {
        kind,
        version,
        len: (LEN + body.len()) as u64,
        volume,
        number,
        epoch,
        sectors: 0,
        extents: 0,
        body_crc: crc_fast::crc32_iscsi(body),
    };
    let mut bytes = Vec::with_capacity(LEN + body.len());
    bytes.extend_from_slice(&envelope.encode());
    bytes.extend_from_slice(body);
    bytes
}

/// Checks a whole object of a kind, and returns its body.
pub(crate) fn unwrap<'b>(name: &str, kind: Kind, bytes: &'b [u8]) -> Result<(Envelope, &'b [u8])> {
    let envelope = Envelope::decode(name, bytes)?;
    if envelope.kind != kind {
        return Err(damaged(name, format!("it is a {:?}, not a {kind:?}", envelope.kind)));
    }
    if envelope.len != bytes.len() as u64 {
        let why = format!("it has {} bytes instead of {}", bytes.len(), envelope.len);
        return Err(damaged(name, why));
    }
    let body = &bytes[LEN..];
    if crc_fast::crc32_iscsi(body) != envelope.body_crc {
        return Err(damaged(name, "its checksum is wrong".to_owned()));
    }
    Ok((envelope, body))
}

pub(crate) fn damaged(name: &str, why: String) -> Error {
    Error::Damaged { name: name.to_owned(), why }
}

/// Reads a number; the range lies within the bytes.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut raw = [0; 4];
    raw.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(raw)
}

/// Reads a number; the range lies within the bytes.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut raw = [0; 8];
    raw.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A body can be read back, and every changed bit of an object is detected.
    #[test]
    fn an_object_shows_every_changed_bit() {
        let volume = VolumeId([7; 16]);
        let whole = wrap(Kind::Manifest, volume, 5, 3, b"a body");
        let (envelope, body) = unwrap("x", Kind::Manifest, &whole).expect("whole");
        assert_eq!((envelope.number, envelope.epoch, body), (5, 3, &b"a body"[..]));
        for bit in 0..whole.len() * 8 {
            let mut other = whole.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            unwrap("x", Kind::Manifest, &other).expect_err("changed");
        }
        for len in 0..whole.len() {
            unwrap("x", Kind::Manifest, &whole[..len]).expect_err("cut");
        }
        unwrap("x", Kind::Pin, &whole).expect_err("of another kind");
    }

    /// A newer version is refused, and the error has its number.
    #[test]
    fn a_newer_version_is_named() {
        let mut whole = wrap(Kind::Manifest, VolumeId::default(), 1, 1, b"");
        whole[10] = 9;
        whole[12..16].fill(0);
        let crc = crc_fast::crc32_iscsi(&whole[..LEN]);
        whole[12..16].copy_from_slice(&crc.to_le_bytes());
        let error = unwrap("x", Kind::Manifest, &whole).expect_err("newer");
        assert!(
            matches!(error, Error::Version { found: 9, known: VERSION_BUCKETS, .. }),
            "{error}"
        );
    }
}
