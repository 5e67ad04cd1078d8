//! Times as people read them, in UTC: a volume is looked at on other machines than it was made on.

use buttress_fs::Timespec;

/// `2026-11-21 11:07:01`.
pub(crate) fn date_time(seconds: i64) -> String {
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

/// `2026-11-21 11:07:01.123456789 UTC`.
pub(crate) fn exact(time: Timespec) -> String {
    format!("{}.{:09} UTC", date_time(time.sec), time.nsec)
}

/// Year, month and day of a day counted from 1970, in the proleptic Gregorian calendar: years are
/// taken to begin in March, so that the leap day is a year's last.
fn civil(days: i64) -> (i64, i64, i64) {
    const DAYS_PER_ERA: i64 = 146_097;
    // From 1970-01-01 back to 0000-03-01.
    let days = days.saturating_add(719_468);
    let era = days.div_euclid(DAYS_PER_ERA);
    let day = days.rem_euclid(DAYS_PER_ERA);
    let year = (day - day / 1460 + day / 36_524 - day / (DAYS_PER_ERA - 1)) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + carry, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known dates, both sides of 1970 and of a leap day.
    #[test]
    fn known_dates() {
        assert_eq!(date_time(0), "1970-01-01 00:00:00");
        assert_eq!(date_time(-1), "1969-12-31 23:59:59");
        assert_eq!(date_time(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(date_time(1_795_259_221), "2026-11-21 11:07:01");
    }

    /// Any number from a disk prints.
    #[test]
    fn extremes_print() {
        date_time(i64::MAX);
        date_time(i64::MIN);
    }
}
