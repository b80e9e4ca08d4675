//! The shared store of the process: made from options, shown in metrics. `contact` reports it to the log and to health.

mod contact;

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::app::AppError;
use crate::clock::Clock;
use crate::configuration::{ClientTlsFiles, Redis, Server};
use tidegate_engine::memory::MemoryStore;
use tidegate_redis::runtime::Tokio;
use tidegate_redis::tls::{TlsError, TlsFiles, config};
use tidegate_redis::{
    Contact, Declared, Failure, RedisOptions, RedisStore, RoundTrips, SharedStore, Stats,
    declare_complete as declare,
};
use tidegate_serve::metrics::{
    MetricType::{self, Counter, Gauge},
    Metrics, Samples,
};
use tidegate_serve::service::Counters;

pub(super) use contact::{NOT_REACHED, keep};

/// Where counters are: in the shared store, which is not connected yet, or in `local` alone.
pub(super) fn counters(
    redis: Option<Redis>,
    local: &Arc<MemoryStore>,
    clock: Clock,
    metrics: &Metrics,
) -> Result<Counters, AppError> {
    let Some(redis) = redis else { return Ok(Counters::Memory(Arc::clone(local))) };
    let failover = redis.failover;
    let (main, per_second) = options(redis)?;
    let (main, per_second) = (RedisStore::new(main), per_second.map(RedisStore::new));
    let shared = Arc::new(SharedStore::new(main, per_second, Arc::clone(local), clock, failover));
    register(metrics, &shared);
    Ok(Counters::Shared(shared))
}

/// How the servers are reached and used: all of them, and those for limits per second if there are others for them.
fn options(redis: Redis) -> Result<(RedisOptions, Option<RedisOptions>), AppError> {
    let Redis { main, per_second, tls: files, tls_any_name, .. } = redis;
    let options = |server| {
        let options = server_options(server, &files, tls_any_name)?;
        Ok::<_, AppError>(RedisOptions { follows_epochs: true, ..options })
    };
    Ok((options(main)?, per_second.map(options).transpose()?))
}

/// How one Redis is reached and used.
pub(super) fn server_options(
    Server { mut options, tls: wants_tls }: Server,
    files: &ClientTlsFiles,
    tls_any_name: bool,
) -> Result<RedisOptions, AppError> {
    options.access.tls = wants_tls.then(|| tls(files, tls_any_name)).transpose()?;
    Ok(options)
}

/// Declares that no server has lost data; an operator calls it for a first deployment.
/// Fails when a server cannot be reached, or is of another kind than configured.
pub fn declare_complete(redis: Redis) -> Result<Vec<Declared>, AppError> {
    let (main, per_second) = options(redis)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut declared = Vec::new();
    for options in [Some(main), per_second].into_iter().flatten() {
        let found = runtime.block_on(declare(Tokio, options));
        declared.extend(found.map_err(|error| AppError::Redis { problem: error.to_string() })?);
    }
    Ok(declared)
}

fn tls(files: &ClientTlsFiles, any_name: bool) -> Result<Arc<rustls::ClientConfig>, AppError> {
    let read = |name: &str, path: &Option<PathBuf>| match path {
        None => Ok(None),
        Some(path) => tidegate_disk::read(path)
            .map(Some)
            .map_err(|error| AppError::Redis { problem: format!("{name}: {}: {error}", path.display()) }),
    };
    let chain = read("REDIS_TLS_CLIENT_CERT", &files.chain)?;
    let authority = read("REDIS_TLS_CACERT", &files.roots)?;
    let identity = chain.zip(read("REDIS_TLS_CLIENT_KEY", &files.key)?);
    let files = TlsFiles { authority, identity, any_name };
    config(&files).map_err(|error| {
        let problem = match error {
            TlsError::Authority(cause) => format!("REDIS_TLS_CACERT: {cause}"),
            TlsError::NoAuthority(cause) => format!("no authority is trusted (REDIS_TLS_CACERT): {cause}"),
            TlsError::Chain(cause) => format!("REDIS_TLS_CLIENT_CERT: {cause}"),
            TlsError::Key(cause) => format!("REDIS_TLS_CLIENT_KEY: {cause}"),
            other => other.to_string(),
        };
        AppError::Redis { problem }
    })
}

/// Shows the shared store in metrics.
fn register(metrics: &Metrics, shared: &Arc<SharedStore>) {
    register_calls(metrics, shared);
    register_trouble(metrics, shared);
    register_hits(metrics, shared);
    register_theirs(metrics, shared);
}

/// Writes a value of each server.
fn by_store<Value: Display>(read: impl Fn(&RedisStore) -> Value) -> impl Fn(&SharedStore, &mut Samples<'_>) {
    move |shared, samples| {
        shared.stores().for_each(|(store, redis)| samples.push(&[("store", store)], read(redis)));
    }
}

/// Shows calls and connections.
#[rustfmt::skip]
fn register_calls(metrics: &Metrics, shared: &Arc<SharedStore>) {
    metrics
        .of(shared)
        .samples(Counter, "tidegate_redis_round_trips_total", "Calls that were sent to Redis.", by_store(|redis| redis.stats().round_trips.count()))
        .samples(Gauge, "tidegate_redis_in_flight", "Calls that wait for Redis now.", by_store(|redis| redis.stats().in_flight.load(Relaxed)))
        .samples(Gauge, "tidegate_redis_connections", "Connections to Redis that are open.", by_store(|redis| redis.stats().connections.load(Relaxed)))
        .samples(Counter, "tidegate_redis_memory_lost_total", "Times that Redis had lost its data.", by_store(|redis| redis.stats().memory_lost.load(Relaxed)))
        .samples(Counter, "tidegate_redis_given_back_total", "Give-backs that were sent.", by_store(|redis| redis.stats().given_back.load(Relaxed)))
        .samples(Counter, "tidegate_redis_connections_opened_total", "Connections that were opened.", by_store(|redis| redis.stats().connections_opened.load(Relaxed)))
        .samples(MetricType::Histogram, "tidegate_redis_round_trip_seconds", "Time from sending a call to Redis to its answer, or to its timeout.", |shared, samples| {
            for (store, redis) in shared.stores() {
                let (counts, nanos) = redis.stats().round_trips.read();
                samples.push_durations(&[("store", store)], &RoundTrips::BOUNDS, &counts, nanos);
            }
        });
}

/// Shows calls without an answer, and checks that needed no call.
#[rustfmt::skip]
fn register_trouble(metrics: &Metrics, shared: &Arc<SharedStore>) {
    metrics
        .of(shared)
        .samples(Counter, "tidegate_redis_failures_total", "Calls without an answer, by kind.", |shared, samples| {
            for (store, redis) in shared.stores() {
                for failure in Failure::ALL {
                    let count = redis.stats().failures(failure);
                    samples.push(&[("store", store), ("kind", failure.name())], count);
                }
            }
        })
        .samples(Gauge, "tidegate_redis_breaker_open", "1 while requests are not sent to Redis, because it does not answer.",
            by_store(|redis| u64::from(*redis.contact().borrow() != Contact::Up)))
        .samples(Gauge, "tidegate_redis_reset_troubles", "Servers of Redis whose resets cannot be read or written, or are ignored in part.", |shared, samples| {
            let troubles = shared.epoch_troubles();
            for (store, _) in shared.stores() {
                let count = troubles.iter().filter(|(name, _)| *name == store).count();
                samples.push(&[("store", store)], count);
            }
        })
        .value(Counter, "ratelimit_localcache_hitCount", "Descriptors that were answered from the deny cache.", |shared| shared.deny_cache_totals().0)
        .value(Gauge, "ratelimit_localcache_entryCount", "Counters in the deny cache.", |shared| shared.deny_cache_totals().1);
}

/// Shows how many leased hits were spent and given back, and hits of reported costs that did not fit.
#[rustfmt::skip]
fn register_hits(metrics: &Metrics, shared: &Arc<SharedStore>) {
    metrics
        .of(shared)
        .value(Counter, "tidegate_redis_leases_total", "Leases that were taken.", |shared| shared.leases().taken)
        .value(Counter, "tidegate_redis_lease_hits_taken_total", "Hits that were leased.", |shared| shared.leases().hits_taken)
        .value(Counter, "tidegate_redis_lease_hits_spent_total", "Leased hits that passed without a call to Redis.", |shared| shared.leases().hits_spent)
        .value(Counter, "tidegate_redis_lease_hits_given_back_total", "Leased hits that were not spent.", |shared| shared.leases().hits_given_back)
        .value(Counter, "tidegate_redis_reported_beyond_limit_hits_total", "Hits of reported costs that were charged beyond a limit, by the counters in Redis.",
            |shared| shared.reported_total().beyond)
        .value(Counter, "tidegate_redis_reported_dropped_hits_total", "Hits of reported costs that were dropped: beyond what a counter can hold, or what is kept until Redis is back.",
            |shared| shared.reported_total().dropped);
}

/// Shows some of these under the names of `envoyproxy/ratelimit`.
fn register_theirs(metrics: &Metrics, shared: &Arc<SharedStore>) {
    type Read = fn(&Stats) -> u64;
    let families: [(MetricType, [&'static str; 2], Read); 3] = [
        (Gauge, ["ratelimit_redis_pool_cx_active", "ratelimit_redis_per_second_pool_cx_active"], |stats| {
            stats.connections.load(Relaxed) as u64
        }),
        (Counter, ["ratelimit_redis_pool_cx_total", "ratelimit_redis_per_second_pool_cx_total"], |stats| {
            stats.connections_opened.load(Relaxed)
        }),
        (
            Counter,
            ["ratelimit_redis_pool_cx_local_close", "ratelimit_redis_per_second_pool_cx_local_close"],
            |stats| stats.connections_closed.load(Relaxed),
        ),
    ];
    for place in 0..shared.stores().count() {
        for (kind, names, read) in families {
            metrics.of(shared).samples(
                kind,
                names[place],
                "Connections to Redis.",
                move |shared, samples| {
                    if let Some((_, redis)) = shared.stores().nth(place) {
                        samples.push(&[], read(redis.stats()));
                    }
                },
            );
        }
    }
}
