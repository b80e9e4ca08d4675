//! Where rules come from, and how they are loaded.

use std::path::{Path, PathBuf};

use super::unless_empty;
use crate::settings::Settings;
use crate::settings::value::ConfigType;
use crate::source::file::Layout;
use crate::source::xds::{Backoff, XdsOptions, XdsTls};
use tidegate_engine::key::KeySecret;
use tidegate_engine::rules::{LoadOptions, OptionNames, ShardKey};

/// Where rules are read from if no setting names a place.
const FALLBACK_PATH: &str = "config";
/// The default places of `envoyproxy/ratelimit`.
const RUNTIME_ROOT: &str = "/srv/runtime_data/current";
const RUNTIME_APPDIRECTORY: &str = "config";

#[derive(Clone)]
pub struct Rules {
    /// The files, if no control plane is followed.
    pub files: RuleFiles,
    /// The control plane that the rules come from instead.
    pub control_plane: Option<XdsOptions>,
    /// The rules themselves, instead of both.
    pub text: Option<String>,
    /// How they are loaded. The key secret is a placeholder: a process draws its own.
    pub load: LoadOptions,
    /// Whether the process starts with missing or bad rules.
    pub start_without: bool,
    /// Whether the process is unhealthy while no domain is loaded.
    pub health_needs_domain: bool,
}

#[derive(Clone)]
pub struct RuleFiles {
    /// The place of the rules.
    pub layout: Layout,
    /// The settings that name the place, and how to change them.
    pub remedy: &'static str,
    /// Whether a set without any file is served.
    pub may_be_empty: bool,
}

pub(super) fn resolve(settings: &Settings) -> Rules {
    let layout = layout(settings);
    let control_plane = (settings.config_type == ConfigType::GrpcXdsSotw).then(|| control_plane(settings));
    Rules {
        files: RuleFiles {
            remedy: remedy(&layout, unless_empty(&settings.config_path).is_some()),
            layout,
            may_be_empty: settings.rules_may_be_empty,
        },
        control_plane,
        text: None,
        load: LoadOptions::new(KeySecret::new([0; 16]))
            .format(settings.rules_format)
            .default_algorithm(settings.default_algorithm)
            .default_cost(settings.default_cost)
            .merge_domains(settings.merge_domain_config)
            .strict(settings.strict_rules)
            .max_file_bytes(usize::try_from(settings.max_rules_file_bytes.0).unwrap_or(usize::MAX))
            .names(OptionNames {
                merge_domains: "MERGE_DOMAIN_CONFIG",
                max_file_bytes: "MAX_RULES_FILE_BYTES",
            })
            .shard_key(
                unless_empty(&settings.shard_key).map(|key| ShardKey { key: key.into(), is_required: false }),
            ),
        start_without: settings.force_start_without_initial_config,
        health_needs_domain: settings.healthy_with_at_least_one_config_loaded,
    }
}

/// The place of the rules: CONFIG_PATH; else the tree of RUNTIME_*, if one is set or the default exists; else
/// `./config`.
fn layout(settings: &Settings) -> Layout {
    if let Some(path) = unless_empty(&settings.config_path) {
        return Layout::Path(PathBuf::from(path));
    }
    let part = |setting: &Option<String>, default: &str| {
        PathBuf::from(setting.clone().unwrap_or_else(|| default.to_owned()))
    };
    let root = part(&settings.runtime_root, RUNTIME_ROOT);
    let app_directory = part(&settings.runtime_appdirectory, RUNTIME_APPDIRECTORY);
    let parts = [&settings.runtime_root, &settings.runtime_subdirectory, &settings.runtime_appdirectory];
    if parts.iter().all(|setting| setting.is_none()) && !root.join(&app_directory).exists() {
        return Layout::Path(Path::new(FALLBACK_PATH).to_owned());
    }
    Layout::Runtime {
        root,
        subdirectory: part(&settings.runtime_subdirectory, ""),
        app_directory,
        ignore_dot_files: settings.runtime_ignoredotfiles,
        watch_root: settings.runtime_watch_root,
    }
}

fn remedy(layout: &Layout, is_set: bool) -> &'static str {
    match layout {
        Layout::Runtime { .. } => {
            "RUNTIME_ROOT, RUNTIME_SUBDIRECTORY and RUNTIME_APPDIRECTORY name the folder; CONFIG_PATH would win over them"
        }
        Layout::Path(_) | Layout::Files(_) if is_set => "CONFIG_PATH names the file or folder of rules",
        Layout::Path(_) | Layout::Files(_) => "set CONFIG_PATH to the file or folder of your rules",
    }
}

fn control_plane(settings: &Settings) -> XdsOptions {
    let path = |path| unless_empty(path).map(PathBuf::from);
    let tls = XdsTls {
        ca: path(&settings.config_grpc_xds_server_tls_cacert),
        identity: path(&settings.config_grpc_xds_client_tls_cert)
            .zip(path(&settings.config_grpc_xds_client_tls_key)),
        server_name: unless_empty(&settings.config_grpc_xds_server_tls_san).map(str::to_owned),
    };
    XdsOptions {
        server: settings.config_grpc_xds_server_url.clone(),
        node_id: settings.config_grpc_xds_node_id.clone(),
        node_metadata: settings.config_grpc_xds_node_metadata.0.clone(),
        headers: settings.config_grpc_xds_client_additional_headers.0.0.clone(),
        tls: settings.config_grpc_xds_server_use_tls.then_some(tls),
        backoff: Backoff {
            initial: settings.xds_client_backoff_initial_interval,
            max: settings.xds_client_backoff_max_interval,
            factor: settings.xds_client_backoff_random_factor,
            jitter: settings.xds_client_backoff_jitter,
        },
        message_bytes_max: settings.xds_client_max_msg_size_in_bytes.map(|count| count.0),
    }
}

impl RuleFiles {
    /// The value of a setting that names the place of the rules, if it is in use.
    pub(super) fn place(&self, setting: &str) -> Option<&Path> {
        match (&self.layout, setting) {
            (Layout::Path(path), "CONFIG_PATH") => Some(path),
            (Layout::Runtime { root, .. }, "RUNTIME_ROOT") => Some(root),
            (Layout::Runtime { subdirectory, .. }, "RUNTIME_SUBDIRECTORY") => Some(subdirectory),
            (Layout::Runtime { app_directory, .. }, "RUNTIME_APPDIRECTORY") => Some(app_directory),
            _ => None,
        }
    }
}

/// Why a set without any file of rules is refused.
pub fn no_rules(layout: &Layout) -> String {
    let expected = match layout {
        Layout::Runtime { .. } => "a file with a `domain`, at any depth",
        Layout::Path(_) | Layout::Files(_) => "a file whose name ends in .yaml or .yml",
    };
    let path = layout.path();
    format!("{}: no rules are here (expected {expected}, or RULES_MAY_BE_EMPTY=true)", path.display())
}
