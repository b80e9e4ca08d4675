//! Addresses of servers, as people write them. An address may contain a login, which is in no log and on no page.
//!
//! In: an address, a URL, or several. Out: all of it for the code that connects, or only the place for logs and
//! pages.

use std::fmt;

/// Replaces what nobody may see.
pub const HIDDEN: &str = "…";

/// The address of a server, perhaps with a login, which `Display` leaves out. `Debug` shows nothing: a text that is
/// not a URL may be a password in the wrong setting. The code that connects to it checks its form.
#[derive(Clone, PartialEq, Eq)]
pub struct Url(pub String);

impl fmt::Debug for Url {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Url(…)")
    }
}

/// Leaves out everything before an `@` or after a `?`.
impl fmt::Display for Url {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (login, place) =
            self.0.rsplit_once('@').map_or((None, &*self.0), |(login, place)| (Some(login), place));
        if let Some(login) = login {
            // A password may contain this too.
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
