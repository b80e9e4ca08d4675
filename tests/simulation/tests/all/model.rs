//! The model of Redis is held to the real one: the same random calls of the real scripts, every byte of every reply, and
//! the state of every key afterwards. The model of the scripts is held to the scripts in the same calls.

#[allow(dead_code, reason = "the suite of the scripts needs more of it")]
#[path = "../../../../crates/redis/tests/redis/server.rs"]
mod server;

use redis::{ConnectionLike as _, Value};
use tidegate_engine::key::Key;
use tidegate_engine::limit::{Algorithm, BanTerms, HoldTerms, Limit, Share, Slot};
use tidegate_engine::plan::{Candidate, Check, Hits, Origin, ReservationStep};
use tidegate_engine::rules::Unit;
use tidegate_engine::unit::Window;
use tidegate_redis::script::{
    Call, ChargeId, Clock, DataId, Lost, Purpose, RequestSummary, cold_argument, source,
};
use tidegate_simulation::random::Random;
use tidegate_simulation::redis::database::{Database, Reply};
use tidegate_simulation::redis::scripts::{RunBy, Scripts};

use server::Server;

const SECOND: u64 = 1_000_000;
const TODAY: u64 = 1_790_000_000 * SECOND;
/// Expiry is moved by so many milliseconds, so that no key goes in the real server while the suite's time stands still.
const SHIFT_MILLIS: u64 = 100 * 366 * 86_400_000;
const GENERATION: &str = "generation";

/// The real server and the model, asked the same.
struct Both {
    real: redis::Connection,
    scripts: Scripts,
    database: Database,
    scripts_run_by: RunBy,
    /// With COLD_START=deny: the mark of the server, and what calls say of it.
    cold: Option<Cold>,
}

struct Cold {
    mark: Vec<u8>,
    argument: Vec<u8>,
    is_named: bool,
}

impl Both {
    fn call(&mut self, purpose: Purpose, call: &Call, deadline: u64, now: u64) -> Reply {
        self.call_all(purpose, &call.keys, arguments(call, deadline), now)
    }

    fn call_all(&mut self, purpose: Purpose, keys: &[Vec<u8>], arguments: Vec<Vec<u8>>, now: u64) -> Reply {
        let (mut keys, mut arguments) = (keys.to_vec(), arguments);
        let lost = if self.cold.is_some() { Lost::Deny } else { Lost::Allow };
        if let Some(cold) = self.cold.as_ref().filter(|_| purpose != Purpose::GiveBack) {
            keys.extend(cold.is_named.then(|| cold.mark.clone()));
            arguments.push(cold.argument.clone());
        }
        let text = source(purpose, Clock::Arguments, lost);
        let times = [now.to_string().into_bytes(), SHIFT_MILLIS.to_string().into_bytes()];
        let mut command = redis::cmd("EVAL");
        command.arg(&text).arg(keys.len()).arg(&keys).arg(&arguments).arg(&times);
        let real = self.real.req_command(&command);
        let name = self.scripts.load(&text).expect("a script of ours");
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let arguments: Vec<&[u8]> = arguments.iter().chain(&times).map(Vec::as_slice).collect();
        let model =
            self.scripts.run(self.scripts_run_by, &name, (&keys, &arguments), &mut self.database, now);
        assert_eq!(model, expected(real), "the model is left, the real one is right");
        model
    }

    fn same_state(&mut self, key: &[u8]) {
        self.same(&[b"TYPE", key]);
        self.same(&[b"PEXPIRETIME", key]);
        match self.database.run(TODAY, &[b"TYPE", key]) {
            Reply::Status("string") => self.same(&[b"GET", key]),
            Reply::Status("list") => self.same(&[b"LRANGE", key, b"0", b"-1"]),
            Reply::Status("zset") => self.same(&[b"ZRANGE", key, b"0", b"-1", b"WITHSCORES"]),
            _ => {}
        }
    }

    fn same(&mut self, command: &[&[u8]]) {
        let mut asked = redis::cmd(std::str::from_utf8(command[0]).expect("a name"));
        command[1..].iter().for_each(|part| _ = asked.arg(part));
        let real = self.real.req_command(&asked);
        assert_eq!(self.database.run(TODAY, command), expected(real), "{command:?}");
    }
}

/// What the model has to answer.
fn expected(real: redis::RedisResult<Value>) -> Reply {
    match real {
        Ok(Value::Nil) => Reply::Nil,
        Ok(Value::Okay) => Reply::Status("OK"),
        Ok(Value::SimpleString(text)) => match &*text {
            "string" => Reply::Status("string"),
            "list" => Reply::Status("list"),
            "zset" => Reply::Status("zset"),
            _ => Reply::Status("none"),
        },
        Ok(Value::Int(number)) => Reply::Int(number),
        Ok(Value::BulkString(bytes)) => Reply::Bulk(bytes),
        Ok(Value::Array(values)) => {
            Reply::Array(values.into_iter().map(|value| expected(Ok(value))).collect())
        }
        other => panic!("the real one says {other:?}"),
    }
}

/// All but `holds`, which are never asked without their limit.
const ALGORITHMS: [Algorithm; Algorithm::ALL.len() - 1] =
    *Algorithm::ALL.first_chunk().expect("it is shorter by one");

fn limit(random: &mut Random) -> Limit {
    // Several windows in one call are renewed.
    let algorithm = if random.one_in(3) { Algorithm::SlidingWindow } else { random.pick(&ALGORITHMS) };
    let window = random.pick(&[1, 7, 60, 1_000, SECOND, 60 * SECOND, 3_600 * SECOND]);
    let requests = random.pick(&[0, 1, 2, 5, 20, 1_000]);
    let limit = match algorithm {
        Algorithm::Concurrency => Limit::concurrency(requests, window * 1_000),
        Algorithm::Ban => ban(random, requests, window),
        _ => Limit::new(algorithm, requests.into(), window * 1_000),
    };
    let limit = if random.one_in(2) { limit.carrying_debt() } else { limit };
    if algorithm.is_bucket() { limit.with_burst(random.pick(&[1, requests.max(1).into(), 9])) } else { limit }
}

fn ban(random: &mut Random, strikes: u32, window: u64) -> Limit {
    let first_secs = 1 + random.below(100) as u32;
    Limit::ban(&BanTerms {
        strikes: strikes.max(1),
        within_nanos: window * 1_000,
        every_nanos: random.pick(&[0, window / 7, window / 3]) * 1_000,
        first_secs,
        longest_secs: first_secs * random.pick(&[1, 1, 2, 5, 1_000]),
    })
}

fn check(random: &mut Random, limit: Limit) -> Check<'static> {
    let (hits, gives) = (random.pick(&[0, 1, 1, 1, 2, 5, 21]), random.one_in(6));
    if limit.algorithm() == Algorithm::Concurrency {
        let limit = limit.for_slot(Slot::of(1 + random.below(4), random.below(2)));
        let hits = if gives { Hits::GiveBack(0) } else { Hits::Take(1) };
        return Check { hits, shadow: random.one_in(8), ..asks(limit) };
    }
    if limit.algorithm() == Algorithm::Ban {
        // Requests ask, strikes come one at a time, and an operator begins or lifts a ban.
        let at_once = limit.requests().max(2);
        let hits = Hits::Take(random.pick(&[0, 0, 1, 1, 1, 1, at_once]));
        let hits = if gives { Hits::GiveBack(1) } else { hits };
        return Check { hits, shadow: random.one_in(8), ..asks(limit) };
    }
    let share = random.pick(&["1", "1", "0.85", "0.5", "0.000001"]);
    let has_classes = limit.algorithm() != Algorithm::FixedWindow;
    let limit = if has_classes { limit.with_share(Share::parse(share).expect("a share")) } else { limit };
    Check {
        hits: if gives { Hits::GiveBack(hits) } else { Hits::Take(hits) },
        reported: !gives && hits > 0 && random.one_in(5),
        shadow: random.one_in(8),
        quota: random.one_in(8),
        ..asks(limit)
    }
}

/// Other numbers for one of the counters.
fn change(random: &mut Random, counters: &mut [Counter]) {
    let place = random.below(counters.len() as u64) as usize;
    let (requests, burst) = (random.pick(&[0, 1, 5, 20, 1_000]), random.pick(&[None, Some(1), Some(9)]));
    counters[place].limit = counters[place].limit.with_numbers(Some(requests), burst);
}

/// A check that takes nothing.
fn asks(limit: Limit) -> Check<'static> {
    let origin = Origin::Override { window: Window::of(Unit::Second) };
    Check::new(origin, limit, Key(0), Hits::Take(0))
}

/// A counter, and its holds, if its limit has `reserve`.
#[derive(Clone)]
struct Counter {
    key: Vec<u8>,
    limit: Limit,
    holds: Option<Limit>,
}

impl Counter {
    fn new(random: &mut Random, seed: u64, number: u64) -> Self {
        let (key, limit) = (format!("{seed}:{number}").into_bytes(), limit(random));
        let may_hold = !matches!(limit.algorithm(), Algorithm::Concurrency | Algorithm::Ban);
        // Some holds need not be the worst case.
        let holds = (may_hold && random.one_in(2)).then(|| {
            let window = limit.window_nanos();
            let after = u32::try_from(limit.remembered_nanos().div_ceil(1_000_000_000)).unwrap_or(u32::MAX);
            Limit::holds(&HoldTerms {
                ttl_nanos: random.pick(&[window, 4 * window, (window / 3_000).max(1) * 1_000]),
                after_secs: random.pick(&[0, after]),
                periods: None,
                worst: random.pick(&[0, 1]),
                share: Share::with_overdraft(random.pick(&["0", "0.5", "3"])).expect("an overdraft"),
            })
        });
        Self { key, limit, holds }
    }

    fn holds_key(&self) -> Vec<u8> {
        [&self.key[..], b"h"].concat()
    }
}

/// What a call does about reservations. The numbers are those of attempts.
#[derive(Clone, Copy)]
enum Reserving {
    Nothing,
    Reserve(Slot),
    Commit(Slot),
}

impl Reserving {
    fn drawn(random: &mut Random) -> Self {
        let slot = Slot::of(1 + random.below(4), random.below(2));
        random.pick(&[Self::Nothing, Self::Reserve(slot), Self::Reserve(slot), Self::Commit(slot)])
    }

    /// Makes the check of a limit that of its reservation, of a call that costs no more than `worst`. Returns the check of its
    /// holds.
    fn checks(self, limited: &mut Check<'static>, holds: Limit, worst: u32) -> Check<'static> {
        let Hits::Take(hits) = limited.hits else { return asks(holds) };
        match self {
            Self::Nothing => asks(holds),
            Self::Reserve(slot) => {
                let of = holds.hold_terms().filter(|terms| terms.worst > 0);
                let holds = of.map_or(holds, |terms| Limit::holds(&HoldTerms { worst, ..terms }));
                let hits = Hits::Take(hits.max(1));
                (limited.hits, limited.reported) = (hits, false);
                limited.reservation = ReservationStep::Hold;
                Check { hits, ..asks(holds.for_slot(slot)) }
            }
            Self::Commit(slot) => {
                (limited.reported, limited.reservation) = (true, ReservationStep::Commit);
                let limit = holds.for_slot(slot).ending_hold();
                Check { hits: Hits::Take(hits + 1), reported: true, ..asks(limit) }
            }
        }
    }
}

/// The check that bounds the worst cases of a limit, if these holds need not be that.
fn bound(limited: &Check<'static>, holds: &Check<'static>) -> Option<Check<'static>> {
    let terms = holds.limit.hold_terms().filter(|terms| terms.worst > 0)?;
    let Hits::Take(asked) = limited.hits else { return None };
    let hits = if limited.reservation == ReservationStep::Hold { terms.worst.into() } else { asked };
    let (limit, reservation) = (limited.limit.with_share(terms.share), ReservationStep::Bound);
    (!limited.reported).then_some(Check { limit, hits: Hits::Take(hits), reservation, ..*limited })
}

/// A server that may have lost what it counted before about now.
fn cold(random: &mut Random, seed: u64, now: u64) -> Cold {
    let mark = format!("mark:{seed}").into_bytes();
    let complete_since = now - random.below(2 * SECOND);
    let argument = cold_argument(random.pick(&[0, SECOND, 3_600 * SECOND]), 100_000, complete_since, &mark);
    Cold { mark, argument, is_named: random.one_in(2) }
}

/// A charge that may go back.
type Charge = (Vec<u8>, Limit, ChargeId, u64);

/// Calls of all four scripts on a few counters.
fn sequence(both: &mut Both, seed: u64) {
    let mut random = Random::new(seed);
    let mut counters: Vec<Counter> =
        (0..1 + random.below(3)).map(|number| Counter::new(&mut random, seed, number)).collect();
    let mut now = TODAY + random.below(SECOND);
    // The buckets of shorter windows have numbers beyond 2^53, which scripts round.
    let is_modelled = counters.iter().all(|counter| counter.limit.window_nanos() >= 12_000);
    both.scripts_run_by = if is_modelled { RunBy::Both } else { RunBy::Lua };
    both.cold = random.one_in(3).then(|| cold(&mut random, seed, now));
    let mut charges: Vec<Charge> = Vec::new();
    for _ in 0..1 + random.below(30) {
        let window = random.pick(&counters).limit.window_nanos() / 1_000;
        now += random.pick(&[0, 1, window / 10, window, 2 * window]);
        // A mark may be later than a clock that is set back.
        if both.cold.is_some() && random.one_in(5) {
            now -= random.below(SECOND);
        }
        if random.one_in(6) {
            change(&mut random, &mut counters);
        }
        let late = random.one_in(20);
        let deadline = if late { now - 1 } else { now + SECOND };
        match random.below(8) {
            0 if !charges.is_empty() => {
                let memory = DataId { key: GENERATION.into(), generation: b"one".to_vec(), connection: 1 };
                let mut call = Call::giving_back(&memory);
                let (key, limit, stamp, hits) =
                    charges.swap_remove(random.below(charges.len() as u64) as usize);
                call.push_give_back(key, &limit, stamp, 1 + random.below(hits));
                both.call(Purpose::GiveBack, &call, deadline, now);
            }
            1 => {
                let mut calls = Vec::new();
                for _ in 0..2 + random.below(3) {
                    let Counter { key, limit, .. } = random.pick(&counters);
                    let mut call = Call::new(&RequestSummary::default());
                    call.push(key, &check(&mut random, limit), false);
                    calls.push(call);
                }
                let keys: Vec<Vec<u8>> = calls.iter().map(|call| call.keys[0].clone()).collect();
                let arguments: Vec<Vec<u8>> =
                    calls.iter().flat_map(|call| arguments(call, deadline)).collect();
                both.call_all(Purpose::DecideEach, &keys, arguments, now);
            }
            2 => {
                let mut call = Call::new(&RequestSummary::default());
                for Counter { key, limit, .. } in
                    counters.iter().filter(|it| it.limit.algorithm().is_strict())
                {
                    call.push(key.clone(), &asks(*limit), false);
                    call.lease(1 + random.below(20), 100_000);
                }
                let purpose = if call.only_renews() { Purpose::Renew } else { Purpose::Decide };
                both.call(purpose, &call, deadline, now);
            }
            _ => charges.extend(decide(both, &mut random, &counters, (deadline, now))),
        }
    }
    for counter in &counters {
        both.same_state(&counter.key);
        both.same_state(&counter.holds_key());
    }
    if let Some(Cold { mark, .. }) = both.cold.take() {
        both.same(&[b"GET", &mark]);
    }
}

/// A request of some counters, their holds, and candidates. Returns what was charged.
fn decide(
    both: &mut Both,
    random: &mut Random,
    counters: &[Counter],
    (deadline, now): (u64, u64),
) -> Vec<Charge> {
    let mut call = Call::new(&RequestSummary { any_over: random.one_in(9), ..RequestSummary::default() });
    let (mut asked, mut holds) = (Vec::new(), Vec::new());
    let reserving = Reserving::drawn(random);
    for place in 0..1 + random.below(3) as usize {
        let counter = random.pick(counters);
        let window = counter.limit.window_nanos() / 1_000;
        let mut check = check(random, counter.limit);
        if let Some(of) = counter.holds {
            let worst = random.pick(&[1, 2, 5, 40, 1_000]);
            let holding = reserving.checks(&mut check, of, worst);
            holds.push((place, counter.holds_key(), holding, bound(&check, &holding)));
        }
        call.push(counter.key.clone(), &check, false);
        if counter.limit.algorithm().is_strict() && random.one_in(3) {
            call.lease(1 + random.below(20), 100_000);
        }
        if random.one_in(6) {
            call.add_unsynced((random.below(window + 1), 1 + random.below(5)));
        }
        asked.push((counter.key, check));
    }
    let steps = asked.len() as u64;
    for (place, key, check, bound) in holds {
        let at = bound.map(|bound| {
            call.push(asked[place].0.clone(), &bound, false);
            asked.push((asked[place].0.clone(), bound));
            asked.len() - 1
        });
        call.push(key.clone(), &check, false);
        call.holds_of(place, at);
        asked.push((key, check));
    }
    for _ in 0..random.pick(&[0, 0, 1, 3]) {
        let Counter { key, limit, .. } = random.pick(counters);
        let (step, rule) = (random.below(steps) as usize, random.below(2) as usize);
        let candidate = Candidate { step, rule, check: check(random, limit) };
        call.push_candidate(key, &candidate, false, step);
    }
    charged(&both.call(Purpose::Decide, &call, deadline, now), &asked)
}

fn arguments(call: &Call, deadline: u64) -> Vec<Vec<u8>> {
    std::iter::once(call.first_arg(deadline).to_vec())
        .chain(call.args_until(deadline).iter().cloned())
        .collect()
}

/// What was charged, with the stamps under which it would go back.
fn charged(reply: &Reply, asked: &[(Vec<u8>, Check<'static>)]) -> Vec<Charge> {
    let Reply::Bulk(reply) = reply else { return Vec::new() };
    let numbers = tidegate_redis::script::numbers(reply).expect("a reply of ours");
    let checks = asked.iter().map(|(_, check)| check);
    let Some(answered) = tidegate_redis::script::Answered::read(&numbers, checks) else { return Vec::new() };
    let counters = asked.iter().zip(answered.counters);
    counters
        .filter(|(_, counter)| counter.charged > 0)
        .map(|((key, check), counter)| (key.clone(), check.limit, counter.stamp, counter.charged))
        .collect()
}

fn both(server: &Server) -> Both {
    Both {
        real: server.connect(),
        scripts: Scripts::new().expect("Lua starts"),
        database: Database::default(),
        scripts_run_by: RunBy::Both,
        cold: None,
    }
}

#[test]
fn denials_count_in_whatever_order_nodes_report_them() {
    let server = Server::start(&[]);
    let mut both = both(&server);
    // Denials at so many seconds, in the order in which they are reported at 10 s.
    for (number, (every_secs, reported, is_banned)) in (0..).zip([
        (0, [5, 4, 3], true),
        (1, [5, 3, 4], true),
        (1, [3, 5, 5], false),
        (2, [3, 5, 4], false),
        (2, [5, 1, 3], true),
        (2, [5, 4, 3], false),
    ]) {
        let terms = BanTerms {
            strikes: 3,
            within_nanos: 60 * SECOND * 1_000,
            every_nanos: every_secs * SECOND * 1_000,
            first_secs: 60,
            longest_secs: 60,
        };
        let (limit, key) = (Limit::ban(&terms), format!("ban:{number}").into_bytes());
        let mut over = false;
        for at in reported {
            let mut call = Call::new(&RequestSummary::default());
            call.push(key.clone(), &asks(limit), false);
            call.add_unsynced(((10 - at) * SECOND, 1));
            let reply = both.call(Purpose::Decide, &call, TODAY + 11 * SECOND, TODAY + 10 * SECOND);
            let Reply::Bulk(reply) = reply else { panic!("a reply of ours") };
            over = tidegate_redis::script::numbers(&reply).expect("numbers")[1] > 0;
        }
        assert_eq!(over, is_banned, "{every_secs} {reported:?}");
    }
}

#[test]
fn the_model_answers_as_the_real_one_does() {
    let server = Server::start(&[]);
    let mut both = both(&server);
    redis::cmd("SET").arg(GENERATION).arg("one").exec(&mut both.real).expect("it takes a key");
    both.database.run(TODAY, &[b"SET", GENERATION.as_bytes(), b"one"]);
    (0..1_000).for_each(|seed| sequence(&mut both, seed));
    assert!(both.database.count() > 500, "most sequences must have counted something");
}

/// An entry has the id of the model in both, because the real one has another clock.
#[test]
fn streams_and_ranges_of_names_are_those_of_redis() {
    let server = Server::start(&[]);
    let mut both = both(&server);
    both.same(&[b"XREVRANGE", b"stream", b"+", b"-", b"COUNT", b"1"]);
    let mut ids = Vec::new();
    for (millis, field) in [(5, "a"), (5, "b"), (4, "c"), (7, "d")] {
        let added: [&[u8]; 8] = [b"XADD", b"stream", b"MAXLEN", b"~", b"100", b"*", b"k", field.as_bytes()];
        let Reply::Bulk(id) = both.database.run(millis * 1_000, &added) else { panic!("an id") };
        let command = redis::cmd("XADD").arg("stream").arg(&id).arg("k").arg(field).to_owned();
        both.real.req_command(&command).expect("ids grow");
        ids.push(id);
    }
    for count in [b"1", b"9"] {
        both.same(&[b"XREVRANGE", b"stream", b"+", b"-", b"COUNT", count]);
        for id in &ids {
            both.same(&[b"XRANGE", b"stream", id, b"+", b"COUNT", count]);
        }
    }
    both.same(&[b"ZADD", b"names", b"0", b"a", b"0", b"b", b"0", b"ba", b"0", b"c"]);
    for (least, most, count) in
        [("-", "+", "9"), ("-", "+", "2"), ("[b", "(c", "9"), ("(b", "[c", "9"), ("(c", "+", "9")]
    {
        both.same(&[
            b"ZRANGEBYLEX",
            b"names",
            least.as_bytes(),
            most.as_bytes(),
            b"LIMIT",
            b"0",
            count.as_bytes(),
        ]);
    }
    both.same(&[b"EXISTS", b"names"]);
    both.same(&[b"EXISTS", b"nothing"]);
}
