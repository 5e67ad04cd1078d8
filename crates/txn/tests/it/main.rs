//! The engine on real volumes: one binary, so that it links once.

mod checker;
mod clusters;
mod counted;
mod crash;
mod credit;
mod full;
mod growth;
mod interrupted;
mod levels;
mod pieces;
mod scale;
#[cfg(debug_assertions)]
mod seeds;
