//! Tokens over links that pause, with each controller, beside what the link itself allows, as a Markdown table:
//! `cargo run --release -p headrace-sim --example traces -- [STREAMS] [CONTROLLER] [LINK | FILE.up FILE.down]`. The
//! controller and the link choose by a part of their names; files are Mahimahi's.

use std::time::Duration;

use headrace_emulator::network::Trace;
use headrace_emulator::network::radio::MODELS;
use headrace_net::config::Congestion;
use headrace_net::quic::congestion::factory;
use headrace_sim::lossy::product_echo;
use headrace_sim::radio::{Fared, Ride, ride};

const CONTROLLERS: [(&str, Congestion); 4] = [
    ("steady", Congestion::Steady),
    ("BBR", Congestion::Bbr),
    ("CUBIC", Congestion::Cubic),
    ("NewReno", Congestion::NewReno),
];

fn main() -> Result<(), String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let word = |index: usize| arguments.get(index).map_or("", String::as_str);
    let streams = word(0).parse().unwrap_or(8);
    let rides = match (arguments.get(2), arguments.get(3)) {
        (Some(up), Some(down)) => vec![(up.clone(), Ride::new(read(up)?, read(down)?))],
        _ => {
            let named = MODELS.iter().filter(|model| model.name.contains(word(2)));
            named
                .map(|model| Ok((model.name.to_owned(), Ride::by_model(model, 1)?)))
                .collect::<Result<_, String>>()?
        }
    };
    println!(
        "| link | controller | late p50, ms | late p99 | stalled | gap p99 | bytes per token | lost, declared lost |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for (name, of) in rides {
        let mut is_first = true;
        for (controller, congestion) in CONTROLLERS.iter().filter(|(name, _)| name.contains(word(1))) {
            for echo in [None, Some(product_echo()?)] {
                let ridden =
                    ride(&Ride { streams, echo, controller: Some(factory(*congestion)), ..of.clone() }, 1);
                let ridden = match ridden {
                    Ok(ridden) => ridden,
                    Err(wrong) => {
                        println!("| {name} | {controller} | {wrong} |");
                        continue;
                    }
                };
                if std::mem::take(&mut is_first) {
                    println!("| {name} | the link itself | {} | | |", row(&ridden.link_itself));
                }
                println!(
                    "| {name} | {controller}{} | {} | {:.0} | {}, {} |",
                    if echo.is_some() { ", echo" } else { "" },
                    row(&ridden.tokens),
                    ridden.bytes_per_token,
                    ridden.lost,
                    ridden.declared
                );
            }
        }
    }
    Ok(())
}

fn read(path: &str) -> Result<Trace, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    Trace::parse(&text).map_err(|error| format!("{path}: {error}"))
}

fn row(fared: &Fared) -> String {
    let ms = |time: Duration| format!("{:.0}", time.as_secs_f64() * 1e3);
    format!(
        "{} | {} | {:.1} % | {}",
        ms(fared.late(0.5)),
        ms(fared.late(0.99)),
        fared.stalled() * 100.0,
        ms(fared.gap(0.99))
    )
}
