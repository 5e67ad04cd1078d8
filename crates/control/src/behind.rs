//! What a store lacks of a volume, in words.

use buttress_remote::Behind;

/// Says what the store lacks, and whether the store fails.
pub(crate) fn missing(behind: &Behind) -> String {
    let Behind { place, bytes, seconds, failure, .. } = behind;
    let what = match bytes {
        0 => format!("{place}: the last commit is not in the store yet"),
        _ => format!("{place}: {bytes} bytes of the last {seconds} s are in no commit yet"),
    };
    match failure {
        Some((why, ago)) => format!("{what}; the store failed {ago} s ago: {why}"),
        None => what,
    }
}

/// Says what becomes of these bytes if no commit gets them.
pub(crate) fn if_left(behind: &Behind) -> String {
    match (&behind.log, behind.bytes) {
        (Some(dir), _) => {
            format!(
                "the log in {dir} keeps what was durable, and the next start with it uploads it"
            )
        }
        (None, 0) => "the last commit is whole".to_owned(),
        (None, _) => "these writes are lost, and the commit before them is whole".to_owned(),
    }
}
