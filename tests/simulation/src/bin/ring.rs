//! Runs every event for both crowds, and writes a table and a picture of what came of it. Fails when somebody was admitted
//! too often although the recipe was followed.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use tidegate_simulation::ring::Crowd;
use tidegate_simulation::ring::event::{ColdStart, Event};
use tidegate_simulation::ring::plot::{picture, table};
use tidegate_simulation::ring::run::{Scenario, Size, run};

/// Nodes that count by themselves behind a ring as Envoy's: deaths, rollouts, resizes.
#[derive(Parser)]
struct Arguments {
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[arg(long, default_value_t = 20)]
    nodes: usize,
    /// Proxies, which get a new ring one after the other.
    #[arg(long, default_value_t = 4)]
    proxies: usize,
    #[arg(long, default_value_t = 1_000_000)]
    users: usize,
    #[arg(long, default_value_t = 20_000)]
    requests_per_second: u64,
    /// Requests of a user a minute.
    #[arg(long, default_value_t = 2)]
    limit: u32,
    /// The folder for ring.csv and ring.svg.
    #[arg(long, default_value = "docs/scale")]
    out: PathBuf,
}

fn main() -> io::Result<ExitCode> {
    let arguments = Arguments::parse();
    let size = Size {
        nodes: arguments.nodes,
        proxies: arguments.proxies,
        users: arguments.users,
        requests_per_second: arguments.requests_per_second,
        limit: arguments.limit,
        window_secs: 60,
    };
    let mut runs = Vec::new();
    for event in Event::ALL {
        for cold in [ColdStart::Deny, ColdStart::Allow] {
            // With either, nothing differs.
            if cold == ColdStart::Allow
                && matches!(event, Event::Nothing | Event::Rollout | Event::GrowTooEarly)
            {
                continue;
            }
            for crowd in Crowd::ALL {
                let scenario = Scenario { event, cold, crowd, seed: arguments.seed };
                runs.push((scenario, run(scenario, &size)));
                println!("{}", table(&runs[runs.len() - 1..]).lines().last().unwrap_or_default());
            }
        }
    }
    fs::create_dir_all(&arguments.out)?;
    fs::write(arguments.out.join("ring.csv"), table(&runs))?;
    let is_recipe =
        |scenario: &Scenario| scenario.cold == ColdStart::Deny && scenario.event != Event::GrowTooEarly;
    let too_many: u64 = runs
        .iter()
        .filter(|(scenario, _)| is_recipe(scenario))
        .map(|(_, outcome)| outcome.total().over)
        .sum();
    if too_many > 0 {
        eprintln!("admitted too often: {too_many} times");
    }
    runs.retain(|(scenario, _)| !matches!(scenario.event, Event::Nothing | Event::GrowTooEarly));
    fs::write(arguments.out.join("ring.svg"), picture(&runs))?;
    Ok(if too_many == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
