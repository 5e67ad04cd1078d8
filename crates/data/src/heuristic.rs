//! Decides from a sample whether data is worth compressing.
//!
//! The sample has sixteen bytes of every 256. Data looks compressible if the sample has few
//! different bytes, or if few byte values make up most of it. Data looks incompressible if the byte
//! values are nearly equally frequent. Otherwise the entropy decides.

/// Distance between samples, and length of each, in bytes.
const STRIDE: usize = 256;
const SAMPLE: usize = 16;

/// A sample with fewer different byte values than this counts as text or similarly simple data.
const FEW: usize = 64;

/// If nine tenths of a sample need at least this many byte values, the data counts as random.
const MANY: usize = 200;

/// From this entropy on, in bits a byte (at most eight), compression saves too little.
const ENTROPY_MAX: f64 = 0.8 * 8.0;

/// Whether a sample of the slices looks compressible. The slices are one sequence.
pub(crate) fn looks_compressible(slices: &[&[u8]]) -> bool {
    let mut counts = [0_u32; 256];
    let mut total = 0_u32;
    for slice in slices {
        for sample in slice.chunks(STRIDE).map(|chunk| &chunk[..chunk.len().min(SAMPLE)]) {
            for byte in sample {
                counts[usize::from(*byte)] += 1;
            }
            total += sample.len() as u32;
        }
    }
    if total == 0 || counts.iter().filter(|count| **count > 0).count() < FEW {
        return true;
    }
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let mut covered = 0;
    let core = counts
        .iter()
        .take_while(|count| {
            let before = covered;
            covered += **count;
            before < total / 10 * 9
        })
        .count();
    if core <= FEW {
        return true;
    }
    if core >= MANY {
        return false;
    }
    let total = f64::from(total);
    let entropy: f64 = counts
        .iter()
        .filter(|count| **count > 0)
        .map(|count| {
            let share = f64::from(*count) / total;
            -share * share.log2()
        })
        .sum();
    entropy < ENTROPY_MAX
}

#[cfg(test)]
mod tests {
    use buttress_base::Rng;

    use super::*;

    /// Text and zeros look compressible, noise does not.
    #[test]
    fn noise_is_left_alone() {
        let text: Vec<u8> = b"the quick brown fox ".iter().copied().cycle().take(131_072).collect();
        assert!(looks_compressible(&[&text]));
        assert!(looks_compressible(&[&[0; 4096]]));
        let mut rng = Rng::new(7);
        let noise: Vec<u8> = (0..131_072).map(|_| rng.next_u64() as u8).collect();
        assert!(!looks_compressible(&[&noise[..65_536], &noise[65_536..]]));
    }
}
