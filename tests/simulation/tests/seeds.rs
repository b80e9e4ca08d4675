//! Some seeds, each a cluster with faults of its own; and a seed means the same run each time.

use tidegate_simulation::run::run;
use tidegate_simulation::scenario::Scenario;

/// More of them run with the program itself: `--runs`, `--minutes`.
const SEEDS: u64 = 1_000;

#[test]
fn nothing_goes_wrong() {
    // On two threads, as each world has one.
    std::thread::scope(|scope| {
        for first in 0..2 {
            scope.spawn(move || {
                for seed in (first..SEEDS).step_by(2) {
                    let outcome = run(&Scenario::new(seed, None), false);
                    assert_eq!(outcome.violation, None, "seed {seed}: run tidegate-simulation --seed {seed}");
                }
            });
        }
    });
}

#[test]
fn a_seed_means_the_same_run_each_time() {
    for seed in 10_000..10_020 {
        let scenario = Scenario::new(seed, None);
        let stories = [(); 2].map(|()| run(&scenario, true).story);
        assert!(stories[0].len() > 10_000, "a run has much to tell");
        assert_eq!(stories[0], stories[1], "seed {seed}");
    }
}
