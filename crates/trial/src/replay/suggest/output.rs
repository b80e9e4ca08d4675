//! The result, as comments of a rule file, and as warnings.

use tidegate_engine::limit::Algorithm;
use tidegate_engine::stamp::show;
use tidegate_engine::text::one_line;
use tidegate_engine::time::SECOND_NANOS;

use super::edit::{Edit, EditError, edited};
use super::measure::Measured;
use super::promise::{Of, Promise};
use super::statistics::{CHANCE_SIGMAS, RISK, allowed, differ, is_no_chance, keys_needed, quantile};
use super::{Finding, Halves, Suggestion, has_peaks};

/// A window of less than this many times the resolution of the timestamps is measured coarsely.
const RESOLUTIONS_MIN: u64 = 10;

/// What the second half shows about a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    /// It denies no more than promised.
    Agrees,
    /// It denies more, but chance may explain it.
    WithinChance,
    /// It denies more than chance explains.
    Disagrees,
    /// It has too few keys.
    TooFew,
}

impl Judgement {
    pub(super) fn of(promise: &Promise, with: &[Measured; 2]) -> Self {
        let [first, second] = with;
        let (is_kept, is_no_chance) = match promise.of {
            Of::Keys => {
                let most = second.keys as f64 * promise.part;
                (
                    second.denied_keys as f64 <= most,
                    is_no_chance(second.denied_keys, second.keys, promise.part),
                )
            }
            Of::Requests => {
                let most = promise.part + CHANCE_SIGMAS * first.rate.error;
                (second.rate.rate <= promise.part, second.rate.rate > most)
            }
        };
        let is_small =
            promise.of == Of::Keys && (second.keys as f64) * promise.part < 1.0 || second.keys == 0;
        match (is_kept, is_no_chance) {
            (false, true) => Self::Disagrees,
            _ if is_small => Self::TooFew,
            (false, false) => Self::WithinChance,
            (true, _) => Self::Agrees,
        }
    }

    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Agrees => "the second half keeps the promise",
            Self::WithinChance => "the second half has more than promised, but chance may explain it",
            Self::Disagrees => {
                "the second half DISAGREES: it has more than promised, and more than chance explains"
            }
            Self::TooFew => "the second half has too few keys to judge",
        }
    }
}

/// The file and the warnings.
pub(super) fn suggestion(
    text: &str,
    promise: &Promise,
    halves: &Halves,
    findings: &[Finding<'_>],
) -> Result<Suggestion, EditError> {
    let mut warnings = Vec::new();
    let edits = findings.iter().map(|finding| Edit {
        rule: finding.rule,
        requests: finding.limit,
        comments: comments(finding, promise, halves, &mut warnings),
    });
    let edits: Vec<_> = edits.collect();
    warnings.extend(doubts_of_logs(halves));
    Ok(Suggestion { text: edited(text, &head(promise, halves), &edits)?, warnings })
}

fn head(promise: &Promise, halves: &Halves) -> Vec<String> {
    let Halves { first, middle, last, requests, .. } = halves;
    vec![
        format!("limits from {requests} requests, {} to {}", show(*first), show(*last)),
        format!("fitted on the first half, until {}, and judged on the second", show(*middle)),
        format!("the promise: each limit denies at most {promise}, in as much time as half of the log"),
        "a peak is the most requests of one key in any window; its requests after a denial are not foreseen"
            .to_owned(),
    ]
}

/// The comments of one rule. Adds the warnings that it needs.
fn comments(
    finding: &Finding<'_>,
    promise: &Promise,
    halves: &Halves,
    warnings: &mut Vec<String>,
) -> Vec<String> {
    let Finding { rule, limit, without, with } = finding;
    let Some(limit) = limit else { return vec![no_limit(finding).to_owned()] };
    let names = ["first", "second"];
    let mut comments: Vec<_> = names.iter().zip(without).map(|(name, half)| peaks(name, half)).collect();
    comments.push(origin(*limit, promise, &without[0]));
    comments.extend(names.iter().zip(with).map(|(name, half)| denied(name, half)));
    let judgement = Judgement::of(promise, with);
    comments.push(judgement.words().to_owned());
    let mut caveats = caveats(finding, promise, halves);
    if matches!(judgement, Judgement::Disagrees | Judgement::TooFew) {
        caveats.insert(0, judgement.words().to_owned());
        comments.extend(caveats[1..].iter().cloned());
    } else {
        comments.extend(caveats.iter().cloned());
    }
    let path = rule.path();
    warnings.extend(caveats.iter().map(|caveat| format!("{}: {caveat}", one_line(&path))));
    comments
}

/// Why a rule has no suggestion.
fn no_limit(finding: &Finding<'_>) -> &'static str {
    match &finding.rule.limit {
        None => "unlimited: nothing is suggested",
        Some(limit) if has_peaks(limit) => "no request of the first half met this rule: nothing is suggested",
        Some(limit) if limit.algorithm() == Algorithm::TokenBucket => {
            "a token bucket has no peaks: nothing is suggested"
        }
        Some(_) => "a leaky bucket has no peaks: nothing is suggested",
    }
}

/// `peaks of 900 keys in the first half: 50 % up to 3, …, all up to 700`.
fn peaks(name: &str, half: &Measured) -> String {
    let Some(most) = half.peaks.last() else { return format!("no keys in the {name} half") };
    let parts = [("50", 0.5), ("90", 0.9), ("99", 0.99), ("99.9", 0.999)];
    let parts = parts.map(|(percent, part)| format!("{percent} % up to {}, ", quantile(&half.peaks, part)));
    let sample = match half.weight {
        1 => String::new(),
        weight => format!(" (a sample: one of {weight})"),
    };
    format!("peaks of {}{sample} in the {name} half: {}all up to {most}", keys(half.keys), parts.concat())
}

fn keys(count: u64) -> String {
    format!("{count} {}", if count == 1 { "key" } else { "keys" })
}

/// The reason for this number.
fn origin(limit: u32, promise: &Promise, first: &Measured) -> String {
    let confidence = 100.0 - RISK * 100.0;
    match (promise.of, allowed(first.keys, promise.part)) {
        (Of::Keys, Some(denied)) => format!(
            "{limit}: the smallest limit that, with {confidence} % confidence, denies at most {promise} (here at most \
             {denied})"
        ),
        (Of::Keys, None) => {
            format!("{limit}: the greatest peak; there are too few keys for a smaller limit",)
        }
        (Of::Requests, _) => format!(
            "{limit}: the smallest limit that, with {confidence} % confidence, denies at most {promise}"
        ),
    }
}

fn denied(name: &str, half: &Measured) -> String {
    let Measured { requests, denied, keys, denied_keys, .. } = half;
    let percent = |count: u64, whole: u64| count as f64 * 100.0 / whole.max(1) as f64;
    format!(
        "{name} half: denied {denied_keys} of {} ({:.3} %), {denied} of {requests} requests ({:.3} %)",
        self::keys(*keys),
        percent(*denied_keys, *keys),
        percent(*denied, *requests),
    )
}

/// Facts that limit the meaning of the result, whatever the rules are.
fn doubts_of_logs(halves: &Halves) -> Vec<String> {
    let Halves { late, uncounted, counts, .. } = halves;
    let mut caveats = Vec::new();
    if let Some(first) = counts.shown.first() {
        let (count, lines) = (counts.unreadable, counts.lines);
        caveats.push(format!("{count} of {lines} lines are not of the format; the first: {first}"));
    }
    let counted = [
        (counts.not_asked, "requests got no descriptor, because a value that the map needs was missing"),
        (*late, "requests were out of order by more than the bound, and count at a later time than theirs"),
        (*uncounted, "requests were not counted, because there was no memory for more counters"),
    ];
    caveats.extend(
        counted.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")),
    );
    caveats
}

/// Warnings that a suggestion is less reliable than it seems.
fn caveats(finding: &Finding<'_>, promise: &Promise, halves: &Halves) -> Vec<String> {
    let Finding { rule, without: [first, second], .. } = finding;
    let mut caveats = Vec::new();
    if promise.of == Of::Keys && allowed(first.keys, promise.part).is_none() {
        caveats.push(format!(
            "{} in the first half {} too few for the promise (expected {})",
            keys(first.keys),
            if first.keys == 1 { "is" } else { "are" },
            keys_needed(promise.part)
        ));
    }
    if differ(&first.peaks, &second.peaks) {
        caveats.push(
            "the peaks CHANGED from the first half to the second: what the first half shows may not hold"
                .to_owned(),
        );
    }
    let window = rule.limit.map_or(0, |limit| limit.window_nanos());
    if window > halves.middle.nanos_since(halves.first) {
        caveats.push(
            "the window is longer than half of the log: greater peaks may not have been seen".to_owned(),
        );
    }
    if window < RESOLUTIONS_MIN.saturating_mul(halves.counts.resolution_nanos) {
        let seconds = halves.counts.resolution_nanos as f64 / SECOND_NANOS as f64;
        caveats.push(format!(
            "the window is short compared with the timestamps of the log, which are multiples of {seconds} s: its peaks are coarse"
        ));
    }
    caveats
}
