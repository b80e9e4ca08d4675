//! What Redis has lost, or never announced: nodes write it back, and announce it once more.

use super::*;

#[tokio::test]
async fn a_change_that_redis_has_lost_before_anybody_read_it_is_written_back() {
    let redis = Arc::<Redis>::default();
    let nodes = [Node::start(&redis), Node::start(&redis)];
    all_agree(&nodes, NOW).await;
    nodes[0].put("a", 5, NOW).await.expect("done");
    all_agree(&nodes, NOW).await;
    let before = redis.held.lock().clone();
    assert_eq!(nodes[0].end("a", after(1)).await.expect("done"), Change::Ended);
    *redis.held.lock() = before;
    all_agree(&nodes, after(2)).await;
    assert_eq!(nodes.map(|node| node.limits().len()), [0, 0], "the end holds");
}

#[tokio::test]
async fn a_change_that_is_sent_again_is_stored_again() {
    let redis = Arc::<Redis>::default();
    let nodes = [Node::start(&redis), Node::start(&redis)];
    nodes[0].link.lacks_replicas.store(true, Relaxed);
    assert!(matches!(nodes[0].put("a", 5, NOW).await, Err(ChangeError::NotKnown(_))));
    nodes[0].link.lacks_replicas.store(false, Relaxed);
    all_agree(&nodes[..1], NOW).await;
    *redis.held.lock() = Held::default();
    assert_eq!(nodes[0].put("a", 5, after(1)).await.expect("done"), Change::Unchanged);
    nodes[1].agree(after(1)).await.expect("it answers");
    assert_eq!(nodes[1].limits()["a"], 5);
}

#[tokio::test]
async fn a_change_is_later_than_what_its_node_knows_though_redis_has_lost_that() {
    let redis = Arc::<Redis>::default();
    let nodes = [Node::start(&redis), Node::start(&redis)];
    nodes[0].put("a", 5, after(10)).await.expect("done");
    all_agree(&nodes, after(10)).await;
    *redis.held.lock() = Held::default();
    nodes[1].put("a", 6, NOW).await.expect("done");
    nodes.iter().for_each(Node::compares_all);
    all_agree(&nodes, after(11)).await;
    assert_eq!(nodes.map(|node| node.limits()["a"]), [6, 6]);
}

#[tokio::test]
async fn of_two_exceptions_with_one_number_the_one_in_redis_holds() {
    let redis = Arc::<Redis>::default();
    let nodes = [Node::start(&redis), Node::start(&redis)];
    all_agree(&nodes, NOW).await;
    nodes[0].put("a", 5, NOW).await.expect("done");
    *redis.held.lock() = Held::default();
    nodes[1].put("a", 6, NOW).await.expect("done");
    nodes.iter().for_each(Node::compares_all);
    all_agree(&nodes, after(1)).await;
    assert_eq!(nodes.map(|node| node.limits()["a"]), [6, 6]);
}

#[tokio::test]
async fn what_was_not_announced_is_announced_once_more() {
    let redis = Arc::<Redis>::default();
    let nodes = [(); 2].map(|()| Node::start(&redis));
    let [one, other] = &nodes;
    one.put("a", 5, NOW).await.expect("it answers");
    all_agree(&nodes, NOW).await;
    let lacks_announcement = |fails: bool| one.link.is_unannounced.store(fails, Relaxed);

    // An operator's change.
    lacks_announcement(true);
    assert!(matches!(one.end("a", after(1)).await, Err(ChangeError::NotKnown(_))));
    one.link.is_cut.store(true, Relaxed);
    one.agree(after(1)).await.expect_err("Redis is away");
    one.link.is_cut.store(false, Relaxed);
    one.agree(after(1)).await.expect_err("it cannot be announced yet");
    other.agree(after(1)).await.expect("it answers");
    assert_eq!(other.limits(), BTreeMap::from([("a".to_owned(), 5)]));
    lacks_announcement(false);
    one.agree(after(1)).await.expect("it answers");
    other.agree(after(1)).await.expect("it answers");
    assert_eq!(other.limits(), BTreeMap::new());

    // What a node writes back.
    let lost = redis.held.lock().clone();
    one.put("b", 6, after(2)).await.expect("it answers");
    *redis.held.lock() = lost;
    lacks_announcement(true);
    one.agree(after(2)).await.expect_err("it cannot be announced yet");
    lacks_announcement(false);
    one.agree(after(2)).await.expect("it answers");
    other.agree(after(2)).await.expect("it answers");
    assert_eq!(other.limits(), BTreeMap::from([("b".to_owned(), 6)]));
    assert!(one.book.shared.as_ref().expect("shared").unannounced.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_redis_evicts_is_written_back_within_minutes() {
    let redis = Arc::<Redis>::default();
    let node = Node::start(&redis);
    node.put("a", 5, Tokio.wall()).await.expect("done");
    let following = tokio::spawn(Arc::clone(&node.book).follow());
    tokio::time::sleep(2 * READ_INTERVAL).await;
    redis.held.lock().values.clear();
    tokio::time::sleep(2 * READ_INTERVAL).await;
    assert!(redis.held.lock().values.is_empty(), "nobody announced it");
    tokio::time::sleep(COMPARE_ALL_EVERY * READ_INTERVAL).await;
    assert!(redis.held.lock().values.contains_key("a"));
    following.abort();
}

#[tokio::test]
async fn a_value_that_is_not_listed_is_listed_again() {
    let redis = Arc::<Redis>::default();
    let node = Node::start(&redis);
    node.put("a", 5, NOW).await.expect("done");
    node.agree(NOW).await.expect("it answers");
    redis.held.lock().listed.clear();
    node.compares_all();
    node.agree(NOW).await.expect("it answers");
    let other = Node::start(&redis);
    other.agree(NOW).await.expect("it answers");
    assert_eq!(other.limits()["a"], 5);
}

#[tokio::test]
async fn what_redis_evicts_is_there_again_for_nodes_that_start() {
    let redis = Arc::<Redis>::default();
    let node = Node::start(&redis);
    node.put("a", 5, NOW).await.expect("done");
    node.agree(NOW).await.expect("it answers");
    redis.held.lock().values.clear();
    node.compares_all();
    node.agree(NOW).await.expect("it answers");
    let other = Node::start(&redis);
    other.agree(NOW).await.expect("it answers");
    assert_eq!(other.limits()["a"], 5);
}

/// One of several that are written back together fails, so the others are not waited for any more.
#[tokio::test]
async fn what_was_not_announced_because_another_one_failed_is_announced_later() {
    let redis = Arc::<Redis>::default();
    let nodes = [(); 2].map(|()| Node::start(&redis));
    let [one, other] = &nodes;
    all_agree(&nodes, NOW).await;
    let before = redis.held.lock().clone();
    one.put("a", 5, NOW).await.expect("it answers");
    one.put("b", 6, NOW).await.expect("it answers");
    *redis.held.lock() = before;
    *one.link.stuck.lock() = Some("a".to_owned());
    one.link.is_mute.store(true, Relaxed);
    one.agree(after(1)).await.expect_err("no answer for one of them");
    *one.link.stuck.lock() = None;
    one.link.is_mute.store(false, Relaxed);
    one.agree(after(2)).await.expect("it answers");
    other.agree(after(2)).await.expect("it answers");
    assert_eq!(other.limits(), BTreeMap::from([("a".to_owned(), 5), ("b".to_owned(), 6)]));
}

/// A node that starts waits for the first agreement only for a while.
#[tokio::test]
async fn what_was_not_announced_is_announced_though_an_agreement_was_given_up() {
    let redis = Arc::<Redis>::default();
    let nodes = [(); 2].map(|()| Node::start(&redis));
    let [one, other] = &nodes;
    all_agree(&nodes, NOW).await;
    one.link.is_unannounced.store(true, Relaxed);
    assert!(matches!(one.put("a", 5, NOW).await, Err(ChangeError::NotKnown(_))));
    one.link.is_unannounced.store(false, Relaxed);
    assert!(one.agree(after(1)).now_or_never().is_none(), "it waits for Redis");
    one.agree(after(2)).await.expect("it answers");
    other.agree(after(2)).await.expect("it answers");
    assert_eq!(other.limits(), BTreeMap::from([("a".to_owned(), 5)]));
}
