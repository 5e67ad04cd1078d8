//! Content from a seed.

/// One step of splitmix64: a well mixed number from any number.
pub(super) fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Bytes that do not compress.
#[must_use]
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len + 8);
    let mut state = mix(seed);
    while bytes.len() < len {
        state = mix(state);
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Bytes that compress well, and differently in every place.
#[must_use]
pub fn words(seed: u64, len: usize) -> Vec<u8> {
    const WORDS: [&str; 8] =
        ["block ", "group ", "extent ", "of the ", "tree ", "holds ", "a key ", "and\n"];
    let mut text = Vec::with_capacity(len + 8);
    let mut state = mix(seed);
    while text.len() < len {
        state = mix(state);
        text.extend_from_slice(WORDS[(state % 8) as usize].as_bytes());
        if state.is_multiple_of(37) {
            text.extend_from_slice(state.to_string().as_bytes());
        }
    }
    text.truncate(len);
    text
}
