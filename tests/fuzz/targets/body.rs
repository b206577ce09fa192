//! See `headrace_fuzz::body`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| headrace_fuzz::body(data));
