//! Tests of the engine on real volumes. All are in one binary, so that the engine is linked once.

mod checker;
mod clusters;
mod counted;
mod crash;
mod full;
mod growth;
mod interrupted;
mod levels;
mod pieces;
mod reservation_cache;
mod scale;
#[cfg(debug_assertions)]
mod seeds;
