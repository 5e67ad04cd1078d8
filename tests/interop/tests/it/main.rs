//! Linux's volumes read here, ours read there: one binary, so that it links once.

mod bad_input;
mod crash;
mod damage;
mod devices;
mod mounted;
mod open;
mod reading;
mod reflinks;
mod sharing;
mod streams;
mod writing;
