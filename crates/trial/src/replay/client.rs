//! A line of a log as the request of a client, for the domain's own `rate_limits`.
//!
//! In: the facts that the actions need and the format, once; then lines. Out: the facts of each line. A header that
//! the format does not log is an error that names it: nothing is decided about a request without it.

use std::net::IpAddr;

use tidegate_engine::rules::{Actions, ClientRequest, Field, Need};
use tidegate_engine::text::query_parameter;

use super::format::{Format, LogLine, UnknownVariable, Variable};

/// Where a line has the facts that the actions need.
#[derive(Debug)]
pub(super) struct Client {
    fields: Vec<(Field, Variable)>,
    address: Option<Variable>,
}

/// The request of a line.
pub(super) struct Described<'c, 'r> {
    pub(super) client: &'c Client,
    pub(super) line: LogLine<'r>,
}

/// A fact that a line does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {0}")]
pub(super) struct Unclear(pub(super) &'static str);

impl Client {
    /// The facts that these actions need of lines of this format.
    pub(super) fn new(actions: &Actions, format: &mut Format) -> Result<Self, UnknownVariable> {
        let mut client = Self { fields: Vec::new(), address: None };
        for need in actions.needs() {
            match need {
                Need::Address => client.address = Some(format.variable("remote_addr", None)?),
                Need::Field(field) => {
                    let variable = format.variable(&name(field), None)?;
                    client.fields.push((field.clone(), variable));
                }
            }
        }
        Ok(client)
    }
}

/// The variable that holds a field.
fn name(field: &Field) -> String {
    match field {
        Field::Path | Field::RawPath => "request_uri".to_owned(),
        Field::Method => "method".to_owned(),
        Field::Authority => "host".to_owned(),
        Field::Header(name) => format!("http_{}", name.replace('-', "_")),
        Field::ResponseHeader(name) => format!("sent_http_{}", name.replace('-', "_")),
        Field::ResponseTrailer(name) => format!("sent_trailer_{}", name.replace('-', "_")),
        Field::Metadata(metadata) => format!("metadata_{}", metadata.key),
    }
}

impl ClientRequest for Described<'_, '_> {
    type Error = Unclear;

    fn first(&self, field: &Field) -> Result<Option<&str>, Unclear> {
        let variable = self.client.fields.iter().find(|(known, _)| known == field);
        let value = variable.and_then(|(_, variable)| variable.bytes(&self.line));
        value.map(|value| str::from_utf8(value).map_err(|_| Unclear("UTF-8"))).transpose()
    }

    fn any(&self, field: &Field, test: impl Fn(&str) -> bool) -> Result<Option<bool>, Unclear> {
        Ok(self.first(field)?.map(test))
    }

    fn query_parameter(&self, name: &str, text: &mut String) -> Result<bool, Unclear> {
        let Some(target) = self.first(&Field::RawPath)? else { return Ok(false) };
        let Some(value) = query_parameter(target, name) else { return Ok(false) };
        text.push_str(str::from_utf8(&value).map_err(|_| Unclear("UTF-8"))?);
        Ok(true)
    }

    fn address(&self) -> Result<IpAddr, Unclear> {
        let address = self.client.address.as_ref().and_then(|address| address.value(&self.line));
        let address = address.and_then(|address| address.parse::<IpAddr>().ok());
        address.map(|address| address.to_canonical()).ok_or(Unclear("the address of a client"))
    }
}
