//! StatsD: counters and timers on their way to a receiver, as plain StatsD over TCP or UDP or as DogStatsD.
//!
//! In: [`Metrics`], read on the control thread. Out: lines in batches. What is sent of a counter is how much it has
//! grown since it was last sent, so nothing is queued while a receiver is away or stalls: its counters wait where they
//! are, its timers are left out and counted. A decision never waits for any of this.
//!
//! - `line`: what a line looks like
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
use crate::metrics::Metrics;

/// How long timers wait, so that many share a packet.
const TIMERS_INTERVAL: Duration = Duration::from_millis(100);
/// How long to wait for a receiver that is away before asking again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Counters to look at before others may do something.
const STEP: usize = 4_096;

/// Sends everything to one receiver.
pub struct Sender {
    address: Address,
    dialect: Dialect,
    metrics: Arc<Metrics>,
    /// Which of the readers of timers this is.
    reader: usize,
    /// What was sent of each counter, by its index.
    sent: Vec<u64>,
}

/// Lines that are sent together, and what they say of counters.
#[derive(Default)]
struct Batch {
    text: String,
    counts: Vec<(usize, u64)>,
}

impl Sender {
    /// A sender of `metrics`, in which it is this reader of timers.
    pub fn new(address: Address, dialect: Dialect, metrics: Arc<Metrics>, reader: usize) -> Self {
        Self { address, dialect, metrics, reader, sent: Vec::new() }
    }

    /// Sends, counters every `flush`, until `end` changes; then what is left.
    pub async fn run(mut self, flush: Duration, mut end: watch::Receiver<()>) {
        tokio::select! {
            never = self.keep_sending(flush) => match never {},
            _ = end.changed() => {}
        }
        if let Err(error) = self.send_the_rest().await {
            tracing::warn!("StatsD: {} did not take the last metrics: {error}", self.address);
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
                        tracing::info!("StatsD: {} is back", self.address);
                    }
                    reachable = true;
                    self.feed(&mut connection, &mut flush).await.err()
                }
                Err(error) => Some(error),
            };
            if let Some(error) = failed {
                if reachable {
                    tracing::warn!("StatsD: {} does not take metrics, counts wait: {error}", self.address);
                }
                reachable = false;
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
        }
    }

    /// Sends until something fails; over UDP also until a flush is over, because nothing tells there that the name of
    /// the receiver has come to mean another address.
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
        let mut batch = Batch::default();
        for (step, counter) in metrics.statsd_counters().enumerate() {
            if step % STEP == STEP - 1 {
                tokio::task::yield_now().await;
            }
            let (index, count) = (counter.index(), metrics.count(&counter));
            let grown = count.wrapping_sub(self.sent.get(index).copied().unwrap_or(0));
            if grown > 0 {
                let before = batch.text.len();
                self.dialect.counter(&mut batch.text, &counter.name, grown);
                batch = self.send_if_full(connection, batch, before).await?;
                batch.counts.push((index, count));
            }
        }
        self.send(connection, batch).await
    }

    async fn send_timers(&self, connection: &mut Connection) -> io::Result<()> {
        let mut taken = Vec::new();
        self.metrics.take_timers(self.reader, |timed| taken.push(timed));
        let mut text = String::new();
        for timed in taken {
            let before = text.len();
            self.dialect.timer(&mut text, &timed.name, timed.nanos);
            if text.len() > connection.batch_bytes() && before > 0 {
                let line = text.split_off(before);
                connection.write(&text).await?;
                text = line;
            }
        }
        connection.write(&text).await
    }

    /// Sends all but the line that begins at `last`, if that one is too much.
    async fn send_if_full(
        &mut self,
        connection: &mut Connection,
        mut batch: Batch,
        last: usize,
    ) -> io::Result<Batch> {
        if batch.text.len() <= connection.batch_bytes() || last == 0 {
            return Ok(batch);
        }
        let text = batch.text.split_off(last);
        self.send(connection, batch).await?;
        Ok(Batch { text, counts: Vec::new() })
    }

    /// What could not be sent counts as not sent.
    async fn send(&mut self, connection: &mut Connection, batch: Batch) -> io::Result<()> {
        connection.write(&batch.text).await?;
        for (index, count) in batch.counts {
            if self.sent.len() <= index {
                self.sent.resize(index + 1, 0);
            }
            self.sent[index] = count;
        }
        Ok(())
    }
}

/// A tick now and then one each time; ticks that were missed are.
fn ticks(each: Duration) -> Interval {
    let mut ticks = interval(each);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}
