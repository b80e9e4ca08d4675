//! The URL of `/check`: the domain, and parameters that are entries of descriptors or options of the call.
//!
//! Decodes once. Refuses everything that is not exactly one request, and never guesses.

use http::StatusCode;

use tidegate_engine::request::RequestBuf;
use tidegate_engine::text::{PercentError, cut, percent_decoded, query_decoded};
use tidegate_serve::refusal::{Bounds, Refusal};

/// The first character of a parameter that is an option, not an entry.
const CONTROL: char = '~';

/// How much of a text a refusal quotes, in characters.
const QUOTED_CHARS_MAX: usize = 60;

/// The contents of a URL.
pub(super) struct Question {
    /// The domain, the hits and, if they are in the query, the descriptors.
    pub(super) buf: RequestBuf,
    pub(super) form: Form,
    /// The status of a denial, if the URL sets one.
    pub(super) deny_status: Option<StatusCode>,
}

/// Where the descriptors are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// In the query.
    Query,
    /// In the headers, which describe the client's request.
    Headers,
}

/// Reads the domain of a path, as it is written, and the query.
pub(super) fn parse(domain: &str, query: Option<&str>, bounds: &Bounds) -> Result<Question, Refusal> {
    let query = query.unwrap_or_default();
    let max = bounds.request_bytes_max;
    if domain.len() + query.len() > max {
        return Err(Refusal::invalid(format!("the URL is too long (at most {max} bytes)")));
    }
    if domain.contains('/') {
        return Err(Refusal::invalid("the domain ends at a slash (expected %2F for one that is part of it)"));
    }
    let domain = percent_decoded(domain).map_err(|error| undecodable(domain, error))?;
    if domain.is_empty() {
        return Err(Refusal::invalid("rate limit domain must not be empty"));
    }
    let mut reading = Reading { buf: RequestBuf::new(&domain), form: Form::Headers, hits: None, deny: None };
    if !query.is_empty() {
        query.split('&').try_for_each(|parameter| reading.parameter(parameter))?;
    }
    reading.end()
}

/// A query while it is read.
struct Reading {
    buf: RequestBuf,
    form: Form,
    hits: Option<u32>,
    deny: Option<StatusCode>,
}

impl Reading {
    fn parameter(&mut self, raw: &str) -> Result<(), Refusal> {
        if raw.is_empty() {
            self.form = Form::Query;
            return self.close();
        }
        let (key, value) = raw.split_once('=').unwrap_or((raw, ""));
        let decoded = |raw| query_decoded(raw).map_err(|error| undecodable(raw, error));
        let (key, value) = (decoded(key)?, decoded(value)?);
        if key.starts_with(CONTROL) {
            return self.control(&key, &value);
        }
        if key.is_empty() {
            return Err(Refusal::invalid(format!("the parameter {} has an empty key", quote(raw))));
        }
        self.form = Form::Query;
        self.buf.entry(&key, |text| {
            text.push_str(&value);
            Ok::<_, Refusal>(true)
        })?;
        Ok(())
    }

    fn control(&mut self, key: &str, value: &str) -> Result<(), Refusal> {
        match key {
            "~hits" => once(&mut self.hits, key, number(value), "a number from 0 to 4294967295"),
            "~deny" => {
                let status =
                    number(value).and_then(|status| StatusCode::from_u16(status.try_into().ok()?).ok());
                let status = status.filter(|status| (400..600).contains(&status.as_u16()));
                once(&mut self.deny, key, status, "a status from 400 to 599")
            }
            _ => Err(Refusal::invalid(format!(
                "the parameter {} is unknown (expected ~hits or ~deny)",
                quote(key)
            ))),
        }
    }

    /// Ends the open descriptor.
    fn close(&mut self) -> Result<(), Refusal> {
        if self.buf.open_entries() == 0 {
            return Err(Refusal::invalid(
                "a descriptor is empty (expected key=value between && and at both ends)",
            ));
        }
        self.buf.close();
        Ok(())
    }

    fn end(mut self) -> Result<Question, Refusal> {
        if self.form == Form::Query {
            self.close()?;
        }
        self.hits.into_iter().for_each(|hits| self.buf.set_hits(hits));
        Ok(Question { buf: self.buf, form: self.form, deny_status: self.deny })
    }
}

fn once<T>(slot: &mut Option<T>, key: &str, value: Option<T>, expected: &str) -> Result<(), Refusal> {
    let value = value.ok_or_else(|| Refusal::invalid(format!("{key} is not {expected}")))?;
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(Refusal::invalid(format!("{key} twice (expected once)"))),
    }
}

/// Parses digits only.
fn number(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// Refuses a text that cannot be decoded.
fn undecodable(raw: &str, error: PercentError) -> Refusal {
    Refusal::invalid(match error {
        PercentError::Escape => format!("{}: a % is not followed by two hexadecimal digits", quote(raw)),
        PercentError::NotUtf8 => format!("{} is not UTF-8 when it is decoded", quote(raw)),
    })
}

/// Quotes a text in a refusal. A long one is cut.
fn quote(text: &str) -> String {
    format!("`{}`", cut(text, QUOTED_CHARS_MAX))
}
