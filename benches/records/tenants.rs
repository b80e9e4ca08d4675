//! The same limits as records and as rules in YAML, side by side: memory, start, and how long a change takes.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use super::limiter::{Limiter, With};
use super::request::{DOMAIN, KEY, Keys, value_of};
use super::{Args, server};

const RELOADS: &str = "ratelimit_service_config_load_success";
/// How often it is looked whether a change is in force: seldom enough to cost the limiter nothing.
const LOOK: Duration = Duration::from_millis(5);
/// Changes that are measured.
const CHANGES: u64 = 5;

struct Figures {
    start: Duration,
    resident: u64,
    asked: u64,
    change: Duration,
}

/// Measures both.
pub(crate) fn measure(args: &Args, folder: &Path) -> Result<Vec<String>, String> {
    server::pin_self(&args.generator_core)?;
    let both = [("YAML", as_yaml(args, folder)?), ("records", as_records(args, folder)?)];
    println!("{} tenants, each with a limit of its own", args.tenants);
    println!(
        "{:<10} {:>10} {:>12} {:>14} {:>12}",
        "", "start, s", "resident MiB", "all asked, MiB", "change, ms"
    );
    for (name, Figures { start, resident, asked, change }) in both {
        println!(
            "{name:<10} {:>10.2} {:>12.1} {:>14.1} {:>12.1}",
            start.as_secs_f64(),
            resident as f64 / 1024.0 / 1024.0,
            asked as f64 / 1024.0 / 1024.0,
            change.as_secs_f64() * 1e3
        );
    }
    Ok(Vec::new())
}

fn requests(tenant: u64, change: u64) -> u64 {
    1_000_000 + tenant % 1_000 + change
}

fn as_yaml(args: &Args, folder: &Path) -> Result<Figures, String> {
    let (folder, text) = (folder.join("yaml"), |change| yaml(args.tenants, change));
    let rules = folder.join("rules");
    fs::create_dir_all(&rules).map_err(|error| error.to_string())?;
    let write =
        |change| fs::write(rules.join("tenants.yaml"), text(change)).map_err(|error| error.to_string());
    write(0)?;
    let variables = vec![("CONFIG_PATH", rules.display().to_string())];
    let start = || {
        Limiter::start(
            args,
            With { rate_limit: "", folder: &folder, has_records: false, variables: variables.clone() },
        )
    };
    let change = |limiter: &Limiter, change| {
        let before = limiter.metric(RELOADS)?;
        let began = Instant::now();
        write(change)?;
        while limiter.metric(RELOADS)? == before {
            std::thread::sleep(LOOK);
        }
        Ok(began.elapsed())
    };
    figures(args, start, change)
}

fn as_records(args: &Args, folder: &Path) -> Result<Figures, String> {
    let folder = folder.join("records");
    fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    let rate_limit = "{unit: hour, requests_per_unit: 1000000}, limits_from: store";
    let start = || {
        Limiter::start(args, With { rate_limit, folder: &folder, has_records: true, variables: Vec::new() })
    };
    let file = folder.join("tenants.csv");
    fs::write(&file, csv(args.tenants)).map_err(|error| error.to_string())?;
    start()?.load(&file)?;
    // A record is in force when its change is answered.
    let change = |limiter: &Limiter, change| {
        let began = Instant::now();
        limiter.put(&value_of(0), requests(0, change))?;
        Ok(began.elapsed())
    };
    figures(args, start, change)
}

/// `change` makes a change, by its number, and returns how long it took until it was in force.
fn figures(
    args: &Args,
    start: impl Fn() -> Result<Limiter, String>,
    change: impl Fn(&Limiter, u64) -> Result<Duration, String>,
) -> Result<Figures, String> {
    let began = Instant::now();
    let limiter = start()?;
    limiter.answered()?;
    let start = began.elapsed();
    let resident = limiter.server.resident_bytes();
    limiter.ask_at_a_time(Keys::InTurn(0), args.tenants, 64)?;
    let asked = limiter.server.resident_bytes();
    let mut changes = (1..=CHANGES).map(|number| change(&limiter, number)).collect::<Result<Vec<_>, _>>()?;
    changes.sort();
    Ok(Figures { start, resident, asked, change: changes[changes.len() / 2] })
}

fn yaml(tenants: u64, change: u64) -> String {
    let mut text = format!("domain: {DOMAIN}\ndescriptors:\n");
    for tenant in 0..tenants {
        let (value, requests) = (value_of(tenant), requests(tenant, change));
        let _ = writeln!(
            text,
            "  - {{key: {KEY}, value: \"{value}\", rate_limit: {{unit: hour, requests_per_unit: {requests}}}}}"
        );
    }
    text
}

fn csv(tenants: u64) -> String {
    let mut text = format!("domain,entry.{KEY},requests_per_unit\n");
    for tenant in 0..tenants {
        let _ = writeln!(text, "{DOMAIN},{},{}", value_of(tenant), requests(tenant, 0));
    }
    text
}
