//! See `headrace_fuzz::http1`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| headrace_fuzz::http1(data));
