//! Epochs: numbers that all nodes agree on, because each only grows. Every server that decides has all of them.
//!
//! In: numbers, from the node where somebody reset counters. Out: the numbers of every server, to the program, which
//! puts them in force. The program knows what the fields mean.
//!
//! A server decides for this node only after its numbers were read and put in force: on every new connection, and
//! then four times a second. When reading takes too long, or the node itself stood still, the server does not decide
//! until they are read again. So a node that was cut off while counters were reset never decides by the old counters.
//! A script could compare a number in every call instead; but in a Cluster it would have to read a key that it may
//! not name, each call would cost Redis one more command, and a request would have to be planned again after every
//! reset.
//!
//! A server without numbers has lost them, or is new. It decides when another server shows which numbers there were,
//! or when all servers show that there were none; then they are written there. If a server refuses to show its
//! numbers, that is logged, and it decides by the numbers that the node knows.

mod calls;
mod servers;

use std::collections::HashSet;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{join_all, select_all};
use futures_util::stream::FuturesUnordered;

use self::calls::{Found, Line, MissingHash, Raise, find, is_refusal, raise, why_refused};
use self::servers::EpochServer;
pub(super) use self::servers::EpochServers;
use super::SharedStore;
use crate::connect_error::ConnectError;
use crate::runtime::Runtime;
use crate::store::RedisStore;

/// How often a server is asked for its numbers. A node has to know of a reset within half a second: the pause, the
/// call, and the delays of a busy machine.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// The same while there are connections on which they were not read.
const UNREAD_INTERVAL: Duration = Duration::from_millis(50);
/// For how many connect timeouts (a second, or REDIS_TIMEOUT if that is longer) a server may decide after it was
/// asked for its numbers.
const DECIDES_FOR: u32 = 5;
/// How often numbers are read and written until they stay the same.
const READS_MAX: usize = 3;

/// Fields, each with its number as sixteen hex digits.
pub type Numbers = Vec<(String, String)>;

/// The program's reply to the numbers of a server, which it has put in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Agreed {
    /// The numbers that the server does not have, or has smaller.
    pub missing: Numbers,
    /// What is wrong with the numbers, if some were ignored.
    pub trouble: Option<String>,
}

/// The result of writing numbers to all servers.
#[derive(Debug, Default)]
pub struct Raised {
    /// How many servers have them now.
    pub kept: usize,
    /// Numbers that a server refused: it has this greater one, or, with an empty text, the number is too far ahead of
    /// its clock.
    pub refused: Numbers,
    /// The servers that may not have them, and why.
    pub missing: Vec<(String, ConnectError)>,
    /// All numbers of each other server after that, and its time in microseconds since 1970.
    pub found: Vec<(Numbers, u64)>,
}

/// A server, and the open connections to it.
struct Server<'s, R: Runtime> {
    store: &'s RedisStore<R>,
    place: EpochServer,
    lines: Vec<Line<R>>,
}

impl<R: Runtime> SharedStore<R> {
    /// Reads the numbers of all servers, for ever. `put_in_force` gets the numbers of one server, and its time in
    /// microseconds since 1970; when it returns, they are in force. `None`: they could not be put in force.
    pub async fn follow_epochs<F, A>(&self, put_in_force: F) -> Infallible
    where
        F: Fn(Numbers, u64) -> A,
        A: Future<Output = Option<Agreed>>,
    {
        let mut under_way = FuturesUnordered::new();
        let mut asked = HashSet::<EpochServer>::new();
        loop {
            let mut pause = LOOK_INTERVAL;
            for server in self.epoch_servers() {
                if server.lines.iter().any(|(_, connection)| !connection.has_read_epochs()) {
                    pause = UNREAD_INTERVAL;
                }
                if asked.insert(server.place.clone()) {
                    under_way.push(self.read_server(server, &put_in_force));
                }
            }
            let mut paused = pin!(self.runtime.sleep(pause));
            loop {
                // A server that hangs delays no other.
                tokio::select! {
                    biased;
                    Some(place) = under_way.next() => drop(asked.take(&place)),
                    () = self.connections_opened() => break,
                    () = &mut paused => break,
                }
            }
        }
    }

    /// Raises these numbers at all servers that decide. Where there are none yet, `all` numbers of this node are
    /// written, these among them.
    pub async fn raise_epochs(&self, numbers: &Numbers, all: &(dyn Fn() -> Numbers + Sync)) -> Raised {
        let mut raised = Raised::default();
        let (mut open, mut asking) = (self.epoch_servers(), Vec::new());
        for (per_second, store) in self.stores_by_unit() {
            let masters = store.shared().masters.lock().clone();
            if masters.is_empty() {
                raised.missing.push((store.options().kind.to_string(), ConnectError::NoConnection));
            }
            for address in masters {
                let place = (per_second, address);
                match open.iter().position(|server| server.place == place) {
                    Some(at) => asking.push(self.raise_at(open.swap_remove(at), numbers, all)),
                    None => raised.missing.push((place.1.to_string(), ConnectError::NoConnection)),
                }
            }
        }
        for (place, outcome) in join_all(asking).await {
            match outcome {
                Ok((refused, found)) => {
                    raised.kept += usize::from(refused.is_empty());
                    raised.refused.extend(refused);
                    raised.found.push(found);
                }
                Err(error) => raised.missing.push((place.1.to_string(), error)),
            }
        }
        // A server that lost them before they were read, or did not get them, has the text of before.
        self.epoch_servers.outdate(|_| true, self.runtime.since_boot());
        raised
    }

    /// Whether this node has read the numbers of all servers that it is connected to.
    pub fn has_read_epochs(&self) -> bool {
        self.epoch_servers()
            .iter()
            .all(|Server { store, lines, .. }| lines.iter().all(|(_, line)| line.may_decide(store.shared())))
    }

    /// What is wrong with the numbers of servers, each with the name of its store.
    pub fn epoch_troubles(&self) -> Vec<(&'static str, String)> {
        let named = |((per_second, address), trouble): (EpochServer, String)| {
            (if per_second { "per_second" } else { "main" }, format!("{address}: {trouble}"))
        };
        let mut troubles: Vec<_> = self.epoch_servers.troubles().into_iter().map(named).collect();
        troubles.sort();
        troubles
    }

    fn stores_by_unit(&self) -> impl Iterator<Item = (bool, &RedisStore<R>)> {
        std::iter::once((false, &self.main)).chain(self.per_second.iter().map(|store| (true, store)))
    }

    /// The servers with open connections.
    fn epoch_servers(&self) -> Vec<Server<'_, R>> {
        let mut servers: Vec<Server<'_, R>> = Vec::new();
        for (per_second, store) in self.stores_by_unit() {
            for routes in store.routes() {
                for connection in routes.connections.iter().filter(|it| !it.wire.is_broken()) {
                    let place = (per_second, connection.wire.address.clone());
                    let line = (Arc::clone(&routes), Arc::clone(connection));
                    match servers.iter_mut().find(|server| server.place == place) {
                        Some(server) => server.lines.push(line),
                        None => servers.push(Server { store, place, lines: vec![line] }),
                    }
                }
            }
        }
        servers
    }

    async fn connections_opened(&self) {
        let opened = self.stores().map(|(_, store)| Box::pin(store.shared().opened.notified()));
        select_all(opened).await;
    }

    /// Reads a server's numbers: on all connections on which they were not read yet, or else on one.
    async fn read_server<F, A>(&self, server: Server<'_, R>, put_in_force: &F) -> EpochServer
    where
        F: Fn(Numbers, u64) -> A,
        A: Future<Output = Option<Agreed>>,
    {
        let Server { store, place, lines } = &server;
        let mut asked: Vec<_> = lines.iter().filter(|(_, line)| !line.has_read_epochs()).collect();
        if asked.is_empty() {
            asked.extend(lines.first());
        }
        for line in asked {
            let sent = self.runtime.since_boot();
            let until = sent + store.shared().connect_timeout() * DECIDES_FOR;
            match self.read_on(&server, line, sent, put_in_force).await {
                Ok(()) => {
                    line.1.let_decide_until(until);
                    let read = lines.iter().filter(|(_, line)| line.has_read_epochs());
                    read.for_each(|(_, line)| line.let_decide_until(until));
                }
                // The node may be cut off from the server.
                Err(ConnectError::Timeout(_)) => {
                    lines.iter().for_each(|(_, line)| line.let_decide_until(Duration::ZERO));
                }
                Err(error) => {
                    if let ConnectError::NoEpochs(_) = error
                        && self.epoch_servers.is_missing_long(place, sent)
                    {
                        self.epoch_servers.trouble(place, Some(error.to_string()));
                    }
                    tracing::debug!(address = %place.1, %error, "epochs are not read");
                }
            }
        }
        server.place
    }

    /// Reads a server's numbers on one connection at `sent`, and puts them in force.
    async fn read_on<F, A>(
        &self,
        Server { store, place, .. }: &Server<'_, R>,
        line: &Line<R>,
        sent: Duration,
        put_in_force: &F,
    ) -> Result<(), ConnectError>
    where
        F: Fn(Numbers, u64) -> A,
        A: Future<Output = Option<Agreed>>,
    {
        let known = &self.epoch_servers;
        let (unknown, now) =
            (|| ConnectError::NoEpochs(place.1.clone()), || line.1.time_at(self.runtime.monotonic()));
        for _ in 0..READS_MAX {
            let found = match find(store, line, known.state(place, sent)).await {
                Err(error) if is_refusal(&error) => {
                    known.note(place, sent, None, Some(error.to_string()));
                    return Ok(());
                }
                found => found?,
            };
            match found {
                Found::Same => {
                    known.note_same(place, sent);
                    return Ok(());
                }
                Found::Numbers { state, numbers, unreadable } => {
                    let agreed = put_in_force(numbers, now()).await.ok_or_else(unknown)?;
                    let kept = raise(store, line, &agreed.missing, MissingHash::Leave).await;
                    let left_out = (unreadable > 0).then(|| format!("{unreadable} fields are no text"));
                    let refused = why_refused(&kept);
                    if !known.has_shown(place, &state) {
                        known.outdate(|other| other != place, self.runtime.since_boot());
                    }
                    if kept.is_err() {
                        known.outdate(|other| other == place, self.runtime.since_boot());
                    }
                    known.note(place, sent, Some(state), agreed.trouble.or(left_out).or(refused));
                    return Ok(());
                }
                Found::Nothing if !self.shows_all(place, sent) => return Err(unknown()),
                Found::Nothing => {
                    let Agreed { missing, .. } =
                        put_in_force(Numbers::new(), now()).await.ok_or_else(unknown)?;
                    match raise(store, line, &missing, MissingHash::Create).await {
                        Err(error) if is_refusal(&error) => {
                            known.note(place, sent, None, Some(error.to_string()));
                            return Ok(());
                        }
                        made => _ = made?,
                    }
                }
            }
        }
        Err(unknown())
    }

    /// Whether this node knows which numbers there are, although this server had none at `sent`.
    fn shows_all(&self, place: &EpochServer, sent: Duration) -> bool {
        let masters = |(per_second, store): (bool, &RedisStore<R>)| {
            let masters = store.shared().masters.lock();
            masters.iter().map(|address| (per_second, address.clone())).collect()
        };
        let masters: Vec<Vec<EpochServer>> = self.stores_by_unit().map(masters).collect();
        self.epoch_servers.show_all(place, sent, &masters)
    }

    /// Raises numbers at one server. Returns the numbers that it refused, and all of its numbers after that, with its
    /// time.
    async fn raise_at(
        &self,
        Server { store, place, lines }: Server<'_, R>,
        numbers: &Numbers,
        all: &(dyn Fn() -> Numbers + Sync),
    ) -> (EpochServer, Result<(Numbers, (Numbers, u64)), ConnectError>) {
        let raising = async {
            let line = lines.first().ok_or(ConnectError::NoConnection)?;
            let sent = self.runtime.since_boot();
            let mut done = raise(store, line, numbers, MissingHash::Leave).await?;
            if let Raise::Nothing = done {
                if !self.shows_all(&place, sent) {
                    return Err(ConnectError::NoEpochs(place.1.clone()));
                }
                done = raise(store, line, &all(), MissingHash::Create).await?;
            }
            let (replicas, shared) = (store.options().wait_replicas, store.shared());
            let until = self.runtime.monotonic() + store.options().timeout;
            if replicas > 0 && line.1.replicate(shared, until).await.is_err() {
                return Err(ConnectError::Unreplicated(replicas, place.1.clone()));
            }
            let found = match find(store, line, None).await {
                Ok(Found::Numbers { numbers, .. }) => numbers,
                Ok(Found::Same) => Numbers::new(),
                Ok(Found::Nothing) => return Err(ConnectError::NoEpochs(place.1.clone())),
                Err(error) if is_refusal(&error) => Numbers::new(),
                Err(error) => return Err(error),
            };
            let asked = |(field, _): &(String, String)| numbers.iter().any(|(own, _)| own == field);
            let refused = match done {
                Raise::Nothing => Numbers::new(),
                Raise::Done(refused) => refused.into_iter().filter(asked).collect(),
            };
            Ok((refused, (found, line.1.time_at(self.runtime.monotonic()))))
        };
        let raised = raising.await;
        (place, raised)
    }
}
