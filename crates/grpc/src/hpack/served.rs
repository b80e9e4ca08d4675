//! What a server serves: the paths of its calls, and the headers whose text it wants.

/// What a server serves.
#[derive(Clone, Copy, Debug)]
pub struct Served {
    /// The paths of its calls: one request, then the answer. The route of a call is the index of its path
    /// ([`Route::Known`](super::Route::Known)).
    pub calls: &'static [&'static str],
    /// The paths of its dialogs: calls of several messages, each of which is answered
    /// ([`Route::Dialog`](super::Route::Dialog)).
    pub dialogs: &'static [&'static str],
    /// The names of the headers whose text is kept, in lower case. A name of HPACK's static table cannot be kept.
    pub kept: &'static [&'static str],
}
