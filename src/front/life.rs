//! How long a connection lives: until draining begins or it reaches its age, plus a grace.

use std::time::Duration;

use super::Drain;

/// A connection is asked to end up to a tenth earlier or later than its age. So connections that were opened together are
/// not opened again together.
const JITTER_SHARE: u32 = 10;

/// The greatest age of connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MaxAge {
    /// The age, plus or minus a tenth, at which a connection is asked to end. `None`: never.
    pub age: Option<Duration>,
    /// How long it may take after that to finish its calls; then it is closed. `None`: without a bound.
    pub grace: Option<Duration>,
}

/// The life of one connection.
#[derive(Clone, Debug)]
pub struct Life {
    drain: Drain,
    age: Option<Duration>,
    grace: Option<Duration>,
}

impl MaxAge {
    /// The age at which one connection is asked to end. `random` places it within the tenth.
    fn of_one(&self, random: u64) -> Option<Duration> {
        let age = self.age?;
        let span = u64::try_from((age / JITTER_SHARE * 2).as_nanos()).unwrap_or(u64::MAX);
        let jitter = Duration::from_nanos(random.checked_rem(span).unwrap_or(0));
        Some((age - age / JITTER_SHARE).saturating_add(jitter))
    }
}

impl Life {
    /// A life that only draining ends.
    #[must_use]
    pub fn until(drain: Drain) -> Self {
        Self { drain, age: None, grace: None }
    }

    /// A life that draining ends, or `max_age`.
    #[must_use]
    pub fn bounded(drain: Drain, max_age: MaxAge) -> Self {
        // Without randomness, connections that were opened together are opened again together.
        let random = getrandom::u64().unwrap_or(u64::MAX / 2);
        Self { drain, age: max_age.of_one(random), grace: max_age.grace }
    }

    /// Waits until draining has begun. Nothing else ends a connection before its protocol is known. Its age counts
    /// from then on: earlier it could only be closed without a GOAWAY, and the client would lose calls.
    pub(super) async fn draining(&mut self) {
        self.drain.begun().await;
    }

    /// Waits until the connection should take no new calls and end: draining has begun, or it is old.
    pub async fn over(&mut self) {
        tokio::select! {
            () = self.drain.begun() => {}
            () = after(self.age) => {}
        }
    }

    /// After [`over`](Self::over): waits until the connection has to be closed, even with unfinished calls.
    pub async fn grace_over(&self) {
        after(self.grace).await;
    }
}

async fn after(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use siphasher::sip::SipHasher13;
    use tokio::time::timeout;

    use super::*;
    use crate::front::DrainSwitch;

    const SECOND: Duration = Duration::from_secs(1);
    const DAY: Duration = Duration::from_secs(86_400);

    #[test]
    fn ages_are_spread_over_a_tenth_to_either_side() {
        let max_age = MaxAge { age: Some(DAY), grace: None };
        // A fixed seed, so that a failure is reproducible.
        let ages: Vec<_> = (0_u64..10_000)
            .map(|draw| max_age.of_one(SipHasher13::new_with_keys(1, 2).hash(&draw.to_le_bytes())))
            .map(|age| age.expect("bounded").as_secs_f64() / DAY.as_secs_f64())
            .collect();
        assert!(ages.iter().all(|age| (0.9..1.1).contains(age)), "{ages:?}");
        for tenth in 0_u32..10 {
            let from = 0.9 + 0.02 * f64::from(tenth);
            let within = ages.iter().filter(|&&age| (from..from + 0.02).contains(&age)).count();
            assert!((850..1150).contains(&within), "{within} of 10000 from {from}");
        }
    }

    #[test]
    fn ages_at_the_ends_of_what_can_be_set() {
        assert_eq!(MaxAge::default().of_one(7), None);
        let nanos = |age| MaxAge { age: Some(age), grace: None }.of_one(u64::MAX);
        assert_eq!(nanos(Duration::from_nanos(1)), Some(Duration::from_nanos(1)));
        assert!(nanos(Duration::MAX).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_life_is_over_at_its_age_or_when_draining_begins_and_then_has_its_grace() {
        let switch = DrainSwitch::new();
        let max_age = MaxAge { age: Some(DAY), grace: Some(DAY) };
        let mut life = Life::bounded(switch.drain(), max_age);
        {
            let mut over = std::pin::pin!(life.over());
            assert!(timeout(DAY / 10 * 9 - SECOND, &mut over).await.is_err(), "too early");
            assert!(timeout(DAY / 10 * 2 + 2 * SECOND, &mut over).await.is_ok(), "too late");
        }
        assert!(timeout(DAY - SECOND, life.grace_over()).await.is_err(), "too early");
        assert!(timeout(DAY + SECOND, life.grace_over()).await.is_ok(), "too late");

        let mut life = Life::bounded(switch.drain(), MaxAge::default());
        assert!(timeout(1000 * DAY, life.over()).await.is_err(), "0 is never");
        switch.throw();
        life.over().await;
        assert!(timeout(1000 * DAY, life.grace_over()).await.is_err(), "0 is never");
    }
}
