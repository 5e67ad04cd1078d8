#![no_main]

use std::sync::OnceLock;

use buttress_hostile::image::Image;
use buttress_hostile::{small, targets};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    static BASE: OnceLock<Image> = OnceLock::new();
    targets::log(BASE.get_or_init(|| Image::scan_log(small::logged())), data);
});
