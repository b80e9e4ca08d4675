//! Metrics: how they are kept, their names, and where they are sent.

use std::time::Duration;

use super::unless_empty;
use crate::settings::Settings;
use crate::statsd::{Address, Dialect, Mogrifier, Transport};
use tidegate_serve::metrics::{MetricsOptions, Names};

/// The default host of a StatsD receiver.
pub(super) const HOST: &str = "localhost";
pub(super) const PORT: u16 = 8125;

/// Metrics: how they are kept, and where they are sent.
#[derive(Clone)]
pub struct Metrics {
    /// How they are kept, with the built-in names.
    pub options: MetricsOptions,
    /// A mapping file with other names, if there is one.
    pub mapping: Option<String>,
    /// The path of the metrics page.
    pub path: String,
    /// The page is on the HTTP port too.
    pub on_http: bool,
    /// The receivers: one of StatsD, one of DogStatsD, both or none.
    pub receivers: Vec<(Address, Dialect)>,
    /// How often counters are sent to the receivers.
    pub flush: Duration,
}

pub(super) fn resolve(settings: &Settings, workers: usize, mogrifiers: Vec<Mogrifier>) -> Metrics {
    let receivers = receivers(settings, mogrifiers);
    Metrics {
        options: MetricsOptions {
            near_limit_ratio: settings.near_limit_ratio,
            max_series: settings.max_metric_series.0,
            stripes: workers + 1,
            timer_readers: receivers.len(),
            constant_labels: settings.extra_tags.0.clone(),
            names: Names::BuiltIn { response_time_millis: settings.prometheus_response_time_as_milliseconds },
        },
        mapping: unless_empty(&settings.prometheus_mapper_yaml).map(str::to_owned),
        path: settings.prometheus_path.0.clone(),
        on_http: settings.http_metrics,
        receivers,
        flush: settings.stats_flush_interval.0,
    }
}

fn receivers(settings: &Settings, mogrifiers: Vec<Mogrifier>) -> Vec<(Address, Dialect)> {
    let mut receivers = Vec::new();
    if settings.disable_stats {
        return receivers;
    }
    if plain_is_on(settings) {
        let transport = settings.statsd_protocol.unwrap_or(Transport::Tcp);
        receivers.push((address(settings, transport), Dialect::plain(&settings.extra_tags.0)));
    }
    if settings.use_dog_statsd {
        receivers.push((address(settings, Transport::Udp), Dialect::dog(dog_tags(settings), mogrifiers)));
    }
    receivers
}

/// Whether plain StatsD is on. Nobody listens on localhost:8125 by default, so a setting has to ask for it.
pub(super) fn plain_is_on(settings: &Settings) -> bool {
    let is_named = settings.statsd_host.is_some()
        || settings.statsd_port.is_some()
        || settings.statsd_protocol.is_some();
    let others = settings.use_prometheus == Some(true) || settings.use_dog_statsd;
    settings.use_statsd.unwrap_or(is_named && !others)
}

fn address(settings: &Settings, transport: Transport) -> Address {
    Address {
        host: unless_empty(&settings.statsd_host).unwrap_or(HOST).to_owned(),
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
    let unified = unified.into_iter().filter_map(|(name, value)| Some((name, unless_empty(value)?)));
    let extra = settings.extra_tags.0.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    extra.chain(unified)
}

#[cfg(test)]
mod tests {
    use crate::configuration::configured;

    fn sent(pairs: &[(&str, &str)]) -> Vec<String> {
        let receivers = configured(pairs).expect("good settings").metrics.receivers;
        receivers.iter().map(|(address, _)| address.to_string()).collect()
    }

    #[test]
    fn statsd_is_on_when_somebody_says_where_and_names_no_other_way() {
        let (host, port) = (("STATSD_HOST", "h"), ("STATSD_PORT", "1"));
        let none: [&str; 0] = [];
        assert_eq!(sent(&[]), none);
        assert_eq!(sent(&[host]), ["tcp://h:8125"]);
        assert_eq!(sent(&[port]), ["tcp://localhost:1"]);
        assert_eq!(sent(&[("STATSD_PROTOCOL", "udp")]), ["udp://localhost:8125"]);
        assert_eq!(sent(&[host, ("USE_PROMETHEUS", "true")]), none);
        assert_eq!(sent(&[host, ("USE_PROMETHEUS", "false")]), ["tcp://h:8125"]);
        assert_eq!(sent(&[host, ("USE_DOG_STATSD", "true")]), ["udp://h:8125"]);
        assert_eq!(sent(&[host, ("USE_STATSD", "false")]), none);
        assert_eq!(sent(&[("USE_STATSD", "true"), ("USE_PROMETHEUS", "true")]), ["tcp://localhost:8125"]);
        let both = [host, port, ("USE_STATSD", "true"), ("USE_DOG_STATSD", "true")];
        assert_eq!(sent(&both), ["tcp://h:1", "udp://h:1"]);
        assert_eq!(sent(&[both[0], both[2], ("DISABLE_STATS", "true")]), none);
    }
}
