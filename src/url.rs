//! Where servers are, as people write it. It may hold a login, which is in no log and on no page.
//!
//! In: an address, a URL, or several. Out: all of it for whoever connects there, or its place for whoever shows it.

use std::fmt;

/// Stands for what nobody may see.
pub const HIDDEN: &str = "…";

/// Where a server is, perhaps with a login, which `Display` leaves out. `Debug` shows nothing: what is no URL may be a
/// password in the wrong place. Whoever connects to it checks what it is.
#[derive(Clone, PartialEq, Eq)]
pub struct Url(pub String);

impl fmt::Debug for Url {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Url(…)")
    }
}

/// Leaves out what stands before an `@` or behind a `?`.
impl fmt::Display for Url {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (login, place) =
            self.0.rsplit_once('@').map_or((None, &*self.0), |(login, place)| (Some(login), place));
        if let Some(login) = login {
            // A password may hold this too.
            let is_scheme =
                |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'+');
            let scheme = login.split_once("://").map(|(scheme, _)| scheme).filter(|scheme| is_scheme(scheme));
            let scheme = scheme.map(|scheme| format!("{scheme}://")).unwrap_or_default();
            write!(out, "{scheme}{HIDDEN}@")?;
        }
        match place.split_once('?') {
            Some((place, _)) => write!(out, "{place}?{HIDDEN}"),
            None => out.write_str(place),
        }
    }
}

impl AsRef<str> for Url {
    fn as_ref(&self) -> &str {
        &self.0
    }
}
