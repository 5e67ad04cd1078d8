//! Names with equal hashes, which share one item of a directory.
//!
//! The hash is a CRC: a flip of one bit of a name changes the hash by a value that depends on the
//! bit's place alone. Among 32 + n such changes, n independent combinations cancel, and Gaussian
//! elimination finds them.

/// Bits of a CRC.
const BITS: usize = 32;

/// Letters of a name that carry a choice: more than the 32 bits of the hash, so that combinations
/// cancel.
const LETTERS: usize = BITS + 10;

/// The CRC-32C register after `bytes`, without the usual inversions.
fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(seed, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg())
        })
    })
}

/// Makes `count` names, up to a thousand, that begin with `prefix` and have one hash. They collide
/// as names of a directory, as attributes, and as links of an inode: with equal lengths, changes
/// cancel for any start value.
///
/// # Panics
///
/// If `count` is too large.
#[must_use]
pub fn colliding_names(prefix: &str, count: usize) -> Vec<String> {
    let basis = cancelling_choices(prefix.len());
    assert!(count <= 1 << basis.len(), "no {count} names");
    let names: Vec<String> = (0..count)
        .map(|number| {
            let choices = basis
                .iter()
                .enumerate()
                .filter(|(index, _)| number >> index & 1 == 1)
                .fold(0_u64, |all, (_, choices)| all ^ choices);
            // `a` and `c` differ in one bit.
            let letter = |place| if choices >> place & 1 == 1 { 'c' } else { 'a' };
            prefix.chars().chain((0..LETTERS).map(letter)).collect()
        })
        .collect();
    let hash = |name: &String| crc32c(0xffff_fffe, name.as_bytes());
    assert!(names.iter().all(|name| hash(name) == hash(&names[0])), "the algebra is wrong");
    names
}

/// Sets of letters, as bits. A joint change of a set leaves the hash as it is. The sets are
/// independent of each other.
fn cancelling_choices(prefix_len: usize) -> Vec<u64> {
    let mut rows: Vec<(u32, u64)> = (0..LETTERS)
        .map(|place| {
            let mut difference = vec![0_u8; prefix_len + LETTERS];
            difference[prefix_len + place] = b'a' ^ b'c';
            (crc32c(0, &difference), 1 << place)
        })
        .collect();
    for bit in 0..BITS {
        let Some(pivot) = rows.iter().position(|row| row.0 >> bit & 1 == 1) else { continue };
        let pivot = rows.swap_remove(pivot);
        for row in rows.iter_mut().filter(|row| row.0 >> bit & 1 == 1) {
            *row = (row.0 ^ pivot.0, row.1 ^ pivot.1);
        }
    }
    rows.into_iter().map(|(_, choices)| choices).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names differ, and `crc32c` gives the published check value.
    #[test]
    fn names_collide() {
        assert_eq!(!crc32c(!0, b"123456789"), 0xe306_9283);
        let names = colliding_names("user.", 100);
        let distinct: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), 100);
    }
}
