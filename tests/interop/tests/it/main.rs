//! Linux's volumes read here, ours read there: one binary, so that it links once.

mod open;
mod reading;
mod writing;
