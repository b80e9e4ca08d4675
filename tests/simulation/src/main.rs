//! Runs scenarios, one a seed, and prints the events of the first that goes wrong, made as short as it gets.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use tidegate_simulation::oracle::{Census, Tally};
use tidegate_simulation::redis::scripts::RunBy;
use tidegate_simulation::run::run;
use tidegate_simulation::scenario::Scenario;
use tidegate_simulation::shrink::shrink;

/// A cluster of Tidegate's nodes in one process, under one seed.
#[derive(Parser)]
struct Arguments {
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// How many seeds.
    #[arg(long, default_value_t = 1)]
    runs: u64,
    /// How many nodes each run has; unless said, the seed says it.
    #[arg(long)]
    nodes: Option<usize>,
    /// Go on for so many minutes, however many seeds that are.
    #[arg(long)]
    minutes: Option<u64>,
    /// Who runs the scripts of Redis: a model of them, Lua, or both, which have to agree.
    #[arg(long, value_enum, default_value_t)]
    scripts: Scripts,
    /// Print which seed goes wrong, without its events.
    #[arg(long)]
    quiet: bool,
    /// Print the events of every run.
    #[arg(long)]
    story: bool,
}

#[derive(Clone, Copy, Default, ValueEnum)]
enum Scripts {
    #[default]
    Model,
    Lua,
    Both,
}

impl From<Scripts> for RunBy {
    fn from(scripts: Scripts) -> Self {
        match scripts {
            Scripts::Model => Self::Model,
            Scripts::Lua => Self::Lua,
            Scripts::Both => Self::Both,
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "how long it takes is shown to people; no run depends on it")]
fn main() -> ExitCode {
    keep_memory();
    let arguments = Arguments::parse();
    let began = Instant::now();
    let until = arguments.minutes.map(|minutes| began + Duration::from_secs(60 * minutes));
    let (mut runs, mut requests, mut commands, mut codes) = (0, 0, 0, [0; 3]);
    let mut census = Census::default();
    let mut seed = arguments.seed;
    loop {
        let goes_on = until.map_or(runs < arguments.runs, |until| Instant::now() < until);
        if !goes_on {
            break;
        }
        let mut scenario = Scenario::new(seed, arguments.nodes);
        scenario.scripts_run_by = arguments.scripts.into();
        if arguments.story {
            println!("{scenario}\n");
        }
        let outcome = run(&scenario, arguments.story);
        print!("{}", outcome.story);
        (runs, requests, commands) = (runs + 1, requests + outcome.requests, commands + outcome.commands);
        census.add(outcome.census);
        codes.iter_mut().zip(outcome.codes).for_each(|(sum, more)| *sum += more);
        if let Some(violation) = outcome.violation {
            eprintln!("\nseed {seed} goes wrong: {:?}: {}", violation.kind, violation.what);
            if !arguments.quiet {
                let (short, outcome) = shrink(scenario, violation.kind);
                println!("{short}\n\n{}", outcome.story);
            }
            eprintln!("run {runs}; again: --seed {seed}");
            return ExitCode::FAILURE;
        }
        seed += 1;
        if runs % 100 == 0 && !arguments.quiet {
            let rate = requests as f64 / began.elapsed().as_secs_f64();
            eprint!("\r{runs} runs, {requests} requests, {rate:.0} a second ");
            let _ = std::io::stderr().flush();
        }
    }
    let [admitted, denied, failed] = codes;
    let rate = requests as f64 / began.elapsed().as_secs_f64();
    println!(
        "\n{runs} runs, {requests} requests ({admitted} admitted, {denied} denied, {failed} without an answer), \
         {commands} commands to Redis, {rate:.0} requests a second"
    );
    let Census { all, of_classes, of_slots, of_bans, of_holds } = census;
    let Tally { answered, judged } = all;
    println!("of {answered} descriptors that had an answer {judged} were judged: {} %", all.percent());
    for (what, Tally { answered, judged }) in [
        ("had classes", of_classes),
        ("had slots", of_slots),
        ("were denied by bans", of_bans),
        ("had reservations", of_holds),
    ] {
        println!("of these {answered} {what}, and {judged} of them were judged");
    }
    ExitCode::SUCCESS
}

/// Starts the program again, with an allocator that keeps what a run has freed. Otherwise it gives that back to the system after
/// 10 ms, and the next run has to get it again: this takes a fifth of all time.
fn keep_memory() {
    const DELAY: &str = "MIMALLOC_PURGE_DELAY";
    if std::env::var_os(DELAY).is_none()
        && let Ok(program) = std::env::current_exe()
    {
        // If it cannot be started, this one goes on.
        let _ = Command::new(program).args(std::env::args_os().skip(1)).env(DELAY, "-1").exec();
    }
}
