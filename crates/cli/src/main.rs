//! The `buttress` program.

fn main() {}
