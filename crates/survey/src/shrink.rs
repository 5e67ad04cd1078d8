//! How far a device can be shrunk.

/// The number of bytes at the beginning of each device that no chunk may use.
const BEFORE_CHUNKS: u64 = 1 << 20;

/// A part of a device that a chunk has: its offset and its length, in bytes.
type Piece = (u64, u64);

/// The smallest size to which a device can shrink, in bytes. All parts behind the new end of the
/// device must fit into free space before the new end. Takes the offset and the length of each part
/// that a chunk has.
///
/// Each piece moves as a whole, as a balance moves it. The largest piece moves first, to the first
/// hole with room. Another order may allow a smaller size.
#[must_use]
pub fn smallest_device(mut pieces: Vec<Piece>) -> u64 {
    pieces.sort_unstable();
    let end = |kept: &[Piece]| kept.last().map_or(BEFORE_CHUNKS, |(at, len)| at + len);
    let fits = |kept: usize| {
        let (stay, moved) = pieces.split_at(kept);
        let mut holes = holes(stay);
        let mut lens: Vec<u64> = moved.iter().map(|(_, len)| *len).collect();
        lens.sort_unstable_by_key(|len| std::cmp::Reverse(*len));
        lens.into_iter().all(|len| {
            let hole = holes.iter_mut().find(|hole| **hole >= len);
            hole.map(|hole| *hole -= len).is_some()
        })
    };
    // If one more piece stays, one piece fewer has to move, and no hole is lost. So a binary search
    // finds the least number of pieces that stay.
    let (mut least, mut most) = (0, pieces.len());
    while least < most {
        let middle = usize::midpoint(least, most);
        if fits(middle) {
            most = middle;
        } else {
            least = middle + 1;
        }
    }
    end(&pieces[..most])
}

/// The lengths of the free ranges before and between pieces.
fn holes(pieces: &[Piece]) -> Vec<u64> {
    let mut from = BEFORE_CHUNKS;
    let mut holes = Vec::new();
    for (at, len) in pieces {
        holes.push(at.saturating_sub(from));
        from = from.max(at + len);
    }
    holes
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn of(pieces: &[(u64, u64)]) -> u64 {
        smallest_device(pieces.iter().map(|(at, len)| (at * MIB, len * MIB)).collect()) / MIB
    }

    #[test]
    fn data_past_the_end_fits_before_it() {
        assert_eq!(of(&[]), 1);
        assert_eq!(of(&[(1, 8), (9, 8)]), 17);
        // A hole of eight: the last piece moves there.
        assert_eq!(of(&[(1, 8), (17, 8), (25, 8)]), 25);
        // The hole of four is too small for the last piece.
        assert_eq!(of(&[(1, 8), (13, 8), (21, 8)]), 29);
        // Three pieces share one hole, and the next piece has no room.
        assert_eq!(of(&[(1, 8), (30, 9), (39, 4), (43, 8), (51, 8)]), 39);
    }
}
