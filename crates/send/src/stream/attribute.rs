//! Attributes: the fields of a command.

use buttress_format::Timespec;

use super::HEADER_LEN;
use super::command::{Encoded, Source, Stamps};
use super::error::StreamError;
use super::path::StreamPath;

/// Numbers of attributes, and their names in errors.
macro_rules! attributes {
    ($($name:ident = $number:literal, $text:literal;)*) => {
        $(pub(crate) const $name: Attribute = Attribute { number: $number, name: $text };)*
    };
}

/// One of the fields that commands may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attribute {
    number: u16,
    name: &'static str,
}

attributes! {
    UUID = 1, "the uuid";
    CTRANSID = 2, "the transaction";
    INO = 3, "the inode number";
    SIZE = 4, "the size";
    MODE = 5, "the mode";
    UID = 6, "the owner";
    GID = 7, "the group";
    RDEV = 8, "the device number";
    CTIME = 9, "the time of change";
    MTIME = 10, "the time of modification";
    ATIME = 11, "the time of access";
    OTIME = 12, "the time of creation";
    XATTR_NAME = 13, "the name of the extended attribute";
    XATTR_DATA = 14, "the value of the extended attribute";
    PATH = 15, "the path";
    PATH_TO = 16, "the new path";
    PATH_LINK = 17, "the link's path";
    FILE_OFFSET = 18, "the file offset";
    DATA = 19, "the data";
    CLONE_UUID = 20, "the uuid of the source";
    CLONE_CTRANSID = 21, "the transaction of the source";
    CLONE_PATH = 22, "the path of the source";
    CLONE_OFFSET = 23, "the offset in the source";
    CLONE_LEN = 24, "the length of the clone";
    FALLOCATE_MODE = 25, "the mode of fallocate";
    FILEATTR = 26, "the file attributes";
    UNENCODED_FILE_LEN = 27, "the length in the file";
    UNENCODED_LEN = 28, "the decompressed length";
    UNENCODED_OFFSET = 29, "the offset in the decompressed data";
    COMPRESSION = 30, "the compression";
    ENCRYPTION = 31, "the encryption";
    VERITY_ALGORITHM = 32, "the verity algorithm";
    VERITY_BLOCK_SIZE = 33, "the verity block size";
    VERITY_SALT_DATA = 34, "the verity salt";
    VERITY_SIG_DATA = 35, "the verity signature";
}

/// The highest attribute number in any version of streams, including the attributes of verity.
const LAST: usize = 35;

/// The attributes of one command, by number.
pub(crate) struct Attributes<'a> {
    at: u64,
    found: [Option<&'a [u8]>; LAST + 1],
}

impl<'a> Attributes<'a> {
    /// Divides a command's payload; `at` is where the command begins, for errors.
    pub(crate) fn parse(mut rest: &'a [u8], version: u32, at: u64) -> Result<Self, StreamError> {
        let bad = |what, problem| StreamError::Attribute { at, what, problem };
        let mut found = [None; LAST + 1];
        while !rest.is_empty() {
            let Some((number, behind)) = rest.split_first_chunk::<2>() else {
                return Err(bad("an attribute", "is cut short"));
            };
            let number = u16::from_le_bytes(*number);
            let index = usize::from(number);
            if index == 0 || index > LAST {
                return Err(bad("an attribute", "has an unknown number"));
            }
            let value;
            if version >= 2 && number == DATA.number {
                (value, rest) = (behind, &[][..]);
            } else {
                let Some((len, behind)) = behind.split_first_chunk::<2>() else {
                    return Err(bad("an attribute", "is cut short"));
                };
                let len = usize::from(u16::from_le_bytes(*len));
                let Some(parts) = behind.split_at_checked(len) else {
                    return Err(bad("an attribute", "is longer than its command"));
                };
                (value, rest) = parts;
            }
            found[index] = Some(value);
        }
        Ok(Self { at, found })
    }

    fn bad(&self, what: Attribute, problem: &'static str) -> StreamError {
        StreamError::Attribute { at: self.at, what: what.name, problem }
    }

    pub(crate) fn bytes(&self, what: Attribute) -> Result<&'a [u8], StreamError> {
        self.found[usize::from(what.number)].ok_or_else(|| self.bad(what, "is missing"))
    }

    fn array<const N: usize>(&self, what: Attribute) -> Result<[u8; N], StreamError> {
        let bytes = self.bytes(what)?;
        bytes.try_into().map_err(|_| self.bad(what, "has the wrong size"))
    }

    pub(crate) fn u64(&self, what: Attribute) -> Result<u64, StreamError> {
        self.array(what).map(u64::from_le_bytes)
    }

    pub(crate) fn u32(&self, what: Attribute) -> Result<u32, StreamError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(crate) fn u8(&self, what: Attribute) -> Result<u8, StreamError> {
        self.array(what).map(|[byte]: [u8; 1]| byte)
    }

    /// A number that may be absent; an absent number is zero.
    pub(crate) fn u32_or_zero(&self, what: Attribute) -> Result<u32, StreamError> {
        match self.found[usize::from(what.number)] {
            None => Ok(0),
            Some(_) => self.u32(what),
        }
    }

    pub(crate) fn u64_or_zero(&self, what: Attribute) -> Result<u64, StreamError> {
        match self.found[usize::from(what.number)] {
            None => Ok(0),
            Some(_) => self.u64(what),
        }
    }

    /// An identifier of an owner: 64 bits wide in the stream, 32 bits in the format.
    pub(crate) fn id(&self, what: Attribute) -> Result<u32, StreamError> {
        u32::try_from(self.u64(what)?).map_err(|_| self.bad(what, "is out of range"))
    }

    pub(crate) fn path(&self, what: Attribute) -> Result<StreamPath<'a>, StreamError> {
        StreamPath::new(self.bytes(what)?).map_err(|problem| self.bad(what, problem))
    }

    /// A path that must name an entry, not the top.
    pub(crate) fn entry(&self, what: Attribute) -> Result<StreamPath<'a>, StreamError> {
        let path = self.path(what)?;
        if path.is_top() { Err(self.bad(what, "is empty")) } else { Ok(path) }
    }

    /// A path of one name.
    pub(crate) fn name(&self, what: Attribute) -> Result<StreamPath<'a>, StreamError> {
        let path = self.entry(what)?;
        if path.as_bytes().contains(&b'/') {
            return Err(self.bad(what, "is more than a name"));
        }
        Ok(path)
    }

    fn time(&self, what: Attribute) -> Result<Timespec, StreamError> {
        let bytes: [u8; 12] = self.array(what)?;
        let [s0, s1, s2, s3, s4, s5, s6, s7, n0, n1, n2, n3] = bytes;
        let sec = i64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]);
        let nsec = u32::from_le_bytes([n0, n1, n2, n3]);
        if nsec >= 1_000_000_000 {
            return Err(self.bad(what, "has more nanoseconds than a second"));
        }
        Ok(Timespec { sec, nsec })
    }

    fn time_or_none(&self, what: Attribute) -> Result<Option<Timespec>, StreamError> {
        match self.found[usize::from(what.number)] {
            None => Ok(None),
            Some(_) => self.time(what).map(Some),
        }
    }

    /// File data. [`Attributes::parse`] has found the end of the data, so the data is read like any
    /// other value.
    pub(crate) fn data(&self, what: Attribute) -> Result<&'a [u8], StreamError> {
        self.bytes(what)
    }

    /// A subvolume's identity.
    pub(crate) fn source(
        &self,
        uuid: Attribute,
        ctransid: Attribute,
    ) -> Result<Source, StreamError> {
        Ok(Source { uuid: self.array(uuid)?, ctransid: self.u64(ctransid)? })
    }

    /// The times of an inode. The time of creation may be absent.
    pub(crate) fn stamps(
        &self,
        atime: Attribute,
        mtime: Attribute,
        ctime: Attribute,
        otime: Attribute,
    ) -> Result<Stamps, StreamError> {
        Ok(Stamps {
            atime: self.time(atime)?,
            mtime: self.time(mtime)?,
            ctime: self.time(ctime)?,
            otime: self.time_or_none(otime)?,
        })
    }

    /// The fields that tell how data is packed.
    pub(crate) fn encoded(
        &self,
        file_len: Attribute,
        ram_bytes: Attribute,
        offset: Attribute,
        compression: Attribute,
        encryption: Attribute,
    ) -> Result<Encoded, StreamError> {
        Ok(Encoded {
            file_len: self.u64(file_len)?,
            ram_bytes: self.u64(ram_bytes)?,
            offset: self.u64(offset)?,
            compression: self.u32_or_zero(compression)?,
            encryption: self.u32_or_zero(encryption)?,
        })
    }

    /// An offset and a length that end before the end of the largest file.
    pub(crate) fn range(&self, offset: u64, len: u64, what: Attribute) -> Result<(), StreamError> {
        match offset.checked_add(len) {
            Some(end) if end <= i64::MAX as u64 => Ok(()),
            _ => Err(self.bad(what, "reaches beyond the largest file")),
        }
    }
}

/// A command being put together.
pub(crate) struct Builder<'b> {
    out: &'b mut Vec<u8>,
    start: usize,
    version: u32,
    /// The error for the first value that is longer than its length field can express.
    failed: Option<StreamError>,
}

/// Longest command of version 1, header and all: receivers have a buffer of 64 KiB.
pub(crate) const ONE_BYTES_MAX: usize = (64 << 10) - 1;

/// Longest command of version 2, header and all: Linux's sender has a buffer of this size.
pub(crate) const TWO_BYTES_MAX: usize = 144 << 10;

impl<'b> Builder<'b> {
    pub(crate) fn new(out: &'b mut Vec<u8>, version: u32, number: u16) -> Self {
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&number.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        Self { out, start, version, failed: None }
    }

    pub(crate) fn bytes(&mut self, what: Attribute, value: &[u8]) -> &mut Self {
        let Ok(len) = u16::try_from(value.len()) else {
            self.fail(what.name, value.len(), usize::from(u16::MAX));
            return self;
        };
        self.out.extend_from_slice(&what.number.to_le_bytes());
        self.out.extend_from_slice(&len.to_le_bytes());
        self.out.extend_from_slice(value);
        self
    }

    pub(crate) fn u64(&mut self, what: Attribute, value: u64) -> &mut Self {
        self.bytes(what, &value.to_le_bytes())
    }

    pub(crate) fn u32(&mut self, what: Attribute, value: u32) -> &mut Self {
        self.bytes(what, &value.to_le_bytes())
    }

    pub(crate) fn u8(&mut self, what: Attribute, value: u8) -> &mut Self {
        self.bytes(what, &[value])
    }

    pub(crate) fn u32_or_zero(&mut self, what: Attribute, value: u32) -> &mut Self {
        self.u32(what, value)
    }

    pub(crate) fn u64_or_zero(&mut self, what: Attribute, value: u64) -> &mut Self {
        self.u64(what, value)
    }

    /// An identifier of an owner.
    pub(crate) fn id(&mut self, what: Attribute, value: u32) -> &mut Self {
        self.u64(what, value.into())
    }

    pub(crate) fn path(&mut self, what: Attribute, path: StreamPath<'_>) -> &mut Self {
        self.bytes(what, path.as_bytes())
    }

    pub(crate) fn entry(&mut self, what: Attribute, path: StreamPath<'_>) -> &mut Self {
        self.path(what, path)
    }

    pub(crate) fn name(&mut self, what: Attribute, path: StreamPath<'_>) -> &mut Self {
        self.path(what, path)
    }

    pub(crate) fn source(
        &mut self,
        uuid: Attribute,
        ctransid: Attribute,
        source: Source,
    ) -> &mut Self {
        self.bytes(uuid, &source.uuid).u64(ctransid, source.ctransid)
    }

    /// The times of an inode. The time of creation is written from version 2 on.
    pub(crate) fn stamps(
        &mut self,
        atime: Attribute,
        mtime: Attribute,
        ctime: Attribute,
        otime: Attribute,
        stamps: Stamps,
    ) -> &mut Self {
        self.time(atime, stamps.atime).time(mtime, stamps.mtime).time(ctime, stamps.ctime);
        match stamps.otime.filter(|_| self.version >= 2) {
            Some(time) => self.time(otime, time),
            None => self,
        }
    }

    pub(crate) fn encoded(
        &mut self,
        file_len: Attribute,
        ram_bytes: Attribute,
        offset: Attribute,
        compression: Attribute,
        encryption: Attribute,
        encoded: Encoded,
    ) -> &mut Self {
        self.u64(file_len, encoded.file_len)
            .u64(ram_bytes, encoded.ram_bytes)
            .u64(offset, encoded.offset)
            .u32(compression, encoded.compression)
            .u32(encryption, encoded.encryption)
    }

    fn time(&mut self, what: Attribute, time: Timespec) -> &mut Self {
        let mut value = [0; 12];
        value[..8].copy_from_slice(&time.sec.to_le_bytes());
        value[8..].copy_from_slice(&time.nsec.to_le_bytes());
        self.bytes(what, &value)
    }

    /// File data: the last attribute, without a length from version 2 on.
    pub(crate) fn data(&mut self, what: Attribute, value: &[u8]) -> &mut Self {
        if self.version < 2 {
            return self.bytes(what, value);
        }
        self.out.extend_from_slice(&what.number.to_le_bytes());
        self.out.extend_from_slice(value);
        self
    }

    fn fail(&mut self, what: &'static str, len: usize, max: usize) {
        self.failed.get_or_insert(StreamError::DoesNotFit { what, len, max });
    }

    /// Fills in length and checksum; removes the whole command if a value did not fit.
    pub(crate) fn finish(&mut self) -> Result<(), StreamError> {
        let whole = self.out.len() - self.start;
        let max = if self.version < 2 { ONE_BYTES_MAX } else { TWO_BYTES_MAX };
        if whole > max {
            self.fail("the command", whole, max);
        }
        let len = u32::try_from(whole - HEADER_LEN);
        let (Ok(len), None) = (len, self.failed.as_ref()) else {
            self.out.truncate(self.start);
            let long = StreamError::DoesNotFit { what: "the command", len: whole, max };
            return Err(self.failed.take().unwrap_or(long));
        };
        let command = &mut self.out[self.start..];
        command[..4].copy_from_slice(&len.to_le_bytes());
        let crc = buttress_format::crc32c_raw(0, command);
        command[6..HEADER_LEN].copy_from_slice(&crc.to_le_bytes());
        Ok(())
    }
}
