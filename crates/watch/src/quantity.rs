//! Bytes, times and counts as people read them.

use buttress_control::size;

/// Returns a size with a space before its unit.
pub fn bytes(bytes: u64) -> String {
    let size = size::human(bytes);
    let at = size.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(size.len());
    let (number, unit) = size.split_at(at);
    // Bytes come in whole numbers.
    if unit == "B" {
        format!("{} B", number.trim_end_matches(".00"))
    } else {
        format!("{number} {unit}")
    }
}

/// Returns microseconds in the unit that fits.
pub fn duration(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} µs"),
        1_000..1_000_000 => format!("{:.1} ms", us as f64 / 1e3),
        _ => format!("{:.2} s", us as f64 / 1e6),
    }
}

/// Returns a number with commas between its thousands.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_have_units() {
        assert_eq!(bytes(512), "512 B");
        assert_eq!(bytes(1536), "1.50 KiB");
        assert_eq!(duration(7), "7 µs");
        assert_eq!(duration(2_500), "2.5 ms");
        assert_eq!(duration(3_000_000), "3.00 s");
        assert_eq!(count(1_234_567), "1,234,567");
    }
}
