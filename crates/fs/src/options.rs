//! Mount options: their names, their meaning and their parser.

mod linux;

use std::time::Duration;

use buttress_data::Codec;
use buttress_format::TreeId;
use buttress_items::{Error, Result};
use buttress_log::LogCopies;
use buttress_volume::Parity;

use crate::baselines::Baselines;
pub use linux::OPTION_NAMES;

/// The least memory that a volume works with, in bytes.
const MEMORY_MIN: u64 = 8 << 20;

/// When reading a file changes its access time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Atime {
    /// Never.
    No,
    /// When the access time is older than the last change, or older than a day.
    #[default]
    Relative,
    /// At every read.
    Strict,
}

/// How to mount a volume.
///
/// Plain data: none of it changes after the opening.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MountOptions {
    /// Refuse every change. The mount writes nothing and removes no orphans.
    pub read_only: bool,
    /// With `read_only`: the volume can be made writable later, if its devices can be written.
    /// Until then this mount only reads, and other programs may read the volume, too.
    pub may_begin_writing: bool,
    /// Mount the subvolume at this path below the top level.
    pub subvol: Option<Vec<u8>>,
    /// Mount the subvolume with this tree.
    pub subvolid: Option<TreeId>,
    /// Longest time between a change and its commit.
    pub commit_interval: Duration,
    /// New files are overwritten in place, without checksums.
    pub nodatacow: bool,
    /// New files have no checksums.
    pub nodatasum: bool,
    /// The compression of files that have no setting of their own.
    pub compress: Option<Codec>,
    /// Compress even files that look incompressible or are marked as incompressible.
    pub compress_force: bool,
    /// Access times.
    pub atime: Atime,
    /// Whether listings do not change the time of access of a directory (`nodiratime`).
    pub nodiratime: bool,
    /// Whether changed times of access wait for a sync, the unmount or a day (`lazytime`), instead
    /// of the next commit.
    pub lazytime: bool,
    /// Tell the device about freed space.
    pub discard: bool,
    /// Largest file that is stored inline in the tree, in bytes.
    pub max_inline: u32,
    /// Record free space in a tree (`space_cache=v2`), even if the volume has no such tree yet.
    pub space_cache_v2: bool,
    /// Rebuild the whole record of free space.
    pub clear_cache: bool,
    /// Empty block groups that are less full than this percentage when the volume is unmounted
    /// (`bg_reclaim_threshold`); 0 for none.
    pub reclaim_below: u8,
    /// The handling of RAID5 and RAID6 (`raid56`). `stripe` writes whole rows. `mirror`
    /// reads and frees existing data, and mirrors new data. `ro` writes nothing.
    pub parity: Parity,
    /// Mount with devices missing.
    pub degraded: bool,
    /// The mechanisms to use. Only benches and tests can choose them.
    pub baselines: Baselines,
    /// Fall back to an older root from the superblock, if the newest root cannot be read. In that
    /// case the volume is mounted read-only.
    pub use_backup_root: bool,
    /// Options that were given and have no effect, in the form in which they were given.
    pub without_effect: Vec<String>,
    /// Ignore the log tree; with `read_only` only.
    pub nologreplay: bool,
    /// Mount without trees that cannot be read; with `read_only` only (`rescue=ignorebadroots`).
    /// The root tree and the trees of subvolumes are always needed.
    pub ignore_bad_roots: bool,
    /// Read data without comparing it with its checksums; with `read_only` only
    /// (`rescue=ignoredatacsums`).
    pub ignore_data_csums: bool,
    /// Accept nodes with wrong checksums if they pass all other checks; with `read_only` only
    /// (`rescue=ignoremetacsums`).
    pub ignore_meta_csums: bool,
    /// Let fsync commit the whole volume instead of writing a log.
    pub notreelog: bool,
    /// The copies of a log that fsync waits for, if metadata has two copies on one device: all, or
    /// only the first. In the second case, nodes that stay in the log get their second copy within
    /// a third of a second.
    pub log_copies: LogCopies,
    /// Write dirty data of all files before every commit, not only data that is due.
    pub flushoncommit: bool,
    /// Limit of dirty data in memory, in bytes, beyond which writers wait.
    pub dirty_bytes_max: u64,
    /// Size of the page cache for files, in bytes. 0 if a layer above caches data already.
    pub page_cache_bytes: u64,
    /// Whether the volume keeps snapshot headroom, so that a delete always succeeds. Linux keeps
    /// none.
    pub delete_room: bool,
    /// Size of the cache of tree nodes, in bytes. `None` for the engine's default.
    pub node_cache_bytes: Option<u64>,
    /// Bytes of uncommitted changes at which a commit starts. `None` for the engine's default.
    pub overlay_bytes_max: Option<u64>,
    /// Whether threads write back, commit, clean and read ahead. Without these threads, the calling
    /// thread does this work when a call needs it, and the age of data does not cause its
    /// writeback. `false` is for programs with a single thread.
    pub background: bool,
    /// Whether a thread ends a replacement of a device that was begun before, as Linux does at a
    /// mount. The devices must include the new device. Needs [`background`](Self::background).
    pub resumes_replace: bool,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            may_begin_writing: false,
            subvol: None,
            subvolid: None,
            commit_interval: Duration::from_secs(30),
            nodatacow: false,
            nodatasum: false,
            compress: None,
            compress_force: false,
            atime: Atime::Relative,
            nodiratime: false,
            lazytime: false,
            discard: false,
            max_inline: 2048,
            space_cache_v2: false,
            clear_cache: false,
            reclaim_below: 0,
            parity: Parity::default(),
            degraded: false,
            baselines: Baselines::default(),
            use_backup_root: false,
            without_effect: Vec::new(),
            nologreplay: false,
            ignore_bad_roots: false,
            ignore_data_csums: false,
            ignore_meta_csums: false,
            notreelog: false,
            log_copies: LogCopies::default(),
            flushoncommit: false,
            dirty_bytes_max: 128 << 20,
            page_cache_bytes: 64 << 20,
            delete_room: true,
            node_cache_bytes: None,
            overlay_bytes_max: None,
            background: true,
            resumes_replace: false,
        }
    }
}

impl MountOptions {
    /// Parses a comma separated list of options in the form of `mount -o`.
    ///
    /// # Errors
    ///
    /// [`Error::Option`] names the option that is unknown, or has a value that does not parse.
    pub fn parse(list: &str) -> Result<Self> {
        let mut options = Self::default();
        options.parse_more(list)?;
        Ok(options)
    }

    /// Parses a list of options. These options override options that are set already.
    ///
    /// # Errors
    ///
    /// As [`MountOptions::parse`].
    pub fn parse_more(&mut self, list: &str) -> Result<()> {
        for option in list.split(',').map(str::trim).filter(|option| !option.is_empty()) {
            self.apply(option)?;
        }
        let for_reading = [
            ("nologreplay", self.nologreplay),
            ("rescue=ignorebadroots", self.ignore_bad_roots),
            ("rescue=ignoredatacsums", self.ignore_data_csums),
            ("rescue=ignoremetacsums", self.ignore_meta_csums),
        ];
        match for_reading.iter().find(|(_, is_set)| *is_set && !self.read_only) {
            Some((name, _)) => Err(refuse(name, "works together with ro only")),
            None => Ok(()),
        }
    }

    /// Whether an option is known and has a valid value. Does not check other options on which this
    /// option depends.
    #[must_use]
    pub fn takes(option: &str) -> bool {
        Self::default().apply(option).is_ok()
    }

    /// Divides `bytes` of memory equally among four uses: nodes, pages, dirty data, and uncommitted
    /// changes. Uses at least 8 MiB in all.
    #[must_use]
    pub fn with_memory(mut self, bytes: u64) -> Self {
        let part = bytes.max(MEMORY_MIN) / 4;
        self.node_cache_bytes = Some(part);
        self.page_cache_bytes = part;
        self.dirty_bytes_max = part;
        self.overlay_bytes_max = Some(part);
        self
    }

    fn apply(&mut self, option: &str) -> Result<()> {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        match (name, value) {
            ("defaults", None) => {}
            ("rw", None) => self.read_only = false,
            ("ro", None) => self.read_only = true,
            ("subvol", Some(path)) => self.subvol = Some(path.as_bytes().to_vec()),
            ("subvolid", Some(_)) => {
                let id = number(option, value)?;
                self.subvolid = Some(if id == 0 { TreeId::FS } else { TreeId(id) });
            }
            ("commit", Some(_)) => {
                let seconds = number(option, value)?;
                if seconds > u64::from(u32::MAX) {
                    return Err(refuse(option, "is a number of seconds of 32 bits"));
                }
                // As in Linux, zero stands for the default.
                let default = Self::default().commit_interval;
                self.commit_interval =
                    if seconds == 0 { default } else { Duration::from_secs(seconds) };
            }
            ("nodatacow", None) => {
                self.nodatacow = true;
                self.nodatasum = true;
                self.compress = None;
                self.compress_force = false;
            }
            ("compress" | "compress-force", value) => {
                self.compress = match value {
                    None => Some(Codec::DEFAULT),
                    Some("no" | "none") => None,
                    Some(text) => Some(Codec::parse(text).ok_or_else(|| {
                        refuse(option, "is zlib[:1-9], lzo, zstd[:1-15 or -15 to -1] or no")
                    })?),
                };
                self.compress_force = name == "compress-force" && self.compress.is_some();
                if self.compress.is_some() {
                    self.nodatacow = false;
                    self.nodatasum = false;
                }
            }
            ("nocompress", None) => {
                self.compress = None;
                self.compress_force = false;
            }
            ("datacow", None) => self.nodatacow = false,
            ("nodatasum", None) => self.nodatasum = true,
            ("datasum", None) => {
                self.nodatasum = false;
                self.nodatacow = false;
            }
            ("noatime", None) => self.atime = Atime::No,
            ("relatime", None) => self.atime = Atime::Relative,
            ("strictatime", None) => self.atime = Atime::Strict,
            ("atime", None) if self.atime == Atime::No => self.atime = Atime::Relative,
            ("nostrictatime", None) if self.atime == Atime::Strict => self.atime = Atime::Relative,
            ("nodiratime", None) => self.nodiratime = true,
            ("diratime", None) => self.nodiratime = false,
            ("lazytime", None) => self.lazytime = true,
            ("nolazytime", None) => self.lazytime = false,
            ("discard", None | Some("async" | "sync")) => self.discard = true,
            ("nodiscard", None) => self.discard = false,
            ("memory", Some(_)) => {
                let bytes = number(option, value)?;
                *self = std::mem::take(self).with_memory(bytes);
            }
            ("max_inline", Some(_)) => {
                let bytes = number(option, value)?;
                self.max_inline = u32::try_from(bytes.min(4095)).unwrap_or(4095);
            }
            // Version 1 of the cache is not read here. Without a free-space tree, free space is the
            // space without extents.
            ("space_cache", None | Some("v1")) | ("nospace_cache", None) => {}
            ("space_cache", Some("v2")) => self.space_cache_v2 = true,
            ("clear_cache", None) => self.clear_cache = true,
            ("bg_reclaim_threshold", Some(_)) => {
                self.reclaim_below = u8::try_from(number(option, value)?)
                    .ok()
                    .filter(|percent| *percent < 100)
                    .ok_or_else(|| refuse(option, "a percentage below 100"))?;
            }
            ("raid56", Some("stripe")) => self.parity = Parity::Rows,
            ("raid56", Some("mirror")) => self.parity = Parity::Mirror,
            ("raid56", Some("ro")) => self.parity = Parity::ReadOnly,
            ("degraded", None) => self.degraded = true,
            ("nologreplay" | "norecovery", None) => self.nologreplay = true,
            ("usebackuproot" | "recovery", None) => self.use_backup_root = true,
            ("rescue", Some(words)) => linux::rescue(self, option, words)?,
            ("treelog", None) => self.notreelog = false,
            ("notreelog", None) => self.notreelog = true,
            ("log_copies", Some(text)) => {
                self.log_copies = text.parse().map_err(|why: String| refuse(option, &why))?;
            }
            ("flushoncommit", None) => self.flushoncommit = true,
            ("noflushoncommit", None) => self.flushoncommit = false,
            ("dirty", Some(_)) => self.dirty_bytes_max = number(option, value)?.max(1 << 20),
            ("page_cache", Some(_)) => self.page_cache_bytes = number(option, value)?,
            ("delete_room", Some("keep")) => self.delete_room = true,
            ("delete_room", Some("off")) => self.delete_room = false,
            ("delete_room", Some(_)) => return Err(refuse(option, "is keep or off")),
            _ if linux::without_effect(self, option)? => {}
            _ => {
                let taken = self.baselines.accept(name, value.unwrap_or_default());
                if !taken.map_err(|why| refuse(option, &why))? {
                    return Err(unknown(option, OPTION_NAMES.iter().copied()));
                }
            }
        }
        Ok(())
    }
}

/// The error for an unknown option, with the known names that are most similar.
pub fn unknown<'k>(option: &str, known: impl IntoIterator<Item = &'k str>) -> Error {
    let name = option.split('=').next().unwrap_or(option);
    let near = buttress_base::nearest::nearest(name, known);
    let hint = if near.is_empty() { String::new() } else { format!("; like {}", near.join(", ")) };
    refuse(option, &format!("is not known{hint}"))
}

fn refuse(option: &str, why: &str) -> Error {
    Error::Option { option: option.to_owned(), why: why.to_owned() }
}

/// Parses a number with an optional binary unit suffix.
fn number(option: &str, value: Option<&str>) -> Result<u64> {
    let text = value.unwrap_or_default();
    let (digits, shift) = match text.bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 20),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    digits
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(1 << shift))
        .ok_or_else(|| refuse(option, "needs a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fields get the values of a list in the form of mount(8).
    #[test]
    fn a_list_parses() {
        let options =
            MountOptions::parse("rw,subvol=@,commit=5,noatime,max_inline=1k").expect("list");
        assert_eq!(options.subvol.as_deref(), Some(&b"@"[..]));
        assert_eq!(options.commit_interval, Duration::from_secs(5));
        assert_eq!(options.atime, Atime::No);
        assert_eq!(options.max_inline, 1024);
    }

    /// Compression options have every name that Linux knows, and the last one wins.
    #[test]
    fn compression_parses() {
        let of = |list| MountOptions::parse(list).map(|o| (o.compress, o.compress_force));
        let zstd = Codec::parse("zstd:7");
        assert_eq!(of("compress").expect("list"), (Some(Codec::DEFAULT), false));
        assert_eq!(of("compress=zstd:7").expect("list"), (zstd, false));
        assert_eq!(of("compress-force=zstd:7").expect("list"), (zstd, true));
        assert_eq!(of("compress-force=lzo,nocompress").expect("list"), (None, false));
        assert_eq!(of("compress=zstd,compress=no").expect("list"), (None, false));
        assert_eq!(of("compress=zstd,nodatacow").expect("list"), (None, false));
        assert!(of("compress=gzip").is_err());
    }

    /// An unknown option is refused by name, with the nearest known options and no others.
    #[test]
    fn an_unknown_option_names_the_nearest() {
        let text = MountOptions::parse("thread_pol=4").expect_err("unknown").to_string();
        assert!(text.contains("thread_pol=4") && text.contains("thread_pool"), "{text}");
        assert!(text.len() < 80, "{text}");
    }

    /// All options of Linux's manual page are accepted. Options without an effect here are
    /// reported.
    #[test]
    fn options_of_linux_are_taken() {
        let taken = "acl noacl autodefrag noautodefrag barrier nobarrier check_int check_int_data \
            check_int_print_mask=1 clear_cache commit=0 commit=300 compress compress=zstd:15 \
            compress-force=lzo degraded discard discard=sync discard=async nodiscard enospc_debug \
            noenospc_debug fatal_errors=bug fatal_errors=panic flushoncommit noflushoncommit \
            fragment=data max_inline=2k metadata_ratio=4 datacow nodatacow datasum nodatasum \
            treelog notreelog usebackuproot rescan_uuid_tree skip_balance space_cache \
            space_cache=v1 space_cache=v2 nospace_cache ssd ssd_spread nossd nossd_spread \
            subvol=/@ subvolid=5 thread_pool=4 user_subvol_rm_allowed rescue=usebackuproot \
            ro,nologreplay ro,norecovery ro,rescue=nologreplay ro,rescue=all recovery \
            ro,rescue=usebackuproot:nologreplay lazytime nodiratime iversion mand silent";
        for option in taken.split_whitespace() {
            MountOptions::parse(option).unwrap_or_else(|error| panic!("{option}: {error}"));
        }
        let options = MountOptions::parse("ssd,nossd,ssd,thread_pool=4,acl").expect("list");
        assert_eq!(options.without_effect, ["ssd", "thread_pool=4"]);
        for wrong in ["thread_pool=x", "fatal_errors=maybe", "metadata_ratio=", "rescue=nothing"] {
            MountOptions::parse(wrong).expect_err(wrong);
        }
        for word in ["ignorebadroots", "idatacsums", "ignoremetacsums", "all"] {
            let list = format!("rescue={word}");
            let text = MountOptions::parse(&list).expect_err("with ro only").to_string();
            assert!(text.contains("ro only"), "{text}");
            MountOptions::parse(&format!("{list},ro")).expect(word);
        }
        let all = MountOptions::parse("ro,rescue=all:isuperflags").expect("all");
        assert!(all.nologreplay && all.use_backup_root && all.ignore_bad_roots);
        assert!(all.ignore_data_csums && all.ignore_meta_csums);
        assert!(all.without_effect.is_empty(), "{:?}", all.without_effect);
    }
}
