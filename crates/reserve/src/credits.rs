//! Reservations that shards of threads keep (`credit`).

use std::sync::atomic::AtomicU32;

use buttress_base::apart::{Apart, STRIPES};
use buttress_base::sync::Mutex;

use crate::token::MetaReservation;

#[derive(Debug, Default)]
pub(crate) struct Credit {
    pub(crate) unused: Option<MetaReservation>,
    pub(crate) spent: Option<MetaReservation>,
    /// How many came back since `spent` was given back.
    pub(crate) came_back: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Stripe {
    /// Unranked: the sum of reservations and the line are taken under it.
    pub(crate) credit: Mutex<Credit>,
    /// For how many reservations it still keeps nothing (`credit::B4`).
    pub(crate) rests: AtomicU32,
}

/// What shards of threads keep.
#[derive(Debug, Default)]
pub(crate) struct Credits(pub(crate) [Apart<Stripe>; STRIPES]);
