//! Events as requests to a webhook, signed, and retried for a while.
//!
//! One request is in flight at a time, with all events that wait (up to a bound), so events arrive in order. A
//! request that fails is sent again after pauses that grow and are partly random. After EVENTS_WEBHOOK_RETRY_TIME its
//! events are dropped and counted. Events that arrive meanwhile wait in the queue, which is bounded.
//!
//! - `client`: connections, TLS, a proxy; `signature`: what a receiver can check

mod client;
mod signature;

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;

pub use self::client::{Endpoint, WebhookError};

use self::client::Client;
use self::signature::Signer;
use crate::clock::{Clock, timer};
use tidegate_serve::events::{Queue, hex};

/// Events in one request.
const EVENTS_MAX: usize = 100;
/// The first pause before another attempt, and the longest.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Sends events to a webhook.
pub struct Webhook {
    client: Client,
    signer: Option<Signer>,
    wall: Clock,
    retry_time: Duration,
    is_failing: bool,
}

/// Why a request was not accepted.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("it did not answer within {0:?}")]
    Timeout(Duration),
    #[error("{0}")]
    Unreachable(String),
    #[error("it answered {0}")]
    Status(StatusCode),
}

impl Webhook {
    /// A webhook at this endpoint. `secret` signs requests, at times by `wall`. Attempts end after `retry_time`.
    /// Fails when the endpoint cannot be used.
    pub fn new(
        endpoint: Endpoint,
        secret: Option<&[u8]>,
        wall: Clock,
        retry_time: Duration,
    ) -> Result<Self, WebhookError> {
        let client = Client::new(endpoint)?;
        Ok(Self { client, signer: secret.map(Signer::new), wall, retry_time, is_failing: false })
    }

    /// Sends events until the process ends.
    pub async fn run(mut self, mut queue: Queue) {
        loop {
            let events = queue.take(EVENTS_MAX).await;
            if events.is_empty() {
                return;
            }
            let body = Bytes::from(format!("{{\"events\":[{}]}}", events.join(",")));
            let is_sent = self.deliver(body, &mut queue).await;
            queue.settle(events.len(), is_sent);
        }
    }

    /// Sends one request until it is accepted, or no other attempt makes sense.
    async fn deliver(&mut self, body: Bytes, queue: &mut Queue) -> bool {
        let (began, delivery) = (timer(), hex(&random::<16>()));
        for attempt in 0.. {
            let Err(refusal) = self.attempt(&delivery, &body).await else {
                self.is_well();
                return true;
            };
            queue.failed();
            let pause = pause(attempt, u32::from_le_bytes(random()));
            let is_last = !refusal.is_temporary()
                || queue.is_ending()
                || timer().saturating_duration_since(began) + pause > self.retry_time;
            self.is_ill(&refusal, is_last);
            if is_last {
                return false;
            }
            // The end of the process ends the pause: one more attempt, the last.
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = queue.ending() => {}
            }
        }
        false
    }

    async fn attempt(&self, delivery: &str, body: &Bytes) -> Result<(), Refusal> {
        let seconds = self.wall.now().as_nanos() / 1_000_000_000;
        let signature = self.signer.as_ref().map(|signer| signer.header(seconds, body));
        let status = self.client.post(delivery, signature.as_deref(), body.clone()).await?;
        if status.is_success() { Ok(()) } else { Err(Refusal::Status(status)) }
    }

    fn is_well(&mut self) {
        if std::mem::take(&mut self.is_failing) {
            tracing::info!("events: {} accepts events again", self.client.place());
        }
    }

    /// Logs the first of several failures in a row, and events that are given up.
    fn is_ill(&mut self, refusal: &Refusal, is_last: bool) {
        let place = self.client.place();
        if is_last {
            tracing::error!(
                "events: {place} refused events, which are dropped: {refusal} (EVENTS_WEBHOOK_URL)"
            );
        } else if !self.is_failing {
            tracing::warn!(
                "events: {place} does not accept events, which wait: {refusal} (EVENTS_WEBHOOK_URL)"
            );
        }
        self.is_failing = true;
    }
}

impl Refusal {
    /// Whether the same request may be accepted later.
    fn is_temporary(&self) -> bool {
        match self {
            Self::Timeout(_) | Self::Unreachable(_) => true,
            Self::Status(status) => {
                let later =
                    [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_EARLY, StatusCode::TOO_MANY_REQUESTS];
                status.is_server_error() || later.contains(status)
            }
        }
    }
}

/// The pause after this attempt, from 0 on: it doubles, and a half of it is random.
fn pause(attempt: u32, random: u32) -> Duration {
    let whole = PAUSE.saturating_mul(1 << attempt.min(16)).min(PAUSE_MAX);
    whole.mul_f64(0.5 + 0.5 * f64::from(random) / f64::from(u32::MAX))
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // Without random bytes pauses are the shortest, and all deliveries have the same number: neither is a secret.
    let _ = getrandom::fill(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_minute_and_half_of_each_is_random() {
        let seconds = |attempt, random| pause(attempt, random).as_secs_f64();
        assert_eq!([0, 1, 2, 5, 6, 1_000].map(|at| seconds(at, u32::MAX)), [1.0, 2.0, 4.0, 32.0, 60.0, 60.0]);
        assert_eq!([0, 1, 1_000].map(|at| seconds(at, 0)), [0.5, 1.0, 30.0]);
    }

    #[test]
    fn what_may_be_taken_later_is_tried_again() {
        let again = |status| Refusal::Status(StatusCode::from_u16(status).expect("a status")).is_temporary();
        assert_eq!([500, 502, 503, 408, 425, 429].map(again), [true; 6]);
        assert_eq!([301, 400, 401, 404, 413].map(again), [false; 5]);
    }
}
