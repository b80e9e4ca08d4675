//! The caller's trace: W3C `traceparent`, or B3 in one header or several. Envoy can be configured to send either.
//!
//! In: headers by their names. Out: the caller's span, or that the caller is not sampled. Most callers are not, so the
//! numbers in the headers are only read if they are needed.

use std::str::FromStr;

use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";
const B3: &str = "b3";
const B3_TRACE: &str = "x-b3-traceid";
const B3_SPAN: &str = "x-b3-spanid";
const B3_SAMPLED: &str = "x-b3-sampled";
const B3_FLAGS: &str = "x-b3-flags";

/// The headers that are read.
pub const HEADERS: &[&str] = &[TRACEPARENT, TRACESTATE, B3, B3_TRACE, B3_SPAN, B3_SAMPLED, B3_FLAGS];

/// The sampling decision of a caller that traces.
#[derive(Debug, PartialEq)]
pub(super) enum Parent {
    /// The caller's span, which is sampled.
    Sampled(Box<SpanContext>),
    /// The caller decided not to sample.
    NotSampled,
}

/// The parent that these headers name; `None` without a valid one.
pub(super) fn of<'h>(header: impl Fn(&str) -> Option<&'h str>) -> Option<Parent> {
    w3c(&header).or_else(|| b3(&header))
}

/// W3C: `version-trace-span-flags`, and in later versions more.
fn w3c<'h>(header: &impl Fn(&str) -> Option<&'h str>) -> Option<Parent> {
    let mut parts = header(TRACEPARENT)?.split('-');
    let mut part = |length| parts.next().and_then(|text| hex(text, &[length])).filter(|text| is_lower(text));
    let (version, trace, span, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
    if version == "ff" || version == "00" && parts.next().is_some() {
        return None;
    }
    let is_sampled = u8::from_str_radix(flags, 16).is_ok_and(|flags| flags & 1 == 1);
    let state = || header(TRACESTATE).and_then(|state| TraceState::from_str(state).ok()).unwrap_or_default();
    parent(trace, span, is_sampled, state)
}

/// B3: `b3: trace-span-sampled`, else one header per part.
fn b3<'h>(header: &impl Fn(&str) -> Option<&'h str>) -> Option<Parent> {
    let (trace, span, sampled) = match header(B3) {
        Some(single) => {
            let mut parts = single.split('-');
            (parts.next()?, parts.next()?, parts.next())
        }
        None => (
            header(B3_TRACE)?,
            header(B3_SPAN)?,
            header(B3_FLAGS).filter(|flags| *flags == "1").or_else(|| header(B3_SAMPLED)),
        ),
    };
    // `d`, and 1 in the flags header, mean debug, which is sampled. Without a flag the call is sampled too, because
    // there are ids.
    let is_sampled = !matches!(sampled, Some("0" | "false"));
    parent(hex(trace, &[16, 32])?, hex(span, &[16])?, is_sampled, TraceState::default)
}

/// The parent with these ids, in hexadecimal. Neither is zero.
fn parent(trace: &str, span: &str, is_sampled: bool, state: impl FnOnce() -> TraceState) -> Option<Parent> {
    let is_zero = |id: &str| id.bytes().all(|byte| byte == b'0');
    if is_zero(trace) || is_zero(span) {
        return None;
    }
    if !is_sampled {
        return Some(Parent::NotSampled);
    }
    let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    Some(Parent::Sampled(Box::new(SpanContext::new(trace, span, TraceFlags::SAMPLED, true, state()))))
}

/// The text, if it is hexadecimal and has one of these lengths.
fn hex<'a>(text: &'a str, lengths: &[usize]) -> Option<&'a str> {
    (lengths.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(text)
}

fn is_lower(text: &str) -> bool {
    !text.bytes().any(|byte| byte.is_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use opentelemetry::Context;
    use opentelemetry::propagation::TextMapPropagator;
    use opentelemetry::trace::TraceContextExt;
    use opentelemetry_sdk::propagation::TraceContextPropagator;

    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    fn parent(headers: &[(&'static str, &str)]) -> Option<Parent> {
        of(|name| headers.iter().find(|(found, _)| *found == name).map(|(_, value)| *value))
    }

    fn expected(trace: &str, sampled: bool) -> Option<Parent> {
        let (trace, span) = (TraceId::from_hex(trace).expect("hex"), SpanId::from_hex(SPAN).expect("hex"));
        let context = SpanContext::new(trace, span, TraceFlags::SAMPLED, true, TraceState::default());
        Some(if sampled { Parent::Sampled(Box::new(context)) } else { Parent::NotSampled })
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

    /// The same header, read by the SDK, which is the other reader of W3C's format here.
    fn by_the_sdk(traceparent: &str, tracestate: &str) -> Option<Parent> {
        let headers = [("traceparent", traceparent), ("tracestate", tracestate)]
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let context =
            TraceContextPropagator::new().extract_with_context(&Context::new(), &HashMap::from(headers));
        let parent = context.span().span_context().clone();
        match (parent.is_valid(), parent.is_sampled()) {
            (false, _) => None,
            (true, false) => Some(Parent::NotSampled),
            (true, true) => Some(Parent::Sampled(Box::new(parent))),
        }
    }

    #[test]
    fn w3c_is_read_as_the_sdk_reads_it() {
        for traceparent in [
            format!("00-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-00"),
            format!("00-{TRACE}-{SPAN}-ff"),
            format!("00-{TRACE}-{SPAN}-fe"),
            format!("01-{TRACE}-{SPAN}-01"),
            format!("fe-{TRACE}-{SPAN}-01-more"),
            format!("00-{TRACE}-{SPAN}-01-more"),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}"),
            format!("00-{}-{SPAN}-01", "0".repeat(32)),
            format!("00-{TRACE}-{}-01", "0".repeat(16)),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{}x-{SPAN}-01", &TRACE[1..]),
            format!("00-{TRACE}-{SPAN}-0x"),
            "00".to_owned(),
            String::new(),
        ] {
            for tracestate in ["", "vendor=1,other=2", "no state"] {
                let headers = [("traceparent", &*traceparent), ("tracestate", tracestate)];
                assert_eq!(parent(&headers), by_the_sdk(&traceparent, tracestate), "{headers:?}");
            }
        }
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
