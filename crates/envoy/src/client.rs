//! A request of Envoy, as `rate_limits` read it: with Envoy's own names and meanings.

use std::net::{IpAddr, SocketAddr};

use program::inside::Refusal;
use tidegate_engine::rules::{ClientRequest, Field};
use tidegate_engine::text::query_parameter;

use crate::abi::{Headers, Stream};

/// The request of a stream.
pub struct Client<'s, 'h>(pub &'s Stream<'h>);

impl Client<'_, '_> {
    fn value(&self, field: &Field, place: usize) -> Result<Option<&str>, Refusal> {
        let (headers, name) = match field {
            Field::Path | Field::RawPath => (Headers::Request, ":path"),
            Field::Method => (Headers::Request, ":method"),
            Field::Authority => (Headers::Request, ":authority"),
            Field::Header(name) => (Headers::Request, &**name),
            Field::ResponseHeader(name) => (Headers::Response, &**name),
            Field::ResponseTrailer(name) => (Headers::ResponseTrailer, &**name),
            Field::Metadata(metadata) => return utf8(&metadata.key, self.0.metadata_text(metadata)),
        };
        utf8(name, self.0.header(headers, name, place))
    }
}

fn utf8<'t>(name: &str, value: Option<&'t [u8]>) -> Result<Option<&'t str>, Refusal> {
    value.map(str::from_utf8).transpose().map_err(|_| Refusal::not_utf8(name))
}

impl ClientRequest for Client<'_, '_> {
    type Error = Refusal;

    fn first(&self, field: &Field) -> Result<Option<&str>, Refusal> {
        self.value(field, 0)
    }

    fn any(&self, field: &Field, test: impl Fn(&str) -> bool) -> Result<Option<bool>, Refusal> {
        let mut any = None;
        let mut place = 0;
        while let Some(value) = self.value(field, place)? {
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
        let unknown = || Refusal::unimplemented("Envoy gives no address of the client");
        Ok(address.ok_or_else(unknown)?.ip().to_canonical())
    }

    fn number(&self, field: &Field) -> Result<Option<f64>, Refusal> {
        if let Field::Metadata(metadata) = field
            && let Some(number) = self.0.metadata_number(metadata)
        {
            return Ok(Some(number));
        }
        Ok(self.first(field)?.and_then(|text| text.parse().ok()))
    }
}
