//! Tests of the checker: each kind of damage gives its kind of issue.

mod caution;
mod damage;
mod deep;
mod devices;
mod doubles;
mod files;
mod free_space;
mod log;
mod mend;
mod parity;
mod patch;
mod rebuild;
mod repair;
mod stripes;
mod structure;
mod verity;
mod victim;
mod workers;
