#![no_main]

use std::sync::OnceLock;

use buttress_hostile::image::Image;
use buttress_hostile::{sample, targets};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    static BASES: OnceLock<Vec<Image>> = OnceLock::new();
    let bases = BASES.get_or_init(sample::bases);
    // The first byte is a choice of the target, the second chooses the volume.
    let base = data.get(1).map_or(0, |&byte| usize::from(byte) % bases.len());
    targets::image(&bases[base], data);
});
