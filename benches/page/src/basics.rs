//! What all parts share: colours, numbers, and which unit is a time.

/// What grows in the cases of growth. The page gives each a colour.
pub(crate) const COUNTS: [(u8, &str); 4] =
    [(0, "steps"), (3, "allocations"), (2, "written"), (4, "memory")];

/// The subject that all others are compared with, where it is one of them.
pub const LINUX: &str = "kernel btrfs";

/// Whether a figure in this unit is a time, of which less is better.
#[must_use]
pub fn is_time(unit: &str) -> bool {
    matches!(unit, "s" | "ms" | "us" | "µs" | "ns")
}

/// A number with few digits, since a page may have many.
pub(crate) fn short(number: f64) -> f64 {
    if number == 0.0 || !number.is_finite() {
        return 0.0;
    }
    let scale = 10_f64.powf(4.0 - number.abs().log10().floor());
    if scale.is_finite() && scale > 0.0 { (number * scale).round() / scale } else { number }
}

/// The colour of the subject at an index, of the five of the page.
pub(crate) fn colour(index: usize) -> i8 {
    [0, 2, 3, 4, 1][index % 5]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_five_digits() {
        assert_eq!(
            [0.0, 123_456.7, 0.000_123_456_7, f64::NAN].map(short),
            [0.0, 123_460.0, 0.000_123_46, 0.0]
        );
    }
}
