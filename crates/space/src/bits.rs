//! Runs of bits in words.

/// Bits of a word.
const WORD: usize = u64::BITS as usize;

/// The bits of word `index` that lie in `from..to`, if there are any.
fn mask(index: usize, from: usize, to: usize) -> u64 {
    let (low, high) = (from.max(index * WORD), to.min((index + 1) * WORD));
    if low >= high {
        return 0;
    }
    (u64::MAX >> (WORD - (high - low))) << (low - index * WORD)
}

/// Words of zeros that hold at least `bits` bits.
pub(crate) fn zeros(bits: usize) -> Vec<u64> {
    vec![0; bits.div_ceil(WORD)]
}

/// The words that hold `from..to`.
fn words(from: usize, to: usize) -> std::ops::Range<usize> {
    from / WORD..to.div_ceil(WORD)
}

pub(crate) fn set(bits: &mut [u64], from: usize, to: usize) {
    for index in words(from, to) {
        bits[index] |= mask(index, from, to);
    }
}

pub(crate) fn clear(bits: &mut [u64], from: usize, to: usize) {
    for index in words(from, to) {
        bits[index] &= !mask(index, from, to);
    }
}

/// Whether all bits of `from..to` are set. Bits behind the last word count as clear.
pub(crate) fn all(bits: &[u64], from: usize, to: usize) -> bool {
    words(from, to).all(|index| {
        let mask = mask(index, from, to);
        bits.get(index).is_some_and(|word| word & mask == mask)
    })
}

pub(crate) fn any(bits: &[u64], from: usize, to: usize) -> bool {
    words(from, to)
        .any(|index| bits.get(index).is_some_and(|word| word & mask(index, from, to) != 0))
}

/// The first bit at or behind `from` that is set.
pub(crate) fn next_set(bits: &[u64], from: usize) -> Option<usize> {
    let first = from / WORD;
    let mut mask = u64::MAX << (from % WORD);
    for (index, word) in bits.iter().enumerate().skip(first) {
        let found = word & mask;
        if found != 0 {
            return Some(index * WORD + found.trailing_zeros() as usize);
        }
        mask = u64::MAX;
    }
    None
}

/// The first clear bit at or behind `from`. If no bit at or behind `from` is clear, returns the
/// number of bits, or `from` if `from` is larger.
pub(crate) fn next_clear(bits: &[u64], from: usize) -> usize {
    let first = from / WORD;
    let mut mask = u64::MAX << (from % WORD);
    for (index, word) in bits.iter().enumerate().skip(first) {
        let found = !word & mask;
        if found != 0 {
            return index * WORD + found.trailing_zeros() as usize;
        }
        mask = u64::MAX;
    }
    (bits.len() * WORD).max(from)
}

/// The most bits in a row that are set in one word.
pub(crate) fn longest_in(word: u64) -> usize {
    let (mut left, mut longest) = (word, 0);
    while left != 0 {
        left &= left << 1;
        longest += 1;
    }
    longest
}
