//! StatsD: sends counters and timers to a receiver, as plain StatsD over TCP or UDP, or as DogStatsD.
//!
//! In: [`Metrics`], read on the control thread. Out: payloads of lines. A counter's line has its growth since the last
//! line. So nothing is queued while the receiver is away or slow: counters just grow, timers are dropped and counted.
//! A decision never waits for any of this.
//!
//! - `line`: the format of a line
//! - `wire`: the connection

mod line;
mod wire;

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior, interval};

pub use self::line::{Dialect, Mogrifier};
pub use self::wire::{Address, Transport};

use self::wire::Connection;
use tidegate_serve::metrics::Metrics;

/// How long timers wait, so that many of them share a packet.
const TIMERS_INTERVAL: Duration = Duration::from_millis(100);
/// How long to wait after a failure before connecting again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Counters that are read before the task yields to others.
const STEP: usize = 4_096;

/// Sends all counters and timers to one receiver.
pub struct Sender {
    address: Address,
    dialect: Dialect,
    metrics: Arc<Metrics>,
    /// The number of this sender among the readers of timers.
    reader: usize,
    /// The count of each counter when it was last sent, by its index.
    sent: Vec<u64>,
}

/// Lines that are sent together, and the counts of their counters, by index.
#[derive(Default)]
struct Payload {
    text: String,
    counts: Vec<(usize, u64)>,
}

impl Sender {
    /// A sender of `metrics`, with this number among the readers of timers.
    pub fn new(address: Address, dialect: Dialect, metrics: Arc<Metrics>, reader: usize) -> Self {
        Self { address, dialect, metrics, reader, sent: Vec::new() }
    }

    /// Sends until `end` changes, counters every `flush`. Then sends what is left.
    pub async fn run(mut self, flush: Duration, mut end: watch::Receiver<()>) {
        tokio::select! {
            never = self.keep_sending(flush) => match never {},
            _ = end.changed() => {}
        }
        if let Err(error) = self.send_the_rest().await {
            tracing::warn!("StatsD: {} did not accept the last metrics: {error}", self.address);
        }
    }

    async fn send_the_rest(&mut self) -> io::Result<()> {
        let mut connection = Connection::open(&self.address).await?;
        self.send_counters(&mut connection).await?;
        self.send_timers(&mut connection).await
    }

    async fn keep_sending(&mut self, flush: Duration) -> Infallible {
        let mut flush = ticks(flush);
        let mut reachable = true;
        loop {
            let failed = match Connection::open(&self.address).await {
                Ok(mut connection) => {
                    if !reachable {
                        tracing::info!("StatsD: {} accepts metrics again", self.address);
                    }
                    reachable = true;
                    self.feed(&mut connection, &mut flush).await.err()
                }
                Err(error) => Some(error),
            };
            if let Some(error) = failed {
                if reachable {
                    tracing::warn!(
                        "StatsD: {} does not accept metrics; counters wait: {error}",
                        self.address
                    );
                }
                reachable = false;
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
        }
    }

    /// Sends until something fails. Over UDP it also ends after one flush: only a new connection looks up the name of
    /// the receiver again, and UDP does not report that the address has changed.
    async fn feed(&mut self, connection: &mut Connection, flush: &mut Interval) -> io::Result<()> {
        let mut timers = ticks(TIMERS_INTERVAL);
        loop {
            tokio::select! {
                _ = flush.tick() => {
                    self.send_counters(connection).await?;
                    if connection.forgets() {
                        return Ok(());
                    }
                }
                _ = timers.tick() => self.send_timers(connection).await?,
            }
        }
    }

    async fn send_counters(&mut self, connection: &mut Connection) -> io::Result<()> {
        let metrics = Arc::clone(&self.metrics);
        let mut payload = Payload::default();
        for (step, counter) in metrics.statsd_counters().enumerate() {
            if step % STEP == STEP - 1 {
                tokio::task::yield_now().await;
            }
            let (index, count) = (counter.index(), metrics.count(&counter));
            let grown = count.wrapping_sub(self.sent.get(index).copied().unwrap_or(0));
            if grown > 0 {
                let before = payload.text.len();
                self.dialect.counter(&mut payload.text, &counter.name, grown);
                payload = self.send_if_full(connection, payload, before).await?;
                payload.counts.push((index, count));
            }
        }
        self.send(connection, payload).await
    }

    async fn send_timers(&self, connection: &mut Connection) -> io::Result<()> {
        let mut taken = Vec::new();
        self.metrics.take_timers(self.reader, |timed| taken.push(timed));
        let mut text = String::new();
        for timed in taken {
            let before = text.len();
            self.dialect.timer(&mut text, &timed.name, timed.nanos);
            if text.len() > connection.payload_bytes() && before > 0 {
                let line = text.split_off(before);
                connection.write(&text).await?;
                text = line;
            }
        }
        connection.write(&text).await
    }

    /// If the payload is too long with the line that begins at `last`, sends all but that line.
    async fn send_if_full(
        &mut self,
        connection: &mut Connection,
        mut payload: Payload,
        last: usize,
    ) -> io::Result<Payload> {
        if payload.text.len() <= connection.payload_bytes() || last == 0 {
            return Ok(payload);
        }
        let text = payload.text.split_off(last);
        self.send(connection, payload).await?;
        Ok(Payload { text, counts: Vec::new() })
    }

    /// Sends a payload. Its counters count as sent only when that succeeds.
    async fn send(&mut self, connection: &mut Connection, payload: Payload) -> io::Result<()> {
        connection.write(&payload.text).await?;
        for (index, count) in payload.counts {
            if self.sent.len() <= index {
                self.sent.resize(index + 1, 0);
            }
            self.sent[index] = count;
        }
        Ok(())
    }
}

/// A tick now and then one per interval. Missed ticks are not made up for.
fn ticks(each: Duration) -> Interval {
    let mut ticks = interval(each);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}
