//! The table: a row a setting. A new setting is one row here and, where its kind is new, a kind in `value`.

use std::time::Duration;

use crate::engine::limit::Algorithm;
use crate::settings::Problem;
use crate::settings::value::{
    Backend, ByteSize, Count, FullMode, GrpcFrontKind, HostPort, LogLevel, Secret, Series, Threads, UrlPath,
    Value,
};

/// What the table says of one setting.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The heading under which it stands.
    pub group: &'static str,
    /// The environment variable.
    pub name: &'static str,
    /// The kind of value, as `--help` calls it.
    pub value_name: &'static str,
    /// The default, as it would be written; `None` when the program finds it out, as the help says.
    pub default: Option<&'static str>,
    /// What it means, one sentence.
    pub help: &'static str,
    /// A flag without a value means true.
    pub is_switch: bool,
}

macro_rules! settings {
    ($( $group:literal: { $( $name:literal $field:ident: $kind:ty = $default:literal, $help:literal; )+
        $( optional { $( $oname:literal $ofield:ident: $okind:ty, $ohelp:literal; )+ } )? } )+) => {
        /// All rows, in the order of `--help`.
        pub const TABLE: &[Row] = &[$(
            $( Row {
                group: $group, name: $name, value_name: <$kind as Value>::NAME, default: Some($default), help: $help,
                is_switch: matches!(<$kind as Value>::NAME.as_bytes(), b"BOOL"),
            }, )+
            $( $( Row {
                group: $group, name: $oname, value_name: <$okind as Value>::NAME, default: None, help: $ohelp,
                is_switch: false,
            }, )+ )?
        )+];

        /// Every setting, read and checked. Fields are named as the variables are.
        #[derive(Clone, Debug)]
        pub struct Settings {
            $( $( #[doc = $help] pub $field: $kind, )+ $( $( #[doc = $ohelp] pub $ofield: Option<$okind>, )+ )? )+
        }

        impl Settings {
            /// Reads all rows; what is wrong goes to `problems`.
            pub(super) fn read_table(
                text: impl Fn(&Row) -> Option<String>,
                problems: &mut Vec<Problem>,
            ) -> Option<Self> {
                let mut rows = TABLE.iter();
                $( $( let $field = read_row::<$kind>(rows.next(), &text, problems); )+
                   $( $( let $ofield = read_row::<$okind>(rows.next(), &text, problems); )+ )? )+
                Some(Self { $( $( $field: $field?, )+ $( $( $ofield, )+ )? )+ })
            }
        }
    };
}

settings! {
    "Listeners": {
        "GRPC_HOST" grpc_host: String = "0.0.0.0", "gRPC: the address to listen on; IPv6 without brackets, :: is both families";
        "GRPC_PORT" grpc_port: u16 = "8081", "gRPC: the port";
        "GRPC_FRONT" grpc_front: GrpcFrontKind = "tonic", "gRPC: what speaks HTTP/2: lane (ours, faster) or tonic (which also serves reflection)";
        "HOST" host: String = "0.0.0.0", "HTTP (/json, health): the address to listen on";
        "PORT" port: u16 = "8080", "HTTP: the port";
        "DEBUG_HOST" debug_host: String = "0.0.0.0", "debug: the address to listen on";
        "DEBUG_PORT" debug_port: u16 = "6070", "debug: the port; one in use is a warning";
        "DRAIN_GRACE" drain_grace: Duration = "0s", "after SIGTERM, how long listeners stay open once health has turned";
        optional {
            "GRPC_UDS" grpc_uds: String, "gRPC: a unix socket to listen on instead of GRPC_HOST and GRPC_PORT; unset or empty: none";
            "HTTP_UDS" http_uds: String, "HTTP: a unix socket to listen on instead of HOST and PORT; unset or empty: none";
            "WORKER_THREADS" worker_threads: Threads, "threads that answer; unset: one a core that the process may use";
            "ADMIN_TOKEN" admin_token: Secret, "bearer token with which callers that are not on loopback may change state on the debug port";
        }
    }
    "gRPC server": {
        "GRPC_MAX_CONNECTION_AGE" grpc_max_connection_age: Duration = "24h", "a connection that is so old, give or take a tenth, is asked to end (GOAWAY); 0: never";
        "GRPC_MAX_CONNECTION_AGE_GRACE" grpc_max_connection_age_grace: Duration = "1h", "how long it may then take to finish its calls before it is closed; 0: as long as it likes";
    }
    "Rules": {
        "RUNTIME_WATCH_ROOT" runtime_watch_root: bool = "true", "files named config.… beside the folder of RUNTIME_* are rules too; watching sees every change either way";
        "RUNTIME_IGNOREDOTFILES" runtime_ignoredotfiles: bool = "false", "skip files and folders whose name starts with a dot (those with two dots always are)";
        "MERGE_DOMAIN_CONFIG" merge_domain_config: bool = "false", "several files may share a domain";
        "FORCE_START_WITHOUT_INITIAL_CONFIG" force_start_without_initial_config: bool = "false", "start although the rules are missing or bad; every request is an error until good ones come";
        "DEFAULT_ALGORITHM" default_algorithm: Algorithm = "sliding_window", "for rules that name none; fixed_window is what envoyproxy/ratelimit does";
        "STRICT_RULES" strict_rules: bool = "false", "warnings about rules refuse the set";
        optional {
            "CONFIG_PATH" config_path: String, "a file or folder of rules; wins over RUNTIME_*; neither set nor there: ./config";
            "RUNTIME_ROOT" runtime_root: String, "root of the tree of rules; unset: /srv/runtime_data/current";
            "RUNTIME_SUBDIRECTORY" runtime_subdirectory: String, "folder below RUNTIME_ROOT; unset or empty: the root itself";
            "RUNTIME_APPDIRECTORY" runtime_appdirectory: String, "folder below that, of which every file is rules; unset: config";
        }
    }
    "Decisions": {
        "SHADOW_MODE" shadow_mode: bool = "false", "the overall code is always OK";
        "QUOTA_MODE" quota_mode: bool = "false", "every descriptor is in quota mode";
        "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT" stop_cache_key_increment_when_overlimit: bool = "false", "fixed windows: when one descriptor is over, the others are not charged";
        "BACKEND_TYPE" backend_type: Backend = "memory", "where counters live";
        "STORE_FULL_MODE" store_full_mode: FullMode = "deny", "what a descriptor gets that would need more than MAX_COUNTER_BYTES";
        optional {
            "MAX_COUNTER_BYTES" max_counter_bytes: ByteSize, "all counter state in memory; unset: half of what the cgroup or the machine has";
        }
    }
    "Bounds": {
        "MAX_DESCRIPTORS" max_descriptors: Count = "64", "descriptors of one request";
        "MAX_ENTRIES" max_entries: Count = "32", "entries of one descriptor";
        "MAX_REQUEST_BYTES" max_request_bytes: ByteSize = "65536", "bytes of one request";
        "MAX_RULES_FILE_BYTES" max_rules_file_bytes: ByteSize = "32MiB", "bytes of one file of rules";
        "MAX_METRIC_SERIES" max_metric_series: Series = "100000", "paths in metrics whose names come from requests";
    }
    "Logs and metrics": {
        "LOG_LEVEL" log_level: LogLevel = "info", "what is written to stderr: error warn info debug trace (panic and fatal mean error)";
        "LOG_FORMAT" log_format: String = "text", "json: one object a line; anything else: text";
        "PROMETHEUS_ADDR" prometheus_addr: HostPort = ":9090", "metrics: host:port, or :port for all addresses";
        "PROMETHEUS_PATH" prometheus_path: UrlPath = "/metrics", "metrics: the path";
        "NEAR_LIMIT_RATIO" near_limit_ratio: f32 = "0.8", "metrics: near the limit is floor(N x ratio) and above";
        optional {
            "USE_PROMETHEUS" use_prometheus: bool, "metrics listener; unset: on, and a port in use is only a warning";
        }
    }
}

/// One row, read. `None` when it is unset without a default, or bad: then a problem is added.
fn read_row<T: Value>(
    row: Option<&Row>,
    text: &impl Fn(&Row) -> Option<String>,
    problems: &mut Vec<Problem>,
) -> Option<T> {
    let row = row?;
    let given = text(row).filter(|given| !(given.is_empty() && T::EMPTY_IS_UNSET));
    let written = given.as_deref().or(row.default)?;
    let value = T::parse(written);
    if value.is_none() {
        problems.push(Problem { name: row.name.to_owned(), what: bad_value::<T>(written) });
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
