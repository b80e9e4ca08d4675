//! Which state of the world was last refused, and how long the next refusal is delayed.
//!
//! `go-control-plane` answers a NACK with the same state at once, thousands of times a second. So a refused state is
//! checked only once. Refusals in a row are delayed for longer and longer, whatever their content: a control plane
//! may write the time into it. The longest pause bounds how long a corrected state waits.

use std::time::Duration;

use prost_types::Any;

/// The delay of the second refusal in a row. It doubles with each further one.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Refusals since a state was last accepted.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    in_a_row: u32,
    /// The resources that were refused last, sorted: control planes send them in any order.
    resources: Vec<Any>,
    problems: Vec<String>,
}

impl Refusals {
    /// The problems of these resources, if they are those that were refused last.
    pub(super) fn of(&self, resources: &[Any]) -> Option<Vec<String>> {
        let is_same = self.in_a_row > 0 && self.resources == sorted(resources);
        is_same.then(|| self.problems.clone())
    }

    /// Adds a refusal, and returns its delay.
    pub(super) fn add(&mut self, resources: &[Any], problems: &[String]) -> Duration {
        let doublings = self.in_a_row.checked_sub(1);
        self.in_a_row = self.in_a_row.saturating_add(1);
        (self.resources, self.problems) = (sorted(resources), problems.to_vec());
        doublings.map_or(Duration::ZERO, |doublings| {
            PAUSE_FIRST.saturating_mul(2_u32.saturating_pow(doublings)).min(PAUSE_MAX)
        })
    }
}

fn sorted(resources: &[Any]) -> Vec<Any> {
    let mut sorted = resources.to_vec();
    sorted.sort_by(|one, other| one.value.cmp(&other.value));
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resources(contents: &[&str]) -> Vec<Any> {
        contents.iter().map(|content| Any { value: content.as_bytes().to_vec(), ..Any::default() }).collect()
    }

    #[test]
    fn the_state_that_was_refused_last_is_known_in_any_order() {
        let (mut refusals, problems) = (Refusals::default(), vec!["bad".to_owned()]);
        assert_eq!(refusals.of(&[]), None, "nothing was refused");
        refusals.add(&resources(&["a", "b"]), &problems);
        assert_eq!(refusals.of(&resources(&["b", "a"])), Some(problems.clone()));
        assert_eq!(refusals.of(&resources(&["a"])), None);
        refusals.add(&resources(&["a"]), &problems);
        assert_eq!(refusals.of(&resources(&["a", "b"])), None);
    }

    #[test]
    fn refusals_in_a_row_wait_for_longer_whatever_their_content() {
        let mut refusals = Refusals::default();
        let pauses: Vec<_> =
            (0..8).map(|at| refusals.add(&resources(&[["a", "b"][at % 2]]), &[]).as_millis()).collect();
        assert_eq!(pauses, [0, 100, 200, 400, 800, 1_600, 2_000, 2_000]);
        refusals.in_a_row = u32::MAX;
        assert_eq!(refusals.add(&[], &[]), PAUSE_MAX, "for ever");
    }
}
