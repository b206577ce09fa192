//! The transport counted in round trips, beside what physics allows, as a Markdown table:
//! `cargo run --release -p headrace-sim --example round_trips`.

use std::time::Duration;

use headrace_sim::measures::{self, Change, EVERY, Gap, Start, each_lost, loss_limit, ttft};
use headrace_sim::{Role, Setup, Tls};

const ROUND_TRIPS: [u64; 4] = [20, 50, 100, 200];
/// Packets that are lost, one in each run.
const POSITIONS: u64 = 200;
const OUTAGE: Duration = Duration::from_millis(500);

fn main() -> Result<(), String> {
    println!("| | 20 ms | 50 ms | 100 ms | 200 ms | limit |");
    println!("|---|---|---|---|---|---|");
    row("first token, open connection", "1 R", |trip| Ok(trips(ttft(trip, Start::Warm)?, trip)))?;
    row("first token, new connection", "2 R", |trip| Ok(trips(ttft(trip, Start::Cold)?, trip)))?;
    row("first token, new connection, early data", "1 R", |trip| Ok(trips(ttft(trip, Start::Early)?, trip)))?;
    row("stop, until the server knows", "0.5 R", |trip| Ok(trips(measures::stop(trip)?, trip)))?;
    for (what, streams, spread) in [
        ("1 stream", 1, true),
        ("4 streams by turns", 4, true),
        ("16 streams by turns", 16, true),
        ("16 streams at once", 16, false),
    ] {
        let apart = if spread { EVERY / streams as u32 } else { EVERY };
        row(&format!("a lost packet, longest stall, {what}"), "", |trip| {
            let worst = each_lost(trip, streams, spread, POSITIONS)?.iter().map(|lost| lost.stall).max();
            Ok(format!("{} of {}", millis(worst.unwrap_or_default()), millis(loss_limit(trip, apart))))
        })?;
    }
    row("streams that one lost packet stalls, of 16 at once: mean, most", "", |trip| {
        let all: Vec<usize> =
            each_lost(trip, 16, false, POSITIONS)?.iter().map(|lost| lost.streams).collect();
        let mean = all.iter().sum::<usize>() as f64 / all.len() as f64;
        Ok(format!("{mean:.1}, {}", all.iter().max().unwrap_or(&0)))
    })?;
    gap("known move", Change::Known)?;
    gap("known move, old path gone", Change::KnownGone)?;
    gap("silent change of port", Change::SilentPort)?;
    gap("silent change of address", Change::SilentAddress)?;
    row("first token when the client's first datagram is lost", "2 R", |trip| {
        Ok(millis(measures::first_flight_lost(trip, Role::Client, 1)?))
    })?;
    row("first token when the server's first datagram is lost", "2 R", |trip| {
        Ok(millis(measures::first_flight_lost(trip, Role::Server, 1)?))
    })?;
    row("next token after an outage of 500 ms", "1.5 R", |trip| Ok(millis(measures::outage(trip, OUTAGE)?)))
}

fn gap(what: &str, change: Change) -> Result<(), String> {
    // Stream 1: no acknowledgement is due that would tell the server.
    let measure = |trip| measures::change(Setup::new(1, trip, &Tls::new(false, 1)?)?, trip, change, 1);
    let one = |name: &str, limit: &str, pick: fn(Gap) -> Duration| {
        row(&format!("{what}: {name}"), limit, |trip| Ok(trips(pick(measure(trip)?), trip)))
    };
    if matches!(change, Change::SilentPort | Change::SilentAddress) {
        row(&format!("{what}: found after"), "50 ms", |trip| Ok(millis(measure(trip)?.found)))?;
    }
    one("first datagram with tokens", "1 R", |gap| gap.datagram)?;
    one("first token in order", "1 R", |gap| gap.token)?;
    one("last token that was late", "1 R", |gap| gap.repaired)
}

fn row(
    what: &str,
    limit: &str,
    mut measure: impl FnMut(Duration) -> Result<String, String>,
) -> Result<(), String> {
    let cells: Result<Vec<String>, String> =
        ROUND_TRIPS.iter().map(|&trip| measure(Duration::from_millis(trip))).collect();
    println!("| {what} | {} | {limit} |", cells?.join(" | "));
    Ok(())
}

fn trips(time: Duration, trip: Duration) -> String {
    format!("{:.2} R", time.as_secs_f64() / trip.as_secs_f64())
}

fn millis(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}
