//! See `headrace_fuzz::ndjson`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| headrace_fuzz::ndjson(data));
