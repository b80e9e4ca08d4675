//! What Redis is not asked because this node knows it, and what the call for the rest says of it.

use super::super::part::request_summary;
use super::*;

fn over() -> Option<Verdict> {
    Some(Verdict { over: true, before: 1, after: 2, remaining: 0, reset_nanos: 5, is_counted: true })
}

#[tokio::test]
async fn hits_may_go_back_where_a_known_verdict_may_deny_the_request() {
    let (store, rules) = (store(), rules());
    let request = request(&["one", "three"], 1);
    let plan = rules.plan(&request, Modes::default());
    let may_go_back = |known: &Verdicts| {
        let parts = store.parts(&request, &plan, known);
        parts.iter().map(|part| (part.steps.to_vec(), part.may_go_back)).collect::<Vec<_>>()
    };
    assert_eq!(may_go_back(&smallvec![None, None]), [(vec![0, 1], false)]);
    assert_eq!(may_go_back(&smallvec![over(), None]), [(vec![1], true)]);
}

/// With STOP_CACHE_KEY_INCREMENT_WHEN_OVER_LIMIT nothing is charged when a counter is over, in shadow mode too. The ban of a
/// key that an operator made unlimited is no counter that could be over. One that denies stops even fixed windows.
#[tokio::test]
async fn a_ban_that_denies_nobody_stops_no_charge() {
    let rules = rules_of(
        "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 1}, \
         ban: {after: 3 denials, within: 60s, for: 100s}}]",
    );
    let (store, request) = (store(), request(&["user"], 1));
    let stops = |shadow: bool, known: Verdicts| {
        let mut plan = rules.plan(&request, Modes { stop_increment_when_over: true, ..Modes::default() });
        for step in &mut plan.steps {
            let Step::Check(check) = step else { panic!("a limit and its ban") };
            check.shadow = shadow;
        }
        let said = request_summary(&plan, &store.parts(&request, &plan, &known)[0], &known);
        (said.any_over, said.is_banned)
    };
    let known: [Verdicts; 2] = [smallvec![over(), None], smallvec![None, over()]];
    assert_eq!(known.clone().map(|known| stops(false, known)), [(true, false), (true, true)]);
    assert_eq!(known.map(|known| stops(true, known)), [(true, false), (false, false)]);
}

/// With a candidate Redis is asked for each request, and nobody would spend the lease.
#[tokio::test]
async fn no_lease_is_asked_for_along_with_a_candidate() {
    let demands = |candidate: &str| {
        let limit = format!("rate_limit: {{unit: day, requests_per_unit: 1000, sync: leased{candidate}}}");
        let rules = rules_of(&format!("domain: shop\ndescriptors: [{{key: user, {limit}}}]"));
        let (store, request) = (store(), request(&["user"], 1));
        let plan = rules.plan(&request, Modes::default());
        let check = check_at(&plan, 0).expect("a rule");
        (0..2).for_each(|_| drop(store.leases.hold(check, since_boot())));
        store.parts(&request, &plan, &smallvec![None; plan.places()])[0].demands.len()
    };
    assert_eq!(["", ", candidate: {requests_per_unit: 9}"].map(demands), [1, 0]);
}
