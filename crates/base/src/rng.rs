//! Random numbers from a seed, so that any run can be repeated.
//!
//! # Place
//!
//! The numbers are for tests, simulations, and choices that must differ but need not be secret.
//! They must not be used for identifiers that must be globally unique.
//!
//! # Invariants
//!
//! - **C1** The same seed gives the same numbers, on every machine and in every version.

use std::ops::Range;

/// A generator of xoshiro256**, seeded through splitmix64 (both public domain, Blackman and Vigna).
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// Creates a generator. Every seed is valid, zero included.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut mix = seed;
        Self { state: std::array::from_fn(|_| splitmix(&mut mix)) }
    }

    /// Returns the next number.
    pub fn next_u64(&mut self) -> u64 {
        let [s0, s1, s2, s3] = &mut self.state;
        let result = s1.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = *s1 << 17;
        *s2 ^= *s0;
        *s3 ^= *s1;
        *s1 ^= *s2;
        *s0 ^= *s3;
        *s2 ^= shifted;
        *s3 = s3.rotate_left(45);
        result
    }

    /// Returns a number below `limit`.
    ///
    /// # Panics
    ///
    /// If `limit` is zero: there is no such number.
    pub fn below(&mut self, limit: u64) -> u64 {
        assert!(limit > 0, "no number is below zero");
        // The bias is below limit / 2^64, which no test can detect.
        ((u128::from(self.next_u64()) * u128::from(limit)) >> 64) as u64
    }

    /// Returns a number of a range.
    ///
    /// # Panics
    ///
    /// If the range is empty.
    pub fn range(&mut self, range: Range<u64>) -> u64 {
        range.start + self.below(range.end - range.start)
    }

    /// Returns true with a probability of `numerator / denominator`.
    pub fn chance(&mut self, numerator: u64, denominator: u64) -> bool {
        self.below(denominator) < numerator
    }

    /// Fills a buffer.
    pub fn fill(&mut self, buf: &mut [u8]) {
        for part in buf.chunks_mut(8) {
            let bytes = self.next_u64().to_le_bytes();
            part.copy_from_slice(&bytes[..part.len()]);
        }
    }

    /// Shuffles a slice.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }

    /// Returns a random item of a slice, or `None` for an empty slice.
    pub fn choose<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        if items.is_empty() { None } else { items.get(self.below(items.len() as u64) as usize) }
    }
}

fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// C1: a seed always gives the same numbers, and another seed gives other numbers.
    #[test]
    fn repeats_from_its_seed() {
        let numbers = |seed| {
            let mut rng = Rng::new(seed);
            std::array::from_fn::<u64, 8, _>(|_| rng.next_u64())
        };
        assert_eq!(numbers(1), numbers(1));
        assert_ne!(numbers(1), numbers(2));
        // The reference sequence of splitmix64 from seed zero begins with this number.
        assert_eq!(splitmix(&mut 0), 0xe220_a839_7b1d_cdaf);
    }

    /// Every number below a small limit comes up, and no other number.
    #[test]
    fn stays_below_the_limit() {
        let mut rng = Rng::new(3);
        let mut seen = [0_u32; 6];
        for _ in 0..600 {
            seen[rng.below(6) as usize] += 1;
        }
        assert!(seen.iter().all(|&times| times > 50), "{seen:?}");
        assert!((0..100).all(|_| (10..12).contains(&rng.range(10..12))));
    }

    /// A shuffle keeps all items.
    #[test]
    fn shuffles() {
        let mut items: Vec<u32> = (0..50).collect();
        Rng::new(9).shuffle(&mut items);
        assert_ne!(items, (0..50).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..50).collect::<Vec<_>>());
    }
}
