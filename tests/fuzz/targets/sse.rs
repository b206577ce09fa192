//! See `headrace_fuzz::sse`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| headrace_fuzz::sse(data));
