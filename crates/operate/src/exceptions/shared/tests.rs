//! Nodes that share exceptions through a store that is cut off, emptied and set back, in random orders.

mod lost;
mod store;

use std::collections::BTreeMap;

use futures_util::FutureExt as _;
use serde_json::json;

use self::store::{Held, Link, Redis};
use super::super::{Audit, Authored, PATTERNS_MAX};
use super::*;
use crate::audit::Caller;
use tidegate_redis::runtime::Tokio;

const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);
const IDS: [&str; 3] = ["a", "b", "c"];

struct Node {
    book: Arc<Book>,
    link: Link,
}

impl Node {
    fn start(redis: &Arc<Redis>) -> Self {
        let link = Link::new(redis);
        let book = Book { shared: Some(Shared::new(link.clone())), ..Book::new(Audit::in_memory(NOW)) };
        Self { book: Arc::new(book), link }
    }

    async fn put(&self, id: &str, requests: u32, now: Timestamp) -> Result<Change, ChangeError> {
        self.change(put(id, json!({"requests_per_unit": requests})), now).await
    }

    async fn end(&self, id: &str, now: Timestamp) -> Result<Change, ChangeError> {
        self.change(WantedChange::End { id: id.to_owned(), why: String::new() }, now).await
    }

    async fn change(&self, wanted: WantedChange, now: Timestamp) -> Result<Change, ChangeError> {
        let caller = Caller { peer: String::new(), certificate: None };
        self.book.change(wanted, Author { who: "jane".to_owned(), caller }, now).await
    }

    async fn agree(&self, now: Timestamp) -> Result<(), ConnectError> {
        self.book.agree(self.book.shared.as_ref().expect("shared"), now).await
    }

    /// The next agreement is about all ids.
    fn compares_all(&self) {
        self.book.shared.as_ref().expect("shared").compares_all.store(true, Relaxed);
    }

    /// What each id is limited to here.
    fn limits(&self) -> BTreeMap<String, u64> {
        let limit = |record: Arc<Authored>| {
            (record.id.clone(), record.json()["requests_per_unit"].as_u64().unwrap_or_default())
        };
        self.book.all().into_iter().map(limit).collect()
    }
}

fn put(id: &str, effect: serde_json::Value) -> WantedChange {
    let mut fields = json!({
        "domain": "shop", "entries": [{"key": "user", "value": id}], "who": "jane", "why": "a test",
    });
    for (name, value) in effect.as_object().expect("an object") {
        fields[name] = value.clone();
    }
    WantedChange::Put { record: Authored::of_client(id, &fields).expect("good"), may_replace: true }
}

fn after(seconds: u64) -> Timestamp {
    Timestamp::from_nanos(NOW.as_nanos() + seconds * 1_000_000_000)
}

/// The limit that an id may have: `None`, none.
type May = Vec<Option<u64>>;

/// Draws by a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

async fn all_agree(nodes: &[Node], now: Timestamp) {
    // The first round writes to Redis what it has lost, the second one brings that to the others.
    for _ in 0..3 {
        for node in nodes {
            node.link.is_cut.store(false, Relaxed);
            node.link.is_mute.store(false, Relaxed);
            node.agree(now).await.expect("it answers");
        }
    }
}

#[tokio::test]
async fn nodes_agree_on_what_was_acknowledged_last() {
    let mut acknowledged = 0;
    for seed in 0..400 {
        acknowledged += one_order(seed).await;
    }
    assert!(acknowledged > 2_000, "{acknowledged} changes");
}

/// Plays one order; returns how many changes were acknowledged.
async fn one_order(seed: u64) -> usize {
    let mut dice = Dice(seed);
    let redis = Arc::<Redis>::default();
    let mut nodes: Vec<Node> = (0..3).map(|_| Node::start(&redis)).collect();
    let (mut may, mut before) = (BTreeMap::<&str, May>::new(), Held::default());
    let mut acknowledged = 0;
    for step in 0..40 {
        let (now, at) = (after(step), dice.below(3) as usize);
        let id = IDS[dice.below(3) as usize];
        let may_be = may.entry(id).or_insert_with(|| vec![None]);
        match dice.below(14) {
            0..=4 => {
                let requests = dice.below(1_000);
                let outcome = nodes[at].put(id, requests as u32, now).await;
                acknowledged += usize::from(outcome.is_ok());
                note(may_be, Some(requests), &outcome);
            }
            5 | 6 => {
                let outcome = nodes[at].end(id, now).await;
                acknowledged += usize::from(outcome.is_ok());
                note(may_be, None, &outcome);
            }
            7 | 8 => _ = nodes[at].agree(now).await,
            9 => nodes[at].link.is_cut.store(dice.below(2) == 0, Relaxed),
            10 => nodes[at].link.is_mute.store(dice.below(3) == 0, Relaxed),
            11 if dice.below(2) == 0 => *redis.held.lock() = Held::default(),
            11 => *redis.held.lock() = before.clone(),
            12 => before = redis.held.lock().clone(),
            _ => {
                // Two at a time, on one id.
                let (one, other) = (dice.below(1_000), dice.below(1_000));
                let both = tokio::join!(
                    nodes[at].put(id, one as u32, now),
                    nodes[(at + 1) % 3].put(id, other as u32, now)
                );
                let (first, mut second) = (may_be.clone(), may_be.clone());
                *may_be = first;
                note(may_be, Some(one), &both.0);
                note(&mut second, Some(other), &both.1);
                may_be.extend(second);
            }
        }
        // A node whose changes have reached the others may go.
        if dice.below(10) == 0 {
            all_agree(&nodes, now).await;
            nodes[at] = Node::start(&redis);
        }
    }
    all_agree(&nodes, after(40)).await;
    let limits = nodes[0].limits();
    for node in &nodes {
        assert_eq!(node.limits(), limits, "seed {seed}: nodes differ");
    }
    for (id, may) in may {
        let limit = limits.get(id).copied();
        assert!(may.contains(&limit), "seed {seed}: {id} is {limit:?} (expected one of {may:?})");
    }
    acknowledged
}

/// Notes what an id may be after a change to this.
fn note(may: &mut May, to: Option<u64>, outcome: &Result<Change, ChangeError>) {
    match outcome {
        // Nothing changed, as far as this node and Redis knew: Redis may have lost what another node made since.
        Ok(Change::Unchanged) => may.push(to),
        Ok(_) => *may = vec![to],
        Err(ChangeError::NotKnown(_) | ChangeError::Busy) => may.push(to),
        Err(_) => {}
    }
}

/// A replica that takes over may lack the last change. The node that made it writes it again, though nobody announced
/// it.
#[tokio::test]
async fn an_end_is_known_at_other_nodes_and_another_one_changes_nothing() {
    let redis = Arc::<Redis>::default();
    let nodes = [Node::start(&redis), Node::start(&redis)];
    nodes[0].put("a", 5, NOW).await.expect("done");
    assert_eq!(nodes[1].end("a", NOW).await.expect("Redis has it"), Change::Ended);
    assert_eq!(nodes[0].end("a", NOW).await.expect("it was there"), Change::Unchanged);
    assert!(matches!(nodes[0].end("b", NOW).await, Err(ChangeError::Unknown(_))));
}

/// The stream was read, and what it announced was not.
#[tokio::test]
async fn a_change_whose_value_could_not_be_read_is_read_later() {
    let redis = Arc::<Redis>::default();
    let nodes = [Node::start(&redis), Node::start(&redis)];
    all_agree(&nodes, NOW).await;
    nodes[0].put("a", 5, NOW).await.expect("done");
    nodes[1].link.has_no_values.store(true, Relaxed);
    assert!(nodes[1].agree(after(1)).await.is_err());
    assert!(nodes[1].limits().is_empty());
    nodes[1].link.has_no_values.store(false, Relaxed);
    nodes[1].agree(after(2)).await.expect("it answers");
    assert_eq!(nodes[1].limits()["a"], 5);
}

/// Each is compared with what is there after the one before.
#[tokio::test]
async fn of_two_changes_at_the_same_time_one_gets_the_last_room() {
    let node = Node::start(&Arc::default());
    let wild = |id: &str| put(id, json!({"deny": true, "entries": [{"key": "user"}]}));
    for at in 1..PATTERNS_MAX {
        node.change(wild(&format!("p{at}")), NOW).await.expect("there is room");
    }
    let (one, other) = tokio::join!(node.change(wild("a"), NOW), node.change(wild("b"), NOW));
    let is_full = |done: &Result<_, _>| matches!(done, Err(ChangeError::FullOfPatterns));
    assert!(is_full(&one) != is_full(&other), "{one:?} {other:?}");
}

/// Those that are announced together, and those that a node finds that starts.
#[tokio::test]
async fn more_than_are_read_at_a_time_are_all_known() {
    let redis = Arc::<Redis>::default();
    let nodes = [Node::start(&redis), Node::start(&redis)];
    all_agree(&nodes, NOW).await;
    for at in 0..=PAGE {
        nodes[0].put(&format!("e{at}"), 5, NOW).await.expect("done");
    }
    let late = Node::start(&redis);
    for node in [&nodes[1], &late] {
        node.agree(after(1)).await.expect("it answers");
        assert_eq!(node.limits().len(), PAGE + 1);
    }
}

/// Redis lost it, or too few replicas have it: who sends it again wants to know that it is there.
/// The second one finds another value than it has read, and is tried again with that.
#[tokio::test]
async fn two_nodes_change_one_exception_at_the_same_time() {
    let redis = Arc::<Redis>::default();
    let nodes = [Node::start(&redis), Node::start(&redis)];
    all_agree(&nodes, NOW).await;
    let (one, other) = tokio::join!(nodes[0].put("a", 5, NOW), nodes[1].put("a", 6, NOW));
    let done = [one, other].map(|change| change.expect("Redis answers"));
    assert!(done.contains(&Change::Made) && done.contains(&Change::Replaced), "{done:?}");
    all_agree(&nodes, after(1)).await;
    let [here, there] = nodes.map(|node| node.limits()["a"]);
    assert_eq!(here, there);
}

/// The node that makes a change has a clock that is behind, and Redis has lost what was there before.
/// The clock of the runtime is paused: pauses pass at once.
#[tokio::test(start_paused = true)]
async fn a_change_right_after_a_copy_is_in_the_next_one() {
    let (redis, folder) = (Arc::<Redis>::default(), tempfile::tempdir().expect("a folder"));
    let path = folder.path().join("exceptions");
    let link = Link::new(&redis);
    let book = Book::open(path.clone(), Audit::in_memory(NOW)).expect("a new file");
    let book = Arc::new(Book { shared: Some(Shared::new(link.clone())), ..book });
    let node = Node { book: Arc::clone(&book), link };
    let copying = tokio::spawn(Arc::clone(&book).keep_copy());
    let has = |text: &str| std::fs::read_to_string(&path).is_ok_and(|file| file.contains(text));
    while !path.exists() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    node.put("right-after", 5, NOW).await.expect("done");
    assert!(!has("right-after"), "a copy is made once a second at most");
    let copied = async {
        while !has("right-after") {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), copied).await.expect("the next copy has it");
    copying.abort();
}

/// The clock of the runtime is paused: pauses pass at once.
#[tokio::test(start_paused = true)]
async fn a_copy_that_failed_is_made_without_another_change() {
    let folder = tempfile::tempdir().expect("a folder");
    let [path, temporary] = ["exceptions", "exceptions.new"].map(|name| folder.path().join(name));
    let book = Book::open(path.clone(), Audit::in_memory(NOW)).expect("a new file");
    let link = Link::new(&Arc::default());
    let book = Arc::new(Book { shared: Some(Shared::new(link.clone())), ..book });
    std::fs::create_dir(&temporary).expect("its name is free");
    let node = Node { book: Arc::clone(&book), link };
    node.put("a", 5, NOW).await.expect("done");
    let copying = tokio::spawn(Arc::clone(&book).keep_copy());
    while book.is_file_up() == Some(true) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    std::fs::remove_dir(&temporary).expect("empty");
    let copied = async {
        while !path.exists() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), copied).await.expect("it is tried again");
    copying.abort();
}

#[tokio::test]
async fn a_change_is_finished_though_its_client_goes_away() {
    let redis = Arc::<Redis>::default();
    let node = Node::start(&redis);
    assert!(node.put("a", 5, NOW).now_or_never().is_none(), "it waits for Redis");
    let done = async {
        while node.limits().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), done).await.expect("it is done");
}

/// Two nodes make them at the same time, and Redis loses the first before the second is made.
#[tokio::test]
async fn while_redis_is_away_what_is_known_holds_and_nothing_is_changed() {
    let redis = Arc::<Redis>::default();
    let node = Node::start(&redis);
    node.put("a", 5, NOW).await.expect("done");
    node.link.is_cut.store(true, Relaxed);
    assert!(matches!(node.put("a", 6, NOW).await, Err(ChangeError::Redis(_))));
    assert!(matches!(node.end("a", NOW).await, Err(ChangeError::Redis(_))));
    assert!(node.agree(NOW).await.is_err());
    assert_eq!(node.limits()["a"], 5);
    node.link.is_cut.store(false, Relaxed);
    node.link.is_mute.store(true, Relaxed);
    assert!(matches!(node.put("a", 7, NOW).await, Err(ChangeError::NotKnown(_))));
    node.link.is_mute.store(false, Relaxed);
    assert_eq!(node.put("a", 7, NOW).await.expect("it is there"), Change::Unchanged);
    assert_eq!(node.limits()["a"], 7);
}

/// In a Cluster a server may set a value and refuse to announce it.
/// The clock of the runtime is paused: pauses pass at once.
#[tokio::test(start_paused = true)]
async fn after_an_outage_changes_are_known_as_soon_as_before() {
    let redis = Arc::<Redis>::default();
    let [one, other] = [(); 2].map(|()| Node::start(&redis));
    let following = tokio::spawn(Arc::clone(&other.book).follow());
    other.link.is_cut.store(true, Relaxed);
    tokio::time::sleep(30 * PAUSE_MAX).await;
    other.link.is_cut.store(false, Relaxed);
    tokio::time::sleep(2 * PAUSE_MAX).await;
    one.put("a", 5, Tokio.wall()).await.expect("it answers");
    tokio::time::sleep(2 * READ_INTERVAL).await;
    assert_eq!(other.limits(), BTreeMap::from([("a".to_owned(), 5)]));
    following.abort();
}

/// The clock of the runtime is paused: pauses pass at once.
#[tokio::test]
async fn what_somebody_else_wrote_is_left_out_and_a_change_replaces_it() {
    let redis = Arc::<Redis>::default();
    let far = u64::MAX.to_string();
    let ours = |number: &str| {
        format!(
            r#"{{"id":"a","domain":"shop","entries":[{{"key":"user"}}],"deny":true,"who":"x","why":"y","number":{number}}}"#
        )
    };
    for (value, why) in [
        ("[]".to_owned(), "number: is missing"),
        ("{".to_owned(), "value: "),
        (ours("1").replace(r#""id":"a""#, r#""id":"b""#), "id: is \"b\""),
        (ours(&far), "number: 18446744073709551615 is more than an hour ahead"),
        (ours("1").replace("shop", ""), "domain: is missing"),
        (r#"{"id":"a","ended":true,"number":1,"until":"soon"}"#.to_owned(), "until: is unknown"),
    ] {
        let node = Node::start(&redis);
        redis.has("a", value.as_bytes());
        node.agree(NOW).await.expect("it answers");
        assert!(node.limits().is_empty(), "{value}");
        let trouble = node.book.trouble().expect("it is reported");
        assert!(trouble.contains(why), "{value}: {trouble}");
        node.put("a", 5, NOW).await.expect("done");
        node.agree(NOW).await.expect("it answers");
        assert_eq!(node.book.trouble(), None, "{value}");
        let other = Node::start(&redis);
        other.agree(NOW).await.expect("it answers");
        assert_eq!(other.limits()["a"], 5, "{value}");
    }
}

#[tokio::test]
async fn what_somebody_else_wrote_and_took_away_is_no_trouble_any_more() {
    let redis = Arc::<Redis>::default();
    let node = Node::start(&redis);
    redis.has("a", b"[]");
    node.agree(NOW).await.expect("it answers");
    assert_eq!((node.book.trouble().is_some(), node.book.is_in_step()), (true, Some(false)));
    *redis.held.lock() = Held::default();
    node.compares_all();
    node.agree(after(1)).await.expect("it answers");
    assert_eq!((node.book.trouble(), node.book.is_in_step()), (None, Some(true)));
}

/// One forgets what the other still knows, and writes it back, because its clock is two hours behind.
#[tokio::test]
async fn nodes_with_other_clocks_do_not_forget_and_remember_in_turn() {
    let redis = Arc::<Redis>::default();
    let nodes = [Node::start(&redis), Node::start(&redis)];
    nodes[0].put("a", 5, NOW).await.expect("done");
    nodes[0].end("a", NOW).await.expect("done");
    all_agree(&nodes, NOW).await;
    let forgets = 90 * 24 * 3_600 + 60;
    nodes[0].compares_all();
    let before = *redis.entries.lock();
    for _ in 0..10 {
        nodes[0].agree(after(forgets)).await.expect("it answers");
        nodes[1].agree(after(forgets - 2 * 3_600)).await.expect("it answers");
    }
    assert_eq!(*redis.entries.lock() - before, 2, "once forgotten, and once written back");
}

#[tokio::test]
async fn what_is_over_for_90_days_is_forgotten_everywhere() {
    let redis = Arc::<Redis>::default();
    let nodes = [Node::start(&redis), Node::start(&redis)];
    let until = tidegate_engine::stamp::show(after(10));
    for id in ["a", "b", "c"] {
        nodes[0].change(put(id, json!({"deny": true, "until": until})), NOW).await.expect("done");
    }
    nodes[0].end("b", NOW).await.expect("done");
    nodes[0].put("c", 5, NOW).await.expect("it has no end now");
    all_agree(&nodes, NOW).await;
    for (days, left) in [(1, 3), (91, 1)] {
        for node in &nodes {
            node.compares_all();
        }
        all_agree(&nodes, after(days * 24 * 3_600)).await;
        assert_eq!(redis.held.lock().values.len(), left, "{days} days");
    }
    assert_eq!(nodes.map(|node| node.limits().into_keys().collect::<Vec<_>>()), [["c"], ["c"]]);
}

/// An exception that would not have ended was replaced by one that has: a node that was away does not bring the first back.
#[tokio::test]
async fn what_was_replaced_does_not_come_back_when_the_later_one_is_over() {
    let redis = Arc::<Redis>::default();
    let nodes = [Node::start(&redis), Node::start(&redis)];
    nodes[0].put("a", 5, NOW).await.expect("done");
    all_agree(&nodes, NOW).await;
    nodes[1].link.is_cut.store(true, Relaxed);
    let until = tidegate_engine::stamp::show(after(10));
    nodes[0].change(put("a", json!({"deny": true, "until": until})), NOW).await.expect("done");
    for late in [after(3_600 * 3), after(3_600 * 4)] {
        nodes[0].compares_all();
        nodes[0].agree(late).await.expect("it answers");
    }
    all_agree(&nodes, after(3_600 * 5)).await;
    assert_eq!(nodes.map(|node| node.limits()["a"]), [0, 0], "the one that has ended");
}

/// Only the index is lost, or a change in a Cluster was cut off before its last command.
#[tokio::test]
async fn what_was_made_while_a_clock_was_far_ahead_stands_in_nobodys_way() {
    let redis = Arc::<Redis>::default();
    let nodes = [Node::start(&redis), Node::start(&redis)];
    all_agree(&nodes, NOW).await;
    nodes[0].put("a", 5, after(3 * 3_600)).await.expect("done");
    nodes[1].agree(NOW).await.expect("it answers");
    assert!(nodes[1].limits().is_empty() && nodes[1].book.trouble().is_some(), "it is ignored, and reported");
    // Its clock is put right.
    assert_eq!(nodes[0].put("b", 6, after(1)).await.expect("done"), Change::Made);
    nodes.iter().for_each(Node::compares_all);
    all_agree(&nodes, after(2)).await;
    assert_eq!(nodes[1].limits(), [("b".to_owned(), 6)].into());
    nodes[1].put("a", 7, after(3)).await.expect("done");
    all_agree(&nodes, after(4)).await;
    assert_eq!(nodes[1].limits(), nodes[0].limits());
    assert_eq!(nodes[1].limits()["a"], 7);
    assert_eq!(nodes[1].book.trouble(), None);
}

/// A node that was away for long, or begins with an old file, brings nothing to life that was ended.
#[tokio::test]
async fn a_file_is_taken_over_and_an_old_one_changes_nothing() {
    let folder = tempfile::TempDir::new().expect("a folder");
    let path = folder.path().join("exceptions");
    let old = r#"{"id":"a","domain":"shop","entries":[{"key":"user","value":"a"}],"requests_per_unit":5,"who":"x","why":"y","made":"2027-01-01T00:00:00Z","number":3}"#;
    std::fs::write(&path, format!("{old}\n")).expect("writable");
    let redis = Arc::<Redis>::default();
    let from_file = || {
        let link = Link::new(&redis);
        let book = Book::open(path.clone(), Audit::in_memory(NOW)).expect("readable");
        Node { book: Arc::new(Book { shared: Some(Shared::new(link.clone())), ..book }), link }
    };
    let nodes = [from_file(), Node::start(&redis)];
    all_agree(&nodes, NOW).await;
    assert_eq!(nodes[1].limits()["a"], 5, "taken over from the file");
    nodes[1].end("a", NOW).await.expect("done");
    let late = from_file();
    assert_eq!(late.limits()["a"], 5, "a start without Redis");
    late.agree(NOW).await.expect("it answers");
    assert!(late.limits().is_empty());
}

/// The book of a node is full of others: an end is done all the same, and what was replaced is not in force.
#[tokio::test]
async fn what_there_is_no_room_for_is_left_out_and_can_be_ended() {
    let redis = Arc::<Redis>::default();
    let nodes = [Node::start(&redis), Node::start(&redis)];
    let wild = |id: &str| put(id, json!({"deny": true, "entries": [{"key": "user"}]}));
    nodes[0].put("x", 5, NOW).await.expect("done");
    all_agree(&nodes, NOW).await;
    let other = Node::start(&Arc::default());
    for at in 0..PATTERNS_MAX {
        other.change(wild(&format!("p{at}")), NOW).await.expect("there is room");
    }
    // As if it had them from a file.
    for record in other.book.all() {
        nodes[1].book.take(KnownException::Made(record), NOW);
    }
    nodes[0].change(wild("x"), after(1)).await.expect("there is room at this node");
    let before = nodes[1].book.version();
    nodes[1].agree(after(1)).await.expect("it answers");
    assert!(!nodes[1].limits().contains_key("x"), "the exact one is no more");
    assert_ne!(nodes[1].book.version(), before, "who puts them in force hears of it");
    assert!(nodes[1].book.trouble().is_some_and(|trouble| trouble.contains("too many")));
    // Its clock is behind that of the node that made it.
    assert_eq!(nodes[1].end("x", NOW).await.expect("Redis has it"), Change::Ended);
    nodes[0].agree(after(2)).await.expect("it answers");
    assert!(!nodes[0].limits().contains_key("x"));
    nodes[1].agree(after(2)).await.expect("it answers");
    assert_eq!(nodes[1].book.trouble(), None);
}

#[tokio::test]
async fn an_end_that_was_sent_while_the_clock_was_far_ahead_is_done_when_it_is_sent_again() {
    let redis = Arc::<Redis>::default();
    let nodes = [Node::start(&redis), Node::start(&redis)];
    nodes[1].put("a", 5, NOW).await.expect("done");
    nodes[0].end("a", after(3 * 3_600)).await.expect("done");
    nodes[1].agree(after(1)).await.expect("it answers");
    assert_eq!(nodes[1].limits()["a"], 5, "left out");
    assert_eq!(nodes[0].end("a", after(2)).await.expect("the clock is right"), Change::Ended);
    nodes[1].agree(after(3)).await.expect("it answers");
    assert!(nodes[1].limits().is_empty());
}
