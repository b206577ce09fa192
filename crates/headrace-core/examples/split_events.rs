//! What one event of each API costs the splitter, the search for the answer's last event included.
//!
//! `cargo run --release -p headrace-core --example split_events` prints nanoseconds for each event, the best of seven
//! runs. The events are as long as those of the APIs are (`headrace_lab/model/script.py`).

use std::hint::black_box;
use std::time::{Duration, Instant};

use headrace_core::events::Splitter;
use headrace_core::events::dialects::Dialect;

const EVENTS: u32 = 200_000;
const RUNS: usize = 7;

const SSE: &str = "text/event-stream";
const NDJSON: &str = "application/x-ndjson";

/// Path, content type, and an event that is not the last.
const SAMPLES: [(&str, &str, &str); 6] = [
    (
        "/v1/chat/completions",
        SSE,
        "data: {\"id\":\"chatcmpl-9f8e7d6c5b4a39281706\",\"object\":\"chat.completion.chunk\",\"created\":1764532800,\
         \"model\":\"llama-3.1-8b-instruct\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" token\"},\
         \"logprobs\":null,\"finish_reason\":null}]}\n\n",
    ),
    (
        "/v1/responses",
        SSE,
        "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"sequence_number\":12,\
         \"item_id\":\"msg_68a1b2c3d4e5f60718293a4b\",\"output_index\":0,\"content_index\":0,\"delta\":\" token\"}\n\n",
    ),
    (
        "/v1/messages",
        SSE,
        "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\
         \"delta\":{\"type\":\"text_delta\",\"text\":\" token\"}}\n\n",
    ),
    (
        "/api/chat",
        NDJSON,
        "{\"model\":\"llama3.1\",\"created_at\":\"2026-11-30T21:00:00.123456789Z\",\
         \"message\":{\"role\":\"assistant\",\"content\":\" token\"},\"done\":false}\n",
    ),
    (
        "/v1beta/models/m:streamGenerateContent",
        SSE,
        "data: {\"candidates\":[{\"content\":{\"parts\":[{\"text\":\" token token\"}],\"role\":\"model\"},\"index\":0}],\
         \"usageMetadata\":{\"promptTokenCount\":8,\"totalTokenCount\":13},\"modelVersion\":\"gemini-3-flash\"}\r\n\r\n",
    ),
    (
        "/v2/chat",
        SSE,
        "event: content-delta\ndata: {\"type\":\"content-delta\",\"index\":0,\
         \"delta\":{\"message\":{\"content\":{\"text\":\" token\"}}}}\n\n",
    ),
];

fn main() {
    for (path, content_type, event) in SAMPLES {
        let best = (0..RUNS).map(|_| split(path, content_type, event.as_bytes())).min().unwrap_or_default();
        println!("{path:40} {:6.1} ns", best.as_nanos() as f64 / f64::from(EVENTS));
    }
}

/// The time of one run.
fn split(path: &str, content_type: &str, event: &[u8]) -> Duration {
    let mut splitter = Splitter::new(Dialect::of(path), Some(content_type), None, 256 * 1024);
    let mut seen = 0;
    let started = Instant::now();
    for _ in 0..EVENTS {
        splitter.handle_data(black_box(event), |piece| seen += u32::from(piece.is_event && !piece.is_last));
    }
    assert_eq!(seen, EVENTS);
    started.elapsed()
}
