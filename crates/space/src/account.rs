//! The account of one kind of space: its bytes by state, and the reservations.
//!
//! # Place
//!
//! Data, metadata and system space each have an account. When a group's state changes, the group
//! adds the difference to its account, under the group's lock. So an account is always the sum of
//! its groups. Reservations change the account without a group.
//!
//! # Invariants
//!
//! - **A1** Except for `may_use`, `global_reserve` and `for_copies`, each figure is the sum of that
//!   figure over the groups of the kind.
//! - **A2** `may_use` is the sum of the live reservations.
//! - **A3** A reservation is made only if `available` has its bytes at that moment.
//!
//! This module does not limit *allocation*: a commit must proceed even if reservations cover all
//! space. Callers make reservations before they begin, and so leave space for commits.
//!
//! # Locks
//!
//! The account's lock has [`Rank::Leaf`]. The lock is taken inside a group's lock or alone, and no
//! lock is taken inside this lock.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use buttress_base::{Rank, Ranked};

use crate::SpaceKind;
#[cfg(debug_assertions)]
use crate::token_audit::TokenAudit;

/// A refused reservation, and the bytes that it lacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{missing} bytes short")]
pub struct Refused {
    /// Bytes that must become free before the same request can succeed.
    pub missing: u64,
}

/// The bytes of one kind of space by state, as they were at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// The kind of space.
    pub kind: SpaceKind,
    /// Bytes of all groups of the kind.
    pub total: u64,
    /// Bytes of recorded extents.
    pub used: u64,
    /// Bytes that are allocated and not recorded yet.
    pub reserved: u64,
    /// Bytes that are freed, but still reachable from the last commit.
    pub pinned: u64,
    /// Free bytes of read-only groups, and of rows with parity that are in use (`group::G4`).
    pub read_only: u64,
    /// Bytes under superblocks.
    pub super_bytes: u64,
    /// Bytes reserved by operations that have not allocated yet.
    pub may_use: u64,
    /// Bytes kept back so that commits, and operations that free space, can always proceed.
    pub global_reserve: u64,
    /// The part of `global_reserve` for copies of nodes that trees share. Only operations that free
    /// space use this part.
    pub for_copies: u64,
}

impl Account {
    fn new(kind: SpaceKind) -> Self {
        Self {
            kind,
            total: 0,
            used: 0,
            reserved: 0,
            pinned: 0,
            read_only: 0,
            super_bytes: 0,
            may_use: 0,
            global_reserve: 0,
            for_copies: 0,
        }
    }

    /// Bytes that are not free: used, allocated, pinned, read-only, or under superblocks.
    #[must_use]
    pub fn occupied(&self) -> u64 {
        // The sum cannot overflow: these figures are disjoint parts of the lengths of groups in one
        // address space.
        self.used + self.reserved + self.pinned + self.read_only + self.super_bytes
    }

    /// Bytes that can be allocated now, reserved or not.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.total.saturating_sub(self.occupied())
    }

    /// Bytes that can still be reserved.
    #[must_use]
    pub fn available(&self) -> u64 {
        self.free().saturating_sub(self.may_use.saturating_add(self.global_reserve))
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, total, used, reserved, pinned, read_only, super_bytes, .. } = self;
        let Self { may_use, global_reserve, for_copies, .. } = self;
        write!(
            f,
            "{kind}: total {total}, used {used}, reserved {reserved}, pinned {pinned}, \
             read-only {read_only}, superblocks {super_bytes}, reservations {may_use}, \
             global reserve {global_reserve}, of that for copies {for_copies}"
        )
    }
}

/// The figures of one group in its account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) used: u64,
    pub(crate) reserved: u64,
    pub(crate) pinned: u64,
    pub(crate) read_only: u64,
}

/// An account that can be changed.
#[derive(Debug)]
pub(crate) struct SharedAccount {
    inner: Ranked<Inner>,
    /// Counts the changes that groups made to the account. An audit compares the account with its
    /// groups. The audit trusts its result only if this number stayed the same during the
    /// comparison.
    changes: AtomicU64,
}

#[derive(Debug)]
struct Inner {
    account: Account,
    /// The live tokens with their bytes, against which debug builds check A2.
    #[cfg(debug_assertions)]
    audit: TokenAudit<1>,
}

impl SharedAccount {
    pub(crate) fn new(kind: SpaceKind) -> Self {
        let inner = Inner {
            account: Account::new(kind),
            #[cfg(debug_assertions)]
            audit: TokenAudit::default(),
        };
        Self { inner: Ranked::new(Rank::Leaf, inner), changes: AtomicU64::new(0) }
    }

    pub(crate) fn snapshot(&self) -> Account {
        self.inner.lock().account
    }

    /// Counts a new group.
    pub(crate) fn grow(&self, len: u64, super_bytes: u64, counts: Counts) {
        let account = &mut self.inner.lock().account;
        self.changes.fetch_add(1, Ordering::Relaxed);
        account.total += len;
        account.super_bytes += super_bytes;
        change(account, Counts::default(), counts);
    }

    /// Removes an empty group. Fails with the missing bytes if reservations need its space.
    pub(crate) fn shrink(&self, len: u64, super_bytes: u64, counts: Counts) -> Result<(), Refused> {
        let account = &mut self.inner.lock().account;
        let leaving = len - super_bytes - counts.read_only;
        let available = account.available();
        if available < leaving {
            return Err(Refused { missing: leaving - available });
        }
        self.changes.fetch_add(1, Ordering::Relaxed);
        account.total -= len;
        account.super_bytes -= super_bytes;
        change(account, counts, Counts::default());
        Ok(())
    }

    /// As [`SharedAccount::apply_change`], for a group that becomes read-only. Fails with the
    /// missing bytes if reservations need its free space.
    pub(crate) fn stop(&self, before: Counts, after: Counts) -> Result<(), Refused> {
        let account = &mut self.inner.lock().account;
        let leaving = after.read_only - before.read_only;
        let available = account.free().saturating_sub(account.may_use);
        if available < leaving {
            return Err(Refused { missing: leaving - available });
        }
        self.changes.fetch_add(1, Ordering::Relaxed);
        change(account, before, after);
        Ok(())
    }

    /// Applies the state change of a group. `from_reservation` is the number of its bytes that were
    /// reserved before and are allocated now. These bytes leave `may_use`.
    pub(crate) fn apply_change(&self, before: Counts, after: Counts, from_reservation: u64) {
        if before == after {
            return;
        }
        let inner = &mut *self.inner.lock();
        self.changes.fetch_add(1, Ordering::Relaxed);
        change(&mut inner.account, before, after);
        let may_use = inner.account.may_use.checked_sub(from_reservation);
        inner.account.may_use = may_use.expect("A2: an allocated reservation was made before");
        #[cfg(debug_assertions)]
        inner.audit.note_allocated([from_reservation]);
    }

    /// Reserves `bytes`, all or none (A3).
    pub(crate) fn reserve(&self, bytes: u64) -> Result<(), Refused> {
        let inner = &mut *self.inner.lock();
        let account = &mut inner.account;
        let needed = account.may_use.saturating_add(account.global_reserve).saturating_add(bytes);
        let free = account.free();
        if needed > free {
            return Err(Refused { missing: needed - free });
        }
        account.may_use += bytes;
        #[cfg(debug_assertions)]
        inner.audit.grant([bytes]);
        Ok(())
    }

    /// Takes back a reservation that has no token.
    pub(crate) fn revoke(&self, bytes: u64) {
        let inner = &mut *self.inner.lock();
        inner.take_back(bytes);
        #[cfg(debug_assertions)]
        inner.audit.revoke([bytes]);
    }

    /// Makes a token of a reservation. The returned number is used in debug builds only.
    pub(crate) fn enter(&self, bytes: u64) -> u64 {
        #[cfg(debug_assertions)]
        return self.inner.lock().audit.enter([bytes]);
        #[cfg(not(debug_assertions))]
        return bytes & 0;
    }

    /// Splits a token.
    pub(crate) fn split(&self, token: u64, bytes: u64) -> u64 {
        #[cfg(debug_assertions)]
        return self.inner.lock().audit.split(token, [bytes]);
        #[cfg(not(debug_assertions))]
        return (token + bytes) & 0;
    }

    /// Joins two tokens.
    pub(crate) fn merge(&self, token: u64, other: u64) {
        #[cfg(debug_assertions)]
        self.inner.lock().audit.merge(token, other);
        #[cfg(not(debug_assertions))]
        let _ = (token, other);
    }

    /// Takes the bytes of an allocation from a token; the account has already counted them.
    pub(crate) fn take_from_token(&self, token: u64, bytes: u64) {
        #[cfg(debug_assertions)]
        self.inner.lock().audit.take_from_token(token, [bytes]);
        #[cfg(not(debug_assertions))]
        let _ = (token, bytes);
    }

    /// Returns the unused part of a reservation.
    pub(crate) fn give_back(&self, token: u64, bytes: u64) {
        let inner = &mut *self.inner.lock();
        inner.take_back(bytes);
        #[cfg(debug_assertions)]
        inner.audit.give(token, [bytes]);
        #[cfg(not(debug_assertions))]
        let _ = token;
    }

    /// Ends a token, and returns all its bytes.
    pub(crate) fn leave(&self, token: u64, bytes: u64) {
        if bytes == 0 && cfg!(not(debug_assertions)) {
            return;
        }
        let inner = &mut *self.inner.lock();
        inner.take_back(bytes);
        #[cfg(debug_assertions)]
        inner.audit.leave(token, [bytes]);
        #[cfg(not(debug_assertions))]
        let _ = token;
    }

    pub(crate) fn set_global_reserve(&self, bytes: u64, for_copies: u64) {
        let account = &mut self.inner.lock().account;
        (account.global_reserve, account.for_copies) = (bytes, for_copies);
    }

    pub(crate) fn add_for_copies(&self, bytes: u64) {
        let account = &mut self.inner.lock().account;
        account.global_reserve += bytes;
        account.for_copies += bytes;
    }

    /// How often the groups' figures have changed.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Compares the reservations with the tokens (A2); valid at any time.
    pub(crate) fn audit(&self) -> Result<(), String> {
        #[cfg(debug_assertions)]
        {
            let inner = self.inner.lock();
            let [held] = inner.audit.sum();
            if held != inner.account.may_use {
                return Err(format!("A2: tokens hold {held}; account is {}", inner.account));
            }
        }
        Ok(())
    }

    /// Compares the account with the sum of the groups. The result is valid only while no other
    /// thread changes the account or the groups.
    pub(crate) fn verify(&self, expected: &Account) -> Result<(), String> {
        let found = self.snapshot();
        let Account { may_use, global_reserve, for_copies, .. } = found;
        let expected = Account { may_use, global_reserve, for_copies, ..*expected };
        if found != expected {
            return Err(format!("A1: account is {found}; its groups add up to {expected}"));
        }
        self.audit()
    }
}

impl Inner {
    fn take_back(&mut self, bytes: u64) {
        let may_use = self.account.may_use.checked_sub(bytes);
        self.account.may_use = may_use.expect("A2: a returned reservation was made before");
    }
}

fn change(account: &mut Account, before: Counts, after: Counts) {
    let moved = |total: u64, before: u64, after: u64| {
        (total + after).checked_sub(before).expect("A1: an account holds its groups")
    };
    account.used = moved(account.used, before.used, after.used);
    account.reserved = moved(account.reserved, before.reserved, after.reserved);
    account.pinned = moved(account.pinned, before.pinned, after.pinned);
    account.read_only = moved(account.read_only, before.read_only, after.read_only);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(len: u64) -> SharedAccount {
        let account = SharedAccount::new(SpaceKind::Metadata);
        account.grow(len, 0, Counts::default());
        account
    }

    /// A3: a reservation that does not fit is refused with the missing bytes, and changes nothing.
    #[test]
    fn refuses_with_the_shortfall() {
        let account = account(100);
        account.reserve(60).expect("40 are left");
        assert_eq!(account.reserve(50), Err(Refused { missing: 10 }));
        assert_eq!(account.snapshot().may_use, 60);
        account.revoke(60);
        assert_eq!(account.snapshot().available(), 100);
    }

    /// A3: no reservation can use the global reserve.
    #[test]
    fn keeps_the_global_reserve() {
        let account = account(100);
        account.set_global_reserve(50, 0);
        assert_eq!(account.reserve(60), Err(Refused { missing: 10 }));
        account.reserve(50).expect("exactly the rest");
        assert_eq!(account.reserve(1), Err(Refused { missing: 1 }));
    }

    /// A group cannot be removed while reservations need its space.
    #[test]
    fn shrinks_only_by_space_that_is_not_reserved() {
        let account = account(100);
        account.grow(50, 10, Counts::default());
        account.reserve(120).expect("140 are free");
        let gone = account.shrink(50, 10, Counts::default());
        assert_eq!(gone, Err(Refused { missing: 20 }));
        account.revoke(20);
        account.shrink(50, 10, Counts::default()).expect("100 remain for 100");
        assert_eq!(account.snapshot().total, 100);
    }
}
