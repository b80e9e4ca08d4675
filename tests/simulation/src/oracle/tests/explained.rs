//! Explanations, next to what clients were answered.

use super::*;

#[test]
fn an_explanation_says_what_an_answer_might_and_charges_nothing() {
    let (admitted, over) = (Outcome::Admitted, Outcome::Denied { over: true });
    let limits = [limit(Algorithm::SlidingWindow)];
    let is_fine = |asked: &[Record], explained: Record| {
        let rules = rules(&limits, &[], true);
        wrong_explanations(&rules, &Counter::all(&limits, asked), (asked, &[]), &[explained]).is_none()
    };
    let [one, other] = [0, 5].map(|at| record((at, at + 1), admitted));
    let says = |outcome: Outcome, remaining: u64| Record { remaining, ..record((20, 21), outcome) };
    assert!(is_fine(&[one], says(admitted, 0)));
    assert!(!is_fine(&[one, other], says(admitted, 0)), "both hits are there");
    assert!(!is_fine(&[one], says(over, 0)), "there is room for one");
    assert!(is_fine(&[one, other], says(over, 0)));
    assert!(is_fine(&[], says(admitted, 1)));
    assert!(!is_fine(&[], says(admitted, 0)), "nobody has asked for the second one");
    let together = |asked: &[Record], explained: [Record; 2]| {
        let rules = rules(&limits, &[], true);
        wrong_explanations(&rules, &Counter::all(&limits, asked), (asked, &[]), &explained).is_none()
    };
    assert!(together(&[], [says(admitted, 1), says(admitted, 0)]), "the second has less left");
    assert!(together(&[one], [says(admitted, 0), says(over, 0)]), "two do not fit");
    assert!(!together(&[], [says(admitted, 1), says(over, 0)]), "two fit");
    let later = record((30, 31), over);
    assert!(is_fine(&[one, later], says(admitted, 0)), "it denies nothing that comes later");
}
