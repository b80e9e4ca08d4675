//! An HTTP request of a case, for the domain's own `rate_limits`.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr};

use tidegate_engine::rules::{ClientRequest, Field};
use tidegate_engine::text::query_parameter;

/// A request of a client. Fields that a case leaves out are those of `curl http://localhost/` from this machine.
#[derive(Debug)]
pub(super) struct HttpRequest {
    pub(super) method: String,
    /// With its query.
    pub(super) path: String,
    pub(super) authority: String,
    pub(super) address: IpAddr,
    /// Names in lower case.
    pub(super) headers: Vec<(String, String)>,
}

impl Default for HttpRequest {
    fn default() -> Self {
        Self {
            method: "GET".to_owned(),
            path: "/".to_owned(),
            authority: "localhost".to_owned(),
            address: Ipv4Addr::LOCALHOST.into(),
            headers: Vec::new(),
        }
    }
}

impl ClientRequest for HttpRequest {
    type Error = Infallible;

    fn first(&self, field: &Field) -> Result<Option<&str>, Infallible> {
        Ok(match field {
            Field::Path | Field::RawPath => Some(&self.path),
            Field::Method => Some(&self.method),
            Field::Authority => Some(&self.authority),
            Field::Metadata(_) | Field::ResponseHeader(_) | Field::ResponseTrailer(_) => None,
            Field::Header(name) => {
                self.headers.iter().find(|(known, _)| **known == **name).map(|(_, value)| value.as_str())
            }
        })
    }

    fn any(&self, field: &Field, test: impl Fn(&str) -> bool) -> Result<Option<bool>, Infallible> {
        Ok(self.first(field)?.map(test))
    }

    fn query_parameter(&self, name: &str, text: &mut String) -> Result<bool, Infallible> {
        let value = query_parameter(&self.path, name);
        text.push_str(&value.as_deref().map(String::from_utf8_lossy).unwrap_or_default());
        Ok(value.is_some())
    }

    fn address(&self) -> Result<IpAddr, Infallible> {
        Ok(self.address)
    }
}
