//! The built program, run as a user runs it.

mod advice;
mod at_once;
mod away;
mod background;
mod bad_input;
mod bars;
mod block_device;
mod cache;
mod changing;
mod check;
mod checker;
mod convert;
mod dashboard;
mod demo;
mod encryption;
mod events;
mod files;
mod following;
mod full;
mod hostile_trees;
mod inside;
mod json_names;
mod live;
mod memory;
mod mkfs;
mod outputs;
mod packing;
mod places;
mod pressure;
mod races;
mod remote;
mod repeatable;
mod rescue;
mod scanned;
mod schema;
mod several;
mod strangers;
mod streams;
mod subvolume;
mod survey;
mod top;
mod unmounting;
mod verity;
mod waiters;
mod waking;
mod word_adding;
mod word_btrbk;
mod word_cancel;
mod word_check;
mod word_devices;
mod word_mkfs;
mod word_places;
mod word_scrub;
mod word_streams;
mod word_swap;
mod word_table;
mod words;

use std::path::Path;

use buttress_test_program::Bench;

/// A folder of its own for every test.
fn bench() -> Bench {
    Bench::of(env!("CARGO_BIN_EXE_buttress"))
}

/// The text of a path, for command lines.
fn text(path: &Path) -> &str {
    path.to_str().expect("temporary folders have plain names")
}
