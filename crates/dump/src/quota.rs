//! Prints items of the quota tree. The module reads them as arrays of 64-bit numbers, without the
//! parsers of `format::quota`.

use buttress_format::{Key, Kind};

/// The lines of a quota item; `None` for other items and for items that are too short.
pub(crate) fn lines(key: &Key, bytes: &[u8]) -> Option<Vec<String>> {
    let words: Vec<u64> = bytes
        .chunks_exact(8)
        .map(|word| u64::from_le_bytes(word.try_into().expect("chunks of eight")))
        .collect();
    match (key.kind, words.as_slice()) {
        (Kind::QGROUP_STATUS, [version, generation, flags, scan, ..]) => {
            let flags = flag_names(*flags);
            Some(vec![format!(
                "version {version} generation {generation} flags {flags} scan {scan}"
            )])
        }
        (Kind::QGROUP_INFO, [generation, referenced, packed, exclusive, exclusive_packed]) => {
            Some(vec![
                format!("generation {generation}"),
                format!("referenced {referenced} referenced_compressed {packed}"),
                format!("exclusive {exclusive} exclusive_compressed {exclusive_packed}"),
            ])
        }
        (Kind::QGROUP_LIMIT, [flags, referenced, exclusive, rsv_referenced, rsv_exclusive]) => {
            Some(vec![
                format!("flags {flags:x}"),
                format!("max_referenced {referenced} max_exclusive {exclusive}"),
                format!("rsv_referenced {rsv_referenced} rsv_exclusive {rsv_exclusive}"),
            ])
        }
        _ => None,
    }
}

fn flag_names(flags: u64) -> String {
    let named = [(1, "ON"), (2, "RESCAN"), (4, "INCONSISTENT"), (8, "SIMPLE_MODE")];
    let set: Vec<&str> =
        named.into_iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| name).collect();
    if set.is_empty() { "OFF".to_owned() } else { set.join("|") }
}
