//! Numbers that are unique in the world: identities of volumes and writers, nonces.

use buttress_base::thread;

/// Sixteen random bytes. In a seeded run they follow from the seed.
pub(crate) fn bytes() -> [u8; 16] {
    thread::seeded_bytes().unwrap_or_else(|| uuid::Uuid::new_v4().into_bytes())
}

/// Sixteen random bytes as text.
pub(crate) fn hex() -> String {
    format!("{:032x}", u128::from_le_bytes(bytes()))
}

/// A seed for random numbers that need not be secret.
pub(crate) fn seed() -> u64 {
    u128::from_le_bytes(bytes()) as u64
}
