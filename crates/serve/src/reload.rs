//! Puts sets of rules in force, and remembers the outcome of each.
//!
//! In: the texts of a set, from any source. Out: its rules in force, or every problem of it, logged, counted and
//! emitted as events. Either all of a set comes into force, or nothing of it. A bad set leaves the rules in force;
//! each of its problems is logged once, and the failure is counted.
//!
//! - `changes`: which limits a set adds, removes and changes
//! - `log`: the last changes of rules, certificates and the mapping of metrics, with their problems

mod changes;
mod log;

use std::collections::HashSet;
use std::fmt::Display;
use std::io::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

pub use self::log::{Problem, Reload, ReloadLog, Subject};
use crate::clock::{Clock, monotonic};
use crate::events::Events;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::report::REPORT;
use crate::service::Service;
use tidegate_engine::limit::{Algorithm, Limit};
use tidegate_engine::rule::Rule;
use tidegate_engine::rules::{self, Diagnostic, Excerpt, Ink, LoadOptions, RuleSet, SourceFile, excerpts};
use tidegate_engine::time::SECOND_NANOS;

/// Puts sets of rules in force.
pub struct Installer {
    options: LoadOptions,
    service: Arc<Service>,
    metrics: Arc<Metrics>,
    clock: Clock,
    /// Is set when there is a domain, if health depends on that.
    health: Option<Arc<Health>>,
    /// The longest window that COLD_START=deny covers: lost counters of longer windows do not count as full.
    cold_window_max: Option<Duration>,
    /// Emits an event for each refused set.
    events: Option<Arc<Events>>,
    /// Remembers the outcome of each set.
    reloads: Arc<ReloadLog>,
}

/// Texts of a set of rules, as a source hands them over.
pub struct Offer<'a> {
    /// The texts.
    pub files: &'a [SourceFile],
    /// Warnings about parts of `files` that were skipped.
    pub skipped: &'a [String],
    /// Why a set without any domain is refused. `None`: it is accepted.
    pub empty_refused: Option<&'a str>,
    /// Shows the lines that problems are about, if they should be shown.
    pub lines: Option<Ink>,
    /// Warnings of the set before, which are not logged again. `None`: all are logged.
    pub warned: Option<&'a Mutex<HashSet<String>>>,
}

/// Messages about a set, and the lines that they are about.
#[derive(Default)]
struct Report {
    messages: Vec<String>,
    excerpts: Vec<Option<Excerpt>>,
}

impl Report {
    fn of(offer: &Offer<'_>, found: &[Diagnostic], text: impl Fn(&Diagnostic) -> String) -> Self {
        Self { messages: found.iter().map(text).collect(), excerpts: excerpts(offer.files, found) }
    }

    /// Logs each message with `log`. The lines beneath go to the terminal only, in this ink and with carets of this
    /// colour, and are no part of the log.
    fn log(&self, ink: Option<Ink>, colour: &str, log: impl Fn(&str)) {
        for (at, message) in self.messages.iter().enumerate() {
            log(message);
            if let (Some(ink), Some(Some(excerpt))) = (ink, self.excerpts.get(at)) {
                // If the terminal is gone, nobody can read them.
                let _ = io::stderr().write_all(excerpt.draw(ink, colour).as_bytes());
            }
        }
    }

    /// The same, to be remembered.
    fn problems(&self) -> Vec<Problem> {
        let excerpt = |at: usize| Some(self.excerpts.get(at)?.as_ref()?.draw(Ink::Plain, ""));
        let problem = |(at, text): (usize, &String)| Problem { text: text.clone(), excerpt: excerpt(at) };
        self.messages.iter().enumerate().map(problem).collect()
    }
}

/// Colours of the carets beneath errors and warnings: bold red and bold yellow.
const ERROR_COLOUR: &str = "1;31";
const WARNING_COLOUR: &str = "1;33";

/// Why a process that needs rules is unhealthy.
const NO_DOMAIN: &str = "no domain is loaded";

impl Installer {
    /// An installer of sets that are loaded with these options.
    pub fn new(options: LoadOptions, service: Arc<Service>, metrics: Arc<Metrics>, clock: Clock) -> Self {
        Self {
            options,
            service,
            metrics,
            clock,
            health: None,
            cold_window_max: None,
            events: None,
            reloads: Arc::default(),
        }
    }

    /// Makes the process unhealthy while no domain is loaded, from now on.
    pub fn with_health(self, health: Arc<Health>) -> Self {
        health.refuse(NO_DOMAIN);
        Self { health: Some(health), ..self }
    }

    /// Warns of each limit with a longer window than this one.
    pub fn with_cold_windows(self, cold_window_max: Option<Duration>) -> Self {
        Self { cold_window_max, ..self }
    }

    /// Emits an event for each set that is refused.
    pub fn emitting(self, events: Option<Arc<Events>>) -> Self {
        Self { events, ..self }
    }

    /// Remembers the outcome of each set here.
    pub fn with_reloads(self, reloads: Arc<ReloadLog>) -> Self {
        Self { reloads, ..self }
    }

    /// Puts this set in force, or logs every problem in the form of `text` and returns them.
    /// Fails with every problem, where the set is refused.
    pub fn take(&self, offer: &Offer<'_>, text: impl Fn(&Diagnostic) -> String) -> Result<(), Vec<String>> {
        let (mut warnings, mut problems) = (Report::default(), Report::default());
        let loaded = match rules::load(offer.files, &self.options) {
            Ok(loaded) => {
                warnings = Report::of(offer, &loaded.warnings, text);
                let is_empty = loaded.rules.domains().next().is_none();
                problems.messages.extend(offer.empty_refused.filter(|_| is_empty).map(str::to_owned));
                Some(loaded.rules)
            }
            Err(found) => {
                problems = Report::of(offer, &found, text);
                None
            }
        };
        let skipped = if self.options.strict { &mut problems } else { &mut warnings };
        skipped.messages.extend_from_slice(offer.skipped);
        let before = offer.warned.map(|warned| {
            std::mem::replace(&mut *warned.lock(), warnings.messages.iter().cloned().collect())
        });
        warnings.log(offer.lines, WARNING_COLOUR, |warning| {
            if before.as_ref().is_none_or(|before| !before.contains(warning)) {
                tracing::warn!(target: REPORT, "{warning}");
            }
        });
        match loaded {
            Some(rules) if problems.messages.is_empty() => {
                self.install(rules, &warnings, offer.files.len());
                Ok(())
            }
            _ => {
                self.refuse(&problems, offer.lines);
                Err(problems.messages)
            }
        }
    }

    fn install(&self, rules: RuleSet, warnings: &Report, files: usize) {
        let (limits, domains) = (rules.limits().count(), rules.domains().count());
        let hash = rules.hash().clone();
        if let Some(window_max) = self.cold_window_max {
            warn_of_exempt(rules.rules(), window_max);
        }
        let changes = self.service.with_rules(|before| Some(changes::text(before?, &rules)));
        let without_room = self.service.install(rules);
        if without_room > 0 {
            tracing::warn!(
                "metrics: {} in the series of a node above (MAX_METRIC_SERIES bounds the series of rules; \
                 `metrics: aggregate` chooses rules without their own)",
                if without_room == 1 {
                    "1 rule counts".to_owned()
                } else {
                    format!("{without_room} rules count")
                }
            );
        }
        match &self.health {
            Some(health) if domains == 0 => health.refuse(NO_DOMAIN),
            Some(health) => health.withdraw(NO_DOMAIN),
            None => {}
        }
        self.metrics.config_loaded(hash, limits, warnings.messages.len(), self.unix_secs());
        let (limits, domains) = (counted(limits, "limit"), counted(domains, "domain"));
        let mut what = format!("{limits} in {domains} from {} in force", counted(files, "file"));
        if let Some(changes) = changes {
            what += ": ";
            what += &changes;
        }
        tracing::info!("rules: {what}");
        self.remember(true, what, warnings.problems());
    }

    fn remember(&self, in_force: bool, what: String, problems: Vec<Problem>) {
        let reload = Reload::new(Subject::Rules, self.clock.now(), in_force, what);
        self.reloads.add(Reload { problems, ..reload });
    }

    fn unix_secs(&self) -> u64 {
        self.clock.now().as_nanos() / SECOND_NANOS
    }

    /// Logs and counts a bad set. The rules in force stay.
    fn refuse(&self, problems: &Report, lines: Option<Ink>) {
        problems.log(lines, ERROR_COLOUR, |problem| tracing::error!(target: REPORT, "{problem}"));
        self.failed(&problems.messages);
        let count = counted(problems.messages.len(), "problem");
        let what = format!("refused for {count}; {}", self.rules_left());
        tracing::error!("rules: {what}");
        self.remember(false, what, problems.problems());
    }

    /// Counts and logs that the texts of a set cannot be read. `remedy`: what the reader should change.
    pub fn unreadable(&self, error: &dyn Display, remedy: &str) {
        self.failed(&[error.to_string()]);
        let what = format!("cannot be read; {}: {error} ({remedy})", self.rules_left());
        tracing::error!("rules: {what}");
        self.remember(false, what, Vec::new());
    }

    /// Refuses a set without texts, for these problems, and returns them.
    pub fn refuse_whole(&self, messages: Vec<String>) -> Vec<String> {
        let report = Report { messages, ..Report::default() };
        self.refuse(&report, None);
        report.messages
    }

    /// The largest file of rules, in bytes.
    pub fn file_bytes_max(&self) -> usize {
        self.options.max_file_bytes
    }

    /// Where sets are counted.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Counts and logs a failure.
    fn failed(&self, problems: &[String]) {
        self.metrics.config_failed();
        if let Some(events) = &self.events {
            events.reload_refused(problems, monotonic());
        }
    }

    /// Which rules are in force after a set was refused.
    fn rules_left(&self) -> &'static str {
        match self.service.with_rules(|rules| rules.is_some()) {
            true => "the rules in force stay",
            false => "no rules are in force",
        }
    }
}

/// Limits that are named in a warning; of further ones only their number.
const EXEMPT_SHOWN: usize = 100;

/// Warns of each limit that COLD_START=deny does not cover: its hits count too long, or it is a calendar budget.
fn warn_of_exempt(rules: &[Rule], window_max: Duration) {
    let is_exempt = |rule: &&Rule| rule.limit.is_some_and(|limit| is_exempt(&limit, window_max));
    let mut exempt = rules.iter().filter(is_exempt);
    for rule in exempt.by_ref().take(EXEMPT_SHOWN) {
        tracing::warn!(
            target: REPORT,
            "{}: hits of {} count longer than COLD_START_MAX_WINDOW ({window_max:?}), or for a period of a \
             calendar: its lost counters do not count as full",
            rule.written,
            rule.path()
        );
    }
    match exempt.count() {
        0 => {}
        more => tracing::warn!("{more} more limits count hits longer than COLD_START_MAX_WINDOW"),
    }
}

/// Whether lost counters of a limit do not count as full because it counts hits for too long. No ban counts as begun.
fn is_exempt(limit: &Limit, window_max: Duration) -> bool {
    let counts_long = Duration::from_nanos(limit.remembered_nanos()) > window_max;
    limit.algorithm() != Algorithm::Ban && (limit.periods().is_some() || counts_long)
}

/// `1 limit`, `2 limits`.
pub fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::Status;
    use crate::service::fixture;
    use tidegate_engine::key::KeySecret;

    fn installer() -> Installer {
        let (options, metrics) = (LoadOptions::new(KeySecret::new([7; 16])), fixture::metrics());
        let service = Arc::new(fixture::service(None, &metrics));
        Installer::new(options, service, metrics, Clock::start())
    }

    fn offer(files: &[SourceFile]) -> Offer<'_> {
        Offer { files, skipped: &[], empty_refused: None, lines: None, warned: None }
    }

    fn shop() -> Vec<SourceFile> {
        let text = "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 1}}]";
        vec![SourceFile { name: "shop.yaml".to_owned(), bytes: text.into(), presumed: false }]
    }

    #[test]
    fn a_process_that_needs_a_domain_is_healthy_while_it_has_one() {
        let health = Arc::new(Health::starting());
        let installer = installer().with_health(Arc::clone(&health));
        health.serve();
        let is_healthy = |files: &[SourceFile]| {
            installer.take(&offer(files), ToString::to_string).expect("a good set");
            health.status() == Status::Serving
        };
        assert_eq!([is_healthy(&[]), is_healthy(&shop()), is_healthy(&[])], [false, true, false]);
    }

    #[test]
    fn a_ban_is_not_named_among_limits_that_count_long() {
        let text = "domain: shop\ndescriptors: [{key: user, ban: {after: 9 denials, within: 168h, for: 1h, doubling_to: 24h}, \
                    rate_limit: {unit: minute, requests_per_unit: 1}}, {key: long, rate_limit: {unit: day, requests_per_unit: 1}}]";
        let file = SourceFile { name: "shop.yaml".to_owned(), bytes: text.into(), presumed: false };
        let set = rules::load(&[file], &LoadOptions::new(KeySecret::new([7; 16]))).expect("good rules").rules;
        let exempt = |rule: &&Rule| rule.limit.is_some_and(|it| is_exempt(&it, Duration::from_secs(3_600)));
        assert_eq!(set.rules().len(), 3, "two limits and a ban");
        assert_eq!(
            set.rules().iter().filter(exempt).map(|rule| rule.path().to_string()).collect::<Vec<_>>(),
            ["shop.long"]
        );
    }

    /// A set that is refused is offered again and again.
    #[test]
    fn the_warnings_of_a_set_are_remembered_although_it_is_refused() {
        let (installer, warned) = (installer(), Mutex::new(HashSet::from(["before".to_owned()])));
        let skipped = ["a part was skipped".to_owned()];
        let empty_refused = Some("there is no domain");
        let offer = Offer { skipped: &skipped, empty_refused, warned: Some(&warned), ..offer(&[]) };
        assert!(installer.take(&offer, ToString::to_string).is_err());
        assert_eq!(*warned.lock(), HashSet::from(skipped.clone()));
    }
}
