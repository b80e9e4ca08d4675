//! The table: a row per setting. A new setting needs one row here, a line in `configuration` and, if its kind is new, a
//! kind in `value`.

use std::time::Duration;

use crate::front::HeadersFormat;
use crate::front::http::Proxy;
use crate::logging::LogLevel;
use crate::settings::value::{
    Backend, ByteSize, ColdStart, Compression, ConfigType, Count, DenyStatus, DnsName, DnsNames, FilePath,
    Flush, GrpcFront, HeaderName, Hops, HostPort, List, Map, Members, NodeMetadata, Number, OtelPairs, Queue,
    Replicas, RequestBytes, Sans, Secrecy, Secret, Series, Share, SpinTime, Threads, Url, UrlPath, Value,
};
use crate::settings::{Problem, Texts};
use crate::spans::Protocol;
use crate::statsd::Transport;
use tidegate_engine::limit::Algorithm;
use tidegate_engine::memory::StoreFull;
use tidegate_engine::rules::{Cost, RulesFormat, StoreFailure, Sync};
use tidegate_operate::gate::AdminToken;
use tidegate_serve::events::Kinds;
use tidegate_serve::service::StaleMode;

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The heading that it is listed under.
    pub group: &'static str,
    /// The environment variable.
    pub name: &'static str,
    /// The kind of value, as `--help` calls it.
    pub value_name: &'static str,
    /// The default, as it would be written. `None` if the program finds it out; then the help says how.
    pub default: Option<&'static str>,
    /// What it means, one sentence.
    pub help: &'static str,
    /// Whether a flag without a value means true.
    pub is_switch: bool,
    /// Whether an empty value means unset.
    pub empty_is_unset: bool,
    /// How much of its value is a secret.
    pub secrecy: Secrecy,
    /// Whether two texts are the same value.
    pub are_equal: fn(&str, &str) -> bool,
}

macro_rules! settings {
    ($( $group:literal: { $( $name:literal $field:ident: $kind:ty = $default:literal, $help:literal; )*
        $( optional { $( $oname:literal $ofield:ident: $okind:ty, $ohelp:literal; )+ } )? } )+) => {
        /// All rows, in the order of `--help`.
        pub const TABLE: &[Row] = &[$(
            $( Row {
                group: $group, name: $name, value_name: <$kind as Value>::NAME, default: Some($default), help: $help,
                is_switch: matches!(<$kind as Value>::NAME.as_bytes(), b"BOOL"),
                empty_is_unset: <$kind as Value>::EMPTY_IS_UNSET, secrecy: <$kind as Value>::SECRECY,
                are_equal: are_equal::<$kind>,
            }, )*
            $( $( Row {
                group: $group, name: $oname, value_name: <$okind as Value>::NAME, default: None, help: $ohelp,
                is_switch: matches!(<$okind as Value>::NAME.as_bytes(), b"BOOL"),
                empty_is_unset: <$okind as Value>::EMPTY_IS_UNSET, secrecy: <$okind as Value>::SECRECY,
                are_equal: are_equal::<$okind>,
            }, )+ )?
        )+];

        /// Every setting, read and checked. Fields are named like the variables.
        #[derive(Clone, Debug)]
        pub struct Settings {
            $( $( #[doc = $help] pub $field: $kind, )* $( $( #[doc = $ohelp] pub $ofield: Option<$okind>, )+ )? )+
            /// Valid but probably unintended; logged at startup.
            pub warnings: Vec<Problem>,
        }

        impl Settings {
            /// Reads all rows. Adds what is wrong to `problems`.
            pub(super) fn read_table(texts: Texts<'_>, problems: &mut Vec<Problem>) -> Option<Self> {
                let mut rows = TABLE.iter();
                $( $( let $field = read_row::<$kind>(rows.next(), texts, problems); )*
                   $( $( let $ofield = read_row::<$okind>(rows.next(), texts, problems); )+ )? )+
                Some(Self { $( $( $field: $field?, )* $( $( $ofield, )+ )? )+ warnings: Vec::new() })
            }
        }
    };
}

settings! {
    "Listeners": {
        "GRPC_HOST" grpc_host: String = "0.0.0.0", "gRPC: the address to listen on; IPv6 without brackets, :: is both families";
        "GRPC_PORT" grpc_port: u16 = "8081", "gRPC: the port";
        "GRPC_FRONT" grpc_front: GrpcFront = "lane", "gRPC: the HTTP/2 server: lane (ours, faster) or tonic, which resets calls whose :authority is not a host name, such as some names of clusters in Envoy and Istio";
        "HOST" host: String = "0.0.0.0", "HTTP (/json, health): the address to listen on";
        "PORT" port: u16 = "8080", "HTTP: the port";
        "DEBUG_HOST" debug_host: String = "0.0.0.0", "debug: the address to listen on";
        "DEBUG_PORT" debug_port: u16 = "6070", "debug: the port; one in use is a warning";
        "SPIN_TIME" spin_time: SpinTime = "0", "for how long a worker that has just answered looks for the next call before it sleeps, such as 50us; only while calls do come within that time and no other thread wants the core";
        "DRAIN_GRACE" drain_grace: Duration = "2s", "after SIGTERM, how long listeners stay open once health checks report that the process ends";
        optional {
            "GRPC_UDS" grpc_uds: FilePath, "gRPC: a unix socket to listen on instead of GRPC_HOST and GRPC_PORT";
            "HTTP_UDS" http_uds: FilePath, "HTTP: a unix socket to listen on instead of HOST and PORT";
            "HTTP_SERVER_TLS_CERT" http_server_tls_cert: FilePath, "HTTP: PEM file of the certificate and its chain; with it the port speaks TLS alone";
            "HTTP_SERVER_TLS_KEY" http_server_tls_key: FilePath, "HTTP: PEM file of the certificate's key";
            "DEBUG_SERVER_TLS_CERT" debug_server_tls_cert: FilePath, "debug: PEM file of the certificate and its chain; with it the port speaks TLS alone";
            "DEBUG_SERVER_TLS_KEY" debug_server_tls_key: FilePath, "debug: PEM file of the certificate's key";
            "DEBUG_SERVER_TLS_CLIENT_CACERT" debug_server_tls_client_cacert: FilePath, "debug: PEM file of the authority that clients' certificates have to come from; unset: clients need none";
            "WORKER_THREADS" worker_threads: Threads, "threads that answer; unset: one a core that the process may use";
            "ADMIN_TOKEN" admin_token: AdminToken, "bearer token of the admin API on the debug port; callers that are not on loopback need it to change state";
            "ADMIN_TOKEN_FILE" admin_token_file: FilePath, "file with the token, instead of ADMIN_TOKEN; read again when it changes, created with a random token if it does not exist";
            "ADMIN_TLS_SAN" admin_tls_san: Sans, "names (DNS or URI), separated by commas: a client of the debug port whose certificate has one of them may do what a bearer of ADMIN_TOKEN may";
            "PAGE_HOSTS" page_hosts: DnsNames, "names, separated by commas, by which browsers may open the pages of the debug and metrics ports, besides addresses, localhost and the host that the port listens on; programs may use any name";
            "EXCEPTIONS_FILE" exceptions_file: FilePath, "file that keeps the exceptions of the admin API, also while Redis is away; unset and without Redis: they end with the process";
            "AUDIT_LOG" audit_log: FilePath, "file that every change by the admin API is written to, before and after, as lines of JSON; -: standard output";
        }
    }
    "gRPC server": {
        "GRPC_SERVER_USE_TLS" grpc_server_use_tls: bool = "false", "the gRPC port speaks TLS; files of certificates are read again when they change";
        "GRPC_MAX_CONNECTION_AGE" grpc_max_connection_age: Duration = "24h", "the age, plus or minus a tenth, at which a connection is asked to end (GOAWAY); 0: never";
        "GRPC_MAX_CONNECTION_AGE_GRACE" grpc_max_connection_age_grace: Duration = "1h", "how long it may then take to finish its calls before it is closed; 0: without a bound";
        optional {
            "GRPC_SERVER_TLS_CERT" grpc_server_tls_cert: FilePath, "PEM file of the certificate and its chain";
            "GRPC_SERVER_TLS_KEY" grpc_server_tls_key: FilePath, "PEM file of the certificate's key";
            "GRPC_CLIENT_TLS_CACERT" grpc_client_tls_cacert: FilePath, "PEM file of the authority that clients' certificates have to come from; unset: clients need none";
            "GRPC_CLIENT_TLS_SAN" grpc_client_tls_san: DnsName, "DNS name that a client's certificate has to carry";
        }
    }
    "Rules": {
        "CONFIG_TYPE" config_type: ConfigType = "FILE", "where rules come from: files, or a control plane (xDS)";
        "RULES_FORMAT" rules_format: RulesFormat = "tidegate", "the form of files: rules, or limits as Limitador's operator writes them (limitador)";
        "RUNTIME_WATCH_ROOT" runtime_watch_root: bool = "true", "files named config.… next to the folder of RUNTIME_* are rules too; every change is noticed with either value";
        "RUNTIME_IGNOREDOTFILES" runtime_ignoredotfiles: bool = "false", "skip files and folders whose name starts with a dot (those with two dots always are)";
        "MERGE_DOMAIN_CONFIG" merge_domain_config: bool = "false", "several files may share a domain";
        "RULES_MAY_BE_EMPTY" rules_may_be_empty: bool = "false", "serve without any rule file: every request passes; false: the start fails, and a reload keeps the rules in force";
        "FORCE_START_WITHOUT_INITIAL_CONFIG" force_start_without_initial_config: bool = "false", "start although the rules are missing or bad; every request is an error until good ones come";
        "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED" healthy_with_at_least_one_config_loaded: bool = "false", "unhealthy until at least one domain is loaded, and again when none is left";
        "DEFAULT_ALGORITHM" default_algorithm: Algorithm = "sliding_window", "for rules that name none; fixed_window is what envoyproxy/ratelimit does";
        "DEFAULT_COST" default_cost: Cost = "auto", "what a descriptor's own hits_addend above 0 means to rules that do not say `cost`: reported (spent already: charged in full, whatever the answer), asked (charged if it fits), or auto (reported, until 100 descriptors had one and none came without)";
        "STRICT_RULES" strict_rules: bool = "false", "treat warnings about rules as errors";
        optional {
            "CONFIG_PATH" config_path: String, "a file or folder of rules; wins over RUNTIME_*; neither set nor there: ./config";
            "SHARD_KEY" shard_key: String, "the descriptor key by whose value proxies choose one of several nodes with counters of their own: the log warns of limits that several nodes would count; `check` refuses them";
            "RUNTIME_ROOT" runtime_root: String, "root of the tree of rules; unset: /srv/runtime_data/current";
            "RUNTIME_SUBDIRECTORY" runtime_subdirectory: String, "folder below RUNTIME_ROOT; unset or empty: the root itself";
            "RUNTIME_APPDIRECTORY" runtime_appdirectory: String, "folder below that, in which every file is a rule file; unset: config";
        }
    }
    "Rules over xDS": {
        "CONFIG_GRPC_XDS_SERVER_URL" config_grpc_xds_server_url: Url = "localhost:18000", "the control plane, host:port";
        "CONFIG_GRPC_XDS_NODE_ID" config_grpc_xds_node_id: String = "default", "node.id";
        "CONFIG_GRPC_XDS_NODE_METADATA" config_grpc_xds_node_metadata: NodeMetadata = "", "node.metadata: k=v,k=v; items without = are skipped";
        "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS" config_grpc_xds_client_additional_headers: Secret<Map> = "", "headers of the stream: key:value,key:value";
        "CONFIG_GRPC_XDS_SERVER_USE_TLS" config_grpc_xds_server_use_tls: bool = "false", "TLS to the control plane";
        "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL" xds_client_backoff_initial_interval: Duration = "10s", "pause before the first attempt to reconnect; attempt k waits initial x factor^k";
        "XDS_CLIENT_BACKOFF_MAX_INTERVAL" xds_client_backoff_max_interval: Duration = "60s", "the longest of these pauses";
        "XDS_CLIENT_BACKOFF_RANDOM_FACTOR" xds_client_backoff_random_factor: f64 = "0.5", "that factor; up to 1 the pause never grows; 0 or less means 2";
        "XDS_CLIENT_BACKOFF_JITTER" xds_client_backoff_jitter: bool = "true", "draw each pause between the initial one and its own";
        optional {
            "CONFIG_GRPC_XDS_CLIENT_TLS_CERT" config_grpc_xds_client_tls_cert: String, "PEM chain that is shown to the control plane";
            "CONFIG_GRPC_XDS_CLIENT_TLS_KEY" config_grpc_xds_client_tls_key: String, "its PEM key";
            "CONFIG_GRPC_XDS_SERVER_TLS_CACERT" config_grpc_xds_server_tls_cacert: String, "PEM certificates that are trusted in addition to the system's";
            "CONFIG_GRPC_XDS_SERVER_TLS_SAN" config_grpc_xds_server_tls_san: String, "server name to send and verify instead of the host";
            "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES" xds_client_max_msg_size_in_bytes: Count, "bytes of the largest message that is accepted; unset: 4 MiB";
        }
    }
    "Decisions": {
        "SHADOW_MODE" shadow_mode: bool = "false", "the overall code is always OK";
        "QUOTA_MODE" quota_mode: bool = "false", "every descriptor is in quota mode";
        "LIMIT_RESPONSE_HEADERS_ENABLED" limit_response_headers_enabled: bool = "false", "send limit, remaining hits and seconds to wait in headers of the response, and Retry-After when it is over the limit";
        "LIMIT_RESPONSE_HEADERS_FORMAT" limit_response_headers_format: HeadersFormat = "legacy", "which headers: legacy (numbers of the tightest limit), draft11 (RateLimit-Policy and RateLimit with all limits, as draft-ietf-httpapi-ratelimit-headers-11 says, and a denial has problem details as a body), both; /check has them without LIMIT_RESPONSE_HEADERS_ENABLED too";
        "LIMIT_RESPONSE_HEADERS_PARTITION_KEY" limit_response_headers_partition_key: bool = "false", "draft11: name the counter of each limit by a partition key, `pk`, which the secret of keys (KEY_SECRET_FILE) makes unguessable";
        "LIMIT_LIMIT_HEADER" limit_limit_header: HeaderName = "RateLimit-Limit", "name of the header with the limit";
        "LIMIT_REMAINING_HEADER" limit_remaining_header: HeaderName = "RateLimit-Remaining", "name of the header with the remaining hits";
        "LIMIT_RESET_HEADER" limit_reset_header: HeaderName = "RateLimit-Reset", "name of the header with the seconds to wait";
        "RESPONSE_DYNAMIC_METADATA" response_dynamic_metadata: bool = "false", "send the next filters of the proxy the request, the metadata of the rules that admitted its descriptors, and the exceptions that they met";
        "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT" stop_cache_key_increment_when_overlimit: bool = "false", "fixed windows: when one descriptor is over, the others are charged only what they report";
        "RETRY_AFTER_JITTER" retry_after_jitter: Share = "0", "lengthen the wait in each denial at random, by up to this share of it, so that clients that were denied together do not come back together";
        "STORE_FULL_MODE" store_full_mode: StoreFull = "deny", "the answer to a descriptor whose counter finds no room in MAX_COUNTER_BYTES";
        optional {
            "BACKEND_TYPE" backend_type: Backend, "where counters live; unset: redis when any REDIS_* below is set, else memory";
            "MAX_COUNTER_BYTES" max_counter_bytes: ByteSize, "memory for all counters; unset: half of the memory of the cgroup or the machine";
        }
    }
    "State": {
        "STATE_INTERVAL" state_interval: Duration = "0", "how often counters are written to STATE_DIR while the process runs; after a kill they are used with COLD_START=allow, and with deny for windows longer than COLD_START_MAX_WINDOW; 0: never";
        "STATE_GRACE" state_grace: Duration = "60s", "how long writing all counters to STATE_DIR may take at the end, after DRAIN_GRACE and the last calls; then they are given up";
        "STATE_SKEW" state_skew: Duration = "2s", "by how much the wall clocks of two machines may differ: counters from another machine count that much longer";
        "COLD_START" cold_start: ColdStart = "allow", "how lost counters count (in memory: there is no state, or it is refused; in Redis: it was flushed, restarted, or another primary took over): allow (from zero) or deny (as full for one window)";
        "COLD_START_MAX_WINDOW" cold_start_max_window: Duration = "1h", "limits with longer windows do not count as full: after a kill they continue from the last checkpoint (STATE_INTERVAL), without one at 0";
        optional {
            "STATE_DIR" state_dir: FilePath, "a folder of this process alone, in which counters in memory survive restarts; created if it does not exist";
            "STATE_SEQUENCE_FILE" state_sequence_file: FilePath, "a file outside of STATE_DIR, best on another volume, in which starts are counted: counters of an earlier start, from a backup, are not used; created if it does not exist";
            "SHARD_MEMBERS" shard_members: Members, "the number of nodes over which a proxy divides the keys; counters that were written under another number are not used";
            "SHARD_GREW_FROM" shard_grew_from: Members, "SHARD_MEMBERS before nodes were added to a ring that only took keys from the others: counters that were written under it are used too";
            "SHARD_NAME" shard_name: String, "the name of this node among them; counters that were written under another name are not used";
            "KEY_SECRET_FILE" key_secret_file: FilePath, "a file of at least 16 bytes, from which the secret of keys is derived; unset: a random one, which is kept in STATE_DIR";
        }
    }
    "Records": {
        "LIMITS_CACHE_SIZE" limits_cache_size: Count = "1000000", "keys that are cached, with their record or that they have none; about 135 bytes each";
        "LIMITS_TIMEOUT" limits_timeout: Duration = "100ms", "how long one decision may wait for a record that is not in memory; then as if the store were away";
        "LIMITS_STALE_MAX" limits_stale_max: Duration = "60s", "how long cached records are used while LIMITS_URL does not answer";
        "LIMITS_STALE_MODE" limits_stale_mode: StaleMode = "rule", "what applies after LIMITS_STALE_MAX, and to keys that are not cached: rule (the rule's limit), last (the last known record), deny";
        "LIMITS_TYPE" limits_type: String = "SINGLE", "as REDIS_TYPE, for LIMITS_URL";
        "LIMITS_AUTH" limits_auth: Secret = "", "as REDIS_AUTH, for LIMITS_URL";
        optional {
            "LIMITS_URL" limits_url: Url, "a Redis that keeps records for several nodes, written as REDIS_URL; instead of LIMITS_DIR";
            "LIMITS_DIR" limits_dir: FilePath, "a folder of this process alone that keeps records: limits for single keys, made through the admin API; created if it does not exist";
        }
    }
    "Redis": {
        "REDIS_TYPE" redis_type: String = "SINGLE", "single, sentinel or cluster";
        "REDIS_URL" redis_url: Url = "/var/run/nutcracker/ratelimit.sock", "host:port, redis://…, the path of a socket; sentinel: master,host:port,…; cluster: host:port,…";
        "REDIS_SOCKET_TYPE" redis_socket_type: String = "", "unix or tcp; unset: unix when the URL starts with /";
        "REDIS_AUTH" redis_auth: Secret = "", "password or user:password; wins over the URL's";
        "REDIS_SENTINEL_AUTH" redis_sentinel_auth: Secret = "", "the same for the sentinels";
        "REDIS_TLS" redis_tls: bool = "false", "TLS to servers and sentinels";
        "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION" redis_tls_skip_hostname_verification: bool = "false", "verify the chain of certificates, not the name";
        "REDIS_POOL_SIZE" redis_pool_size: Number = "10", "connections to one server at most; 0 means 4";
        "REDIS_TIMEOUT" redis_timeout: Duration = "100ms", "how long one decision may wait";
        "REDIS_MAX_IN_FLIGHT" redis_max_in_flight: Count = "10000", "decisions that may wait at a time";
        "REDIS_FAILURE_MODE" redis_failure_mode: StoreFailure = "error", "what a request gets when Redis does not answer: error, deny, allow, or local (this node decides alone)";
        "REDIS_SYNC" redis_sync: Sync = "strict", "strict: every decision asks Redis; leased: limits of the strict algorithms are taken several hits at once";
        "REDIS_LEASE_TIME" redis_lease_time: Duration = "100ms", "how long leased hits may be spent; 0: there are no leases";
        "REDIS_WAIT_REPLICAS" redis_wait_replicas: Replicas = "0", "so many replicas have to acknowledge the charges of a decision before it is sent; with too few in time it is as if Redis did not answer";
        "REDIS_LOCAL_SHARE" redis_local_share: Share = "1.0", "this node's share of every limit while it decides alone";
        "REDIS_KEY_HASH" redis_key_hash: bool = "false", "keys are SHA-256, so that no value of a request reaches Redis";
        "CACHE_KEY_PREFIX" cache_key_prefix: String = "", "put before every key";
        "LOCAL_CACHE_SIZE_IN_BYTES" local_cache_size_in_bytes: Number = "0", "memory for counters that Redis reported as over their limits; 0: off";
        "REDIS_STARTUP_INITIAL_INTERVAL" redis_startup_initial_interval: Duration = "1s", "pause between attempts to reach Redis at start, doubled each time";
        "REDIS_STARTUP_MAX_INTERVAL" redis_startup_max_interval: Duration = "30s", "the longest of these pauses";
        "REDIS_STARTUP_MAX_ELAPSED_TIME" redis_startup_max_elapsed_time: Duration = "0", "give up after this; 0: never";
        "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION" redis_health_check_active_connection: bool = "false", "not ready while Redis does not answer";
        "REDIS_PERSECOND" redis_persecond: bool = "false", "limits whose unit is second live in a second Redis";
        "REDIS_PERSECOND_TYPE" redis_persecond_type: String = "SINGLE", "as REDIS_TYPE";
        "REDIS_PERSECOND_URL" redis_persecond_url: Url = "/var/run/nutcracker/ratelimitpersecond.sock", "as REDIS_URL";
        "REDIS_PERSECOND_SOCKET_TYPE" redis_persecond_socket_type: String = "", "as REDIS_SOCKET_TYPE";
        "REDIS_PERSECOND_AUTH" redis_persecond_auth: Secret = "", "as REDIS_AUTH";
        "REDIS_PERSECOND_SENTINEL_AUTH" redis_persecond_sentinel_auth: Secret = "", "as REDIS_SENTINEL_AUTH";
        "REDIS_PERSECOND_TLS" redis_persecond_tls: bool = "false", "as REDIS_TLS, with its certificates";
        "REDIS_PERSECOND_POOL_SIZE" redis_persecond_pool_size: Number = "10", "as REDIS_POOL_SIZE";
        "REDIS_PERSECOND_TIMEOUT" redis_persecond_timeout: Duration = "100ms", "as REDIS_TIMEOUT";
        optional {
            "REDIS_TLS_CACERT" redis_tls_cacert: FilePath, "PEM certificates that are trusted in addition to the system's";
            "REDIS_TLS_CLIENT_CERT" redis_tls_client_cert: FilePath, "PEM chain that is shown to Redis";
            "REDIS_TLS_CLIENT_KEY" redis_tls_client_key: FilePath, "its PEM key";
        }
    }
    "Check over HTTP": {
        "CHECK_PROXY" check_proxy: Proxy = "nginx", "whose headers describe the client's request: nginx (x-original-uri, -method, host) or forwarded (x-forwarded-uri, -method, -host)";
        "CHECK_DENY_STATUS" check_deny_status: DenyStatus = "429", "what /check answers when over the limit, unless its URL says ~deny=…";
        "XFF_NUM_TRUSTED_HOPS" xff_num_trusted_hops: Hops = "0", "trusted proxies in front of the one that asks; the client's address is that many entries left of the last of x-forwarded-for";
    }
    "Bounds": {
        "MAX_DESCRIPTORS" max_descriptors: Count = "64", "descriptors of one request";
        "MAX_ENTRIES" max_entries: Count = "32", "entries of one descriptor";
        "MAX_REQUEST_BYTES" max_request_bytes: RequestBytes = "65536", "bytes of one request; 512KiB at most";
        "MAX_RULES_FILE_BYTES" max_rules_file_bytes: ByteSize = "32MiB", "bytes of one file of rules";
        "MAX_METRIC_SERIES" max_metric_series: Series = "100000", "paths in metrics: so many of rules, and as many whose names come from requests; others count in the path above";
    }
    "Logs and metrics": {
        "LOG_LEVEL" log_level: LogLevel = "info", "what is written to stderr: error warn info debug trace (panic and fatal mean error)";
        "LOG_VALUES" log_values: bool = "true", "log lines about decisions contain the values of requests; false: only their keys, and the names of rules";
        "LOG_FORMAT" log_format: String = "text", "json: one object a line; anything else: text";
        "HTTP_METRICS" http_metrics: bool = "false", "the page of metrics is on the HTTP port too";
        "PROMETHEUS_ADDR" prometheus_addr: HostPort = ":9090", "metrics: host:port, or :port for all addresses";
        "PROMETHEUS_PATH" prometheus_path: UrlPath = "/metrics", "metrics: the path";
        "NEAR_LIMIT_RATIO" near_limit_ratio: f32 = "0.8", "metrics: near the limit is floor(N x ratio) and above";
        optional {
            "USE_PROMETHEUS" use_prometheus: bool, "metrics listener; unset: on, and a port in use is only a warning";
            "PROMETHEUS_MAPPER_YAML" prometheus_mapper_yaml: String, "a mapping file of statsd_exporter that names the metrics; replaces the names that are built in";
        }
    }
    "Metrics out": {
        "DISABLE_STATS" disable_stats: bool = "false", "no metrics listener and no StatsD, whatever else is set";
        "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS" prometheus_response_time_as_milliseconds: bool = "false", "ratelimit_service_response_time_seconds holds milliseconds; not with PROMETHEUS_MAPPER_YAML";
        "EXTRA_TAGS" extra_tags: Map = "", "tags on every metric that is sent, constant labels on every metric that is scraped (a name that a metric has itself becomes exported_<name>)";
        "STATS_FLUSH_INTERVAL" stats_flush_interval: Flush = "10s", "StatsD: how often counters are sent; timers are not delayed";
        "USE_DOG_STATSD" use_dog_statsd: bool = "false", "send DogStatsD over UDP";
        "USE_DOG_STATSD_MOGRIFIERS" use_dog_statsd_mogrifiers: List = "", "names of rules that rewrite DogStatsD names into names and tags, the first that matches wins: each is DOG_STATSD_MOGRIFIER_<NAME>_PATTERN, _NAME and _TAGS";
        optional {
            "USE_STATSD" use_statsd: bool, "send StatsD; unset: on when STATSD_HOST, STATSD_PORT or STATSD_PROTOCOL is set and neither USE_PROMETHEUS nor USE_DOG_STATSD is true";
            "STATSD_HOST" statsd_host: String, "StatsD and DogStatsD: the receiver's host; unset: localhost";
            "STATSD_PORT" statsd_port: u16, "StatsD and DogStatsD: the receiver's port; unset: 8125";
            "STATSD_PROTOCOL" statsd_protocol: Transport, "StatsD: the transport; unset: tcp";
            "DD_ENV" dd_env: String, "DogStatsD: the tag env";
            "DD_SERVICE" dd_service: String, "DogStatsD: the tag service";
            "DD_VERSION" dd_version: String, "DogStatsD: the tag version";
            "DD_ENTITY_ID" dd_entity_id: String, "DogStatsD: the tag dd.internal.entity_id";
        }
    }
    "Events": {
        "EVENTS_KINDS" events_kinds: Kinds = "near_limit,denied,denied_whole_window,ban_began,ban_ended,reload_refused,store_lost,store_back", "which events are sent to EVENTS_LOG and EVENTS_WEBHOOK_URL";
        "EVENTS_NEAR" events_near: Share = "0.8", "a key is near its limit from this share of it on, unless its rule has `near`";
        "EVENTS_PER_SECOND" events_per_second: Count = "10", "events a second for each rule; the next one has the number of those that were not emitted";
        "EVENTS_QUEUE" events_queue: Queue = "1000", "events that may wait for each of the two; further ones are dropped and counted";
        "EVENTS_WEBHOOK_TIMEOUT" events_webhook_timeout: Duration = "5s", "how long the webhook may take to answer";
        "EVENTS_WEBHOOK_RETRY_TIME" events_webhook_retry_time: Duration = "5m", "how long a failed request is retried; then its events are dropped and counted; 0: never";
        "KEEP_KEYS" keep_keys: bool = "false", "show names of keys, which contain values of requests, to everybody: in events, which otherwise have hashes, and on the status page, where otherwise only bearers of the admin token or certificate see the keys that are denied most";
        optional {
            "EVENTS_LOG" events_log: String, "events as lines of JSON: a file, or - for standard output";
            "EVENTS_WEBHOOK_URL" events_webhook_url: Secret, "events as JSON, sent to this http or https URL";
            "EVENTS_WEBHOOK_SECRET" events_webhook_secret: Secret, "signs these requests (HMAC-SHA256)";
            "EVENTS_WEBHOOK_CACERT" events_webhook_cacert: FilePath, "PEM certificates that are trusted in addition to the system's";
            "EVENTS_WEBHOOK_PROXY" events_webhook_proxy: Url, "http://host:port of a proxy that connects to the webhook (CONNECT); HTTPS_PROXY has no effect";
        }
    }
    "Tracing": {
        "TRACING_ENABLED" tracing_enabled: bool = "false", "send spans by OTLP; callers' traces are taken from W3C and B3 headers";
        "TRACING_EXPORTER_PROTOCOL" tracing_exporter_protocol: Protocol = "http", "http (protobuf, port 4318) or grpc (port 4317)";
        "TRACING_SERVICE_NAME" tracing_service_name: String = "RateLimit", "service.name of every span";
        "TRACING_SERVICE_NAMESPACE" tracing_service_namespace: String = "", "service.namespace of every span";
        "TRACING_SERVICE_INSTANCE_ID" tracing_service_instance_id: String = "", "service.instance.id of every span; empty: a random UUID";
        "TRACING_SAMPLING_RATE" tracing_sampling_rate: f32 = "1", "share of calls without a traced caller that are traced; 1 and more: all, 0 and less: none";
        "OTEL_BSP_SCHEDULE_DELAY" otel_bsp_schedule_delay: Count = "5000", "ms between exports";
        "OTEL_BSP_EXPORT_TIMEOUT" otel_bsp_export_timeout: Count = "30000", "ms that an export may take, with all its retries";
        "OTEL_BSP_MAX_QUEUE_SIZE" otel_bsp_max_queue_size: Queue = "2048", "spans that may wait; further ones are dropped";
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE" otel_bsp_max_export_batch_size: Count = "512", "spans of one export";
        "OTEL_RESOURCE_ATTRIBUTES" otel_resource_attributes: OtelPairs = "", "what every span says of this process: name=value,…; TRACING_SERVICE_* win";
        "OTEL_SERVICE_NAME" otel_service_name: String = "", "service.name of every span when TRACING_SERVICE_NAME is empty";
        optional {
            "OTEL_EXPORTER_OTLP_ENDPOINT" otel_exporter_otlp_endpoint: Url, "the collector; unset: http://localhost:4318, for grpc http://localhost:4317";
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT" otel_exporter_otlp_traces_endpoint: Url, "the same, with its path; this and the seven below win over those without TRACES";
            "OTEL_EXPORTER_OTLP_HEADERS" otel_exporter_otlp_headers: Secret<OtelPairs>, "headers of every export: name=value,…";
            "OTEL_EXPORTER_OTLP_TRACES_HEADERS" otel_exporter_otlp_traces_headers: Secret<OtelPairs>, "the same";
            "OTEL_EXPORTER_OTLP_TIMEOUT" otel_exporter_otlp_timeout: Count, "ms that an export may take; unset: 10000";
            "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT" otel_exporter_otlp_traces_timeout: Count, "the same";
            "OTEL_EXPORTER_OTLP_COMPRESSION" otel_exporter_otlp_compression: Compression, "gzip or none; unset: none";
            "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION" otel_exporter_otlp_traces_compression: Compression, "the same";
            "OTEL_EXPORTER_OTLP_INSECURE" otel_exporter_otlp_insecure: bool, "connect without TLS to an endpoint without a scheme";
            "OTEL_EXPORTER_OTLP_TRACES_INSECURE" otel_exporter_otlp_traces_insecure: bool, "the same";
            "OTEL_EXPORTER_OTLP_CERTIFICATE" otel_exporter_otlp_certificate: String, "a PEM file of authorities for the collector's certificate; unset: the system's";
            "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE" otel_exporter_otlp_traces_certificate: String, "the same";
            "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE" otel_exporter_otlp_client_certificate: String, "a PEM file with our own certificate";
            "OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE" otel_exporter_otlp_traces_client_certificate: String, "the same";
            "OTEL_EXPORTER_OTLP_CLIENT_KEY" otel_exporter_otlp_client_key: String, "a PEM file with its key";
            "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY" otel_exporter_otlp_traces_client_key: String, "the same";
        }
    }
}

/// Whether two texts are the same value, such as `24h` and `1440m`.
fn are_equal<T: Value + PartialEq>(one: &str, other: &str) -> bool {
    one == other || T::parse(one).is_some_and(|value| T::parse(other) == Some(value))
}

/// Reads one row. `None` if it is unset without a default, or bad: then a problem is added.
fn read_row<T: Value>(row: Option<&Row>, texts: Texts<'_>, problems: &mut Vec<Problem>) -> Option<T> {
    let row = row?;
    let given = texts.of(row).filter(|given| !(given.is_empty() && T::EMPTY_IS_UNSET));
    let written = given.as_deref().or(row.default)?;
    let value = T::parse(written);
    if value.is_none() {
        // An invalid value may still be close to the secret.
        let what = match T::SECRECY {
            Secrecy::None => bad_value::<T>(written),
            Secrecy::Login | Secrecy::Whole => format!("it is not {}", T::EXPECTED),
        };
        problems.push(Problem { name: row.name.to_owned(), what });
    }
    value
}

fn bad_value<T: Value>(written: &str) -> String {
    let mut what = format!("{written:?} is not {}", T::EXPECTED);
    if written.starts_with("tcp://") && what.pop().is_some() {
        what.push_str(
            "; Kubernetes sets such a value for a Service of that name: set enableServiceLinks: false, or the variable \
             itself)",
        );
    }
    what
}
