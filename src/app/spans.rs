//! From settings to where spans go.

use std::fs;
use std::time::Duration;

use crate::app::AppError;
use crate::settings::Settings;
use crate::settings::value::{Compression, OtlpProtocol};
use crate::spans::{Collector, Protocol, Tracer, TracingOptions};

/// Starts tracing, if it is on.
pub(super) fn start(settings: &Settings) -> Result<Option<Tracer>, AppError> {
    if !settings.tracing_enabled {
        return Ok(None);
    }
    let collector = collector(settings)?;
    tracing::info!("tracing: to {} (TRACING_ENABLED)", collector.endpoint);
    Ok(Some(Tracer::start(options(settings)?, &collector)?))
}

fn options(settings: &Settings) -> Result<TracingOptions, AppError> {
    Ok(TracingOptions {
        sampling_rate: f64::from(settings.tracing_sampling_rate),
        resource: resource(settings, random_uuid()?),
        queue_max: settings.otel_bsp_max_queue_size.0,
        batch_max: settings.otel_bsp_max_export_batch_size.0,
        delay: Duration::from_millis(settings.otel_bsp_schedule_delay.0 as u64),
    })
}

/// What is told by one name is told once, by whichever comes last here.
fn resource(settings: &Settings, uuid: String) -> Vec<(String, String)> {
    let instance = Some(&settings.tracing_service_instance_id).filter(|id| !id.is_empty()).cloned();
    let told = [
        ("service.name", settings.otel_service_name.clone()),
        ("service.name", settings.tracing_service_name.clone()),
        ("service.namespace", settings.tracing_service_namespace.clone()),
        ("service.instance.id", instance.unwrap_or(uuid)),
    ];
    let told = told.into_iter().filter(|(_, text)| !text.is_empty());
    let told = told.map(|(name, text)| (name.to_owned(), text));
    let mut resource: Vec<(String, String)> = Vec::new();
    for (name, text) in settings.otel_resource_attributes.0.iter().cloned().chain(told) {
        resource.retain(|(known, _)| *known != name);
        resource.push((name, text));
    }
    resource
}

fn collector(settings: &Settings) -> Result<Collector, AppError> {
    let protocol = match settings.tracing_exporter_protocol {
        OtlpProtocol::Http => Protocol::Http,
        OtlpProtocol::Grpc => Protocol::Grpc,
    };
    let headers = either(&settings.otel_exporter_otlp_traces_headers, &settings.otel_exporter_otlp_headers);
    let timeout_millis =
        either(&settings.otel_exporter_otlp_traces_timeout, &settings.otel_exporter_otlp_timeout)
            .map_or(10_000, |millis| millis.0)
            .min(settings.otel_bsp_export_timeout.0);
    let compression =
        either(&settings.otel_exporter_otlp_traces_compression, &settings.otel_exporter_otlp_compression);
    Ok(Collector {
        endpoint: endpoint(settings, protocol),
        protocol,
        headers: headers.map(|headers| headers.0.clone()).unwrap_or_default(),
        timeout: Duration::from_millis(timeout_millis as u64),
        gzip: compression == Some(&Compression::Gzip),
        roots: file(
            &settings.otel_exporter_otlp_traces_certificate,
            &settings.otel_exporter_otlp_certificate,
        )?,
        identity: file(
            &settings.otel_exporter_otlp_traces_client_certificate,
            &settings.otel_exporter_otlp_client_certificate,
        )?
        .zip(file(&settings.otel_exporter_otlp_traces_client_key, &settings.otel_exporter_otlp_client_key)?),
    })
}

/// The general endpoint is a base, to which HTTP adds the path of traces; the one of traces is taken as it is.
fn endpoint(settings: &Settings, protocol: Protocol) -> String {
    let of_traces = set(&settings.otel_exporter_otlp_traces_endpoint);
    let base = of_traces.or_else(|| set(&settings.otel_exporter_otlp_endpoint)).unwrap_or(match protocol {
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
    match (protocol, of_traces) {
        (Protocol::Http, None) => format!("{scheme}{}/v1/traces", base.trim_end_matches('/')),
        _ => format!("{scheme}{base}"),
    }
}

fn either<'a, T>(of_traces: &'a Option<T>, of_all: &'a Option<T>) -> Option<&'a T> {
    of_traces.as_ref().or(of_all.as_ref())
}

fn set(text: &Option<String>) -> Option<&str> {
    text.as_deref().filter(|text| !text.is_empty())
}

/// What is in the file that is named, if one is.
fn file(of_traces: &Option<String>, of_all: &Option<String>) -> Result<Option<Vec<u8>>, AppError> {
    let Some(path) = set(of_traces).or_else(|| set(of_all)) else { return Ok(None) };
    let unreadable = |source| AppError::File { path: path.to_owned(), source };
    fs::read(path).map(Some).map_err(unreadable)
}

/// A UUID of version 4.
fn random_uuid() -> Result<String, AppError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(std::io::Error::from)?;
    let bits = u128::from_be_bytes(bytes) & !(0xf << 76) & !(0b11 << 62) | 4 << 76 | 0b10 << 62;
    let hex = format!("{bits:032x}");
    Ok([&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(pairs: &[(&str, &str)]) -> Settings {
        let variable = |name: &str| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1.to_owned());
        Settings::read(|_| None, variable).expect("good settings")
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
            assert_eq!(collector(&settings(pairs)).expect("no files").endpoint, expected, "{pairs:?}");
        }
    }

    #[test]
    fn what_names_the_service_wins_over_general_attributes() {
        let told = |pairs: &[(&str, &str)], name: &str| {
            let resource = resource(&settings(pairs), "uuid".to_owned());
            let mut found = resource.into_iter().filter(|(known, _)| known == name).map(|(_, text)| text);
            (found.next(), found.next())
        };
        let one = |text: &str| (Some(text.to_owned()), None);
        assert_eq!(told(&[], "service.name"), one("RateLimit"));
        let attributes = ("OTEL_RESOURCE_ATTRIBUTES", "service.name=a,service.instance.id=b,c=d");
        assert_eq!(told(&[attributes], "service.name"), one("RateLimit"));
        assert_eq!(told(&[attributes], "c"), one("d"));
        let no_name = ("TRACING_SERVICE_NAME", "");
        assert_eq!(told(&[attributes, no_name], "service.name"), one("a"));
        assert_eq!(told(&[attributes, no_name, ("OTEL_SERVICE_NAME", "e")], "service.name"), one("e"));
        assert_eq!(told(&[], "service.instance.id"), one("uuid"));
        assert_eq!(told(&[("TRACING_SERVICE_INSTANCE_ID", "f")], "service.instance.id"), one("f"));
    }

    #[test]
    fn a_random_uuid_says_its_version() {
        let uuid = random_uuid().expect("random bytes");
        let lengths: Vec<usize> = uuid.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12]);
        assert!(uuid.as_bytes()[14] == b'4' && b"89ab".contains(&uuid.as_bytes()[19]), "{uuid}");
    }
}
