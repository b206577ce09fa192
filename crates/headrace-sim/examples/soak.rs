//! Hours through random networks, with an echo: `cargo run --release -p headrace-sim --example soak -- [HOURS]
//! [FIRST SEED]`. Each seed is ten minutes, ends of connections not counted.
//!
//! Prints each broken promise with its seed, what was met, and the most that was held at one time.

use std::time::{Duration, Instant};

use headrace_sim::{Soak, Tls, soak};

const EACH: Duration = Duration::from_secs(600);

fn main() -> Result<(), String> {
    let mut arguments = std::env::args().skip(1);
    let hours: f64 = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(2.0);
    let first: u64 = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(0);
    let (tls, began) = (Tls::new(false, 1)?, Instant::now());
    let (mut virtual_s, mut seeds, mut broken) = (0.0, 0, 0);
    let mut sum = Soak::default();
    while virtual_s < hours * 3600.0 && broken < 10 {
        match soak(first + seeds, EACH, &tls) {
            Ok(seen) => {
                virtual_s += seen.lasted.as_secs_f64();
                sum = sum.and(&seen);
            }
            Err(error) => {
                broken += 1;
                println!("{error}");
            }
        }
        seeds += 1;
    }
    println!("{seeds} seeds, {:.2} h of virtual time in {:.0?}", virtual_s / 3600.0, began.elapsed());
    println!("{sum:#?}");
    println!("resident memory: {} kB", resident_kb().unwrap_or_default());
    if broken > 0 { Err(format!("{broken} seeds broke a promise")) } else { Ok(()) }
}

fn resident_kb() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}
