//! Copies the data of a device to another one, without its holes, by several threads.

use std::sync::atomic::{AtomicU64, Ordering};

use buttress_base::{AlignedBuf, thread};
use buttress_block::device::Content;
use buttress_block::{Device, Error, Space};

/// The number of bytes that one thread copies at a time, and the number of threads.
const PIECE: u64 = 4 << 20;
const THREADS: usize = 4;

/// Copies everything but holes, and returns the number of bytes copied. Calls `progress` with the
/// length of each piece. The target is at least as long as the source.
///
/// # Errors
///
/// Those of the devices.
pub fn copy(
    source: &dyn Device,
    target: &dyn Device,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<u64, Error> {
    let (next, copied) = (AtomicU64::new(0), AtomicU64::new(0));
    let work = || -> Result<(), Error> {
        let mut buffer = AlignedBuf::zeroed(PIECE as usize);
        loop {
            let start = next.fetch_add(PIECE, Ordering::Relaxed);
            if start >= source.len() {
                return Ok(());
            }
            let end = (start + PIECE).min(source.len());
            let mut at = start;
            while at < end {
                let extent = source.extent_at(at, end - at)?;
                let len = extent.len.clamp(1, end - at);
                if extent.content == Content::Data {
                    let piece = &mut buffer[..len as usize];
                    source.read_at(at, piece)?;
                    target.write_at(at, piece)?;
                    copied.fetch_add(len, Ordering::Relaxed);
                } else if target.extent_at(at, len)?.len < len
                    || target.extent_at(at, len)?.content == Content::Data
                {
                    target.write_zeroes(at, len, Space::Free)?;
                }
                at += len;
            }
            progress(end - start);
        }
    };
    let ended = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join()).collect::<Vec<_>>()
    });
    for end in ended {
        // A panic in a thread becomes a panic of the copy.
        end.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    }
    target.flush()?;
    Ok(copied.into_inner())
}
