//! Tokens through lossy paths, with each controller, with and without an echo, as a Markdown table:
//! `cargo run --release -p headrace-sim --example loss -- [SEEDS] [FILTER]`. The filter chooses controllers.

use std::time::Duration;

use headrace_net::config::Congestion;
use headrace_net::quic::congestion::factory;
use headrace_sim::Loss;
use headrace_sim::lossy::{Scenario, Tally, product_echo, run};

const CONTROLLERS: [(&str, Congestion); 4] = [
    ("NewReno", Congestion::NewReno),
    ("CUBIC", Congestion::Cubic),
    ("BBR", Congestion::Bbr),
    ("steady", Congestion::Steady),
];
/// Share of packets that are lost, mean length of a run.
const LOSSES: [(f64, f64); 6] = [(0.0, 1.0), (0.01, 1.0), (0.03, 1.0), (0.05, 1.0), (0.03, 3.0), (0.03, 6.0)];
/// Bits a second, bytes of its queue: the first is offered half as much again as it carries.
const BOTTLENECKS: [(u64, u64); 2] = [(1_000_000, 32_000), (10_000_000, 64_000)];

fn main() -> Result<(), String> {
    let mut arguments = std::env::args().skip(1);
    let seeds = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(10);
    let filter = arguments.next().unwrap_or_default();
    println!(
        "| path | streams | controller | stalls per 1,000 | p50 | p99 | p99.9 | first p99 | extra bytes \
         | last copy | spurious | lasted |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|");
    let table = Table { seeds, filter };
    for (streams, is_spread) in [(16, true), (16, false), (1, true)] {
        for (share, burst) in LOSSES {
            let loss = Loss::new(share, burst).ok_or("no such loss")?;
            let runs = if burst > 1.0 { format!(" in runs of {burst}") } else { String::new() };
            let scenario = Scenario { streams, is_spread, loss, ..Scenario::default() };
            table.rows(&format!("{:.0} % lost{runs}", share * 100.0), &scenario)?;
        }
    }
    let loss = Loss::new(0.03, 1.0).ok_or("no such loss")?;
    table.rows("3 % lost, one token", &Scenario { streams: 1, tokens: 1, loss, ..Scenario::default() })?;
    for bottleneck in BOTTLENECKS {
        let scenario = Scenario { bottleneck: Some(bottleneck), tokens: 1000, ..Scenario::default() };
        table
            .rows(&format!("{} Mbit/s, {} kB", bottleneck.0 / 1_000_000, bottleneck.1 / 1_000), &scenario)?;
    }
    let bulk = Scenario { streams: 1, every: Duration::ZERO, tokens: 50_000, ..Scenario::default() };
    for share in [0.0, 0.03] {
        let loss = Loss::new(share, 1.0).ok_or("no such loss")?;
        let scenario = Scenario { loss, bottleneck: Some(BOTTLENECKS[1]), ..bulk.clone() };
        table.rows(&format!("9.5 MB at 10 Mbit/s, {:.0} % lost", share * 100.0), &scenario)?;
    }
    Ok(())
}

struct Table {
    seeds: u64,
    filter: String,
}

impl Table {
    fn rows(&self, path: &str, scenario: &Scenario) -> Result<(), String> {
        for (name, congestion) in CONTROLLERS {
            for echo in [None, Some(product_echo()?)] {
                let name = format!("{name}{}", if echo.is_some() { ", echo" } else { "" });
                if name.contains(&self.filter) {
                    let scenario =
                        Scenario { controller: Some(factory(congestion)), echo, ..scenario.clone() };
                    // One stream has few tokens, and a first token only one.
                    let more = if scenario.tokens == 1 { 50 } else { 16 / scenario.streams as u64 };
                    print(path, &scenario, &name, &run(&scenario, 0..self.seeds * more)?);
                }
            }
        }
        Ok(())
    }
}

fn print(path: &str, scenario: &Scenario, name: &str, tally: &Tally) {
    let ms = |time: Duration| format!("{:.0}", time.as_secs_f64() * 1e3);
    println!(
        "| {path} | {}{} | {name} | {:.2} | {} | {} | {} | {} | {:.0} % | {:.1} s | {:.2} % | {:.1} s |{}",
        scenario.streams,
        if scenario.is_spread { "" } else { " at once" },
        tally.stalls(),
        ms(tally.gap(0.5)),
        ms(tally.gap(0.99)),
        ms(tally.gap(0.999)),
        ms(tally.first(0.99)),
        tally.extra() * 100.0,
        tally.last_copy.as_secs_f64(),
        tally.spurious() * 100.0,
        tally.lasted.as_secs_f64(),
        if tally.broken > 0 { format!(" {} BROKEN", tally.broken) } else { String::new() },
    );
}
