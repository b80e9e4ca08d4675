//! Results as a picture (SVG) and as a table (CSV).
//!
//! In: outcomes. Out: text. The picture has a panel for each event: the share of requests that were denied with capacity
//! left, over time, a line for each crowd.

use std::fmt::Write as _;

use crate::ring::event::{BEGINS_SECS, ColdStart};
use crate::ring::run::{Outcome, Scenario};
use crate::ring::users::Crowd;

/// A run and what came of it.
pub type Run = (Scenario, Outcome);

/// The size of a panel without its margins, and of these.
const WIDTH: f64 = 330.0;
const HEIGHT: f64 = 130.0;
const LEFT: f64 = 50.0;
const TOP: f64 = 34.0;
const PANEL: (f64, f64) = (LEFT + WIDTH + 20.0, TOP + HEIGHT + 36.0);
const COLUMNS: usize = 2;

/// A line for each run.
pub fn table(runs: &[Run]) -> String {
    let mut text = "event,cold_start,crowd,seed,requests,admitted,admitted_too_many,denied_wrongly,of_these_nobody_answered,\
                    of_these_cold,of_these_late,users_denied_wrongly,seconds_until_the_last\n"
        .to_owned();
    for (scenario, outcome) in runs {
        let total = outcome.total();
        let cold = if scenario.cold == ColdStart::Deny { "deny" } else { "allow" };
        let names =
            [scenario.event.name().replace(", ", " "), cold.to_owned(), scenario.crowd.name().to_owned()];
        let numbers = [scenario.seed, total.requests, total.admitted, total.over, total.wrong()];
        let wrong = [total.away, total.cold, total.late, outcome.users_wronged as u64, outcome.wrong_secs()];
        let numbers: Vec<_> = numbers.iter().chain(&wrong).map(u64::to_string).collect();
        writeln!(text, "{},{}", names.join(","), numbers.join(",")).expect("a String takes all");
    }
    text
}

/// Panels of the runs with COLD_START=deny.
pub fn picture(runs: &[Run]) -> String {
    let mut events: Vec<_> = runs.iter().map(|(scenario, _)| scenario.event).collect();
    events.dedup();
    let rows = events.len().div_ceil(COLUMNS);
    let (width, height) = (PANEL.0 * COLUMNS as f64, PANEL.1 * rows as f64);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    for (number, event) in events.iter().enumerate() {
        let place = (PANEL.0 * (number % COLUMNS) as f64, PANEL.1 * (number / COLUMNS) as f64);
        let of_event: Vec<_> = runs
            .iter()
            .filter(|(scenario, _)| scenario.event == *event && scenario.cold == ColdStart::Deny)
            .collect();
        svg += &panel(event.name(), place, &of_event);
    }
    svg + "</svg>\n"
}

fn color(crowd: Crowd) -> &'static str {
    match crowd {
        Crowd::Zipf => "#b3432b",
        Crowd::Uniform => "#2b6cb3",
    }
}

/// The share of requests of each second that were denied wrongly, in per cent, from ten seconds before the event.
fn shares(outcome: &Outcome) -> Vec<f64> {
    let seconds = outcome.seconds.iter().skip(BEGINS_SECS as usize - 10);
    seconds.map(|second| 100.0 * second.wrong() as f64 / second.requests as f64).collect()
}

fn panel(title: &str, (left, top): (f64, f64), runs: &[&Run]) -> String {
    let lines: Vec<_> = runs.iter().map(|(scenario, outcome)| (scenario.crowd, shares(outcome))).collect();
    let most = lines.iter().flat_map(|(_, line)| line).fold(0.0, |most: f64, share| most.max(*share));
    let top_share =
        [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0].into_iter().find(|top| *top >= most).unwrap_or(100.0);
    let seconds = lines.iter().map(|(_, line)| line.len()).max().unwrap_or(1) as f64;
    let x = |second: f64| LEFT + WIDTH * second / seconds;
    let y = |share: f64| TOP + HEIGHT * (1.0 - share / top_share);

    let mut svg = format!("<g transform=\"translate({left:.0} {top:.0})\">\n");
    svg += &format!("<text x=\"{LEFT}\" y=\"{:.0}\" font-size=\"13\">{title}</text>\n", TOP - 14.0);
    for share in [0.0, top_share / 2.0, top_share] {
        let y = y(share);
        svg += &format!("<path d=\"M{LEFT} {y:.1}h{WIDTH}\" stroke=\"#ddd\"/>\n");
        svg += &format!(
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{share} %</text>\n",
            LEFT - 5.0,
            y + 4.0
        );
    }
    for second in (0..seconds as i64 - 10).step_by(30) {
        let (x, below) = (x(second as f64 + 10.0), TOP + HEIGHT + 15.0);
        svg += &format!("<text x=\"{x:.1}\" y=\"{below}\" text-anchor=\"middle\">{second} s</text>\n");
    }
    for (number, (crowd, line)) in lines.iter().enumerate() {
        let points =
            line.iter().enumerate().map(|(at, share)| format!("{:.1},{:.1}", x(at as f64), y(*share)));
        let points = points.collect::<Vec<_>>().join(" ");
        let color = color(*crowd);
        svg += &format!(
            "<polyline points=\"{points}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"1.5\"/>\n"
        );
        let legend = LEFT + WIDTH - 60.0 * (number + 1) as f64;
        svg += &format!(
            "<text x=\"{legend}\" y=\"{:.0}\" fill=\"{color}\">{}</text>\n",
            TOP - 14.0,
            crowd.name()
        );
    }
    svg + "</g>\n"
}
