//! Choices from bytes of a fuzzer, or of a seed.

/// Bytes that are used up from the front. When no bytes are left, every choice is zero.
#[derive(Clone, Copy, Debug)]
pub struct Dice<'a>(&'a [u8]);

impl<'a> Dice<'a> {
    /// Makes choices from bytes.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Whether no bytes are left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A number of eight bytes.
    pub fn word(&mut self) -> u64 {
        let mut word = [0; 8];
        let (taken, rest) = self.0.split_at(self.0.len().min(8));
        word[..taken.len()].copy_from_slice(taken);
        self.0 = rest;
        u64::from_le_bytes(word)
    }

    /// A number below `limit`, which is at most 65536. Zero if `limit` is zero.
    pub fn below(&mut self, limit: usize) -> usize {
        let mut pair = [0; 2];
        let (taken, rest) = self.0.split_at(self.0.len().min(2));
        pair[..taken.len()].copy_from_slice(taken);
        self.0 = rest;
        usize::from(u16::from_le_bytes(pair)).checked_rem(limit).unwrap_or(0)
    }

    /// One of a slice.
    ///
    /// # Panics
    ///
    /// If the slice is empty.
    pub fn one<'t, T>(&mut self, of: &'t [T]) -> &'t T {
        &of[self.below(of.len())]
    }
}
