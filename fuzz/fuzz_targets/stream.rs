#![no_main]

use std::sync::OnceLock;

use buttress_hostile::{small, streams, targets};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    static GOOD: OnceLock<Vec<u8>> = OnceLock::new();
    let good = GOOD.get_or_init(|| streams::good(&small::filled(small::Make::PLAIN)));
    streams::stream(targets::fresh_small(), good, data);
});
