//! Leases: with a lease a reader names the commit that it needs, so that the collector keeps that
//! commit.
//!
//! # Invariants
//!
//! - **J1** A lease is valid for five minutes after its last renewal, by the store's clock.
//! - **J2** A reader that cannot write a lease reads without one. Its commit is kept for
//!   `min-keep`.

use std::time::Duration;

use bytes::Bytes;

use crate::chain::Chain;
use crate::envelope::{Envelope, Kind, VolumeId, wrap};
use crate::error::Result;
use crate::units::CommitNumber;

/// How often a reader renews its lease. A reader that ends sooner writes no lease.
pub(crate) const RENEW: Duration = Duration::from_secs(60);
const VALID_MS: u64 = 300_000;
/// A lease that is this old is deleted.
const STALE_MS: u64 = 3_600_000;

/// Makes or renews a lease.
pub(crate) fn renew(chain: &Chain, volume: VolumeId, id: &str, number: CommitNumber) -> Result<()> {
    let bytes = Bytes::from(wrap(Kind::Lease, volume, number.0, 0, b""));
    chain.store.put(&chain.names.lease(id), &bytes)
}

/// Ends a lease.
pub(crate) fn end(chain: &Chain, id: &str) -> Result<()> {
    chain.store.delete(&chain.names.lease(id))
}

/// Returns the commits that leases name, at the store's time `now_ms`. Deletes stale leases.
pub(crate) fn numbers(chain: &Chain, now_ms: u64) -> Result<Vec<CommitNumber>> {
    let mut numbers = Vec::new();
    for meta in chain.store.list(&chain.names.folder("lease"))? {
        let age_ms = now_ms.saturating_sub(meta.modified_ms);
        if age_ms >= STALE_MS {
            chain.store.delete(&meta.name)?;
        } else if age_ms < VALID_MS {
            let found = chain.store.get_as(&meta.name, |b| Envelope::decode(&meta.name, b))?;
            numbers.extend(found.map(|envelope| CommitNumber(envelope.number)));
        }
    }
    Ok(numbers)
}
