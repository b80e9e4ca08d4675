//! `rate_limit`: which limit it is, and whether its parts go together.

use super::{CheckedLimit, Checker};
use crate::limit::{Algorithm, BUCKETS_MAX, FILL_NANOS_MAX, LOG_REQUESTS_MAX, Limit};
use crate::rules::fields::{Fields, not_one_of};
use crate::rules::keys::Section;
use crate::rules::quote::quote;
use crate::rules::{Cost, StoreFailure, Sync, Unit, parse_duration_nanos};
use crate::time::SECOND_NANOS;
use crate::unit::Window;
use tidegate_yaml::{Content, NodeId, Place};

/// The shortest and the longest window, in seconds.
pub(super) const WINDOW_SECS: std::ops::RangeInclusive<u64> = 1..=366 * 86_400;

impl Checker<'_, '_> {
    /// The limit of a node. Merges may assign several mappings to it; they count together.
    pub(super) fn limit(&mut self, mappings: &[NodeId], has_records: bool) -> Option<CheckedLimit> {
        let fields = self.reader.fields(self.since_last_null(mappings), Section::RateLimit)?;
        let unlimited = self.reader.flag(&fields, "unlimited");
        let has_period = !unlimited && self.reader.is_given(&fields, "period");
        let period = if has_period { self.period(&fields, has_records) } else { None };
        let window = match (unlimited, has_period) {
            (true, _) => self.no_window(&fields),
            (false, true) => period.map(|(unit, _)| unit.window()),
            (false, false) => self.window(&fields),
        };
        if !unlimited && !self.reader.is_given(&fields, "requests_per_unit") {
            let message = "`requests_per_unit` is missing (expected a whole number)";
            self.reader.error(fields.at, || message.to_owned());
        }
        let name = self.reader.text(&fields, "name").map(|(_, name)| name.to_owned()).unwrap_or_default();
        let replaces = self.replaces(&fields, &name);
        let algorithm = if has_period { Algorithm::Calendar } else { self.algorithm(&fields) };
        let requests = self.requests(&fields, algorithm);
        let sync = if has_period { None } else { self.sync(&fields, algorithm) };
        let on_store_failure = self.on_store_failure(&fields);
        let costs = Cost::ALL.map(|cost| (cost.name(), cost));
        let cost = self.reader.word(&fields, "cost", &costs);
        let cost = cost.map_or(self.options.default_cost, |(_, cost)| cost);
        let near = self.reader.share(&fields, "near");
        let limit = match has_period {
            true => period
                .zip(requests)
                .map(|((unit, periods), requests)| Limit::calendar(requests, unit.nanos_max(), periods)),
            false => self.parts(&fields, algorithm, window, requests).filter(|_| !unlimited),
        };
        let limit = self.carry_debt(&fields, unlimited, limit);
        let candidate =
            if unlimited { self.no_candidate(&fields) } else { self.candidate(&fields, algorithm, limit) };
        Some(CheckedLimit {
            limit,
            is_unlimited: unlimited,
            candidate,
            window: window?,
            name,
            replaces,
            sync,
            on_store_failure,
            cost,
            near,
            call_id: None,
            retry_nanos: SECOND_NANOS,
        })
    }

    pub(super) fn on_store_failure(&mut self, fields: &Fields) -> Option<StoreFailure> {
        let failures = StoreFailure::ALL.map(|failure| (failure.name(), failure));
        self.reader.word(fields, "on_store_failure", &failures).map(|(_, failure)| failure)
    }

    /// A null discards what was assigned before it.
    pub(super) fn since_last_null<'n>(&self, nodes: &'n [NodeId]) -> &'n [NodeId] {
        let is_null = |&node: &NodeId| match &self.reader.document.node(node).content {
            Content::Scalar(scalar) => scalar.is_null(),
            Content::Sequence(_) | Content::Mapping(_) => false,
        };
        let start = nodes.iter().rposition(is_null).map_or(0, |last| last + 1);
        nodes.get(start..).unwrap_or_default()
    }

    /// The window of an unlimited rule: fields that set one are refused.
    fn no_window(&mut self, fields: &Fields) -> Option<Window> {
        for name in ["unit", "unit_multiplier", "window", "period"] {
            self.refuse(fields, name, || {
                format!("`{name}` with `unlimited: true` (expected one of the two)")
            });
        }
        Some(Window::of(Unit::Second))
    }

    fn window(&mut self, fields: &Fields) -> Option<Window> {
        if self.reader.is_given(fields, "window") {
            for name in ["unit", "unit_multiplier"] {
                self.refuse(fields, name, || format!("`{name}` with `window` (expected one of the two)"));
            }
            return self.seconds(fields, "window").and_then(Window::of_nanos);
        }
        if !self.reader.is_given(fields, "unit") {
            let message = "no window (expected `unit`, `window`, `period` or `unlimited: true`)";
            self.reader.error(fields.at, || message.to_owned());
        }
        let names = Unit::ALL.map(Unit::name);
        let multiplier = self.reader.number(fields, "unit_multiplier", 1..=u32::MAX);
        let (at, text) = self.reader.text(fields, "unit")?;
        let Some(unit) = Unit::from_name(text) else {
            self.reader.error(at, || match parse_duration_nanos(text) {
                Some(_) => {
                    let (unit, names) = (quote(text), names.join(", "));
                    format!("`unit` is {unit} (expected {names}; `window: {text}` says a time)")
                }
                None => not_one_of("unit", text, &names),
            });
            return None;
        };
        let (at, multiplier) = multiplier.unwrap_or((at, 1));
        let secs = unit.nanos() / SECOND_NANOS * u64::from(multiplier);
        self.bounded(at, "unit", secs)?;
        Some(Window { unit, multiplier })
    }

    /// A time in whole seconds, as long as a window may be, in nanoseconds.
    pub(super) fn seconds(&mut self, fields: &Fields, name: &str) -> Option<u64> {
        let (at, text) = self.reader.text(fields, name)?;
        let secs =
            parse_duration_nanos(text).filter(|nanos| nanos % SECOND_NANOS == 0).map(|it| it / SECOND_NANOS);
        let Some(secs) = secs else {
            self.reader.error(at, || {
                format!(
                    "`{name}` is {} (expected whole seconds, such as `90s`, `5m` or `1h30m`)",
                    quote(text)
                )
            });
            return None;
        };
        self.bounded(at, name, secs)
    }

    /// A time of this many seconds, in nanoseconds. `name` is the field that says it.
    fn bounded(&mut self, at: Place, name: &str, secs: u64) -> Option<u64> {
        if !WINDOW_SECS.contains(&secs) {
            let what = match name {
                "unit" | "window" => "a window".to_owned(),
                of_its_own => format!("a `{of_its_own}`"),
            };
            self.reader.error(at, || format!("{what} of {secs} seconds (expected 1 second to 366 days)"));
            return None;
        }
        Some(secs * SECOND_NANOS)
    }

    pub(super) fn requests(&mut self, fields: &Fields, algorithm: Algorithm) -> Option<u64> {
        // `bounds` refuses what is too much for a `sliding_log`.
        let most = algorithm.requests_max().max(u32::MAX.into());
        self.reader.number(fields, "requests_per_unit", 0..=most).map(|(_, requests)| requests)
    }

    pub(super) fn replaces(&mut self, fields: &Fields, own: &str) -> Vec<(Place, String)> {
        let mut names = Vec::new();
        for &item in self.reader.list(fields, "replaces") {
            let Some(item) = self.reader.fields(&[item], Section::Replaces) else { continue };
            let Some((at, name)) = self.required(&item, "name") else { continue };
            if name == own {
                self.reader.error(at, || {
                    format!(
                        "a limit that replaces itself, {} (expected the name of another limit)",
                        quote(own)
                    )
                });
            }
            names.push((at, name));
        }
        names
    }

    fn algorithm(&mut self, fields: &Fields) -> Algorithm {
        let words = Algorithm::NAMED.map(|algorithm| (algorithm.name(), algorithm));
        let named = self.reader.word(fields, "algorithm", &words);
        named.map_or(self.options.default_algorithm, |(_, algorithm)| algorithm)
    }

    fn sync(&mut self, fields: &Fields, algorithm: Algorithm) -> Option<Sync> {
        let (at, sync) = self.reader.word(fields, "sync", &Sync::ALL.map(|sync| (sync.name(), sync)))?;
        if sync == Sync::Leased && !algorithm.is_strict() {
            let name = algorithm.name();
            self.reader.error(at, || {
                format!(
                    "`sync: leased` on {name} (expected sliding_window or sliding_log, the strict algorithms)"
                )
            });
        }
        Some(sync)
    }

    /// N and the parts that belong to one algorithm only.
    fn parts(
        &mut self,
        fields: &Fields,
        algorithm: Algorithm,
        window: Option<Window>,
        requests: Option<u64>,
    ) -> Option<Limit> {
        let granularity = self.granularity(fields, algorithm, window);
        let burst = self.burst(fields, algorithm);
        let (nanos, requests) = (window?.nanos(), requests?);
        let limit = Limit::new(algorithm, requests, nanos);
        let limit = granularity.map_or(limit, |granularity| limit.with_granularity(granularity));
        let limit = burst.map_or(limit, |burst| limit.with_burst(burst));
        self.bounds(fields, &limit, requests);
        Some(limit)
    }

    /// The limit with `carry_debt`, if it says so and can. An error if it cannot.
    fn carry_debt(&mut self, fields: &Fields, unlimited: bool, limit: Option<Limit>) -> Option<Limit> {
        if !self.reader.flag(fields, "carry_debt") {
            return limit;
        }
        let at = self.place(fields, "carry_debt");
        if unlimited {
            let message = "`carry_debt` with `unlimited: true` (expected a limit, whose debts are carried)";
            self.reader.error(at, || message.to_owned());
        }
        let limit = limit?;
        if !limit.can_carry_debt() {
            self.reader.error(at, || match limit.algorithm() {
                algorithm if algorithm.is_strict() => {
                    "`carry_debt` on a window of over 31 days (expected a shorter one, or `period`)"
                        .to_owned()
                }
                algorithm if algorithm.is_bucket() => {
                    format!(
                        "`carry_debt` on {} (expected none: a bucket always carries its debts)",
                        algorithm.name()
                    )
                }
                algorithm => format!(
                    "`carry_debt` on {} (expected sliding_window, sliding_log or `period`)",
                    algorithm.name()
                ),
            });
        }
        Some(limit.carrying_debt())
    }

    /// Refuses numbers that make a counter too large or too slow. They are those of these fields, N before it was clamped.
    pub(super) fn bounds(&mut self, fields: &Fields, limit: &Limit, requests: u64) {
        if limit.algorithm() == Algorithm::SlidingLog && requests > LOG_REQUESTS_MAX {
            let at = self.place(fields, "requests_per_unit");
            self.reader.error(at, || {
                format!("{requests} requests with sliding_log (expected at most {LOG_REQUESTS_MAX}, or sliding_window)")
            });
        }
        if limit.algorithm().is_bucket() {
            self.fill_time(fields, limit.burst(), limit.window_nanos(), requests);
        }
    }

    /// The width of a bucket of `sliding_window`, in nanoseconds.
    fn granularity(&mut self, fields: &Fields, algorithm: Algorithm, window: Option<Window>) -> Option<u64> {
        let (at, text) = self.reader.text(fields, "granularity")?;
        if algorithm != Algorithm::SlidingWindow {
            let name = algorithm.name();
            self.reader
                .error(at, || format!("`granularity` on {name} (expected `algorithm: sliding_window`)"));
        }
        let Some(nanos) = parse_duration_nanos(text).filter(|&nanos| nanos > 0) else {
            self.reader.error(at, || {
                format!("`granularity` is {} (expected a time above 0, such as `1s` or `500ms`)", quote(text))
            });
            return None;
        };
        let window = window?.nanos();
        if nanos > window {
            self.reader
                .error(at, || format!("`granularity` is {} (expected no more than the window)", quote(text)));
        }
        if window > nanos.saturating_mul(BUCKETS_MAX) {
            self.reader.error(at, || {
                format!("`granularity` is {} (expected at least 1/{BUCKETS_MAX} of the window)", quote(text))
            });
        }
        Some(nanos)
    }

    pub(super) fn burst(&mut self, fields: &Fields, algorithm: Algorithm) -> Option<u64> {
        if !algorithm.is_bucket() {
            self.refuse(fields, "burst", || match algorithm {
                Algorithm::Calendar => "`burst` with `period` (expected requests_per_unit alone)".to_owned(),
                _ => format!("`burst` on {} (expected token_bucket or leaky_bucket)", algorithm.name()),
            });
        }
        self.reader.number(fields, "burst", 1..=u64::from(u32::MAX)).map(|(_, burst)| burst)
    }

    /// Refuses a bucket that takes longer to fill than times can hold.
    fn fill_time(&mut self, fields: &Fields, burst: u64, window_nanos: u64, requests: u64) {
        let fill_nanos = u128::from(burst) * u128::from(window_nanos) / u128::from(requests.max(1));
        if requests > 0 && fill_nanos > FILL_NANOS_MAX {
            let at = self.place(fields, "burst");
            self.reader.error(at, || {
                format!("a `burst` of {burst} takes over 500 years to refill (expected a smaller one)")
            });
        }
    }

    /// Reports a field that must not be there.
    pub(super) fn refuse(&mut self, fields: &Fields, name: &str, message: impl FnOnce() -> String) {
        if self.reader.is_given(fields, name) {
            let at = self.place(fields, name);
            self.reader.error(at, message);
        }
    }

    /// Where a field is, else where the limit is.
    pub(super) fn place(&self, fields: &Fields, name: &str) -> Place {
        fields.last(name).map_or(fields.at, |node| self.reader.at(node))
    }
}
