//! Finds known words that resemble an unknown word, for messages.

/// Returns at most three words of `known` that are close to `word`, the closest first. Close means
/// that a few letters differ, or that one word begins with the other.
#[must_use]
pub fn nearest<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Vec<&'k str> {
    let most = (word.len() / 3).clamp(1, 3);
    let close = known.into_iter().filter_map(|name| {
        let away = distance(word.as_bytes(), name.as_bytes());
        let begins = word.len() >= 3 && (name.starts_with(word) || word.starts_with(name));
        (away <= most || begins).then_some((away, name))
    });
    let mut close: Vec<_> = close.collect();
    close.sort_unstable();
    close.dedup();
    close.into_iter().map(|(_, name)| name).take(3).collect()
}

/// Returns the edit distance: the number of letters to insert, remove or change.
fn distance(one: &[u8], other: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (at, letter) in one.iter().enumerate() {
        let mut before = row[0];
        row[0] = at + 1;
        for (column, wanted) in other.iter().enumerate() {
            let changed = before + usize::from(letter != wanted);
            before = row[column + 1];
            row[column + 1] = changed.min(before + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Typing errors find the intended word, and unrelated words find nothing.
    #[test]
    fn misspelt_words_find_what_was_meant() {
        let known = ["subvol", "subvolid", "ssd", "noatime", "compress", "compress-force"];
        assert_eq!(nearest("subvolume", known), ["subvol", "subvolid"]);
        assert_eq!(nearest("noatme", known), ["noatime"]);
        assert_eq!(nearest("compres", known), ["compress", "compress-force"]);
        assert_eq!(nearest("sdd", known), ["ssd"]);
        assert!(nearest("elephant", known).is_empty());
        assert_eq!(distance(b"kitten", b"sitting"), 3);
    }
}
