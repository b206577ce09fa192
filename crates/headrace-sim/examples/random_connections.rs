//! Random lives of connections: `cargo run --release -p headrace-sim --example random_connections -- [FIRST] [COUNT]`.
//!
//! Prints each broken promise with its seed, and how many seeds a second it was.

use std::time::Instant;

use headrace_sim::{Tls, random_connection};

fn main() -> Result<(), String> {
    let mut numbers =
        std::env::args().skip(1).map(|text| text.parse::<u64>().map_err(|error| error.to_string()));
    let first = numbers.next().unwrap_or(Ok(0))?;
    let count = numbers.next().unwrap_or(Ok(10_000))?;
    let (tls, began) = (Tls::new(false, 1)?, Instant::now());
    let (mut tokens, mut datagrams, mut lost, mut broken) = (0, 0, 0, 0);
    for seed in first..first + count {
        match random_connection(seed, &tls) {
            Ok(seen) => {
                tokens += seen.tokens;
                datagrams += seen.datagrams;
                lost += seen.lost;
            }
            Err(error) => {
                broken += 1;
                println!("{error}");
            }
        }
    }
    let rate = count as f64 / began.elapsed().as_secs_f64();
    println!(
        "{count} seeds, {rate:.0} a second: {tokens} tokens, {datagrams} datagrams, {lost} of them lost"
    );
    if broken > 0 { Err(format!("{broken} seeds broke a promise")) } else { Ok(()) }
}
