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

/// A valid lease, as messages show it.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) id: String,
    pub(crate) number: CommitNumber,
    pub(crate) age_ms: u64,
}

impl std::fmt::Display for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { id, number: CommitNumber(number), age_ms } = self;
        let short = id.get(..8).unwrap_or(id);
        write!(f, "reader {short} of commit {number}, seen {} s ago", age_ms / 1000)
    }
}

/// Returns the commits that leases name, at the store's time `now_ms`. Deletes stale leases.
pub(crate) fn numbers(chain: &Chain, now_ms: u64) -> Result<Vec<CommitNumber>> {
    Ok(all(chain, now_ms)?.into_iter().map(|lease| lease.number).collect())
}

/// Returns the valid leases, at the store's time `now_ms`. Deletes stale leases.
pub(crate) fn all(chain: &Chain, now_ms: u64) -> Result<Vec<Lease>> {
    let mut leases = Vec::new();
    for meta in chain.store.list(&chain.names.folder("lease"))? {
        let age_ms = now_ms.saturating_sub(meta.modified_ms);
        if age_ms >= STALE_MS {
            chain.store.delete(&meta.name)?;
        } else if age_ms < VALID_MS {
            let found = chain.store.get_as(&meta.name, |b| Envelope::decode(&meta.name, b))?;
            let id = meta.name.rsplit('/').next().unwrap_or_default().to_owned();
            leases.extend(found.map(|envelope| {
                let number = CommitNumber(envelope.number);
                Lease { id, number, age_ms }
            }));
        }
    }
    Ok(leases)
}
