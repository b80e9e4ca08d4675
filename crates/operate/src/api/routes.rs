//! All operations of the admin API, by method and path: requests are answered by this list, and a test compares it
//! with `openapi.json`.

use http::Method;

/// In the list, the path of a single exception ends with this.
const ID: &str = "{id}";

/// An operation. The names are those in `openapi.json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Openapi,
    Audit,
    ListExceptions,
    GetException,
    PutException,
    EndException,
    PeekCounter,
    TopCounters,
    ResetCounter,
    ListResets,
    ResetBelow,
    ListBans,
    Ban,
    LiftBan,
    PutRecord,
    DeleteRecord,
    GetRecord,
    ListRecords,
    LoadRecords,
}

/// An operation, with its method and path.
pub(super) struct Route {
    pub(super) method: Method,
    /// It may end with `{id}`, which matches any text.
    pub(super) path: &'static str,
    pub(super) does: Operation,
}

/// Why a request matches no operation.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoRoute {
    /// Nothing has its path.
    Path,
    /// Its path has only these methods, separated by commas.
    Method(String),
}

const fn route(method: Method, path: &'static str, does: Operation) -> Route {
    Route { method, path, does }
}

/// All of them. HEAD is answered wherever GET is.
pub(super) static ROUTES: [Route; 19] = [
    route(Method::GET, "/admin/openapi.json", Operation::Openapi),
    route(Method::GET, "/admin/audit", Operation::Audit),
    route(Method::GET, "/admin/exceptions", Operation::ListExceptions),
    route(Method::GET, "/admin/exceptions/{id}", Operation::GetException),
    route(Method::PUT, "/admin/exceptions/{id}", Operation::PutException),
    route(Method::DELETE, "/admin/exceptions/{id}", Operation::EndException),
    route(Method::POST, "/admin/counters/peek", Operation::PeekCounter),
    route(Method::POST, "/admin/counters/top", Operation::TopCounters),
    route(Method::POST, "/admin/counters/reset", Operation::ResetCounter),
    route(Method::GET, "/admin/resets", Operation::ListResets),
    route(Method::POST, "/admin/resets", Operation::ResetBelow),
    route(Method::GET, "/admin/bans", Operation::ListBans),
    route(Method::POST, "/admin/bans", Operation::Ban),
    route(Method::DELETE, "/admin/bans", Operation::LiftBan),
    route(Method::PUT, "/admin/records", Operation::PutRecord),
    route(Method::DELETE, "/admin/records", Operation::DeleteRecord),
    route(Method::POST, "/admin/records/get", Operation::GetRecord),
    route(Method::POST, "/admin/records/list", Operation::ListRecords),
    route(Method::POST, "/admin/records/load", Operation::LoadRecords),
];

/// The operation of a request, and the id in its path; empty without one.
pub(super) fn asked_for<'p>(method: &Method, path: &'p str) -> Result<(Operation, &'p str), NoRoute> {
    let method = if method == Method::HEAD { &Method::GET } else { method };
    let mut methods = Vec::new();
    for route in &ROUTES {
        match route.id_in(path) {
            Some(id) if route.method == method => return Ok((route.does, id)),
            Some(_) if route.method == Method::GET => methods.extend(["GET", "HEAD"]),
            Some(_) => methods.push(route.method.as_str()),
            None => {}
        }
    }
    Err(if methods.is_empty() { NoRoute::Path } else { NoRoute::Method(methods.join(", ")) })
}

impl Route {
    /// The id in a path of this route. `None`: the path is not of this route.
    fn id_in<'p>(&self, path: &'p str) -> Option<&'p str> {
        match self.path.strip_suffix(ID) {
            Some(before) => path.strip_prefix(before),
            None => path.strip_prefix(self.path).filter(|rest| rest.is_empty()),
        }
    }
}
