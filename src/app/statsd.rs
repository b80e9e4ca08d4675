//! From settings to receivers of StatsD.

use crate::settings::Settings;
use crate::settings::value::StatsdProtocol;
use crate::statsd::{Address, Dialect, Transport};

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
fn plain_is_on(settings: &Settings) -> bool {
    let told = settings.statsd_host.is_some()
        || settings.statsd_port.is_some()
        || settings.statsd_protocol.is_some();
    let others = settings.use_prometheus == Some(true) || settings.use_dog_statsd;
    settings.use_statsd.unwrap_or(told && !others)
}

fn address(settings: &Settings, transport: Transport) -> Address {
    let host = settings.statsd_host.clone().filter(|host| !host.is_empty());
    Address {
        host: host.unwrap_or_else(|| "localhost".to_owned()),
        port: settings.statsd_port.unwrap_or(8125),
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
