//! Times as text, in UTC, because a volume is often read on another machine than it was made on.

use buttress_format::Timespec;
use jiff::Timestamp;

/// `2026-11-21 11:07:01`; `@` and seconds since 1970 if the year has more than four digits.
#[must_use]
pub fn date_time(seconds: i64) -> String {
    match Timestamp::from_second(seconds) {
        Ok(time) => time.strftime("%Y-%m-%d %H:%M:%S").to_string(),
        Err(_) => format!("@{seconds}"),
    }
}

/// `Sat Nov 21 11:07:01 2026`, in UTC.
#[must_use]
pub fn in_words(seconds: i64) -> String {
    match Timestamp::from_second(seconds) {
        Ok(time) => time.strftime("%a %b %e %H:%M:%S %Y").to_string(),
        Err(_) => format!("@{seconds}"),
    }
}

/// `21.Nov 11:07:01`, in UTC.
#[must_use]
pub fn in_brief(seconds: i64) -> String {
    match Timestamp::from_second(seconds) {
        Ok(time) => time.strftime("%e.%b %H:%M:%S").to_string(),
        Err(_) => format!("@{seconds}"),
    }
}

/// `2026-11-21 11:07:01.123456789 UTC`.
#[must_use]
pub fn exact(time: Timespec) -> String {
    format!("{}.{:09} UTC", date_time(time.sec), time.nsec)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known dates before and after 1970 and a leap day.
    #[test]
    fn known_dates() {
        assert_eq!(date_time(0), "1970-01-01 00:00:00");
        assert_eq!(date_time(-1), "1969-12-31 23:59:59");
        assert_eq!(date_time(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(date_time(1_795_259_221), "2026-11-21 11:07:01");
        assert_eq!(in_brief(1_795_259_221), "21.Nov 11:07:01");
    }

    /// Any number from a disk prints.
    #[test]
    fn extremes_print() {
        assert_eq!(date_time(i64::MAX), "@9223372036854775807");
        assert_eq!(date_time(i64::MIN), "@-9223372036854775808");
    }
}
