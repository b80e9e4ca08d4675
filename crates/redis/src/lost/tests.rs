//! A test for each row of `transitions.md` that the node decides, and one that every row has a test.

use super::*;
use crate::clock::monotonic;
use crate::script::numbers;

const TRANSITIONS: &str = include_str!("transitions.md");
const HELD: Duration = Duration::from_secs(60);
const DENY: DenyCold = DenyCold { window_max: HELD, lease_time: Duration::from_millis(100) };
/// The lease time of this node.
const OWN: u64 = 100_000;

/// Where the data of a server begins.
fn begins(since_micros: u64, now_micros: u64) -> Begins {
    Begins { since_micros, now_micros }
}

/// A mark that was read.
fn mark_read(since_micros: u64, lease_micros: u64) -> MarkRead {
    MarkRead { begins: begins(since_micros, since_micros + 7), lease_micros, lease_times_differ: false }
}

fn primary(run_id: &str, history: &str, of_before: &str) -> Primary {
    let info = format!(
        "# Server\r\nredis_version:7.2.0\r\nrun_id:{run_id}\r\n# Replication\r\nrole:master\r\n\
         master_replid:{history}\r\nmaster_replid2:{of_before}\r\n"
    );
    Primary::read(&info).expect("it says its run id")
}

/// The rows of the table: `G1`.
fn rows() -> Vec<&'static str> {
    let first = TRANSITIONS.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let is_row = |row: &&str| {
        let (letter, number) = row.split_at(row.len().min(1));
        letter.chars().all(|letter| letter.is_ascii_uppercase()) && number.parse::<u8>().is_ok()
    };
    first.filter(is_row).collect()
}

#[test]
fn every_row_has_one_test_and_every_test_of_a_row_its_row() {
    let of_scripts = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/redis/lost.rs");
    let of_scripts = std::fs::read_to_string(of_scripts).expect("the tests of the scripts");
    let tests = [include_str!("tests.rs"), &of_scripts].concat();
    let names = tests.lines().filter_map(|line| line.strip_prefix("fn ")?.split('(').next());
    let tested = names.filter_map(|name| Some(name.split_once('_')?.0.to_uppercase()));
    let mut tested: Vec<_> = tested.filter(|row| row.bytes().any(|byte| byte.is_ascii_digit())).collect();
    let mut rows = rows();
    assert!(rows.len() > 30, "the table is read: {rows:?}");
    tested.sort_unstable();
    rows.sort_unstable();
    assert_eq!(tested, rows);
}

/// Reads this generation after those, under one key.
fn read_generation(before: &[&str], now: &str, deny: bool) -> Option<News> {
    let mut seen = Seen::default();
    before.iter().for_each(|before| _ = seen.generation("g".to_owned(), before, deny));
    seen.generation("g".to_owned(), now, deny)
}

#[test]
fn g1_the_first_generation_is_believed() {
    assert_eq!(read_generation(&[], "one", false), None);
    let mut seen = Seen::default();
    assert_eq!(seen.generation("g".to_owned(), "one", false), None);
    assert_eq!(seen.generation("of another slot".to_owned(), "other", false), None);
}

#[test]
fn g2_the_same_generation_is_no_news() {
    assert_eq!(read_generation(&["one"], "one", false), None);
}

#[test]
fn g3_another_generation_is_a_loss() {
    let news = read_generation(&["one"], "other", false);
    assert_eq!(news, Some(News::MemoryLost));
    assert!(news.is_some_and(|news| news.is_loss()));
    assert_eq!(read_generation(&["one", "other"], "other", false), None, "it is believed");
}

#[test]
fn g4_with_marks_a_generation_shows_no_loss() {
    assert_eq!(read_generation(&["one"], "other", true), None);
}

/// The data of a server whose generation was read on its first connection.
fn data_of(generation: &[u8]) -> ServerData {
    let mut data = ServerData::default();
    data.connected(1);
    data.generation(b"g", generation);
    data
}

/// Whether hits that were charged in this data go back after what `happens`.
fn goes_back_after(happens: impl FnOnce(&mut ServerData)) -> bool {
    let mut data = data_of(b"one");
    let charged_in = data.known().expect("it was read");
    happens(&mut data);
    data.may_take_back(&charged_in, None)
}

#[test]
fn b1_hits_are_charged_in_the_generation_that_was_read() {
    assert!(ServerData::default().known().is_none());
    let expected = DataId { key: b"g".to_vec(), generation: b"one".to_vec(), connection: 1 };
    assert_eq!(data_of(b"one").known().as_deref(), Some(&expected));
}

#[test]
fn b2_hits_go_back_to_the_same_generation() {
    assert!(goes_back_after(|data| data.generation(b"g", b"one")));
}

#[test]
fn b3_hits_do_not_go_back_to_another_generation() {
    assert!(!goes_back_after(|data| data.generation(b"g", b"other")));
    assert!(!goes_back_after(|data| data.generation(b"of another slot", b"one")));
}

#[test]
fn b4_hits_do_not_go_back_after_a_new_connection() {
    assert!(!goes_back_after(|data| data.connected(2)));
    assert!(!goes_back_after(|data| {
        data.connected(2);
        data.generation(b"g", b"one");
    }));
}

#[test]
fn b5_hits_go_back_to_the_same_primary() {
    let mark = Mark::new(b"m".to_vec(), 5, OWN, &DENY, true);
    assert!(ServerData::default().may_take_back(&mark.data(5), Some(&mark)));
    assert!(ServerData::default().may_take_back(&mark.data(4), Some(&mark)), "the script compares that");
    assert_eq!(mark.data(5).generation, 5.0_f64.to_le_bytes(), "as a mark begins");
}

#[test]
fn b6_hits_do_not_go_back_to_another_primary() {
    let [mark, other] = [b"m", b"n"].map(|key| Mark::new(key.to_vec(), 5, OWN, &DENY, true));
    let data = data_of(b"one");
    assert!(!data.may_take_back(&mark.data(5), Some(&other)));
    let by_generation = data.known().expect("it was read");
    assert!(!data.may_take_back(&by_generation, Some(&mark)), "the mark counts, not the generation");
}

/// When a worker last used another primary than this, 9 s after the worker began. A connection to `used` broke between
/// the second and the third second.
fn used_other_ago(used: &[Primary], now: &Primary) -> Option<Duration> {
    let (mut seen, began) = (Seen::default(), monotonic());
    let at = |secs| began + Duration::from_secs(secs);
    used.iter().for_each(|used| seen.use_of(used));
    if !used.is_empty() {
        let notes = [(1, true), (2, true), (3, false), (4, false)];
        notes.iter().for_each(|&(secs, is_used)| seen.use_of_any(at(secs), is_used));
    }
    seen.used_other_ago(now, at(9), Duration::from_millis(100))
}

/// It broke before the third second, and a call may take a tenth of a second.
const AGO: Option<Duration> = Some(Duration::from_millis(5_900));

#[test]
fn p1_no_other_primary_was_used_by_a_node_that_starts() {
    assert_eq!(used_other_ago(&[], &primary("9b", "aa", "00c0")), None);
}

#[test]
fn p2_the_primary_that_was_used_is_no_other() {
    assert_eq!(used_other_ago(&[primary("9b", "aa", "00")], &primary("9b", "aa", "00")), None);
    assert_eq!(used_other_ago(&[primary("9b", "aa", "00c0")], &primary("9b", "aa", "00c0")), None);
}

#[test]
fn p3_a_first_replica_makes_no_other_primary() {
    assert_eq!(used_other_ago(&[primary("9b", "aa", "00")], &primary("9b", "dd", "0000")), None);
}

#[test]
fn p4_a_primary_that_was_a_replica_meanwhile_is_another() {
    assert_eq!(used_other_ago(&[primary("9b", "aa", "00")], &primary("9b", "dd", "00c0")), AGO);
}

#[test]
fn p5_another_process_is_another_primary() {
    assert_eq!(used_other_ago(&[primary("9b", "aa", "00")], &primary("7c", "aa", "00")), AGO);
    let (mut seen, began) = (Seen::default(), monotonic());
    seen.use_of_any(began, true);
    let ago = seen.used_other_ago(&primary("7c", "aa", "00"), began, Duration::from_secs(1));
    assert_eq!(ago, Some(Duration::ZERO), "it is used still");
}

#[test]
fn p6_primaries_of_long_ago_count_as_others() {
    let many: Vec<_> = (0..=PRIMARIES_MAX).map(|number| primary(&number.to_string(), "aa", "00")).collect();
    assert_eq!(used_other_ago(&many[..PRIMARIES_MAX], &many[0]), None);
    assert_eq!(used_other_ago(&many, &many[0]), AGO);
    assert_eq!(used_other_ago(&many, &many[PRIMARIES_MAX]), None);
}

#[test]
fn p7_a_primary_says_its_run_id() {
    assert_eq!(Primary::read("run_id:\r\nmaster_replid:aa\r\n"), None);
    assert_eq!(Primary::read("redis_version:7.2.0\r\n"), None);
    let read = primary("9b", "aa", "0000");
    assert_eq!((read.run_id.as_str(), read.history.as_str(), read.took_over), ("9b", "aa", false));
    assert!(primary("9b", "aa", "00c0").took_over);
}

/// Marks that were read under the key `m`, one after the other.
fn marked(reads: &[MarkRead]) -> Marked {
    let marked = Marked::default();
    reads.iter().for_each(|read| _ = marked.read(b"m".to_vec(), read, &DENY, true));
    marked
}

/// What goes into the mark under this key, as the arguments of the script.
fn to_write(marked: &Marked, key: &[u8], first: Option<UsedOther>) -> [String; 8] {
    let mut losses = Losses::default();
    let _ = losses.lease_times(&mark_read(5, 2 * OWN), &DENY);
    marked.to_write(&primary("9b", "aa", "00c0"), key, &losses, &DENY, first).args(1_000)
}

#[test]
fn w1_a_new_mark_names_the_longest_lease_time() {
    let ago = UsedOther(Some(Duration::from_secs(2)));
    let expected = ["aa", "1", "100000", "200000", "-1", "0", "2000000", "1000"];
    assert_eq!(to_write(&Marked::default(), b"m", Some(ago)), expected);
    let never = to_write(&Marked::default(), b"m", Some(UsedOther(None)));
    assert_eq!(never[6..], ["-1", "1000"]);
    assert_eq!(Losses::default().longest_lease_micros(&DENY), OWN, "no mark was read");
}

#[test]
fn w2_a_node_says_which_mark_it_knows() {
    let known = marked(&[mark_read(5, 3 * OWN)]);
    assert_eq!(to_write(&known, b"m", None), ["aa", "1", "100000", "300000", "5", "0", "-1", "0"]);
}

#[test]
fn w3_a_node_says_that_it_knows_another_key() {
    let known = marked(&[mark_read(5, 3 * OWN)]);
    assert_eq!(to_write(&known, b"n", None), ["aa", "1", "100000", "300000", "5", "1", "-1", "0"]);
}

#[test]
fn r1_a_mark_that_was_read_is_named_by_calls() {
    let (marked, read) = (Marked::default(), mark_read(5, OWN));
    assert_eq!(marked.read(b"m".to_vec(), &read, &DENY, true), Some(read.begins));
    let mark = marked.get().expect("it was read");
    assert_eq!(mark.named(), Some(&b"m".to_vec()));
    assert_eq!(mark.argument, cold_argument(60_000_000, OWN, 5, b"m"));
    assert_eq!(marked.read(b"n".to_vec(), &read, &DENY, false), Some(read.begins));
    assert_eq!(marked.get().expect("it was read").named(), None, "in a Cluster it is in another slot");
}

#[test]
fn r2_the_same_mark_is_no_news() {
    let known = marked(&[mark_read(5, OWN)]);
    assert_eq!(known.read(b"m".to_vec(), &mark_read(5, OWN), &DENY, true), None);
}

#[test]
fn r3_another_mark_is_believed() {
    for (key, read) in [(b"m", mark_read(6, OWN)), (b"m", mark_read(5, OWN + 1)), (b"n", mark_read(5, OWN))] {
        let known = marked(&[mark_read(5, OWN)]);
        assert_eq!(known.read(key.to_vec(), &read, &DENY, true), Some(read.begins));
        let argument = cold_argument(60_000_000, read.lease_micros, read.begins.since_micros, key);
        assert_eq!(known.get().expect("it was read").argument, argument);
    }
}

#[test]
fn r4_a_reply_that_is_no_mark_is_none() {
    assert_eq!(MarkRead::read(&[9, 5, 1]), None);
    assert_eq!(MarkRead::read(&[9, 5, 1, 0, 0]), None);
    let read = MarkRead { begins: begins(5, 9), lease_micros: 1, lease_times_differ: true };
    assert_eq!(MarkRead::read(&[9, 5, 1, 1]), Some(read));
    assert_eq!(numbers(b"a text"), None);
}

#[test]
fn r5_a_call_shows_that_memory_begins_later() {
    let known = marked(&[mark_read(5, 3 * OWN)]);
    let shown = Begins::of_reply(&[9, 1, 0, 3, 6]).expect("a reply");
    assert_eq!(known.answered(shown, &DENY), Some(begins(6, 9)));
    let mark = known.get().expect("it was read");
    assert_eq!(mark.argument, cold_argument(60_000_000, 3 * OWN, 6, b"m"), "the lease time stays");
    assert_eq!(known.answered(shown, &DENY), None);
}

#[test]
fn r6_a_call_that_shows_nothing_later_is_no_news() {
    let known = marked(&[mark_read(5, OWN)]);
    assert_eq!(known.answered(begins(5, 9), &DENY), None);
    assert_eq!(known.answered(begins(4, 9), &DENY), None);
    assert_eq!(known.get().expect("it was read").argument, cold_argument(60_000_000, OWN, 5, b"m"));
    assert_eq!(Begins::of_reply(&[9]), None, "it came too late, and did nothing");
    assert_eq!(Marked::default().answered(begins(5, 9), &DENY), None);
}

#[test]
fn r7_no_call_is_sent_before_the_mark_was_read() {
    assert!(!Marked::default().lets_decide(Some(&DENY)));
    assert!(marked(&[mark_read(0, OWN)]).lets_decide(Some(&DENY)));
    assert!(Marked::default().lets_decide(None), "COLD_START=allow");
}

/// The news of servers whose data begins at the first of these times, one after the other, each at the second; all
/// in milliseconds. And since when counters are cold.
fn heard<const N: usize>(begin: [(u64, u64); N]) -> ([Option<News>; N], Option<u64>) {
    let (mut losses, zero) = (Losses::default(), monotonic());
    let at = |millis| zero + Duration::from_millis(millis);
    let news = begin.map(|(since, now)| losses.begins(begins(since * 1_000, now * 1_000), HELD, at(now)));
    let millis = |since: Instant| u64::try_from(since.saturating_duration_since(zero).as_millis());
    (news, losses.cold_since().map(|since| millis(since).expect("it is not long ago")))
}

/// The news when counters are cold for so many seconds.
fn cold(secs: u64, is_loss: bool) -> Option<News> {
    Some(News::Cold { lasts: Duration::from_secs(secs), held: HELD, is_loss })
}

#[test]
fn c1_what_began_long_ago_lacks_nothing_that_counts() {
    assert_eq!(heard([(0, 100_000)]), ([None], None));
    assert_eq!(heard([(40_000, 100_000)]), ([None], None));
}

#[test]
fn c2_a_node_that_starts_hears_of_a_loss_and_counts_none() {
    assert_eq!(heard([(99_000, 100_000)]), ([cold(59, false)], Some(99_000)));
    assert_eq!(heard([(100_100, 100_000)]).1, Some(100_100), "leases of before are still spent");
}

#[test]
fn c3_a_loss_after_the_start_is_counted() {
    let (news, since) = heard([(0, 100_000), (130_000, 130_000)]);
    assert_eq!((news, since), ([None, cold(60, true)], Some(130_000)));
    let (news, since) = heard([(99_000, 100_000), (100_000, 130_000)]);
    assert_eq!((news, since), ([cold(59, false), cold(30, true)], Some(100_000)));
}

#[test]
fn c4_nodes_that_come_to_a_primary_one_after_the_other_make_one_loss() {
    let (news, since) = heard([(99_000, 100_000), (99_900, 101_000), (95_000, 101_000)]);
    assert_eq!((news, since), ([cold(59, false), None, None], Some(99_900)));
}

/// The news when marks say, one after the other, whether lease times differ; and what the status page then shows.
fn heard_of_lease_times<const N: usize>(differ: [bool; N]) -> ([bool; N], Option<[Duration; 2]>) {
    let mut losses = Losses::default();
    let news = differ.map(|lease_times_differ| {
        let read = MarkRead { lease_times_differ, ..mark_read(5, 2 * OWN) };
        losses.lease_times(&read, &DENY)
    });
    let expected = News::LeaseTimesDiffer { own: DENY.lease_time, longest: 2 * DENY.lease_time };
    assert!(news.iter().flatten().all(|news| *news == expected && !news.is_loss()));
    (news.map(|news| news.is_some()), losses.lease_times_that_differ(&DENY))
}

const SHOWN: Option<[Duration; 2]> = Some([Duration::from_millis(100), Duration::from_millis(200)]);

/// The mark forgets a lease time that nobody has any more.
#[test]
fn the_longest_lease_time_is_that_of_the_last_mark() {
    let mut losses = Losses::default();
    let longest = [3 * OWN, 2 * OWN].map(|lease_micros| {
        losses.lease_times(&mark_read(5, lease_micros), &DENY);
        losses.longest_lease_micros(&DENY)
    });
    assert_eq!(longest, [3 * OWN, 2 * OWN]);
}

#[test]
fn l1_lease_times_that_begin_to_differ_are_logged() {
    assert_eq!(heard_of_lease_times([false, true]), ([false, true], SHOWN));
}

#[test]
fn l2_lease_times_that_go_on_to_differ_are_shown() {
    assert_eq!(heard_of_lease_times([true, true]), ([true, false], SHOWN));
}

#[test]
fn l3_lease_times_that_are_the_same_again_are_not_shown() {
    assert_eq!(heard_of_lease_times([true, false]), ([true, false], None));
    assert_eq!(heard_of_lease_times([true, false, true]), ([true, false, true], SHOWN));
}
