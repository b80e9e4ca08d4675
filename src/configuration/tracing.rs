//! Where spans go, and which attributes all of them have.

use std::path::PathBuf;
use std::time::Duration;

use super::{ClientTlsFiles, unless_empty};
use crate::settings::Settings;
use crate::settings::value::Compression;
use crate::spans::{Collector, Protocol, TracingOptions};
use crate::url::Url;

/// Where spans go, and which attributes all of them have.
#[derive(Clone)]
pub struct Tracing {
    /// What is traced, and how spans wait to be sent.
    pub options: TracingOptions,
    /// The name of this instance, which is an attribute of every span. Random if none is set.
    pub instance: Option<String>,
    /// The collector, without certificates.
    pub collector: Collector,
    /// The files of the certificates.
    pub files: ClientTlsFiles,
}

pub(super) fn resolve(settings: &Settings) -> Tracing {
    let file = |of_traces, of_all| unless_empty(of_traces).or(unless_empty(of_all)).map(PathBuf::from);
    let instance = Some(&settings.tracing_service_instance_id).filter(|id| !id.is_empty());
    Tracing {
        options: TracingOptions {
            sampling_rate: f64::from(settings.tracing_sampling_rate),
            resource: resource(settings),
            queue_max: settings.otel_bsp_max_queue_size.0,
            batch_max: settings.otel_bsp_max_export_batch_size.0,
            delay: Duration::from_millis(settings.otel_bsp_schedule_delay.0 as u64),
        },
        instance: instance.cloned(),
        collector: collector(settings),
        files: ClientTlsFiles {
            roots: file(
                &settings.otel_exporter_otlp_traces_certificate,
                &settings.otel_exporter_otlp_certificate,
            ),
            chain: file(
                &settings.otel_exporter_otlp_traces_client_certificate,
                &settings.otel_exporter_otlp_client_certificate,
            ),
            key: file(
                &settings.otel_exporter_otlp_traces_client_key,
                &settings.otel_exporter_otlp_client_key,
            ),
        },
    }
}

/// The attributes of all spans. Of several with one name, the last one here wins.
fn resource(settings: &Settings) -> Vec<(String, String)> {
    let named = [
        ("service.name", &settings.otel_service_name),
        ("service.name", &settings.tracing_service_name),
        ("service.namespace", &settings.tracing_service_namespace),
    ];
    let named = named.into_iter().filter(|(_, text)| !text.is_empty());
    let named = named.map(|(name, text)| (name.to_owned(), text.clone()));
    let mut resource: Vec<(String, String)> = Vec::new();
    for (name, text) in settings.otel_resource_attributes.0.iter().cloned().chain(named) {
        resource.retain(|(known, _)| *known != name);
        resource.push((name, text));
    }
    resource
}

fn collector(settings: &Settings) -> Collector {
    let headers = either(&settings.otel_exporter_otlp_traces_headers, &settings.otel_exporter_otlp_headers);
    let timeout_millis =
        either(&settings.otel_exporter_otlp_traces_timeout, &settings.otel_exporter_otlp_timeout)
            .map_or(10_000, |millis| millis.0)
            .min(settings.otel_bsp_export_timeout.0);
    let compression =
        either(&settings.otel_exporter_otlp_traces_compression, &settings.otel_exporter_otlp_compression);
    Collector {
        endpoint: endpoint(settings),
        protocol: settings.tracing_exporter_protocol,
        headers: headers.map(|headers| headers.0.0.clone()).unwrap_or_default(),
        timeout: Duration::from_millis(timeout_millis as u64),
        gzip: compression == Some(&Compression::Gzip),
        roots: None,
        identity: None,
    }
}

/// The URL of the collector. HTTP adds the path of traces to the general endpoint, but not to the one of traces.
fn endpoint(settings: &Settings) -> Url {
    let protocol = settings.tracing_exporter_protocol;
    let of_traces = unless_empty(&settings.otel_exporter_otlp_traces_endpoint);
    let base =
        of_traces.or_else(|| unless_empty(&settings.otel_exporter_otlp_endpoint)).unwrap_or(match protocol {
            Protocol::Http => "http://localhost:4318",
            Protocol::Grpc => "http://localhost:4317",
        });
    let insecure =
        either(&settings.otel_exporter_otlp_traces_insecure, &settings.otel_exporter_otlp_insecure);
    let scheme = match (base.contains("://"), insecure) {
        (true, _) => "",
        (false, Some(true)) => "http://",
        (false, _) => "https://",
    };
    Url(match (protocol, of_traces) {
        (Protocol::Http, None) => format!("{scheme}{}/v1/traces", base.trim_end_matches('/')),
        _ => format!("{scheme}{base}"),
    })
}

fn either<'a, T>(of_traces: &'a Option<T>, of_all: &'a Option<T>) -> Option<&'a T> {
    of_traces.as_ref().or(of_all.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::configured;

    fn tracing(pairs: &[(&str, &str)]) -> Tracing {
        let configuration = configured(&[&[("TRACING_ENABLED", "true")], pairs].concat());
        configuration.expect("good settings").tracing.expect("it is on")
    }

    #[test]
    fn the_endpoint_of_traces_is_taken_as_it_is_and_the_general_one_is_a_base() {
        for (pairs, expected) in [
            (&[][..], "http://localhost:4318/v1/traces"),
            (&[("TRACING_EXPORTER_PROTOCOL", "grpc")], "http://localhost:4317"),
            (&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://otel:1/")], "http://otel:1/v1/traces"),
            (&[("OTEL_EXPORTER_OTLP_ENDPOINT", "otel:1")], "https://otel:1/v1/traces"),
            (
                &[("OTEL_EXPORTER_OTLP_ENDPOINT", "otel:1"), ("OTEL_EXPORTER_OTLP_INSECURE", "true")],
                "http://otel:1/v1/traces",
            ),
            (
                &[
                    ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://a/b"),
                    ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c"),
                ],
                "http://a/b",
            ),
        ] {
            assert_eq!(tracing(pairs).collector.endpoint.0, expected, "{pairs:?}");
        }
    }

    #[test]
    fn what_names_the_service_wins_over_general_attributes() {
        let attribute = |pairs: &[(&str, &str)], name: &str| {
            let resource = tracing(pairs).options.resource;
            let mut found = resource.into_iter().filter(|(known, _)| known == name).map(|(_, text)| text);
            (found.next(), found.next())
        };
        let one = |text: &str| (Some(text.to_owned()), None);
        assert_eq!(attribute(&[], "service.name"), one("RateLimit"));
        let attributes = ("OTEL_RESOURCE_ATTRIBUTES", "service.name=a,service.instance.id=b,c=d");
        assert_eq!(attribute(&[attributes], "service.name"), one("RateLimit"));
        assert_eq!(attribute(&[attributes], "c"), one("d"));
        let no_name = ("TRACING_SERVICE_NAME", "");
        assert_eq!(attribute(&[attributes, no_name], "service.name"), one("a"));
        assert_eq!(attribute(&[attributes, no_name, ("OTEL_SERVICE_NAME", "e")], "service.name"), one("e"));
        assert_eq!(tracing(&[]).instance, None);
        assert_eq!(tracing(&[("TRACING_SERVICE_INSTANCE_ID", "f")]).instance.as_deref(), Some("f"));
    }
}
