#![no_main]

use std::sync::OnceLock;

use buttress_hostile::{sample, streams, targets};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    static GOOD: OnceLock<Vec<u8>> = OnceLock::new();
    let good = GOOD.get_or_init(|| streams::good(&sample::filled()));
    streams::stream(targets::fresh(), good, data);
});
