//! A request of Envoy, as `rate_limits` read it: in Envoy's own words and meaning.

use std::net::{IpAddr, SocketAddr};

use program::inside::Refusal;
use tidegate_engine::rules::{ClientRequest, Field};
use tidegate_engine::text::query_parameter;

use crate::abi::{Headers, Stream};

/// The request of a stream.
pub struct Client<'s, 'h>(pub &'s Stream<'h>);

impl Client<'_, '_> {
    fn value(&self, name: &str, place: usize) -> Result<Option<&str>, Refusal> {
        let value = self.0.header(Headers::Request, name, place);
        value.map(str::from_utf8).transpose().map_err(|_| Refusal::not_utf8(name))
    }
}

impl ClientRequest for Client<'_, '_> {
    type Error = Refusal;

    fn first(&self, field: &Field) -> Result<Option<&str>, Refusal> {
        self.value(name(field), 0)
    }

    fn any(&self, field: &Field, test: impl Fn(&str) -> bool) -> Result<Option<bool>, Refusal> {
        let mut any = None;
        let mut place = 0;
        while let Some(value) = self.value(name(field), place)? {
            any = Some(any.unwrap_or(false) | test(value));
            place += 1;
        }
        Ok(any)
    }

    fn query_parameter(&self, name: &str, text: &mut String) -> Result<bool, Refusal> {
        let path = self.first(&Field::RawPath)?.unwrap_or_default();
        let Some(value) = query_parameter(path, name) else { return Ok(false) };
        text.push_str(str::from_utf8(&value).map_err(|_| Refusal::not_utf8(name))?);
        Ok(true)
    }

    fn address(&self) -> Result<IpAddr, Refusal> {
        let address = self.0.source_address().and_then(|text| str::from_utf8(text).ok());
        let address = address.and_then(|text| text.parse::<SocketAddr>().ok());
        let unknown = || Refusal::unimplemented("Envoy does not tell the address of the client");
        Ok(address.ok_or_else(unknown)?.ip().to_canonical())
    }
}

fn name(field: &Field) -> &str {
    match field {
        Field::Path | Field::RawPath => ":path",
        Field::Method => ":method",
        Field::Authority => ":authority",
        Field::Header(name) => name,
    }
}
