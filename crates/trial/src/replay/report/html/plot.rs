//! Requests over time as bars, denials in another colour.

use tidegate_engine::Timestamp;

use super::{grouped, moment};
use crate::replay::timeline::{Bin, Timeline};

/// The size of the plot, in its own units; the page stretches it.
const WIDTH: usize = 960;
const HEIGHT: usize = 200;

/// Parts of the time axis. On a narrow screen the page shows every second label.
const PARTS: u64 = 4;

const DAY: u64 = 86_400;

/// The plot, with its axes and its legend.
pub(super) fn plot(timeline: &Timeline) -> String {
    let bins = &timeline.bins;
    let most = bins.iter().map(|bin| bin.requests).max().unwrap_or(0).max(1);
    let step = WIDTH as f64 / bins.len().max(1) as f64;
    let bars: String = bins.iter().enumerate().map(|(at, bin)| bar(timeline, at, bin, most, step)).collect();
    format!(
        "<p class=\"legend\"><span class=\"all\"></span> requests <span class=\"denied\"></span> denied; each bar is {}</p>\n\
         <div class=\"plot\"><p class=\"top\">{}</p>\n\
         <svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"requests and denials over time\" \
         preserveAspectRatio=\"none\">\n{bars}</svg>\n<p class=\"axis\">{}</p></div>\n",
        duration(timeline.width_secs),
        grouped(most),
        axis(timeline),
    )
}

/// The bar of one bin.
fn bar(timeline: &Timeline, at: usize, bin: &Bin, most: u64, step: f64) -> String {
    let when = moment(Timestamp::from_secs(timeline.start_secs + at as u64 * timeline.width_secs));
    let title = format!("{when}: {} requests, {} denied", grouped(bin.requests), grouped(bin.denied));
    let (x, width) = (at as f64 * step, (step * 0.9).max(0.5));
    let rect = |class: &str, count: u64| {
        let least = f64::from(u8::from(count > 0));
        let height = (count as f64 * HEIGHT as f64 / most as f64).max(least);
        let y = HEIGHT as f64 - height;
        format!(
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>"
        )
    };
    format!("<g><title>{title}</title>{}{}</g>\n", rect("all", bin.requests), rect("denied", bin.denied))
}

/// The labels of the time axis: days where the plot shows several, else times of the day.
fn axis(timeline: &Timeline) -> String {
    let span = timeline.bins.len() as u64 * timeline.width_secs;
    let label = |part: u64| {
        let at = moment(Timestamp::from_secs(timeline.start_secs + span * part / PARTS));
        let is_date = part == 0 || span > 2 * DAY;
        let (from, to) = match (is_date, timeline.width_secs >= 60) {
            (true, _) => (0, 16),
            (false, true) => (11, 16),
            (false, false) => (11, 19),
        };
        format!("<span>{}</span>", at.get(from..to).unwrap_or(&at))
    };
    (0..=PARTS).map(label).collect()
}

fn duration(seconds: u64) -> String {
    match seconds {
        seconds if seconds.is_multiple_of(DAY) => format!("{} d", seconds / DAY),
        seconds if seconds.is_multiple_of(3_600) => format!("{} h", seconds / 3_600),
        seconds if seconds.is_multiple_of(60) => format!("{} min", seconds / 60),
        seconds => format!("{seconds} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_says_when() {
        let timeline = |width_secs: u64, bins: usize| Timeline {
            start_secs: 1_767_225_600,
            width_secs,
            bins: vec![Bin { requests: 1, denied: 0 }; bins],
        };
        let labels = |html: String| html.replace("<span>", "").replace("</span>", "|");
        assert_eq!(labels(axis(&timeline(1, 40))), "2026-01-01 00:00|00:00:10|00:00:20|00:00:30|00:00:40|");
        assert_eq!(labels(axis(&timeline(600, 144))), "2026-01-01 00:00|06:00|12:00|18:00|00:00|");
        assert!(labels(axis(&timeline(3_600, 24 * 8))).contains("|2026-01-03 00:00|"));
        assert_eq!([1, 90, 300, 7_200, 172_800].map(duration), ["1 s", "90 s", "5 min", "2 h", "2 d"]);
    }
}
