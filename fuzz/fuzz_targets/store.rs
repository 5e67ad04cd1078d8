#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| buttress_hostile::stores::store(data));
