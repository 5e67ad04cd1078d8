//! The acknowledged writes of a local log that no commit has, as messages show them.

use buttress_base::clock;

/// Acknowledged writes that are in a local log, and in no commit.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Unsent {
    /// How many flushes were acknowledged.
    pub cuts: u64,
    /// Bytes that these writes take in the log.
    pub bytes: u64,
    /// The time of the first of these flushes, in milliseconds since 1970 by this machine's clock.
    pub first_ms: u64,
    /// The time of the last of these flushes.
    pub last_ms: u64,
}

impl std::fmt::Display for Unsent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let now_ms = clock::wall().as_millis() as u64;
        let ago = |ms: u64| now_ms.saturating_sub(ms) / 1000;
        let (first, last) = (ago(self.first_ms), ago(self.last_ms));
        let Self { cuts, bytes, .. } = self;
        write!(f, "{cuts} flushes with {bytes} bytes, made {first} s to {last} s ago")
    }
}
