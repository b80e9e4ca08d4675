//! `carry_debt`: what reported costs charge beyond N is paid by later windows and periods. Examples with their exact
//! times, and random sequences compared with an oracle that keeps all hits in a list and looks for each place by trying.

use jiff::ToSpan as _;
use jiff::civil::{Date, Weekday};
use tidegate_engine::limit::{Algorithm, CARRYING_NANOS_MAX, Limit, Verdict};
use tidegate_engine::memory::MemoryStore;
use tidegate_engine::plan::Hits;
use tidegate_engine::rules::{LoadOptions, load};
use tidegate_engine::time::{SECOND_NANOS, Timestamp};

use crate::asking::{at, check, key, plan, small_store, store};
use crate::random::Random;
use crate::rules::{file, loaded, options, refused};
use crate::store_state::moved;

/// A counter holds N, and 16 times N of debts.
const WINDOWS: u64 = 17;

fn ask(store: &MemoryStore, limit: Limit, hits: Hits, reported: bool, now: Timestamp) -> Verdict {
    let mut check = check(limit, key(1), hits);
    check.reported = reported;
    store.apply(&plan([check]), now)[0].expect("a check has a verdict")
}

fn report(store: &MemoryStore, limit: Limit, cost: u64, now: Timestamp) -> Verdict {
    ask(store, limit, Hits::Take(cost), true, now)
}

fn minute(algorithm: Algorithm) -> Limit {
    Limit::new(algorithm, 10, 60 * SECOND_NANOS).carrying_debt()
}

#[test]
fn a_limit_that_carries_is_no_larger() {
    assert_eq!(size_of::<Limit>(), 48);
    let limit = minute(Algorithm::SlidingWindow);
    assert_eq!(limit.buckets(), Limit::new(Algorithm::SlidingWindow, 10, 60 * SECOND_NANOS).buckets());
    assert!(limit.with_granularity(SECOND_NANOS).carries_debt());
}

/// Ten of ten are spent, and 25 are reported: the next three windows pay them, and the third has five left.
#[test]
fn windows_pay_a_debt_one_after_the_other() {
    let (store, log) = (store(), minute(Algorithm::SlidingLog));
    assert!(!store.take(&log, key(1), 10, at(1.0)).over);
    let verdict = report(&store, log, 25, at(1.0));
    assert_eq!((verdict.before, verdict.after, verdict.remaining), (10, 35, 0));
    assert_eq!(verdict.reset_nanos, 180 * SECOND_NANOS);
    for (second, before) in [(60.9, 35), (61.0, 25), (120.9, 25), (121.0, 15), (180.999_999_999, 15)] {
        let verdict = store.take(&log, key(1), 1, at(second));
        assert_eq!((verdict.over, verdict.before), (true, before), "at {second}");
    }
    let taken = [5, 1].map(|hits| store.take(&log, key(1), hits, at(181.0)).over);
    assert_eq!(taken, [false, true]);
    assert_eq!(store.take(&log, key(1), 1, at(181.0)).reset_nanos, 60 * SECOND_NANOS);
}

/// The same without the key: the debt ends with the window of the report.
#[test]
fn without_the_key_a_debt_ends_with_its_window() {
    let (store, log) = (store(), Limit::new(Algorithm::SlidingLog, 10, 60 * SECOND_NANOS));
    report(&store, log, 35, at(1.0));
    assert_eq!(store.take(&log, key(1), 0, at(61.0)).remaining, 10);
}

/// A rule that loses the key keeps the debts that are there: the counter is the same.
#[test]
fn a_debt_outlives_a_change_of_the_rule() {
    for algorithm in [Algorithm::SlidingLog, Algorithm::SlidingWindow] {
        let (store, carrying) = (store(), minute(algorithm));
        report(&store, carrying, 25, at(1.0));
        let plain = Limit::new(algorithm, 20, 60 * SECOND_NANOS);
        assert!(!store.take(&plain, key(1), 5, at(70.0)).over, "N has become larger");
        assert_eq!(store.take(&plain, key(1), 0, at(100.0)).before, 20);
        // The five count as long as the newest debt.
        assert_eq!(store.take(&plain, key(1), 0, at(170.0)).before, 10);
        assert_eq!(store.take(&plain, key(1), 0, at(190.0)).before, 0);
    }
}

/// Debts of the longest windows fit into what a counter keeps, and so do those of the finest buckets.
#[test]
fn a_counter_holds_17_times_n() {
    let month = CARRYING_NANOS_MAX;
    let limits = [
        Limit::new(Algorithm::SlidingLog, 10, month),
        Limit::new(Algorithm::SlidingWindow, 10, month),
        Limit::new(Algorithm::SlidingWindow, 10, month).with_granularity(month),
        Limit::new(Algorithm::SlidingWindow, 10, month).with_granularity(1),
        Limit::new(Algorithm::Calendar, 10, month),
    ];
    for limit in limits.map(Limit::carrying_debt) {
        let (mut store, begin) = (store(), Timestamp::from_secs(1_790_000_000));
        let verdict = report(&store, limit, 200, begin);
        assert_eq!(verdict.after, 200);
        assert_eq!(store.take(&limit, key(1), 0, begin).before, 170, "{limit:?}");
        assert_eq!(report(&store, limit, 1, begin).before, 170);
        store = moved(&store, small_store(), begin);
        // A larger N takes more, and nothing is further ahead for it.
        report(&store, limit.with_requests(20), 1_000, begin);
        assert_eq!(store.take(&limit, key(1), 0, begin).before, 340, "{limit:?}");
        for window in 0..40 {
            let now = begin.plus(window * month);
            store = moved(&store, small_store(), now);
            let before = store.take(&limit, key(1), 0, now).before;
            assert!(before == 0 || window < 37, "{before} after {window} windows by {limit:?}");
            while !store.sweep(now).round_done {}
        }
        assert_eq!(store.counters(), 0, "{limit:?}");
    }
}

/// Where more counts than debts may be, because N has become smaller, a cost still counts for a window.
#[test]
fn a_cost_that_is_not_carried_counts() {
    for algorithm in [Algorithm::SlidingLog, Algorithm::SlidingWindow] {
        let (store, limit) = (store(), minute(algorithm));
        assert!(!store.take(&limit.with_requests(1_000), key(1), 300, at(1.0)).over);
        assert_eq!(report(&store, limit, 20, at(50.0)).before, 300);
        for (second, before) in [(60.0, 310), (65.0, 10), (109.0, 10), (115.0, 0)] {
            let verdict = store.take(&limit, key(1), 0, at(second));
            assert_eq!((verdict.over, verdict.before), (before > 0, before), "at {second} by {algorithm:?}");
        }
    }
}

/// What counts by definition: hits at places, which are times, or buckets of so many nanoseconds.
#[derive(Clone, Debug)]
struct Naive {
    window: u64,
    bucket: Option<u64>,
    n: u64,
    latest: u64,
    /// (place, hits), in order.
    hits: Vec<(u64, u64)>,
}

impl Naive {
    fn place(&self, time: u64) -> u64 {
        self.bucket.map_or(time, |bucket| time / bucket)
    }

    /// When hits at a place stop to count.
    fn until(&self, place: u64) -> u64 {
        self.bucket.map_or(place, |bucket| (place + 1) * bucket) + self.window
    }

    fn sum(&self, counts: impl Fn(u64) -> bool) -> u64 {
        self.hits.iter().filter(|&&(place, _)| counts(place)).map(|&(_, hits)| hits).sum()
    }

    fn count(&self, time: u64) -> u64 {
        self.sum(|place| self.until(place) > time)
    }

    /// The hits that are still there at a place.
    fn count_at(&self, at: u64) -> u64 {
        self.sum(|place| self.place(self.until(place)) > at)
    }

    fn newest(&self) -> u64 {
        self.hits.last().map_or(0, |&(place, _)| place)
    }

    fn put(&mut self, place: u64, hits: u64, entries_max: u64) {
        let mut entries: Vec<u64> = self.hits.iter().map(|&(place, _)| place).collect();
        entries.dedup();
        // A log has so many times; further hits move the newest.
        if self.bucket.is_none() && entries.len() as u64 >= entries_max && !entries.is_empty() {
            let newest = self.newest();
            self.hits.iter_mut().filter(|hit| hit.0 == newest).for_each(|hit| hit.0 = place.max(newest));
        }
        let place = place.max(self.newest());
        if hits > 0 {
            self.hits.push((place, hits));
        }
    }

    fn report(&mut self, cost: u64) {
        let n = self.n.max(1);
        let now = self.place(self.latest);
        let room = (WINDOWS * n).saturating_sub(self.count(self.latest));
        let uncarried = n.saturating_sub(self.sum(|place| place >= now));
        let mut left = cost.min(room);
        let beyond = if room < n { cost.min(uncarried).saturating_sub(left) } else { 0 };
        let ahead = |windows: u64, it: &Self| match it.bucket {
            None => it.latest + windows * it.window,
            Some(bucket) => it.latest / bucket + windows * (it.window / bucket + 1),
        };
        let last = ahead(WINDOWS, self);
        let mut place = self.place(self.latest).max(self.newest());
        let mut piece = left.min(n.saturating_sub(self.count_at(place)));
        loop {
            if piece > 0 {
                self.put(place, piece, self.n.max(1) + 19);
            }
            left -= piece;
            if left == 0 {
                break;
            }
            piece = left.min(n);
            let later = self.hits.iter().map(|&(place, _)| self.place(self.until(place)));
            let mut places: Vec<u64> = later.filter(|&later| later > place).collect();
            places.sort_unstable();
            let fits = places.into_iter().find(|&later| self.count_at(later) + piece <= n);
            place = fits.unwrap_or(u64::MAX).min(last).max(place);
        }
        if beyond > 0 {
            self.put(place, beyond, self.n.max(1) + 19);
        }
    }

    fn wait(&self, hits: u64) -> u64 {
        let mut times: Vec<u64> = self.hits.iter().map(|&(place, _)| self.until(place)).collect();
        times.push(self.latest);
        times.sort_unstable();
        let fits = |&&time: &&u64| time >= self.latest && self.count(time) + hits <= self.n;
        if hits > self.n { self.window } else { times.iter().find(fits).map_or(0, |time| time - self.latest) }
    }

    fn answer(&mut self, now: u64, hits: Hits, reported: bool) -> [u64; 5] {
        // A counter that is not there has seen no time.
        let is_there = !self.hits.is_empty();
        self.latest = if is_there { self.latest.max(now) } else { now };
        let (latest, (taken, mut back)) = (
            self.latest,
            match hits {
                Hits::Take(hits) => (hits, 0),
                Hits::GiveBack(hits) => (0, hits),
            },
        );
        let gone: Vec<bool> = self.hits.iter().map(|&(place, _)| self.until(place) <= latest).collect();
        let mut gone = gone.into_iter();
        self.hits.retain(|_| !gone.next().expect("one for each"));
        for hit in &mut self.hits {
            let taken = back.min(hit.1);
            (hit.1, back) = (hit.1 - taken, back - taken);
        }
        self.hits.retain(|hit| hit.1 > 0);
        let before = self.count(latest);
        let over = before + taken.max(1) > self.n;
        match (over, reported) {
            (false, _) => self.put(self.place(latest), taken, self.n.max(1)),
            (true, true) => self.report(taken),
            (true, false) => {}
        }
        let left = self.n.saturating_sub(self.count(latest));
        let reset = match (over, self.hits.is_empty()) {
            (true, _) => self.wait(if reported { 1 } else { taken.max(1) }),
            (false, true) => 0,
            (false, false) => self.wait(left + 1).min(if left == self.n { 0 } else { u64::MAX }),
        };
        [u64::from(over), before, before + taken, left, reset]
    }
}

#[test]
fn debts_of_windows_are_as_defined() {
    let mut carried = 0;
    for seed in 0..6_000 {
        let (mut random, mut store) = (Random(seed), small_store());
        let bucket = random.pick(&[None, Some(1), Some(7), Some(10), Some(60)]);
        let (window, n) = (60, 1 + random.below(12));
        let limit = |n: u64| match bucket {
            None => Limit::new(Algorithm::SlidingLog, (n as u32).into(), window),
            Some(bucket) => {
                Limit::new(Algorithm::SlidingWindow, (n as u32).into(), window).with_granularity(bucket)
            }
        };
        let mut naive = Naive { window, bucket, n, latest: 0, hits: Vec::new() };
        let (mut now, mut history) = (1_000 + random.below(60), Vec::new());
        for _ in 0..1 + random.below(40) {
            now += random.pick(&[0, 0, 1, 3, 20, 60, 61, 200]);
            if random.one_in(12) {
                naive.n = random.below(15);
            }
            if random.one_in(8) {
                store = moved(&store, small_store(), Timestamp::from_nanos(now));
            }
            let n = naive.n;
            let hits = random.pick(&[0, 1, 1, 2, n, n / 2 + 1, n + 1, 3 * n, 20 * n]);
            let gives = random.one_in(9);
            let hits = if gives { Hits::GiveBack(hits) } else { Hits::Take(hits) };
            let reported = !gives && hits != Hits::Take(0) && random.one_in(2);
            history.push((now, hits, reported, n));
            let is = ask(&store, limit(n).carrying_debt(), hits, reported, Timestamp::from_nanos(now));
            let should = naive.answer(now, hits, reported);
            let is = [u64::from(is.over), is.before, is.after, is.remaining, is.reset_nanos];
            assert_eq!(is, should, "seed {seed}, buckets of {bucket:?}: {history:?}\n{naive:?}");
            carried += u64::from(naive.newest() > naive.place(now));
        }
    }
    assert!(carried > 30_000, "{carried}");
}

/// Whenever a hit passes, all that was charged in the k windows since the first is at most N × (k + 1).
#[test]
fn in_the_long_run_n_a_window_is_charged() {
    let (mut passed, mut most) = (0, 0);
    for seed in 0..1_500 {
        let mut random = Random(seed);
        let (window, n) = (6_000, 1 + random.below(30));
        let bucket = random.pick(&[None, Some(100), Some(700)]);
        let limit = match bucket {
            None => Limit::new(Algorithm::SlidingLog, (n as u32).into(), window),
            Some(bucket) => {
                Limit::new(Algorithm::SlidingWindow, (n as u32).into(), window).with_granularity(bucket)
            }
        };
        let (store, limit, begin) = (small_store(), limit.carrying_debt(), 700_000 + random.below(700));
        let (mut now, mut charged) = (begin, 0);
        for _ in 0..300 {
            now += random.below(window / 20);
            let time = Timestamp::from_nanos(now);
            let verdict = store.take(&limit, key(1), 1, time);
            if verdict.over {
                continue;
            }
            charged += 1;
            (passed, most) = (passed + 1, most.max(charged * window / (n * (now - begin + window))));
            assert!(charged <= n * ((now - begin) / window + 1), "seed {seed} at {now}: {charged} of {n}");
            // The cost of the call, and of others that were under way.
            for _ in 0..random.below(3) {
                let cost = random.below(n + 2);
                report(&store, limit, cost, time);
                charged += cost;
            }
        }
    }
    assert!(passed > 10_000, "{passed}");
}

/// A day in Berlin of ten hits: 25 at once are paid by three days.
#[test]
fn periods_pay_a_debt_one_after_the_other() {
    let text = "domain: d\ndescriptors: [{key: k, rate_limit: {period: {calendar: day, tz: Europe/Berlin}, \
                requests_per_unit: 10, carry_debt: true}}]";
    let day = loaded(text).rules.rules()[0].limit.expect("a limit");
    let time = |text: &str| {
        Timestamp::from_secs(text.parse::<jiff::Timestamp>().expect("a time").as_second() as u64)
    };
    let mut store = store();
    let verdict = report(&store, day, 25, time("2026-10-23T12:00:00Z"));
    assert_eq!((verdict.after, verdict.remaining), (25, 0));
    // Two days on: the 25th has 25 hours, but it begins as any other.
    assert_eq!(verdict.reset_nanos, (34 * 3_600) * SECOND_NANOS);
    for (now, before) in [
        ("2026-10-23T21:59:59Z", 25),
        ("2026-10-23T22:00:00Z", 15),
        ("2026-10-24T21:59:59Z", 15),
        ("2026-10-24T22:00:00Z", 5),
        ("2026-10-25T22:59:59Z", 5),
        ("2026-10-25T23:00:00Z", 0),
    ] {
        store = moved(&store, small_store(), time(now));
        assert_eq!(store.take(&day, key(1), 0, time(now)).before, before, "{now}");
    }
    // Nobody asks while several days pass.
    report(&store, day, 45, time("2026-12-30T12:00:00Z"));
    assert_eq!(store.take(&day, key(1), 0, time("2027-01-02T12:00:00Z")).before, 15);
    assert_eq!(store.take(&day, key(1), 3, time("2027-01-03T12:00:00Z")).remaining, 2);
    assert_eq!(store.take(&day, key(1), 0, time("2027-01-03T23:00:00Z")).before, 0);
}

/// The begins of a calendar's periods in UTC, by civil dates.
fn begins(calendar: &str) -> Vec<u64> {
    let first = Date::constant(2023, 1, 1);
    let step = match calendar {
        "day" => 1.day(),
        "week" => 1.week(),
        "month" => 1.month(),
        "quarter" => 3.months(),
        _ => 1.year(),
    };
    let first =
        if calendar == "week" { first.nth_weekday(1, Weekday::Monday).expect("a Monday") } else { first };
    let dates = first.series(step).take(60);
    dates.map(|date| date.in_tz("UTC").expect("a day").timestamp().as_second() as u64).collect()
}

#[test]
fn debts_of_periods_are_as_defined() {
    for seed in 0..2_000 {
        let (mut random, mut store) = (Random(seed), small_store());
        let calendar = random.pick(&["day", "week", "month", "quarter", "year"]);
        let text = format!(
            "domain: d\ndescriptors: [{{key: k, rate_limit: {{period: {{calendar: {calendar}}}, \
             requests_per_unit: 10, carry_debt: true}}}}]"
        );
        let (mut limit, begins) = (loaded(&text).rules.rules()[0].limit.expect("a limit"), begins(calendar));
        let length = begins[1] - begins[0];
        let (mut n, mut now, mut count, mut period, mut fitted) = (10, begins[0], 0_u64, 0, 0);
        let (mut kept_by, mut seen_period) = (10, 0);
        while now < begins[57] - 20 * length {
            let other = random.pick(&[1, 3, 10]);
            // A counter remembers the debts of 16 periods.
            if random.one_in(6) && count <= 16 * other {
                n = other;
            }
            now += random.pick(&[0, 1, length / 3, length, 2 * length]);
            while begins[period + 1] <= now {
                // What fitted by a larger N is no debt.
                count = count.saturating_sub(n.max(fitted));
                (period, fitted) = (period + 1, 0);
            }
            limit = limit.with_requests((n as u32).into());
            let time = Timestamp::from_secs(now);
            // A counter is kept until its debt is paid by the N of its last change.
            if n == kept_by && random.one_in(8) {
                store = moved(&store, small_store(), time);
            }
            let (hits, reported) = (1 + random.below(3 * n), random.one_in(3));
            let hits = if random.one_in(20) { 17 * n } else { hits };
            let is = ask(&store, limit, Hits::Take(hits), reported, time);
            let over = count + hits > n;
            if period != seen_period || !over || reported {
                (seen_period, kept_by) = (period, n);
            }
            assert_eq!((is.before, is.over), (count, over), "seed {seed}, {calendar} at {now}");
            if !over || reported && count < 17 * n {
                (count, fitted) = ((count + hits).min(17 * n), n.max(fitted));
            }
            assert_eq!(is.remaining, n.saturating_sub(count), "seed {seed}, {calendar} at {now}");
            let wanted = if reported { 1 } else { hits.min(n) };
            let (mut rest, mut pays, mut ends) = (count, n.max(fitted), 1);
            while over && rest.saturating_sub(pays) + wanted > n && ends < 17 {
                (rest, pays, ends) = (rest.saturating_sub(pays), n, ends + 1);
            }
            let open = begins[period + ends];
            assert_eq!(is.reset_nanos, (open - now) * SECOND_NANOS, "seed {seed}, {calendar} at {now}");
        }
    }
}

#[test]
fn only_windows_and_periods_carry_debts() {
    let rule = |says: &str| {
        format!("domain: d\ndescriptors: [{{key: k, rate_limit: {{{says}, carry_debt: true}}}}]")
    };
    let minute =
        |algorithm: &str| rule(&format!("unit: minute, requests_per_unit: 5, algorithm: {algorithm}"));
    for (text, expected) in [
        (minute("fixed_window"), "on fixed_window (expected sliding_window, sliding_log or `period`)"),
        (
            minute("sliding_window_weighted"),
            "on sliding_window_weighted (expected sliding_window, sliding_log or `period`)",
        ),
        (minute("token_bucket"), "on token_bucket (expected none: a bucket always carries its debts)"),
        (minute("leaky_bucket"), "on leaky_bucket (expected none: a bucket always carries its debts)"),
        (rule("unlimited: true"), "with `unlimited: true` (expected a limit, whose debts are carried)"),
        (
            rule("window: 745h, requests_per_unit: 5"),
            "on a window of over 31 days (expected a shorter one, or `period`)",
        ),
    ] {
        let [only] = refused(&text).try_into().expect("one error");
        let column = text.lines().nth(1).expect("a line").find("true}}").expect("a value") + 1;
        let column = text.lines().nth(1).and_then(|line| line.rfind("true}}")).map_or(column, |at| at + 1);
        assert_eq!(only, format!("2:{column}: `carry_debt` {expected}"));
    }
    let loaded = load(&[file("a.yaml", minute("sliding_log"))], &LoadOptions::strict(options(), true));
    let limit = loaded.expect("it loads").rules.rules()[0].limit.expect("a limit");
    assert!(limit.carries_debt());
    assert_eq!(limit.counts("minute").to_string(), "5 per minute, carry_debt");
    let in_slots =
        "domain: d\ndescriptors: [{key: k, concurrency: {slots: 5, ttl: 1h, id: i, carry_debt: true}}]";
    assert!(
        refused(in_slots)[0].contains("unknown key `carry_debt` in `concurrency`"),
        "{:?}",
        refused(in_slots)
    );
}

/// A bucket pays its debts by itself: N a window drain, and nothing passes before.
#[test]
fn a_bucket_carries_its_debts() {
    let (store, bucket) = (store(), Limit::new(Algorithm::TokenBucket, 10, 60 * SECOND_NANOS));
    let verdict = report(&store, bucket, 35, at(0.0));
    assert_eq!(verdict.reset_nanos, 26 * 6 * SECOND_NANOS);
    assert!(
        store.take(&bucket, key(1), 1, at(155.9)).over && !store.take(&bucket, key(1), 1, at(156.0)).over
    );
}
