#![no_main]

use std::sync::OnceLock;

use buttress_block::MemoryDevice;
use buttress_hostile::{requests, small};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    static BASE: OnceLock<MemoryDevice> = OnceLock::new();
    requests::fuse(BASE.get_or_init(|| small::filled(small::Make::PLAIN)), data);
});
