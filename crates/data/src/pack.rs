//! Compresses file content into the bytes of a compressed extent. Module `compress` describes the
//! format of these bytes.
//!
//! # Invariants
//!
//! - **K1** The output is never longer than the caller's limit. A longer output would save too
//!   little.
//! - **K2** No stream needs more memory to decompress than Linux provides: its input and its window
//!   are at most [`PACKED_BYTES_MAX`].

use buttress_format::Compression;
#[cfg(feature = "lzo")]
use lzokay::compress::{Dict, compress_no_alloc, compress_worst_size};

use crate::codec::Codec;

/// The maximum number of bytes of a file that one compressed extent holds.
pub(crate) const PACKED_BYTES_MAX: u64 = 128 << 10;

/// The compressors of one thread, each made when it is first needed.
#[derive(Default)]
pub(crate) struct Packer {
    #[cfg(feature = "zstd")]
    zstd: Option<(i32, zstd::bulk::Compressor<'static>)>,
    zlib: Option<(i32, flate2::Compress)>,
    #[cfg(feature = "lzo")]
    lzo: Option<Box<Dict>>,
    scratch: Vec<u8>,
}

impl Packer {
    /// Compresses the slices, as one sequence, into at most `limit` bytes. `None` if the output
    /// does not fit.
    pub(crate) fn pack(
        &mut self,
        codec: Codec,
        slices: &[&[u8]],
        limit: usize,
        sector: usize,
    ) -> Option<Vec<u8>> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let input = match slices {
            [one] => one,
            many => {
                scratch.clear();
                many.iter().for_each(|slice| scratch.extend_from_slice(slice));
                scratch.as_slice()
            }
        };
        let packed = match codec.kind() {
            Compression::None => None,
            Compression::Zlib => self.zlib(codec.level(), input, limit),
            // [`Codec::parse`] refuses codecs that are not built in, so they never come here.
            #[cfg(feature = "zstd")]
            Compression::Zstd => self.zstd(codec.level(), input, limit),
            #[cfg(not(feature = "zstd"))]
            Compression::Zstd => None,
            #[cfg(feature = "lzo")]
            Compression::Lzo => self.lzo(input, limit, sector),
            #[cfg(not(feature = "lzo"))]
            Compression::Lzo => {
                let _ = sector;
                None
            }
        };
        self.scratch = scratch;
        packed
    }

    #[cfg(feature = "zstd")]
    fn zstd(&mut self, level: i32, input: &[u8], limit: usize) -> Option<Vec<u8>> {
        if self.zstd.as_ref().is_none_or(|(there, _)| *there != level) {
            self.zstd = Some((level, zstd::bulk::Compressor::new(level).ok()?));
        }
        let (_, compressor) = self.zstd.as_mut()?;
        let mut out = vec![0; limit];
        // The only possible failure is that the output does not fit.
        let len = compressor.compress_to_buffer(input, out.as_mut_slice()).ok()?;
        out.truncate(len);
        Some(out)
    }

    fn zlib(&mut self, level: i32, input: &[u8], limit: usize) -> Option<Vec<u8>> {
        if self.zlib.as_ref().is_none_or(|(there, _)| *there != level) {
            let tool = flate2::Compress::new(flate2::Compression::new(level.unsigned_abs()), true);
            self.zlib = Some((level, tool));
        }
        let (_, compress) = self.zlib.as_mut()?;
        compress.reset();
        let mut out = Vec::with_capacity(limit);
        let status = compress.compress_vec(input, &mut out, flate2::FlushCompress::Finish).ok()?;
        // The vector's capacity may exceed `limit`, so the output may be too long.
        (status == flate2::Status::StreamEnd && out.len() <= limit).then_some(out)
    }

    #[cfg(feature = "lzo")]
    fn lzo(&mut self, input: &[u8], limit: usize, sector: usize) -> Option<Vec<u8>> {
        let dict = self.lzo.get_or_insert_with(Dict::new);
        let mut segment = vec![0; compress_worst_size(sector)];
        let mut out = vec![0; 4];
        for part in input.chunks(sector) {
            let len = compress_no_alloc(part, &mut segment, dict).ok()?;
            // The length field of a segment never crosses a sector boundary.
            let left = sector - out.len() % sector;
            if left < 4 {
                out.resize(out.len() + left, 0);
            }
            if out.len() + 4 + len > limit {
                return None;
            }
            out.extend_from_slice(&(len as u32).to_le_bytes());
            out.extend_from_slice(&segment[..len]);
        }
        let total = out.len() as u32;
        out[..4].copy_from_slice(&total.to_le_bytes());
        Some(out)
    }
}

#[cfg(all(test, feature = "lzo", feature = "zstd"))]
mod tests {
    use buttress_base::Rng;
    use buttress_format::Logical;

    use super::*;
    use crate::compress::decompress;

    /// Content between zeros and noise, of any length, unpacks to the same bytes or does not fit.
    #[test]
    fn packing_gives_back_its_content() {
        let mut rng = Rng::new(11);
        let mut packer = Packer::default();
        let codecs = ["zlib:1", "zlib:9", "lzo", "zstd:-15", "zstd", "zstd:15"];
        for round in 0..60 {
            let text = codecs[round % codecs.len()];
            let codec = Codec::parse(text).expect("a codec");
            let len = rng.range(1..PACKED_BYTES_MAX + 1) as usize;
            let noise = rng.below(100);
            let content: Vec<u8> =
                (0..len)
                    .map(|at| {
                        if rng.chance(noise, 100) { rng.next_u64() as u8 } else { (at / 50) as u8 }
                    })
                    .collect();
            let cut = rng.below(len as u64) as usize;
            let slices = [&content[..cut], &content[cut..]];
            let limit = rng.range(1..len as u64 + 1) as usize;
            let Some(packed) = packer.pack(codec, &slices, limit, 4096) else { continue };
            assert!(packed.len() <= limit, "K1: {text}");
            let mut padded = packed;
            padded.resize(padded.len().next_multiple_of(4096), 0);
            let out = decompress(codec.kind(), Logical(0), &padded, len as u64, 4096);
            assert!(out.expect(text) == content, "{text}, {len} bytes");
        }
    }
}
