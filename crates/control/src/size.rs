//! Sizes in the form of btrfs-progs: binary units, one letter.
//!
//! This code is written for the project. Other crates for sizes take `K` for 1000 or accept
//! fractions, unlike btrfs-progs.

/// Reads `4G`, `512M`, `64KiB` or plain bytes.
///
/// # Errors
///
/// A sentence that names the text and the units.
pub fn parse(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits_end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(digits_end);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        "p" | "pib" => 50,
        _ => return Err(format!("unit {unit:?}: one of B K M G T P")),
    };
    let number: u64 = digits.parse().map_err(|_| format!("{text:?} is not a size such as 4G"))?;
    number
        .checked_mul(1 << shift)
        .filter(|&bytes| bytes <= i64::MAX as u64)
        .ok_or_else(|| format!("{text} is larger than a file can be"))
}

/// Prints bytes with two decimals in the largest unit that fits, as `btrfs filesystem df` does.
pub fn human(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = (63_u32.saturating_sub(bytes.leading_zeros())) / 10;
    let unit = (unit as usize).min(UNITS.len() - 1);
    let value = bytes as f64 / (1_u64 << (10 * unit)) as f64;
    format!("{value:.2}{}", UNITS[unit])
}

/// Prints bytes in a few characters, as `ls --human-readable` does.
pub fn short(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];
    let unit = ((63_u32.saturating_sub(bytes.leading_zeros())) / 10) as usize;
    let value = bytes as f64 / (1_u64 << (10 * unit)) as f64;
    if unit == 0 {
        bytes.to_string()
    } else if value < 10.0 {
        format!("{value:.1}{}", UNITS[unit])
    } else {
        format!("{value:.0}{}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Units are binary and the letter's case does not matter.
    #[test]
    fn units_are_binary() {
        assert_eq!(parse("4G"), Ok(4 << 30));
        assert_eq!(parse("64kib"), Ok(65536));
        assert_eq!(parse("123"), Ok(123));
        assert!(parse("4X").is_err());
        assert!(parse("").is_err());
        assert!(parse("99999999P").is_err());
    }

    /// The printed text equals that of btrfs-progs.
    #[test]
    fn printing_matches_btrfs_progs() {
        assert_eq!(human(8 << 20), "8.00MiB");
        assert_eq!(human(0), "0.00B");
        assert_eq!(short(1536), "1.5K");
        assert_eq!(short(u64::MAX), "16E");
    }
}
