//! All commands in one table: their numbers, fields in the order of the stream, checks, and text.
//!
//! # Invariants
//!
//! - **T1** A method of [`Builder`] writes the attributes that the method of [`Attributes`] with
//!   the same name reads. So a written field can be read again.
//! - **T2** File data is a command's last field: from version 2 on it has no length.

use super::attribute::{self as a, Attributes, Builder};
use super::command::Command;
use super::dump::{below, escape, of, show, time};
use super::error::StreamError;
use super::number;
use super::path::StreamPath;

/// Makes the functions over all commands. A line of the table is
///
/// ```text
/// NUMBER Variant on its_path "word" { field: method(ATTRIBUTE, ...), ... }
///     within { start, length, ATTRIBUTE; ... }  // ranges that end within the largest file size
///     says { format string, arguments };        // what a dump shows after the path
/// ```
macro_rules! commands {
    ($top:ident; $(
        $number:ident $variant:ident $(on $path:ident)? $word:literal
        { $($field:ident: $method:ident($($what:ident),+)),* $(,)? }
        $(within { $($start:expr, $len:expr, $range:ident);+ })?
        $(says { $($text:tt)+ })?;
    )*) => {
        impl<'a> Command<'a> {
            /// Reads the payload of a command. The caller has verified the checksum.
            pub(crate) fn parse(
                which: u16,
                payload: &'a [u8],
                version: u32,
                at: u64,
            ) -> Result<Self, StreamError> {
                let x = Attributes::parse(payload, version, at)?;
                match which {
                    $(number::$number => {
                        $(let $field = x.$method($(a::$what),+)?;)*
                        $($(x.range($start, $len, a::$range)?;)+)?
                        Ok(Self::$variant { $($field),* })
                    })*
                    number => Err(StreamError::Command { at, number }),
                }
            }

            /// Appends the command's bytes.
            ///
            /// # Errors
            ///
            /// [`StreamError::DoesNotFit`] when a field does not fit its length field, or when the
            /// command is longer than receivers accept. `out` is then unchanged.
            pub(crate) fn encode(
                &self,
                version: u32,
                out: &mut Vec<u8>,
            ) -> Result<(), StreamError> {
                match *self {
                    $(Self::$variant { $($field),* } => {
                        let mut command = Builder::new(out, version, number::$number);
                        $(command.$method($(a::$what,)+ $field);)*
                        command.finish()
                    })*
                }
            }

            /// The command's name in a dump.
            pub(super) fn word(&self) -> &'static str {
                match self {
                    $(Self::$variant { .. } => $word,)*
                }
            }

            /// The path of the command; the END command has none.
            pub(super) fn path(&self) -> Option<StreamPath<'a>> {
                match *self {
                    $($(Self::$variant { $path, .. } => Some($path),)?)*
                    Self::End => None,
                }
            }

            /// The text that a dump shows after the path, for a subvolume at `top`.
            #[allow(unused_variables, reason = "most texts show some of the fields")]
            pub(super) fn arguments(&self, $top: &str) -> String {
                match *self {
                    $(Self::$variant { $($field),* } => text!($($($text)+)?),)*
                }
            }
        }
    };
}

/// A formatted text; empty without arguments.
macro_rules! text {
    () => {
        String::new()
    };
    ($($text:tt)+) => {
        format!($($text)+)
    };
}

commands! {
    top;
    SUBVOL Subvol on name "subvol" { name: name(PATH), source: source(UUID, CTRANSID) }
        says { "{}", of(source, "") };
    SNAPSHOT Snapshot on name "snapshot" {
        name: name(PATH),
        source: source(UUID, CTRANSID),
        parent: source(CLONE_UUID, CLONE_CTRANSID),
    } says { "{} {}", of(source, ""), of(parent, "parent_") };
    MKFILE MkFile on path "mkfile" { path: entry(PATH), ino: u64(INO) };
    MKDIR MkDir on path "mkdir" { path: entry(PATH), ino: u64(INO) };
    MKNOD MkNod on path "mknod" {
        path: entry(PATH), ino: u64(INO), rdev: u64(RDEV), mode: u64(MODE),
    } says { "mode={mode:o} dev=0x{rdev:x}" };
    MKFIFO MkFifo on path "mkfifo" { path: entry(PATH), ino: u64(INO) };
    MKSOCK MkSock on path "mksock" { path: entry(PATH), ino: u64(INO) };
    SYMLINK Symlink on path "symlink" {
        path: entry(PATH), ino: u64(INO), target: bytes(PATH_LINK),
    } says { "dest={}", escape(target) };
    RENAME Rename on path "rename" { path: entry(PATH), to: entry(PATH_TO) }
        says { "dest={}", below(top, to) };
    LINK Link on path "link" { path: entry(PATH), existing: entry(PATH_LINK) }
        says { "dest={}", escape(existing.as_bytes()) };
    UNLINK Unlink on path "unlink" { path: entry(PATH) };
    RMDIR Rmdir on path "rmdir" { path: entry(PATH) };
    SET_XATTR SetXattr on path "set_xattr" {
        path: path(PATH), name: bytes(XATTR_NAME), value: bytes(XATTR_DATA),
    } says { "name={} data={} len={}", show(name), show(value), value.len() };
    REMOVE_XATTR RemoveXattr on path "remove_xattr" { path: path(PATH), name: bytes(XATTR_NAME) }
        says { "name={}", show(name) };
    WRITE Write on path "write" {
        path: entry(PATH), offset: u64(FILE_OFFSET), data: data(DATA),
    } within { offset, data.len() as u64, FILE_OFFSET }
        says { "offset={offset} len={}", data.len() };
    CLONE Clone on path "clone" {
        offset: u64(FILE_OFFSET),
        len: u64(CLONE_LEN),
        path: entry(PATH),
        source: source(CLONE_UUID, CLONE_CTRANSID),
        source_path: entry(CLONE_PATH),
        source_offset: u64(CLONE_OFFSET),
    } within { offset, len, FILE_OFFSET; source_offset, len, CLONE_OFFSET }
        // `btrfs receive` prints this path unescaped, so only control characters are replaced.
        says {
            "offset={offset} len={len} from={top}/{} clone_offset={source_offset}",
            String::from_utf8_lossy(source_path.as_bytes()).replace(char::is_control, "?")
        };
    TRUNCATE Truncate on path "truncate" { path: entry(PATH), size: u64(SIZE) }
        within { 0, size, SIZE }
        says { "size={size}" };
    CHMOD Chmod on path "chmod" { path: path(PATH), mode: u64(MODE) }
        says { "mode={mode:o}" };
    CHOWN Chown on path "chown" { path: path(PATH), uid: id(UID), gid: id(GID) }
        says { "gid={gid} uid={uid}" };
    UTIMES Utimes on path "utimes" {
        path: path(PATH), stamps: stamps(ATIME, MTIME, CTIME, OTIME),
    } says {
        "atime={} mtime={} ctime={}", time(stamps.atime), time(stamps.mtime), time(stamps.ctime)
    };
    UPDATE_EXTENT UpdateExtent on path "update_extent" {
        path: entry(PATH), offset: u64(FILE_OFFSET), len: u64(SIZE),
    } within { offset, len, FILE_OFFSET }
        says { "offset={offset} len={len}" };
    FALLOCATE Fallocate on path "fallocate" {
        path: entry(PATH),
        mode: u32_or_zero(FALLOCATE_MODE),
        offset: u64(FILE_OFFSET),
        len: u64(SIZE),
    } within { offset, len, FILE_OFFSET }
        says { "mode={mode} offset={offset} len={len}" };
    FILEATTR FileAttr on path "fileattr" { path: path(PATH), flags: u64_or_zero(FILEATTR) }
        says { "fileattr=0x{flags:x}" };
    ENCODED_WRITE EncodedWrite on path "encoded_write" {
        path: entry(PATH),
        offset: u64(FILE_OFFSET),
        encoded: encoded(
            UNENCODED_FILE_LEN, UNENCODED_LEN, UNENCODED_OFFSET, COMPRESSION, ENCRYPTION
        ),
        data: data(DATA),
    } within {
        offset, encoded.file_len, FILE_OFFSET;
        encoded.offset, encoded.file_len, UNENCODED_OFFSET
    } says {
        "offset={offset} len={}, unencoded_file_len={}, unencoded_len={}, unencoded_offset={}, \
         compression={}, encryption={}",
        data.len(), encoded.file_len, encoded.ram_bytes, encoded.offset, encoded.compression,
        encoded.encryption
    };
    ENABLE_VERITY EnableVerity on path "enable_verity" {
        path: entry(PATH),
        algorithm: u8(VERITY_ALGORITHM),
        block_size: u32(VERITY_BLOCK_SIZE),
        salt: bytes(VERITY_SALT_DATA),
        signature: bytes(VERITY_SIG_DATA),
    } says { "algorithm={algorithm} block_size={block_size}" };
    END End "end" {};
}
