//! Units of printed sizes, by the options of btrfs-progs.

/// The options of commands that take them all, long and short.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
#[command(next_help_heading = "Units")]
pub struct Units {
    /// Bytes.
    #[arg(short = 'b', long, overrides_with_all = ["human_readable", "human_si", "iec", "si"])]
    raw: bool,
    /// The largest unit that fits. This is the default.
    #[arg(short = 'h', long, overrides_with_all = ["raw", "human_si", "iec", "si"])]
    human_readable: bool,
    /// The largest unit that fits, with 1000 as the base.
    #[arg(short = 'H', overrides_with_all = ["raw", "human_readable", "iec", "si"])]
    human_si: bool,
    /// 1024 as the base.
    #[arg(long, overrides_with_all = ["raw", "human_readable", "human_si", "si"])]
    iec: bool,
    /// 1000 as the base.
    #[arg(long, overrides_with_all = ["raw", "human_readable", "human_si", "iec"])]
    si: bool,
    /// KiB, or kB with --si.
    #[arg(short = 'k', long, overrides_with_all = ["mbytes", "gbytes", "tbytes"])]
    kbytes: bool,
    /// MiB, or MB with --si.
    #[arg(short = 'm', long, overrides_with_all = ["kbytes", "gbytes", "tbytes"])]
    mbytes: bool,
    /// GiB, or GB with --si.
    #[arg(short = 'g', long, overrides_with_all = ["kbytes", "mbytes", "tbytes"])]
    gbytes: bool,
    /// TiB, or TB with --si.
    #[arg(short = 't', long, overrides_with_all = ["kbytes", "mbytes", "gbytes"])]
    tbytes: bool,
}

/// The same options for commands that have other meanings for the letters.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
#[command(next_help_heading = "Units")]
pub struct LongUnits {
    /// Bytes.
    #[arg(long, overrides_with_all = ["human_readable", "iec", "si"])]
    raw: bool,
    /// The largest unit that fits. This is the default.
    #[arg(long, overrides_with_all = ["raw", "iec", "si"])]
    human_readable: bool,
    /// 1024 as the base.
    #[arg(long, overrides_with_all = ["raw", "human_readable", "si"])]
    iec: bool,
    /// 1000 as the base.
    #[arg(long, overrides_with_all = ["raw", "human_readable", "iec"])]
    si: bool,
    /// KiB, or kB with --si.
    #[arg(long, overrides_with_all = ["mbytes", "gbytes", "tbytes"])]
    kbytes: bool,
    /// MiB, or MB with --si.
    #[arg(long, overrides_with_all = ["kbytes", "gbytes", "tbytes"])]
    mbytes: bool,
    /// GiB, or GB with --si.
    #[arg(long, overrides_with_all = ["kbytes", "mbytes", "tbytes"])]
    gbytes: bool,
    /// TiB, or TB with --si.
    #[arg(long, overrides_with_all = ["kbytes", "mbytes", "gbytes"])]
    tbytes: bool,
}

impl From<LongUnits> for Units {
    fn from(long: LongUnits) -> Self {
        Self {
            raw: long.raw,
            human_readable: long.human_readable,
            human_si: false,
            iec: long.iec,
            si: long.si,
            kbytes: long.kbytes,
            mbytes: long.mbytes,
            gbytes: long.gbytes,
            tbytes: long.tbytes,
        }
    }
}

/// The letters of units above a byte.
const LETTERS: [&str; 6] = ["K", "M", "G", "T", "P", "E"];

impl Units {
    /// Prints bytes in the unit that the options choose.
    #[must_use]
    pub fn show(self, bytes: u64) -> String {
        let base: u64 = if self.si || self.human_si { 1000 } else { 1024 };
        let chosen = [self.kbytes, self.mbytes, self.gbytes, self.tbytes];
        let power = match chosen.iter().position(|is_chosen| *is_chosen) {
            Some(at) => at + 1,
            None if self.raw => return bytes.to_string(),
            None => bytes.checked_ilog(base).unwrap_or(0) as usize,
        };
        let value = bytes as f64 / base.pow(power as u32) as f64;
        let unit = match (power, base) {
            (0, _) => "B".to_owned(),
            (1, 1000) => "kB".to_owned(),
            (power, 1000) => format!("{}B", LETTERS[power - 1]),
            (power, _) => format!("{}iB", LETTERS[power - 1]),
        };
        format!("{value:.2}{unit}")
    }

    /// Prints bytes of a second. Of the units, only bytes count.
    #[must_use]
    pub fn show_rate(self, bytes: u64) -> String {
        Self { raw: self.raw, ..Self::default() }.show(bytes)
    }

    /// Returns whether every size has its own unit, and so takes few characters.
    #[must_use]
    pub fn is_short(self) -> bool {
        !(self.raw || self.kbytes || self.mbytes || self.gbytes || self.tbytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts are those of btrfs-progs.
    #[test]
    fn sizes_are_printed_as_by_btrfs_progs() {
        let none = Units::default();
        let texts = |bytes| {
            let all = [
                none,
                Units { si: true, ..none },
                Units { human_si: true, ..none },
                Units { raw: true, ..none },
                Units { kbytes: true, ..none },
                Units { kbytes: true, si: true, ..none },
                Units { gbytes: true, ..none },
            ];
            all.map(|units| units.show(bytes))
        };
        let wanted =
            ["684.00KiB", "700.42kB", "700.42kB", "700416", "684.00KiB", "700.42kB", "0.00GiB"];
        assert_eq!(texts(700_416), wanted);
        let wanted =
            ["8.00MiB", "8.39MB", "8.39MB", "8388608", "8192.00KiB", "8388.61kB", "0.01GiB"];
        assert_eq!(texts(8 << 20), wanted);
        assert_eq!(none.show(0), "0.00B");
        assert_eq!(none.show(u64::MAX), "16.00EiB");
        assert_eq!(Units { si: true, ..none }.show(u64::MAX), "18.45EB");
    }
}
