//! The options of a cache: those of dm-writecache with their names, and those of this program.
//!
//! # Place
//!
//! This module parses option text into checked values. Each field says what its option means.

use std::time::Duration;

use crate::error::Error;

/// The kind of the cache device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// A disk. A sector is written whole, and a flush makes it durable.
    #[default]
    Ssd,
    /// Persistent memory. Eight bytes are written whole. Written bytes are durable when the CPU's
    /// caches have been written back.
    Pmem,
}

/// The order in which blocks go to the origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Writeback {
    /// Always by origin address. Blocks that are adjacent on the origin are joined.
    #[default]
    Sorted,
    /// The order of Linux: the oldest block first, with the blocks that follow it both on the
    /// origin and in the cache. A flush of everything goes by address.
    Lru,
    /// The order of Linux before 2019: the oldest block first, also in a flush of everything.
    FifoUnsorted,
}

/// Options of a cache. The defaults are those of the Linux target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheOptions {
    /// Disk or persistent memory.
    pub mode: Mode,
    /// Where on the cache device the cache begins, in sectors.
    pub start_sector: u64,
    /// Refuse a cache with a block size other than this.
    pub block_size: Option<u32>,
    /// Begin to write back when this percentage of the slots is used.
    pub high_watermark: u32,
    /// Stop write-back when at most this percentage of the slots is used.
    pub low_watermark: u32,
    /// The most blocks that are in flight to the origin.
    pub writeback_jobs: u32,
    /// Commit when this many blocks are uncommitted; 64 for persistent memory, 65536 for disks.
    pub autocommit_blocks: Option<u32>,
    /// The interval at which the background thread commits.
    pub autocommit_time: Duration,
    /// Admit no new blocks, and write back all cached ones.
    pub cleaner: bool,
    /// Write back blocks that are older than this.
    pub max_age: Option<Duration>,
    /// Cache only writes of class `Metadata`.
    pub metadata_only: bool,
    /// Pause write-back for this time after a write that went straight to the origin (disks only).
    pub pause_writeback: Duration,
    /// Whether the origin is flushed after each batch (`fua`), or once for many batches (`nofua`).
    pub fua: bool,
    /// The order of write-back.
    pub writeback: Writeback,
    /// Whether to write back in cuts. When a cut is complete, the origin alone has the state of one
    /// commit.
    pub consistent_origin: bool,
    /// Write everything back on close.
    pub flush_on_suspend: bool,
    /// Use background threads. Without background threads, commits and write-back happen inside the
    /// calls that need them.
    pub background: bool,
    /// Bypass the page cache on the cache device. The code that opens the device reads this option.
    pub direct: bool,
    /// Use the cache even if it belongs to another origin, and drop blocks past the origin's end.
    pub force: bool,
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self {
            mode: Mode::Ssd,
            start_sector: 0,
            block_size: None,
            high_watermark: 50,
            low_watermark: 45,
            writeback_jobs: 2048,
            autocommit_blocks: None,
            autocommit_time: Duration::from_millis(1000),
            cleaner: false,
            max_age: None,
            metadata_only: false,
            pause_writeback: Duration::from_millis(3000),
            fua: false,
            writeback: Writeback::Sorted,
            consistent_origin: false,
            flush_on_suspend: false,
            background: true,
            direct: false,
            force: false,
        }
    }
}

/// The words that [`CacheOptions::accept`] knows, for messages.
pub const KNOWN: &[&str] = &[
    "high_watermark=PERCENT",
    "low_watermark=PERCENT",
    "writeback_jobs=BLOCKS",
    "autocommit_blocks=BLOCKS",
    "autocommit_time=MS",
    "cleaner",
    "max_age=MS",
    "metadata_only",
    "pause_writeback=MS",
    "fua",
    "nofua",
    "start_sector=SECTOR",
    "mode=ssd|pmem",
    "block_size=BYTES",
    "writeback=sorted|lru|fifo-unsorted",
    "consistent_origin=on|off",
    "flush_on_suspend",
    "direct",
    "force_cache",
];

impl CacheOptions {
    /// Takes one option, `word` or `word=value`; returns whether this crate knows it.
    ///
    /// # Errors
    ///
    /// [`Error::Option`] for an invalid value.
    pub fn accept(&mut self, option: &str) -> Result<bool, Error> {
        let (word, value) = match option.split_once('=') {
            Some((word, value)) => (word, Some(value)),
            None => (option, None),
        };
        let wrong = |why: String| Error::Option { option: option.to_owned(), why };
        let number = || {
            let value = value.ok_or_else(|| wrong("needs a number".to_owned()))?;
            value.parse::<u64>().map_err(|_| wrong(format!("{value} is not a number")))
        };
        let small = || u32::try_from(number()?).map_err(|_| wrong("is too large".to_owned()));
        let percent = || match small()? {
            percent @ 0..=100 => Ok(percent),
            more => Err(wrong(format!("{more} is more than 100 percent"))),
        };
        let flag = || match value {
            None | Some("on") => Ok(true),
            Some("off") => Ok(false),
            Some(_) => Err(wrong("is on or off".to_owned())),
        };
        let choice = |known: &str| wrong(format!("is one of {known}"));
        match word {
            "start_sector" => self.start_sector = number()?,
            "block_size" => self.block_size = Some(small()?),
            "high_watermark" => self.high_watermark = percent()?,
            "low_watermark" => self.low_watermark = percent()?,
            "writeback_jobs" => self.writeback_jobs = small()?.max(1),
            "autocommit_blocks" => self.autocommit_blocks = Some(small()?.max(1)),
            "autocommit_time" => self.autocommit_time = Duration::from_millis(number()?.max(1)),
            "cleaner" => self.cleaner = flag()?,
            "max_age" => self.max_age = Some(Duration::from_millis(number()?)),
            "metadata_only" => self.metadata_only = flag()?,
            "pause_writeback" => self.pause_writeback = Duration::from_millis(number()?),
            "fua" => self.fua = true,
            "nofua" => self.fua = false,
            "flush_on_suspend" => self.flush_on_suspend = flag()?,
            "direct" => self.direct = flag()?,
            "force_cache" => self.force = flag()?,
            "consistent_origin" => self.consistent_origin = flag()?,
            "mode" => {
                self.mode = match value {
                    Some("ssd" | "s") => Mode::Ssd,
                    Some("pmem" | "p") => Mode::Pmem,
                    _ => return Err(choice("ssd, pmem")),
                };
            }
            "writeback" => {
                self.writeback = match value {
                    Some("sorted") => Writeback::Sorted,
                    Some("lru") => Writeback::Lru,
                    Some("fifo-unsorted") => Writeback::FifoUnsorted,
                    _ => return Err(choice("sorted, lru, fifo-unsorted")),
                };
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Takes a list of options, separated by commas.
    ///
    /// # Errors
    ///
    /// [`Error::Option`] for an unknown word or a wrong value.
    pub fn parse(list: &str) -> Result<Self, Error> {
        let mut options = Self::default();
        for option in list.split(',').map(str::trim).filter(|option| !option.is_empty()) {
            if !options.accept(option)? {
                let why = format!("is not a cache option; known are {}", KNOWN.join(", "));
                return Err(Error::Option { option: option.to_owned(), why });
            }
        }
        options.check()?;
        Ok(options)
    }

    /// Checks that the options fit together.
    ///
    /// # Errors
    ///
    /// [`Error::Option`].
    pub fn check(&self) -> Result<(), Error> {
        let wrong = |option: &str, why: &str| {
            Err(Error::Option { option: option.to_owned(), why: why.to_owned() })
        };
        if self.low_watermark > self.high_watermark {
            return wrong("low_watermark", "is above the high watermark");
        }
        if self.consistent_origin && self.writeback != Writeback::Sorted {
            return wrong("consistent_origin", "needs writeback=sorted");
        }
        Ok(())
    }

    /// The uncommitted blocks at which a commit starts by itself.
    #[must_use]
    pub fn autocommit_blocks(&self) -> u64 {
        let default = if self.mode == Mode::Pmem { 64 } else { 65536 };
        u64::from(self.autocommit_blocks.unwrap_or(default))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every option of Linux is accepted by its name, and errors name what is wrong.
    #[test]
    fn takes_the_words_of_the_target() {
        let list = "start_sector=8,high_watermark=60,low_watermark=40,writeback_jobs=64,cleaner,\
                    autocommit_blocks=10,autocommit_time=50,max_age=100,metadata_only,\
                    pause_writeback=0,fua,mode=pmem,writeback=lru,direct";
        let options = CacheOptions::parse(list).expect("all are known");
        assert_eq!((options.high_watermark, options.low_watermark), (60, 40));
        assert!(options.cleaner && options.metadata_only && options.fua && options.direct);
        for wrong in [
            "high_watermark=101",
            "low_watermark=60",
            "autocommit_time",
            "writeback=fast",
            "x",
            "consistent_origin,writeback=lru",
            "max_age=soon",
            "writeback_jobs=99999999999",
        ] {
            CacheOptions::parse(wrong).expect_err(wrong);
        }
    }
}
