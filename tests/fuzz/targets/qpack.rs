//! See `headrace_fuzz::qpack`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| headrace_fuzz::qpack(data));
