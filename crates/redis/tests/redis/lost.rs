//! What becomes of a primary's mark: the rows of `src/lost/transitions.md` that the scripts decide, on a real Redis.

use redis::Script;
use tidegate_engine::limit::{Algorithm, Limit};
use tidegate_engine::plan::Hits;
use tidegate_redis::script::{Call, Clock, MARK_LIFE, RequestSummary, mark_source, mark_value, numbers};

use crate::asking::{check, key};
use crate::script::Asked;
use crate::server::Server;

const SECOND: u64 = 1_000_000;
/// Some time of the server, and the lease time of the node.
const NOW: u64 = 1_000_000 * SECOND;
const OWN: u64 = SECOND / 10;

/// What a node says when it looks.
#[derive(Clone, Copy)]
struct Says {
    history: &'static str,
    took_over: bool,
    own: u64,
    longest: u64,
    since: Option<u64>,
    is_renamed: bool,
    used_other_ago: Option<u64>,
}

/// Nothing new.
const NOTHING: Says = Says {
    history: "aa",
    took_over: false,
    own: OWN,
    longest: OWN,
    since: None,
    is_renamed: false,
    used_other_ago: None,
};

/// A mark: since when nothing is missing, the longest lease time, and when nodes with it and with shorter ones looked.
type Mark = [u64; 4];

/// Looks at a server with this mark. Returns since when nothing is missing, the longest lease time, and whether lease
/// times differ.
fn look_on(server: &Server, mark: Option<Mark>, now: u64, says: Says) -> (u64, u64, bool) {
    let mut connection = server.connect();
    redis::cmd("DEL").arg("m").exec(&mut connection).expect("Redis answers");
    if let Some(mark) = mark {
        let doubles = mark.map(|number| (number as f64).to_le_bytes());
        let value = [doubles.as_flattened(), b"aa"].concat();
        redis::cmd("SET").arg("m").arg(value).exec(&mut connection).expect("Redis answers");
    }
    let number = |number: Option<u64>| number.map_or(-1, |number| number as i64);
    let script = Script::new(&mark_source(Clock::Arguments));
    let mut look = script.key("m");
    look.arg(says.history).arg(u8::from(says.took_over)).arg(says.own).arg(says.longest);
    look.arg(number(says.since)).arg(u8::from(says.is_renamed)).arg(number(says.used_other_ago));
    let reply: Vec<u8> = look.arg(MARK_LIFE).arg(now).arg(0).invoke(&mut connection).expect("Redis answers");
    let reply = numbers(&reply).expect("numbers");
    let &[at, since, lease, differ] = &reply[..] else { panic!("no mark: {reply:?}") };
    let written: Vec<u8> = redis::cmd("GET").arg("m").query(&mut connection).expect("there is a mark");
    let begin = mark_value(since as u64, lease as u64, 0, "");
    assert_eq!(written[..16], begin[..16], "what it says is what it wrote");
    assert_eq!((at as u64, &written[32..]), (now, says.history.as_bytes()));
    (since as u64, lease as u64, differ == 1)
}

/// The same, without whether lease times differ.
fn look(mark: Option<Mark>, says: Says) -> (u64, u64) {
    let (since, lease, _) = look_on(&Server::start(&[]), mark, NOW, says);
    (since, lease)
}

/// A mark that says so since a minute ago.
fn since(since: u64) -> Option<Mark> {
    Some([since, OWN, NOW - SECOND, 0])
}

const MINUTE_AGO: u64 = NOW - 60 * SECOND;

#[test]
fn m1_a_server_without_a_mark_lacks_everything() {
    let says = Says { longest: 2 * OWN, ..NOTHING };
    assert_eq!(look(None, says), (NOW + 2 * OWN, 2 * OWN));
    assert_eq!(look(None, Says { since: Some(MINUTE_AGO), ..says }), (NOW + 2 * OWN, 2 * OWN));
    let server = Server::start(&[]);
    let mut set = redis::cmd("SET");
    set.arg("n").arg("of another program").exec(&mut server.connect()).expect("Redis answers");
    let script = Script::new(&mark_source(Clock::Arguments));
    let mut look = script.key("n");
    look.arg(&["aa", "0"]).arg(&[OWN, OWN]).arg(&["-1", "0", "-1", "0"]).arg(&[NOW, 0]);
    let reply: Vec<u8> = look.invoke(&mut server.connect()).expect("Redis answers");
    assert_eq!(numbers(&reply).expect("numbers")[1], (NOW + OWN) as i64);
}

#[test]
fn m2_a_mark_whose_slot_has_moved_is_written_again() {
    let says = Says { since: Some(MINUTE_AGO), is_renamed: true, ..NOTHING };
    assert_eq!(look(None, says), (MINUTE_AGO, OWN));
}

#[test]
fn m3_a_look_with_nothing_new_leaves_a_mark_as_it_is() {
    assert_eq!(look(since(MINUTE_AGO), Says { since: Some(MINUTE_AGO), ..NOTHING }), (MINUTE_AGO, OWN));
    assert_eq!(look(since(0), Says { since: Some(0), ..NOTHING }), (0, OWN));
    let other = Says { since: Some(MINUTE_AGO), history: "bb", ..NOTHING };
    assert_eq!(look(since(MINUTE_AGO), other), (MINUTE_AGO, OWN), "its first replica came");
    let took_over = Says { since: Some(MINUTE_AGO), took_over: true, ..NOTHING };
    assert_eq!(look(since(MINUTE_AGO), took_over), (MINUTE_AGO, OWN), "it did so before");
}

#[test]
fn m4_a_longer_lease_time_makes_a_loss_last_longer() {
    let says = Says { own: 3 * OWN, longest: 3 * OWN, ..NOTHING };
    let known = |since| Says { since: Some(since), ..says };
    assert_eq!(look(since(MINUTE_AGO), known(MINUTE_AGO)), (MINUTE_AGO + 2 * OWN, 3 * OWN));
    assert_eq!(look(since(0), known(0)), (0, 3 * OWN), "nothing ever was missing");
}

#[test]
fn m5_the_longest_lease_time_goes_into_a_mark_that_the_node_did_not_know() {
    let says = Says { longest: 3 * OWN, ..NOTHING };
    let known = |since| Says { since: Some(since), ..says };
    assert_eq!(look(since(MINUTE_AGO), known(MINUTE_AGO)), (MINUTE_AGO, OWN), "it was read there");
    assert_eq!(look(since(MINUTE_AGO), known(0)), (MINUTE_AGO + 2 * OWN, 3 * OWN));
    assert_eq!(look(since(MINUTE_AGO), says), (MINUTE_AGO + 2 * OWN, 3 * OWN));
}

#[test]
fn m6_a_lease_time_that_no_node_has_is_forgotten() {
    let says = Says { since: Some(MINUTE_AGO), ..NOTHING };
    let seen_last = |ago: u64| Some([MINUTE_AGO, 3 * OWN, NOW - ago, NOW]);
    assert_eq!(look(seen_last(60 * SECOND + 3 * OWN + 1), says), (MINUTE_AGO, OWN));
    assert_eq!(look(seen_last(60 * SECOND + 3 * OWN), says), (MINUTE_AGO, 3 * OWN));
}

#[test]
fn m7_data_that_were_taken_over_may_lack_everything() {
    let says = Says { since: Some(MINUTE_AGO), took_over: true, history: "bb", ..NOTHING };
    assert_eq!(look(since(MINUTE_AGO), says), (NOW + OWN, OWN));
}

#[test]
fn m8_a_mark_begins_when_the_primary_of_before_was_used_last() {
    let says = |ago| Says { since: Some(MINUTE_AGO), used_other_ago: Some(ago), ..NOTHING };
    assert_eq!(look(since(MINUTE_AGO), says(SECOND)), (NOW - SECOND + OWN, OWN));
    assert_eq!(look(since(MINUTE_AGO), says(0)), (NOW + OWN, OWN));
    assert_eq!(look(since(MINUTE_AGO), says(3_600 * SECOND)), (MINUTE_AGO, OWN));
}

#[test]
fn m9_a_clock_that_is_set_back_makes_no_longer_loss() {
    let says = Says { since: Some(NOW + SECOND), ..NOTHING };
    assert_eq!(look(since(NOW + SECOND), says), (NOW + OWN, OWN));
}

#[test]
fn m10_lease_times_differ_while_nodes_with_both_look() {
    let server = Server::start(&[]);
    let says = |own| Says { since: Some(MINUTE_AGO), own, longest: 3 * OWN, ..NOTHING };
    let differ = |longest_ago: u64, shorter_ago: u64, own| {
        let mark = [MINUTE_AGO, 3 * OWN, NOW - longest_ago, NOW - shorter_ago];
        look_on(&server, Some(mark), NOW, says(own))
    };
    assert_eq!(differ(SECOND, NOW, OWN), (MINUTE_AGO, 3 * OWN, true));
    assert_eq!(differ(SECOND, NOW, 3 * OWN), (MINUTE_AGO, 3 * OWN, false), "it is the only one");
    assert!(!differ(60 * SECOND, SECOND, OWN).2, "the longest was not seen for a minute");
    assert!(differ(60 * SECOND, SECOND, 3 * OWN).2, "it is seen now");
    assert!(!differ(SECOND, 60 * SECOND, 3 * OWN).2, "shorter ones were not seen for a minute");
    assert!(differ(SECOND, 60 * SECOND, OWN).2, "one is seen now");
}

/// Calls of one counter at a server whose mark says so, or which has none.
struct Calls {
    _server: Server,
    asked: Asked,
    limit: Limit,
}

impl Calls {
    fn of(server: Server, mark: Option<u64>) -> Self {
        let mut asked = Asked::denying(vec![server.connect()]);
        asked.lose("m", mark, 60 * SECOND);
        Self { _server: server, asked, limit: Limit::new(Algorithm::SlidingLog, 9, 60 * SECOND * 1_000) }
    }

    /// Asks. Returns since when nothing is missing, and whether the counter is cold.
    fn ask(&mut self, now: u64) -> (u64, bool) {
        let mut call = Call::new(&RequestSummary::default());
        call.push(b"c".to_vec(), &check(self.limit, key(1), Hits::Take(1)), false);
        let reply = self.asked.invoke(&call, u64::MAX, now);
        (*reply.last().expect("a reply") as u64, reply[1] & 2 != 0)
    }

    /// The mark that is there.
    fn mark(&mut self) -> u64 {
        let value: Vec<u8> = redis::cmd("GET").arg("m").query(self.asked.connection()).expect("a mark");
        numbers(&value[..32]).expect("numbers")[0] as u64
    }
}

#[test]
fn k1_a_call_at_a_server_without_a_mark_makes_one() {
    let mut calls = Calls::of(Server::start(&[]), None);
    assert_eq!((calls.ask(NOW), calls.mark()), ((NOW, true), NOW));
    assert_eq!(calls.ask(NOW + 60 * SECOND - 1), (NOW, true));
    assert_eq!(calls.ask(NOW + 60 * SECOND), (NOW, false), "nothing counts any more that may be missing");
}

#[test]
fn k2_a_call_goes_by_the_mark_that_is_there() {
    let mut calls = Calls::of(Server::start(&[]), Some(NOW - 60 * SECOND));
    assert_eq!(calls.ask(NOW - 1), (NOW - 60 * SECOND, true));
    assert_eq!(calls.ask(NOW), (NOW - 60 * SECOND, false));
}

#[test]
fn k3_a_call_at_a_clock_that_was_set_back_moves_the_mark() {
    let mut calls = Calls::of(Server::start(&[]), Some(NOW));
    assert_eq!((calls.ask(NOW - SECOND), calls.mark()), ((NOW - SECOND, true), NOW - SECOND));
}

#[test]
fn k4_a_call_goes_by_what_the_node_knows_where_no_mark_can_be_read() {
    let server = Server::start(&[]);
    redis::cmd("RPUSH").arg("m").arg("no text").exec(&mut server.connect()).expect("Redis answers");
    let mut calls = Calls::of(server, None);
    assert_eq!(calls.ask(NOW), (0, false), "the node knows that nothing ever was missing");
}
