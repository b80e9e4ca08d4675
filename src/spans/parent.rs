//! The caller's trace: W3C `traceparent`, or B3 in one header or several. Envoy can be configured to send either.

use http::HeaderMap;
use opentelemetry::Context;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
use opentelemetry_http::HeaderExtractor;
use opentelemetry_sdk::propagation::TraceContextPropagator;

/// A context with the span that these headers name. Without a valid one, the context is empty.
pub(super) fn of(headers: &HeaderMap) -> Context {
    let w3c = TraceContextPropagator::new().extract_with_context(&Context::new(), &HeaderExtractor(headers));
    if w3c.span().span_context().is_valid() {
        return w3c;
    }
    match b3(headers).filter(SpanContext::is_valid) {
        Some(parent) => Context::new().with_remote_span_context(parent),
        None => Context::new(),
    }
}

/// B3: `b3: trace-span-sampled`, else one header per part.
fn b3(headers: &HeaderMap) -> Option<SpanContext> {
    let header = |name: &str| headers.get(name)?.to_str().ok();
    let (trace, span, sampled) = match header("b3") {
        Some(single) => {
            let mut parts = single.split('-');
            (parts.next()?, parts.next()?, parts.next())
        }
        None => (
            header("x-b3-traceid")?,
            header("x-b3-spanid")?,
            header("x-b3-flags").filter(|flags| *flags == "1").or_else(|| header("x-b3-sampled")),
        ),
    };
    Some(SpanContext::new(
        TraceId::from_hex(hex(trace, &[16, 32])?).ok()?,
        SpanId::from_hex(hex(span, &[16])?).ok()?,
        flags(sampled),
        true,
        TraceState::NONE,
    ))
}

/// The text, if it is hexadecimal and has one of these lengths.
fn hex<'a>(text: &'a str, lengths: &[usize]) -> Option<&'a str> {
    (lengths.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(text)
}

/// `d`, and 1 in the flags header, mean debug, which is sampled. Without a flag it is sampled too: there are ids.
fn flags(sampled: Option<&str>) -> TraceFlags {
    match sampled {
        Some("0" | "false") => TraceFlags::NOT_SAMPLED,
        _ => TraceFlags::SAMPLED,
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    /// The trace, the span, and whether it is sampled; `None` without a parent.
    fn parent(headers: &[(&'static str, &str)]) -> Option<(String, String, bool)> {
        let headers = headers.iter().map(|&(name, value)| {
            (HeaderName::from_static(name), HeaderValue::from_bytes(value.as_bytes()).expect("a value"))
        });
        let context = of(&headers.collect());
        let span = context.span().span_context().clone();
        span.is_valid().then(|| (span.trace_id().to_string(), span.span_id().to_string(), span.is_sampled()))
    }

    fn expected(trace: &str, sampled: bool) -> Option<(String, String, bool)> {
        Some((trace.to_owned(), SPAN.to_owned(), sampled))
    }

    #[test]
    fn every_form_names_its_parent() {
        for sampled in [true, false] {
            let bit = u8::from(sampled).to_string();
            let w3c = format!("00-{TRACE}-{SPAN}-0{bit}");
            assert_eq!(parent(&[("traceparent", &w3c)]), expected(TRACE, sampled));
            assert_eq!(parent(&[("b3", &format!("{TRACE}-{SPAN}-{bit}"))]), expected(TRACE, sampled));
            let several = [("x-b3-traceid", TRACE), ("x-b3-spanid", SPAN), ("x-b3-sampled", &bit)];
            assert_eq!(parent(&several), expected(TRACE, sampled));
        }
        let short = expected("0000000000000000a3ce929d0e0e4736", true);
        assert_eq!(parent(&[("b3", &format!("a3ce929d0e0e4736-{SPAN}-d-{SPAN}"))]), short);
        let debug =
            [("x-b3-traceid", TRACE), ("x-b3-spanid", SPAN), ("x-b3-sampled", "0"), ("x-b3-flags", "1")];
        assert_eq!(parent(&debug), expected(TRACE, true));
        assert_eq!(parent(&[("b3", &format!("{TRACE}-{SPAN}"))]), expected(TRACE, true));
    }

    #[test]
    fn nonsense_is_no_parent() {
        let zeros = format!("{}-{}-1", "0".repeat(32), "0".repeat(16));
        for b3 in [
            "",
            "0",
            "-",
            "a-b-1",
            &zeros,
            &format!("{TRACE}x-{SPAN}-1"),
            &format!("+{}-{SPAN}", &TRACE[1..]),
        ] {
            assert_eq!(parent(&[("b3", b3)]), None, "{b3}");
        }
        for w3c in ["", "00", &format!("00-{TRACE}-{SPAN}"), &format!("ff-{TRACE}-{SPAN}-01")] {
            assert_eq!(parent(&[("traceparent", w3c)]), None, "{w3c}");
        }
        assert_eq!(parent(&[]), None);
        assert_eq!(parent(&[("x-b3-traceid", TRACE)]), None);
    }
}
