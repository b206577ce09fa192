//! See `headrace_fuzz::frames`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| headrace_fuzz::frames(data));
