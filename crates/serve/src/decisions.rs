//! The log of decisions: at `debug` one line per decision, at `info` some denials and some descriptors without a rule.
//!
//! In: decisions, with the time at which they were made. Out: lines. A flood of denials must neither become a flood of
//! lines nor slow down decisions. So the time of the last line is kept for each rule, and a denial without a line only
//! adds to a counter of its own thread. Below `info`, logging costs a decision one read of the level.
//!
//! Values come from requests, so they are escaped and cut, or left out.

mod kinds;
mod lines;
mod text;

use std::time::Instant;

use tracing::level_filters::LevelFilter;

pub use self::lines::Denials;

use self::kinds::Kinds;
use self::lines::Lines;
use self::text::DecisionText;
use crate::metrics::Metrics;
use crate::report::{REPORT, takes_a_line};
use tidegate_engine::decision::{Code, Decision, Limited, Status};
use tidegate_engine::overlay::Overlay;
use tidegate_engine::plan::Origin;
use tidegate_engine::request::Request;
use tidegate_engine::rules::RuleSet;

/// The log of decisions.
pub struct DecisionLog {
    began: Instant,
    shows_values: bool,
    lines: Lines,
    kinds: Kinds,
}

/// What the log needs in addition to the decision.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// The rule set of the decision.
    pub rules: &'a RuleSet,
    /// The times at which denials by these rules were last logged.
    pub denials: &'a Denials,
    /// What the decision was made under.
    pub overlay: Overlay<'a>,
    /// Counts denials that are not logged.
    pub metrics: &'a Metrics,
}

impl DecisionLog {
    /// A log that starts at this time and shows the values of requests.
    pub fn new(began: Instant) -> Self {
        Self { began, shows_values: true, lines: Lines::default(), kinds: Kinds::default() }
    }

    /// Chooses whether lines show the values of requests.
    #[must_use]
    pub fn showing_values(self, shows_values: bool) -> Self {
        Self { shows_values, ..self }
    }

    /// Whether the level allows any line about decisions.
    #[inline]
    pub fn is_on() -> bool {
        LevelFilter::current() >= LevelFilter::INFO
    }

    /// Logs a decision that was made at this time, as far as the level asks for it.
    pub fn decided(&self, context: Context<'_>, at: Instant, request: &Request<'_>, decision: &Decision<'_>) {
        let text = DecisionText {
            rules: context.rules,
            request,
            code: (decision.code, decision.shadowed),
            statuses: &decision.statuses,
            exceptions: decision.exceptions(),
            bans: decision.bans(),
            overlay: context.overlay,
            shows_values: self.shows_values,
        };
        if LevelFilter::current() >= LevelFilter::DEBUG {
            tracing::debug!(target: REPORT, "decided: {text}");
        }
        if decision.code == Code::OverLimit {
            self.denied(context, at, &text);
        }
        if decision.domain_known && self.kinds.have_room() {
            self.unmatched(&text);
        }
    }

    /// Logs the first denying rule that has had no line in this second.
    fn denied(
        &self,
        Context { denials, metrics, .. }: Context<'_>,
        at: Instant,
        text: &DecisionText<'_, '_>,
    ) {
        // Seconds start at 1, because 0 means that no line was written.
        let second = at.saturating_duration_since(self.began).as_secs() as u32 + 1;
        let denying = text.statuses.iter().enumerate().find(|(_, status)| match status {
            Status::Limited(limited) if limited.is_denied() => {
                self.lines.admit(denials, rule_id(limited), second)
            }
            _ => false,
        });
        // A decision must not wait for the reader of the log.
        let Some((place, _)) = denying.filter(|_| takes_a_line()) else {
            return metrics.denials_not_logged(1);
        };
        let left_out = self.lines.left_out(metrics.denials_not_logged_until_now());
        match left_out {
            0 => tracing::info!(target: REPORT, "denied: {}", text.denial(place)),
            _ => tracing::info!(
                target: REPORT,
                "denied: {} ({left_out} denials before it were not logged)",
                text.denial(place)
            ),
        }
    }

    /// Logs every descriptor without a rule that is the first of its kind.
    fn unmatched(&self, text: &DecisionText<'_, '_>) {
        let statuses = text.statuses.iter().enumerate();
        for (place, _) in statuses.filter(|(_, status)| matches!(status, Status::NoLimit)) {
            if text.kind(place).is_some_and(|kind| self.kinds.is_new(kind)) && takes_a_line() {
                tracing::info!(target: REPORT, "no rule: {}, the first of its kind (tidegate_unmatched_total counts them)", text.unmatched(place));
            }
        }
    }
}

/// The number of the rule of the limit; `None`: the request brought the limit itself.
fn rule_id(limited: &Limited<'_>) -> Option<usize> {
    match limited.origin {
        Origin::Rule { rule, .. } => Some(rule.id),
        Origin::Override { .. } => None,
    }
}
