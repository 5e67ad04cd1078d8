//! Decompresses extents, which another implementation may have written.
//!
//! # On disk
//!
//! ```text
//! zlib   one zlib stream, padded with zeros to a sector
//! zstd   one frame, padded likewise
//! lzo    u32 length of the stream, with this field; then segments: u32 length, LZO1X data.
//!        Each segment unpacks to one sector, the last one perhaps to less. The length field of a
//!        segment never crosses a sector boundary: a rest of less than four bytes is skipped.
//! ```
//!
//! # Failure
//!
//! The stored bytes may be anything. The output is bounded by the size in the item, and that size
//! is bounded by [`RAM_BYTES_MAX`].

use std::io::Read;

use buttress_format::{Compression, Logical};

use crate::error::{Error, Result};

/// No writer makes compressed extents of more than 128 KiB; the limit leaves room for larger
/// extents.
pub(crate) const RAM_BYTES_MAX: u64 = 1 << 20;

/// The memory a zstd frame may ask for, as a power of two. Linux writes windows of at most 2^17
/// bytes and refuses larger windows.
#[cfg(feature = "zstd")]
const WINDOW_LOG_MAX: u32 = 20;

/// Decompresses a whole extent into exactly `ram_bytes`. If the stream is shorter, zeros follow.
///
/// `logical` is for errors, `sector` is the size of LZO's segments.
///
/// # Errors
///
/// [`Error::Compressed`] when the bytes are damaged, or unpack to more bytes than any extent holds.
pub fn decompress(
    kind: Compression,
    logical: Logical,
    data: &[u8],
    ram_bytes: u64,
    sector: usize,
) -> Result<Vec<u8>> {
    let damaged = |what| Error::Compressed { logical, what };
    if ram_bytes > RAM_BYTES_MAX {
        return Err(damaged("it claims to unpack to more than any extent holds"));
    }
    let len = ram_bytes as usize;
    let mut out = Vec::with_capacity(len);
    match kind {
        Compression::None => out.extend_from_slice(data.get(..len).unwrap_or(data)),
        Compression::Zlib => {
            flate2::read::ZlibDecoder::new(data)
                .take(ram_bytes)
                .read_to_end(&mut out)
                .map_err(|_| damaged("not a zlib stream"))?;
        }
        #[cfg(feature = "zstd")]
        Compression::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(data)
                .map_err(|_| damaged("no zstd context"))?
                .single_frame();
            decoder.window_log_max(WINDOW_LOG_MAX).map_err(|_| damaged("no zstd context"))?;
            decoder
                .take(ram_bytes)
                .read_to_end(&mut out)
                .map_err(|_| damaged("not a zstd frame"))?;
        }
        #[cfg(not(feature = "zstd"))]
        Compression::Zstd => return Err(damaged("zstd is not built in")),
        #[cfg(feature = "lzo")]
        Compression::Lzo => lzo(data, len, sector, &mut out).map_err(damaged)?,
        #[cfg(not(feature = "lzo"))]
        Compression::Lzo => {
            let _ = sector;
            return Err(damaged("LZO is not built in"));
        }
    }
    out.resize(len, 0);
    Ok(out)
}

#[cfg(feature = "lzo")]
fn lzo(data: &[u8], len: usize, sector: usize, out: &mut Vec<u8>) -> Result<(), &'static str> {
    let word = |at: usize| -> Option<usize> {
        let bytes = data.get(at..at.checked_add(4)?)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
    };
    let total = word(0).ok_or("shorter than its header")?;
    if total > data.len() {
        return Err("longer than its extent");
    }
    let mut segment_out = vec![0; sector];
    let mut at = 4;
    while at + 4 <= total && out.len() < len {
        if sector - at % sector < 4 {
            at = at.next_multiple_of(sector);
            continue;
        }
        let segment_len = word(at).ok_or("a segment without a length")?;
        at += 4;
        let segment = data.get(at..at.saturating_add(segment_len)).ok_or("a segment is cut off")?;
        let made = lzokay::decompress::decompress(segment, &mut segment_out)
            .map_err(|_| "a segment is no LZO data")?;
        out.extend_from_slice(&segment_out[..made.min(len - out.len())]);
        at += segment_len;
    }
    Ok(())
}

#[cfg(all(test, feature = "lzo", feature = "zstd"))]
mod tests {
    use std::io::Write;

    use super::*;

    fn sample() -> Vec<u8> {
        (0..10_000u32).flat_map(|n| (n / 7).to_le_bytes()).collect()
    }

    /// A zlib stream, followed by padding, unpacks to the original bytes.
    #[test]
    fn zlib_unpacks() {
        let content = sample();
        let mut encoder =
            flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(&content).expect("memory");
        let mut packed = encoder.finish().expect("memory");
        packed.resize(packed.len().next_multiple_of(4096), 0);
        let out = decompress(Compression::Zlib, Logical(0), &packed, content.len() as u64, 4096);
        assert_eq!(out.expect("stream"), content);
    }

    /// A zstd frame, followed by padding, unpacks to the original bytes.
    #[test]
    fn zstd_unpacks() {
        let content = sample();
        let mut packed = zstd::bulk::compress(&content, 3).expect("memory");
        packed.resize(packed.len().next_multiple_of(4096), 0);
        let out = decompress(Compression::Zstd, Logical(0), &packed, content.len() as u64, 4096);
        assert_eq!(out.expect("frame"), content);
    }

    /// Each segment unpacks to one sector, and no length lies across a sector boundary.
    #[test]
    fn lzo_unpacks() {
        let content = sample();
        let mut packed = vec![0; 4];
        for sector in content.chunks(4096) {
            let segment = lzokay::compress::compress(sector).expect("memory");
            if 4096 - packed.len() % 4096 < 4 {
                packed.resize(packed.len().next_multiple_of(4096), 0);
            }
            packed.extend_from_slice(&(segment.len() as u32).to_le_bytes());
            packed.extend_from_slice(&segment);
        }
        let total = packed.len() as u32;
        packed[..4].copy_from_slice(&total.to_le_bytes());
        packed.resize(packed.len().next_multiple_of(4096), 0);
        let out = decompress(Compression::Lzo, Logical(0), &packed, content.len() as u64, 4096);
        assert_eq!(out.expect("segments"), content);
    }

    /// Random bytes are an error, never a panic or an endless output.
    #[test]
    fn rubbish_is_refused() {
        let rubbish: Vec<u8> = (0..8192u32).map(|n| (n * 31) as u8).collect();
        for kind in [Compression::Zlib, Compression::Lzo, Compression::Zstd] {
            assert!(decompress(kind, Logical(0), &rubbish, 65536, 4096).is_err());
        }
        assert!(decompress(Compression::Zlib, Logical(0), &rubbish, u64::MAX, 4096).is_err());
    }

    /// Output beyond the item's length is cut off. A frame that claims to need much memory is
    /// refused.
    #[test]
    fn bombs_are_bounded() {
        let zeroes = vec![0; 64 << 20];
        let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        zlib.write_all(&zeroes).expect("memory");
        let zlib = zlib.finish().expect("memory");
        let zstd = zstd::bulk::compress(&zeroes[..1 << 20], 1).expect("memory");
        for (kind, bomb) in [(Compression::Zlib, zlib), (Compression::Zstd, zstd)] {
            let out = decompress(kind, Logical(0), &bomb, 5000, 4096).expect("its front");
            assert!(out == zeroes[..5000] && out.capacity() <= 2 * 5000);
            assert!(decompress(kind, Logical(0), &bomb, RAM_BYTES_MAX + 1, 4096).is_err());
        }
        // Two empty frames: one with a window of 1 MiB, one with a window of 128 MiB.
        let frame = |log: u8| [0x28, 0xb5, 0x2f, 0xfd, 0, (log - 10) << 3, 1, 0, 0];
        let unpack = |log| decompress(Compression::Zstd, Logical(0), &frame(log), 100, 4096);
        assert!(unpack(20).expect("as large as an extent") == zeroes[..100]);
        unpack(27).expect_err("more than any program writes");
    }
}
