//! How tests call the scripts: at times of their own, on servers that hold one or several slots each.

use redis::{Connection, ConnectionLike, RedisResult, Script};
use tidegate_engine::decision::Verdicts;
use tidegate_engine::plan::{Check, Plan, Step};
use tidegate_redis::script::{
    Answered, Call, Clock, Lost, Purpose, RequestSummary, cold_argument, mark_value, numbers, source,
};

/// How far expiry is moved: no key expires while a test runs, at any time of the test's clock.
pub(crate) const SHIFT_MILLIS: i64 = 3_600_000;

/// The scripts on some servers, called at times of the test's clock.
pub(crate) struct Asked {
    connections: Vec<Connection>,
    script: Script,
    script_of_each: String,
    script_of_renewals: Script,
    /// Unix time in milliseconds when this began.
    began_millis: i64,
    lost: Lost,
    /// With [`Lost::Deny`].
    cold: Option<ColdTerms>,
}

/// What each call says of lost counters.
struct ColdTerms {
    /// The key of the server's mark.
    mark: Vec<u8>,
    held_micros_max: u64,
}

impl Asked {
    pub(crate) fn new(connections: Vec<Connection>) -> Self {
        Self::with(connections, Lost::Allow)
    }

    /// With scripts that call counters full which may be lost. Needs [`lose`](Self::lose) before the first call.
    pub(crate) fn denying(connections: Vec<Connection>) -> Self {
        Self::with(connections, Lost::Deny)
    }

    /// From now on hits before `since` may be missing, and count up to `held_micros_max` long. `None`: since the next
    /// call, as the script finds out.
    pub(crate) fn lose(&mut self, mark: &str, since: Option<u64>, held_micros_max: u64) {
        if let Some(since) = since {
            let mut set = redis::cmd("SET");
            set.arg(mark).arg(mark_value(since, 0, since, "")).arg("EX").arg(3_600);
            set.exec(self.connection()).expect("Redis answers");
        }
        self.cold = Some(ColdTerms { mark: mark.as_bytes().to_vec(), held_micros_max });
    }

    #[allow(clippy::disallowed_methods, reason = "keys expire by real time")]
    fn with(connections: Vec<Connection>, lost: Lost) -> Self {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("past 1970");
        let script = Script::new(&source(Purpose::Decide, Clock::Arguments, lost));
        let script_of_each = source(Purpose::DecideEach, Clock::Arguments, lost);
        let script_of_renewals = Script::new(&source(Purpose::Renew, Clock::Arguments, lost));
        let began_millis = now.as_millis() as i64;
        Self { connections, script, script_of_each, script_of_renewals, began_millis, lost, cold: None }
    }

    /// Whether counters count as full that may be lost.
    pub(crate) fn denies(&self) -> bool {
        self.lost == Lost::Deny
    }

    /// The verdicts of a plan. `name` names the counter of a step. All counters live in one slot.
    pub(crate) fn apply(
        &mut self,
        plan: &Plan<'static>,
        name: impl Fn(usize) -> String,
        now_micros: u64,
    ) -> Verdicts {
        let unlimited = plan.steps.iter().filter(|step| matches!(step, Step::Unmatched | Step::Replaced(_)));
        let whole = RequestSummary {
            stop_increment_when_over: plan.modes.stop_increment_when_over,
            quota: plan.modes.quota,
            quotas: if plan.modes.quota { unlimited.count() as u32 } else { 0 },
            ..RequestSummary::default()
        };
        let mut call = Call::new(&whole);
        for (index, check) in checks(plan) {
            call.push(name(index).into_bytes(), check, plan.modes.quota);
            if check.is_of_holds() {
                let of = plan.descriptor_of(index);
                let place = |of| checks(plan).position(|(step, _)| step == of);
                let bound = plan.bound_of(of).and_then(place);
                call.holds_of(place(of).expect("the check of the limit"), bound);
            }
        }
        for candidate in &plan.candidates {
            let key = format!("{}:candidate", name(candidate.step)).into_bytes();
            let place = checks(plan).position(|(step, _)| step == candidate.step).expect("a check");
            call.push_candidate(key, candidate, plan.modes.quota, place);
        }
        let answered = self.invoke(&call, now_micros, now_micros);
        let answered =
            Answered::read(&answered, plan.checks().map(|(_, check)| check)).expect("a reply to these");
        assert_eq!(answered.now_micros, now_micros);
        let mut verdicts: Verdicts = (0..plan.places()).map(|_| None).collect();
        for ((index, _), counter) in plan.checks().zip(&answered.counters) {
            verdicts[index] = Some(counter.verdict);
        }
        verdicts
    }

    /// Calls the script for this call, on the server of its slot.
    pub(crate) fn invoke(&mut self, call: &Call, deadline_micros: u64, now_micros: u64) -> Vec<i64> {
        self.try_invoke(call, deadline_micros, now_micros).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Like `invoke`, for a call that the server may refuse.
    pub(crate) fn try_invoke(
        &mut self,
        call: &Call,
        deadline_micros: u64,
        now_micros: u64,
    ) -> RedisResult<Vec<i64>> {
        let shift = self.began_millis - (now_micros / 1_000) as i64 + SHIFT_MILLIS;
        let script = if call.only_renews() { &self.script_of_renewals } else { &self.script };
        let mut invocation = script.prepare_invoke();
        for key in call.keys.iter().chain(self.cold.as_ref().map(|cold| &cold.mark)) {
            invocation.key(key);
        }
        invocation.arg(&call.first_arg(deadline_micros));
        for arg in &*call.args_until(deadline_micros) {
            invocation.arg(arg);
        }
        if let Some(ColdTerms { mark, held_micros_max }) = &self.cold {
            invocation.arg(cold_argument(*held_micros_max, 0, 0, mark));
        }
        invocation.arg(now_micros).arg(shift);
        let mut moved = None;
        for connection in &mut self.connections {
            match invocation.invoke::<Vec<u8>>(connection) {
                Ok(reply) => return Ok(numbers(&reply).expect("a reply of numbers")),
                Err(error) if error.code() == Some("MOVED") => moved = Some(error),
                Err(error) => return Err(error),
            }
        }
        panic!("no server has the slot: {moved:?}");
    }

    /// Gives back, on the first connection.
    pub(crate) fn give_back(&mut self, call: &Call, now_micros: u64) {
        let shift = self.began_millis - (now_micros / 1_000) as i64 + SHIFT_MILLIS;
        let script = Script::new(&source(Purpose::GiveBack, Clock::Arguments, Lost::Allow));
        let mut invocation = script.prepare_invoke();
        call.keys.iter().for_each(|key| _ = invocation.key(key));
        invocation.arg(&call.first_arg(u64::MAX));
        call.args.iter().for_each(|arg| _ = invocation.arg(arg));
        invocation.arg(now_micros).arg(shift);
        invocation.invoke::<Vec<u8>>(&mut self.connections[0]).expect("Redis answers");
    }

    /// Sends calls of one check each in one command, on the first connection. Returns the reply to each.
    pub(crate) fn invoke_each(&mut self, calls: &[(&Call, u64)], now_micros: u64) -> Vec<redis::Value> {
        let shift = self.began_millis - (now_micros / 1_000) as i64 + SHIFT_MILLIS;
        let mut command = redis::cmd("EVAL");
        command.arg(&self.script_of_each).arg(calls.len());
        calls.iter().for_each(|(call, _)| _ = command.arg(&call.keys[0]));
        for (call, deadline_micros) in calls {
            command.arg(&call.first_arg(*deadline_micros)).arg(&call.args_until(*deadline_micros)[0]);
        }
        command.arg(now_micros).arg(shift);
        match self.connections[0].req_command(&command) {
            Ok(redis::Value::Array(replies)) => replies,
            other => panic!("no reply to each: {other:?}"),
        }
    }

    /// The first connection.
    pub(crate) fn connection(&mut self) -> &mut Connection {
        &mut self.connections[0]
    }
}

fn checks<'p>(plan: &'p Plan<'static>) -> impl Iterator<Item = (usize, &'p Check<'static>)> {
    plan.steps.iter().enumerate().filter_map(|(index, step)| match step {
        Step::Check(check) => Some((index, check)),
        _ => None,
    })
}
