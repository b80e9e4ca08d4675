//! All operations of the admin API: requests are answered by this list, and a test compares it with `openapi.json`.

use std::pin::Pin;

use http::{Method, StatusCode};

use super::{AdminApi, Answer, Call, JSON, OPENAPI, lines, page, records};
#[cfg(test)]
use crate::bodies::{
    answered, asked,
    tests::{AuditLine, Explanation, Record, Schemas},
};

/// In the list, the path of a single exception ends with this.
const ID: &str = "{id}";

/// The answer to a call.
type Answering<'a> = Pin<Box<dyn Future<Output = Answer> + Send + 'a>>;

/// An operation, with its method and path.
pub(super) struct Route {
    method: Method,
    /// It may end with `{id}`, which matches any text.
    path: &'static str,
    /// Its name in `openapi.json`.
    #[cfg(test)]
    name: &'static str,
    /// The schemas of what it takes, and of what it answers when it is done.
    #[cfg(test)]
    bodies: fn(&mut Schemas) -> (Option<String>, Option<String>),
    pub(super) answer: for<'a> fn(&'a AdminApi, Call<'a>) -> Answering<'a>,
}

/// Why a request matches no operation.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoRoute {
    /// Nothing has its path.
    Path,
    /// Its path has only these methods, separated by commas.
    Method(String),
}

/// Each operation: its method, path and name, what it takes and answers, and how it is answered.
macro_rules! routes {
    ($($method:ident $path:literal $name:ident [$($taken:ty)?] [$($given:ty)?]
        |$api:pat_param, $call:pat_param| $answer:expr;)*) => {
        /// All of them. HEAD is answered wherever GET is.
        static ROUTES: &[Route] = &[$(Route {
            method: Method::$method,
            path: $path,
            #[cfg(test)]
            name: stringify!($name),
            #[cfg(test)]
            bodies: |_schemas| (
                None$(.or(Some(_schemas.asked::<$taken>())))?,
                None$(.or(Some(_schemas.answered::<$given>())))?,
            ),
            answer: |$api, $call| Box::pin(async move { $answer }),
        }),*];
    };
}

routes! {
    GET "/admin/openapi.json" openapi [] []
        |_, _| Ok(page(StatusCode::OK, JSON, OPENAPI));
    GET "/admin/audit" audit [] [AuditLine]
        |api, _| Ok(lines(api.book.audit().recent()));
    GET "/admin/exceptions" listExceptions [] [answered::Listed]
        |api, call| api.list_exceptions(call.query).await;
    GET "/admin/exceptions/{id}" getException [] [answered::Listed]
        |api, call| api.get_exception(call.id.to_owned()).await;
    PUT "/admin/exceptions/{id}" putException [asked::Exception] [answered::Changed]
        |api, call| api.put_exception(call).await;
    DELETE "/admin/exceptions/{id}" endException [asked::Who] [answered::Changed]
        |api, call| api.end_exception(call.id.to_owned(), api.asked(call.body).await?, call.caller).await;
    POST "/admin/counters/peek" peekCounter [asked::DomainEntries] [Explanation]
        |api, call| api.peek(api.asked(call.body).await?).await;
    POST "/admin/counters/top" topCounters [asked::TopCounters] [answered::Top]
        |api, call| api.top(api.asked(call.body).await?).await;
    POST "/admin/counters/reset" resetCounter [asked::ResetCounter] [answered::Reset]
        |api, call| api.reset(api.asked(call.body).await?, call.caller).await;
    GET "/admin/resets" listResets [] [answered::LastReset]
        |api, _| Ok(api.resets());
    POST "/admin/resets" resetBelow [asked::ResetBelow] [answered::ResetDone]
        |api, call| api.reset_below(api.asked(call.body).await?, call.caller).await;
    GET "/admin/bans" listBans [] [answered::KnownBan]
        |api, _| Ok(api.bans());
    POST "/admin/bans" ban [asked::Ban] [answered::BanChanged]
        |api, call| api.ban(api.asked(call.body).await?, call.caller).await;
    DELETE "/admin/bans" liftBan [asked::LiftBan] [answered::BanChanged]
        |api, call| api.lift_ban(api.asked(call.body).await?, call.caller).await;
    PUT "/admin/records" putRecord [asked::PutRecord] [answered::Done]
        |api, call| api.put_record(api.store()?, api.asked(call.body).await?, call.caller).await;
    DELETE "/admin/records" deleteRecord [asked::DeleteRecord] [answered::Done]
        |api, call| api.delete_record(api.store()?, api.asked(call.body).await?, call.caller).await;
    POST "/admin/records/get" getRecord [asked::DomainEntries] [Record]
        |api, call| records::get(api.store()?, api.asked(call.body).await?).await;
    POST "/admin/records/list" listRecords [asked::ListRecords] [answered::Records]
        |api, call| records::list(api.store()?, api.asked(call.body).await?).await;
    // It takes lines, which the document describes.
    POST "/admin/records/load" loadRecords [] [answered::Loaded]
        |api, call| api.load_records(api.store()?, call).await;
}

/// The operation of a request, and the id in its path; empty without one.
pub(super) fn asked_for<'p>(method: &Method, path: &'p str) -> Result<(&'static Route, &'p str), NoRoute> {
    let method = if method == Method::HEAD { &Method::GET } else { method };
    let mut methods = Vec::new();
    for route in ROUTES {
        match route.id_in(path) {
            Some(id) if route.method == method => return Ok((route, id)),
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

#[cfg(test)]
mod tests;
