//! A list of the live tokens, with which an account is compared. Only debug builds have it.
//!
//! # Invariants
//!
//! - **O1** The reservations of an account are the sum of the live tokens, plus grants without a
//!   token yet. An allocation that the account has counted, but its token has not counted yet, is
//!   subtracted.
//!
//! Each token is counted separately, and reports its bytes whenever it changes. So this check finds
//! a token that is lost, copied or wrong. One total, changed at each step, would not show such a
//! token.

use std::collections::HashMap;

/// The tokens of one account, each with `N` kinds of reservations. The list is under the account's
/// lock.
#[derive(Debug)]
pub struct TokenAudit<const N: usize> {
    tokens: HashMap<u64, [u64; N]>,
    granted: [u64; N],
    taken: [u64; N],
    next: u64,
}

impl<const N: usize> Default for TokenAudit<N> {
    fn default() -> Self {
        Self { tokens: HashMap::new(), granted: [0; N], taken: [0; N], next: 0 }
    }
}

impl<const N: usize> TokenAudit<N> {
    /// Counts a reservation that gets a token later.
    pub fn grant(&mut self, what: [u64; N]) {
        add(&mut self.granted, what);
    }

    /// Takes back a grant that got no token.
    pub fn revoke(&mut self, what: [u64; N]) {
        sub(&mut self.granted, what, "a grant");
    }

    /// Makes a token of a grant; returns its number.
    pub fn enter(&mut self, what: [u64; N]) -> u64 {
        self.revoke(what);
        self.next += 1;
        self.tokens.insert(self.next, what);
        self.next
    }

    /// Splits a part of a token off as a new token.
    ///
    /// # Panics
    ///
    /// When the token holds less: a bug of its owner.
    pub fn split(&mut self, token: u64, what: [u64; N]) -> u64 {
        sub(self.tokens.get_mut(&token).expect("O1: a live token"), what, "a token");
        self.grant(what);
        self.enter(what)
    }

    /// Merges a token into another.
    ///
    /// # Panics
    ///
    /// When one of the two tokens is not alive.
    pub fn merge(&mut self, token: u64, other: u64) {
        let what = self.tokens.remove(&other).expect("O1: a live token");
        add(self.tokens.get_mut(&token).expect("O1: a live token"), what);
    }

    /// Takes back a part of the bytes of a token.
    ///
    /// # Panics
    ///
    /// When the token holds less.
    pub fn give(&mut self, token: u64, what: [u64; N]) {
        sub(self.tokens.get_mut(&token).expect("O1: a live token"), what, "a token");
    }

    /// Notes an allocation that the account has counted and that its token has not counted yet.
    pub fn note_allocated(&mut self, what: [u64; N]) {
        add(&mut self.taken, what);
    }

    /// Notes that the token, too, has counted an allocation of
    /// [`note_allocated`](Self::note_allocated).
    pub fn take_from_token(&mut self, token: u64, what: [u64; N]) {
        sub(&mut self.taken, what, "what was taken");
        self.give(token, what);
    }

    /// Ends a token.
    ///
    /// # Panics
    ///
    /// When the token is not alive, or holds other bytes than it reports (O1).
    pub fn leave(&mut self, token: u64, holds: [u64; N]) {
        let found = self.tokens.remove(&token).expect("O1: a token goes once");
        assert_eq!(found, holds, "O1: a token's own count");
    }

    /// The reservations that the account must have (O1).
    #[must_use]
    pub fn sum(&self) -> [u64; N] {
        let mut sum = self.granted;
        for what in self.tokens.values() {
            add(&mut sum, *what);
        }
        sub(&mut sum, self.taken, "the tokens");
        sum
    }
}

fn add<const N: usize>(to: &mut [u64; N], what: [u64; N]) {
    for (to, what) in to.iter_mut().zip(what) {
        *to += what;
    }
}

fn sub<const N: usize>(from: &mut [u64; N], what: [u64; N], of: &str) {
    for (from, what) in from.iter_mut().zip(what) {
        *from = from.checked_sub(what).unwrap_or_else(|| panic!("O1: {what} of {of} with {from}"));
    }
}
