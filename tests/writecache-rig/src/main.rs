//! Does the work of a test, in the guest or in a process that will be killed.
//!
//! `rig-work device DEVICE SEED STEPS ALIGN` writes to a device and bypasses the page cache.
//! `rig-work sum DEVICE BYTES` reads BYTES at a time, and prints the checksum of the device.
//! `rig-work random DEVICE SEED COUNT` writes blocks of 4 KiB anywhere. `rig-work cached ORIGIN
//! CACHE OPTIONS SEED STEPS ALIGN` writes through a cache of ours, which is made if there is none.
//! With `mode=pmem` the cache is mapped, and the first line of output is `map-sync` or `msync`.
//! After every flush the program prints `flushed N`. N is the number of steps done.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;

use buttress_base::{AlignedBuf, Rng};
use buttress_block::{Device, FileDevice, OpenOptions};
use buttress_cache::{CacheDevice, CacheOptions, Mode, PmemDevice, format};
use buttress_writecache_rig::work::{SECTOR, Step, Work, sector};
use crc_fast::{CrcAlgorithm, Digest};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["device", path, seed, steps, align] => {
            let file = direct(path)?;
            let work = work(seed, steps, align, (&file).seek(SeekFrom::End(0))?)?;
            run(work, |at, bytes| Ok(file.write_all_at(bytes, at)?), || Ok(file.sync_all()?))
        }
        ["random", path, seed, count] => {
            let file = direct(path)?;
            let blocks = (&file).seek(SeekFrom::End(0))? / 4096;
            let mut rng = Rng::new(seed.parse()?);
            let bytes = AlignedBuf::zeroed(4096);
            for _ in 0..count.parse::<u64>()? {
                file.write_all_at(&bytes, rng.below(blocks) * 4096)?;
            }
            say("written")
        }
        ["sum", path, piece] => {
            let mut file = direct(path)?;
            let len = file.seek(SeekFrom::End(0))?;
            let piece: u64 = piece.parse()?;
            let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
            for at in (0..len).step_by(piece as usize) {
                let mut buf = AlignedBuf::zeroed(piece.min(len - at) as usize);
                file.read_exact_at(&mut buf, at)?;
                digest.update(&buf);
            }
            say(&format!("sum {:08x}", digest.finalize()))
        }
        ["cached", origin, cache, options, seed, steps, align] => {
            let open = |path: &str| -> Result<Arc<dyn Device>> {
                Ok(Arc::new(FileDevice::open(path, OpenOptions::WRITE)?))
            };
            let options = CacheOptions::parse(options)?;
            let origin = open(origin)?;
            let cache = match options.mode {
                Mode::Ssd => open(cache)?,
                Mode::Pmem => {
                    let device = PmemDevice::open(cache, OpenOptions::WRITE)?;
                    say(if device.is_dax() { "map-sync" } else { "msync" })?;
                    Arc::new(device)
                }
            };
            let mut magic = [0; 4];
            cache.read_at(options.start_sector * SECTOR as u64, &mut magic)?;
            if magic == [0; 4] {
                let (cache, start) = (Arc::clone(&cache), options.start_sector);
                format(cache, Some(&*origin), 4096, start, false)?;
            }
            let device = CacheDevice::open(origin, cache, options)?;
            let work = work(seed, steps, align, device.len())?;
            run(work, |at, bytes| Ok(device.write_at(at, bytes)?), || Ok(device.flush()?))?;
            // The cache is not closed here; other tests close it.
            std::process::exit(0);
        }
        _ => Err("rig-work: wrong words".into()),
    }
}

fn direct(path: &str) -> Result<File> {
    let flags = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    let mut options = File::options();
    options.read(true).write(true).custom_flags(flags);
    Ok(options.open(path)?)
}

fn work(seed: &str, steps: &str, align: &str, len: u64) -> Result<Work> {
    let sectors = len as usize / SECTOR;
    Ok(Work { seed: seed.parse()?, steps: steps.parse()?, sectors, align: align.parse()? })
}

fn run(
    work: Work,
    write: impl Fn(u64, &[u8]) -> Result<()>,
    flush: impl Fn() -> Result<()>,
) -> Result<()> {
    for (index, step) in work.list().into_iter().enumerate() {
        match step {
            Step::Write { at, count, value } => {
                let bytes = AlignedBuf::copy_of(&sector(value).repeat(count));
                write((at * SECTOR) as u64, &bytes)?;
            }
            Step::Flush => {
                flush()?;
                say(&format!("flushed {}", index + 1))?;
            }
        }
    }
    Ok(())
}

fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}
