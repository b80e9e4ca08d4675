//! From settings to receivers of StatsD, and what is sent to them.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::app::{AppError, dead};
use crate::metrics::Metrics;
use crate::settings::Settings;
use crate::settings::value::StatsdProtocol;
use crate::statsd::{Address, Dialect, Sender, Transport};

/// Where a receiver is when nothing says it.
pub(super) const HOST: &str = "localhost";
/// Its port.
pub(super) const PORT: u16 = 8125;
/// How long the last metrics may take.
const LAST_METRICS_PATIENCE: Duration = Duration::from_secs(2);

/// Metrics on their way, a task a receiver, on the thread that started them.
pub(super) struct Sending {
    tasks: JoinSet<()>,
    end: watch::Sender<()>,
}

impl Sending {
    pub(super) fn start(receivers: Vec<(Address, Dialect)>, metrics: &Arc<Metrics>, flush: Duration) -> Self {
        let (end, ended) = watch::channel(());
        let mut tasks = JoinSet::new();
        for (reader, (address, dialect)) in receivers.into_iter().enumerate() {
            tracing::info!("metrics: sent to {address}");
            let sender = Sender::new(address, dialect, Arc::clone(metrics), reader);
            tasks.spawn(sender.run(flush, ended.clone()));
        }
        Self { tasks, end }
    }

    /// Waits for a task to die: none ends by itself.
    pub(super) async fn died(&mut self) -> AppError {
        match self.tasks.join_next().await {
            Some(Err(panic)) => dead("sending metrics", panic),
            Some(Ok(())) => dead("sending metrics", "it must not end"),
            None => std::future::pending().await,
        }
    }

    /// Sends what is left, if it goes quickly.
    pub(super) async fn finish(mut self) {
        self.end.send_replace(());
        let all = async { while self.tasks.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(LAST_METRICS_PATIENCE, all).await;
    }
}

/// The receivers: one of StatsD, one of DogStatsD, both or none.
pub(super) fn receivers(settings: &Settings) -> Vec<(Address, Dialect)> {
    let mut receivers = Vec::new();
    if settings.disable_stats {
        return receivers;
    }
    if plain_is_on(settings) {
        let transport = match settings.statsd_protocol {
            Some(StatsdProtocol::Udp) => Transport::Udp,
            Some(StatsdProtocol::Tcp) | None => Transport::Tcp,
        };
        receivers.push((address(settings, transport), Dialect::plain(&settings.extra_tags.0)));
    }
    if settings.use_dog_statsd {
        let dialect = Dialect::dog(dog_tags(settings), settings.mogrifiers.clone());
        receivers.push((address(settings, Transport::Udp), dialect));
    }
    receivers
}

/// Nobody listens on localhost:8125 by default, so it takes a sign that somebody does.
pub(super) fn plain_is_on(settings: &Settings) -> bool {
    let told = settings.statsd_host.is_some()
        || settings.statsd_port.is_some()
        || settings.statsd_protocol.is_some();
    let others = settings.use_prometheus == Some(true) || settings.use_dog_statsd;
    settings.use_statsd.unwrap_or(told && !others)
}

fn address(settings: &Settings, transport: Transport) -> Address {
    let host = settings.statsd_host.clone().filter(|host| !host.is_empty());
    Address {
        host: host.unwrap_or_else(|| HOST.to_owned()),
        port: settings.statsd_port.unwrap_or(PORT),
        transport,
    }
}

fn dog_tags(settings: &Settings) -> impl Iterator<Item = (&str, &str)> {
    let unified = [
        ("env", &settings.dd_env),
        ("service", &settings.dd_service),
        ("version", &settings.dd_version),
        ("dd.internal.entity_id", &settings.dd_entity_id),
    ];
    let unified = unified.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?)));
    let extra = settings.extra_tags.0.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    extra.chain(unified.filter(|(_, value)| !value.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(pairs: &[(&str, &str)]) -> Vec<String> {
        let variable = |name: &str| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1.to_owned());
        let settings = Settings::read(|_| None, variable).expect("good settings");
        receivers(&settings).iter().map(|(address, _)| address.to_string()).collect()
    }

    #[test]
    fn statsd_is_on_when_somebody_says_where_and_names_no_other_way() {
        let (host, port) = (("STATSD_HOST", "h"), ("STATSD_PORT", "1"));
        let none: [&str; 0] = [];
        assert_eq!(told(&[]), none);
        assert_eq!(told(&[host]), ["tcp://h:8125"]);
        assert_eq!(told(&[port]), ["tcp://localhost:1"]);
        assert_eq!(told(&[("STATSD_PROTOCOL", "udp")]), ["udp://localhost:8125"]);
        assert_eq!(told(&[host, ("USE_PROMETHEUS", "true")]), none);
        assert_eq!(told(&[host, ("USE_PROMETHEUS", "false")]), ["tcp://h:8125"]);
        assert_eq!(told(&[host, ("USE_DOG_STATSD", "true")]), ["udp://h:8125"]);
        assert_eq!(told(&[host, ("USE_STATSD", "false")]), none);
        assert_eq!(told(&[("USE_STATSD", "true"), ("USE_PROMETHEUS", "true")]), ["tcp://localhost:8125"]);
        let both = [host, port, ("USE_STATSD", "true"), ("USE_DOG_STATSD", "true")];
        assert_eq!(told(&both), ["tcp://h:1", "udp://h:1"]);
        assert_eq!(told(&[both[0], both[2], ("DISABLE_STATS", "true")]), none);
    }
}
