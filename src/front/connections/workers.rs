//! The threads that decide: one per core, each with a runtime of its own. In: connections from a listener. A connection
//! belongs to one worker until it ends: the one that had the fewest when it came.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::spin::Spinner;
use super::{Arrival, GrpcServer, Listener, Port, serve_grpc, serve_http};
use crate::front::http::HttpFront;
use crate::front::{Drain, DrainSwitch, Life, MaxAge};
use tidegate_serve::service::Service;

/// Connections that wait for a worker to take them.
const INBOX_MAX: usize = 1_024;

/// What workers serve.
#[derive(Clone)]
pub struct Fronts {
    /// On [`Port::Grpc`].
    pub grpc: GrpcServer,
    /// On [`Port::Http`].
    pub http: HttpFront,
    /// The service behind both.
    pub service: Arc<Service>,
}

/// The threads that decide.
#[derive(Clone, Copy, Debug)]
pub struct WorkerOptions {
    /// How many there are; at least one.
    pub count: usize,
    /// For how long a thread that has just answered looks for the next call before it sleeps. 0: it sleeps at once.
    pub spin_time: Duration,
}

/// Bounds of connections.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionBounds {
    /// Connections on all workers.
    pub connections_max: usize,
    /// The greatest age of connections on [`Port::Grpc`].
    pub grpc_max_age: MaxAge,
}

/// The threads that decide.
pub struct Workers {
    workers: Vec<Worker>,
    switch: DrainSwitch,
    connections_max: usize,
}

struct Worker {
    inbox: mpsc::Sender<Connection>,
    connections: Arc<AtomicUsize>,
}

/// A connection on the way to its worker. As long as it lives, it counts as one of the worker's.
struct Connection {
    arrival: Arrival,
    port: Port,
    counted: Counted,
}

struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn one_more(connections: &Arc<AtomicUsize>) -> Self {
        connections.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(connections))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Workers {
    /// Starts workers that serve `fronts`, within `bounds`.
    /// Fails when the system cannot give another thread or event queue.
    pub fn start(options: WorkerOptions, bounds: ConnectionBounds, fronts: &Fronts) -> io::Result<Self> {
        let switch = DrainSwitch::new();
        let start = |index| {
            let spinner = (!options.spin_time.is_zero()).then(|| Spinner::new(options.spin_time));
            Worker::start(index, spinner, fronts.clone(), bounds.grpc_max_age, switch.drain())
        };
        let workers = (0..options.count.max(1)).map(start).collect::<io::Result<_>>()?;
        Ok(Self { workers, switch, connections_max: bounds.connections_max })
    }

    /// Accepts connections for `port` and hands them to the workers, until a worker is gone. Dropping this future
    /// closes the listener.
    /// Fails when a worker has died.
    pub async fn accept(&self, listener: Listener, port: Port) -> io::Result<Infallible> {
        loop {
            let arrival = listener.accept().await;
            let peer = arrival.peer;
            if let Err(error) = self.hand_over(arrival, port) {
                if error.kind() == io::ErrorKind::BrokenPipe {
                    return Err(error);
                }
                tracing::debug!(?peer, %error, "connection refused");
            }
        }
    }

    /// Hands a connection to the worker that has the fewest. Closes it if that worker cannot take it.
    fn hand_over(&self, arrival: Arrival, port: Port) -> io::Result<()> {
        if self.connections() >= self.connections_max {
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, "too many connections"));
        }
        let worker = self.workers.iter().min_by_key(|worker| worker.connections());
        let worker = worker.expect("there is at least one worker");
        let counted = Counted::one_more(&worker.connections);
        let connection = Connection { arrival, port, counted };
        worker.inbox.try_send(connection).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => {
                io::Error::new(io::ErrorKind::QuotaExceeded, "worker is busy")
            }
            mpsc::error::TrySendError::Closed(_) => {
                io::Error::new(io::ErrorKind::BrokenPipe, "worker has died")
            }
        })
    }

    /// Connections that are open now.
    pub fn connections(&self) -> usize {
        self.workers.iter().map(Worker::connections).sum()
    }

    /// Asks every connection to finish its calls, and waits for that, but no longer than `timeout`. The remaining
    /// ones then end with the process. Returns whether all had ended.
    pub async fn drain(&self, timeout: Duration) -> bool {
        self.switch.throw();
        tokio::time::timeout(timeout, self.switch.all_ended()).await.is_ok()
    }

    /// Ends every connection at once, and waits for the end of all workers, but no longer than `timeout`. Returns
    /// whether all had ended: then no further decision is made.
    pub async fn cut(&self, timeout: Duration) -> bool {
        self.switch.cut();
        tokio::time::timeout(timeout, self.switch.all_ended()).await.is_ok()
    }
}

impl Worker {
    fn start(
        index: usize,
        spinner: Option<Spinner>,
        fronts: Fronts,
        grpc_max_age: MaxAge,
        drain: Drain,
    ) -> io::Result<Self> {
        let mut builder = runtime::Builder::new_current_thread();
        if let Some(spinner) = &spinner {
            builder.on_thread_park(spinner.hook());
        }
        let runtime = builder.enable_all().build()?;
        let (inbox, arrivals) = mpsc::channel(INBOX_MAX);
        std::thread::Builder::new().name(format!("worker-{index}")).spawn(move || {
            if let Some(Err(error)) = spinner.map(|spinner| spinner.start(&runtime)) {
                tracing::warn!("worker-{index} does not spin (SPIN_TIME): {error}");
            }
            let service = Arc::clone(&fronts.service);
            let until_the_end = drain.clone();
            runtime.block_on(service.work(serve_until_cut(arrivals, fronts, grpc_max_age, drain)));
            // Draining also waits for the last work of the worker, and until cancelled tasks are gone.
            drop(runtime);
            drop(until_the_end);
        })?;
        Ok(Self { inbox, connections: Arc::default() })
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

/// Serves everything until that is done or cancelled. Cancelled tasks do not run again: their runtime ends next.
async fn serve_until_cut(
    arrivals: mpsc::Receiver<Connection>,
    fronts: Fronts,
    grpc_max_age: MaxAge,
    drain: Drain,
) {
    let mut until = drain.clone();
    tokio::select! {
        () = serve_all(arrivals, fronts, grpc_max_age, drain) => {}
        () = until.cut() => {}
    }
}

/// Serves what arrives until draining begins, and finishes everything that had arrived by then.
async fn serve_all(
    mut arrivals: mpsc::Receiver<Connection>,
    fronts: Fronts,
    grpc_max_age: MaxAge,
    mut drain: Drain,
) {
    let of_connections = drain.clone();
    let mut serving = JoinSet::new();
    let serve = |connection| serve(connection, fronts.clone(), grpc_max_age, of_connections.clone());
    loop {
        tokio::select! {
            Some(connection) = arrivals.recv() => drop(serving.spawn(serve(connection))),
            Some(_) = serving.join_next() => {}
            () = drain.begun() => break,
        }
    }
    arrivals.close();
    while let Some(connection) = arrivals.recv().await {
        serving.spawn(serve(connection));
    }
    while serving.join_next().await.is_some() {}
}

async fn serve(connection: Connection, fronts: Fronts, grpc_max_age: MaxAge, drain: Drain) {
    let Connection { arrival, port, counted } = connection;
    match port {
        Port::Grpc => serve_grpc(arrival, fronts.grpc, Life::bounded(drain, grpc_max_age)).await,
        Port::Http => serve_http(arrival, fronts.http, Life::until(drain)).await,
    }
    drop(counted);
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpStream;

    use super::*;
    use crate::front::tests::{bind, fronts, metrics, service};

    const SLEEPING: WorkerOptions = WorkerOptions { count: 1, spin_time: Duration::ZERO };

    #[tokio::test]
    async fn a_connection_that_does_not_end_is_cut_off() {
        let metrics = metrics();
        let (fronts, _) = fronts(service(None, &metrics).into(), metrics);
        let bounds = ConnectionBounds { connections_max: 100, grpc_max_age: MaxAge::default() };
        let workers = Workers::start(SLEEPING, bounds, &fronts).expect("threads");
        let (listener, address) = bind().await;
        let mut client = TcpStream::connect(address).await.expect("it listens");
        workers.hand_over(listener.accept().await, Port::Http).expect("there is room");
        // Half a request: the server waits for the rest.
        tokio::io::AsyncWriteExt::write_all(&mut client, b"GET /rea").await.expect("it reads");
        while workers.connections() == 0 {
            tokio::task::yield_now().await;
        }
        assert!(!workers.drain(Duration::ZERO).await);
        assert!(workers.cut(Duration::from_secs(20)).await);
        assert_eq!(workers.connections(), 0);
    }

    #[tokio::test]
    async fn the_worker_with_the_fewest_connections_gets_the_next() {
        let metrics = metrics();
        let (fronts, _) = fronts(service(None, &metrics).into(), metrics);
        let bounds = ConnectionBounds { connections_max: 100, grpc_max_age: MaxAge::default() };
        let workers =
            Workers::start(WorkerOptions { count: 3, ..SLEEPING }, bounds, &fronts).expect("threads");
        let (listener, address) = bind().await;
        let mut clients = Vec::new();
        for _ in 0..9 {
            clients.push(TcpStream::connect(address).await.expect("it listens"));
            workers.hand_over(listener.accept().await, Port::Grpc).expect("there is room");
        }
        assert_eq!(workers.workers.iter().map(Worker::connections).collect::<Vec<_>>(), [3, 3, 3]);
        assert!(workers.drain(Duration::from_secs(20)).await);
        assert_eq!(workers.connections(), 0);
    }
}
