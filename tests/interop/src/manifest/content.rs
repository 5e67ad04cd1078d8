//! The fingerprint of a file's content, and the ranges of its data.

use xxhash_rust::xxh64::Xxh64;

/// Files up to this length are read whole, including holes. Of longer files, only the data is read.
pub(super) const WHOLE_MAX: u64 = 64 << 20;

/// If a file has more ranges of data, the last range covers the rest.
const RANGES_MAX: usize = 4096;

const BLOCK: u64 = 4096;

/// The operations on a file of any source.
pub(super) trait Source {
    type Error;
    fn read(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Self::Error>;
    /// The first byte of data at or behind `offset`.
    fn data(&self, offset: u64) -> Result<Option<u64>, Self::Error>;
    /// The first byte of a hole at or behind `offset`.
    fn hole(&self, offset: u64) -> Result<u64, Self::Error>;
}

/// The ranges of data.
pub(super) fn ranges<S: Source>(source: &S, size: u64) -> Result<Vec<(u64, u64)>, S::Error> {
    let mut found: Vec<(u64, u64)> = Vec::new();
    let mut at = 0;
    while at < size {
        let Some(start) = source.data(at)? else { break };
        let end = source.hole(start)?.min(size);
        if end <= start {
            break;
        }
        let full = found.len() == RANGES_MAX;
        match found.last_mut() {
            Some(last) if full || last.1 == start => last.1 = end,
            _ => found.push((start, end)),
        }
        at = end;
    }
    Ok(found)
}

/// The fingerprint. Blocks of zeros do not count, so a hole is equal to zeros.
pub(super) fn fingerprint<S: Source>(
    source: &S,
    size: u64,
    ranges: &[(u64, u64)],
) -> Result<u64, S::Error> {
    let mut hash = Xxh64::new(size);
    let mut buf = vec![0_u8; 256 * 1024];
    let whole = [(0, size)];
    for &(start, end) in if size <= WHOLE_MAX { &whole } else { ranges } {
        let mut at = start / BLOCK * BLOCK;
        while at < end {
            let want = usize::try_from(end - at).map_or(buf.len(), |left| left.min(buf.len()));
            let mut have = 0;
            while have < want {
                match source.read(at + have as u64, &mut buf[have..want])? {
                    0 => break,
                    count => have += count,
                }
            }
            for (index, block) in buf[..have].chunks(BLOCK as usize).enumerate() {
                if crate::holds_data(block) {
                    hash.update(&(at + index as u64 * BLOCK).to_le_bytes());
                    hash.update(block);
                }
            }
            if have < want {
                // The file has fewer bytes than its size says, so it gets a fingerprint that no
                // other file has.
                hash.update(b"short");
                break;
            }
            at += have as u64;
        }
    }
    Ok(hash.digest())
}
