//! Runs a model under several schedulers.

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, Runner};

/// Interleavings that each scheduler tries of each model.
const TRIES: usize = 2_000;

/// Tries a model at random, and with a few priorities that change at few moments: the latter finds bugs that need one
/// thread to be held up for long.
pub(crate) fn explore(model: fn()) {
    run(RandomScheduler::new(TRIES), model);
    run(PctScheduler::new(3, TRIES), model);
}

fn run(scheduler: impl Scheduler + 'static, model: fn()) {
    let mut config = Config::new();
    config.failure_persistence = FailurePersistence::Print;
    Runner::new(scheduler, config).run(model);
}
