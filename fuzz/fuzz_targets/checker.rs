#![no_main]

use std::sync::OnceLock;

use buttress_hostile::image::Image;
use buttress_hostile::{checker, sample};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    static BASES: OnceLock<Vec<Image>> = OnceLock::new();
    checker::checker(BASES.get_or_init(sample::small_bases), data);
});
