//! The engine on real volumes: one binary, so that it links once.

mod data;
mod judge;
mod scale;
