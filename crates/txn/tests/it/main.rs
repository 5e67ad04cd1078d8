//! The engine on real volumes: one binary, so that it links once.

mod clusters;
mod crash;
mod full;
mod judge;
mod scale;
