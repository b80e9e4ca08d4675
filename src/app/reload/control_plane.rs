//! Rules from a control plane: settings → a subscription, and what it says → rules in force.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;

use super::{Installer, Offer, Report};
use crate::health::Health;
use crate::settings::Settings;
use crate::source::xds::{Backoff, XdsOptions, XdsSource, XdsTls};

/// A control plane whose sets are put in force.
pub(in crate::app) struct ControlPlane {
    source: XdsSource,
    installer: Installer,
    health: Arc<Health>,
    /// Requests are welcome before there are rules.
    pub(super) forced: bool,
}

impl ControlPlane {
    /// The one that `settings` name.
    pub(super) fn new(settings: &Settings, installer: Installer, health: Arc<Health>) -> Self {
        let source = XdsSource::new(options(settings));
        Self { source, installer, health, forced: settings.force_start_without_initial_config }
    }

    /// Follows it without an end.
    pub(super) async fn follow(self) -> Infallible {
        let Self { source, installer, health, .. } = self;
        let installer = Arc::new(installer);
        source
            .follow(|state| {
                let (installer, health) = (Arc::clone(&installer), Arc::clone(&health));
                // Many rules take a moment, in which this thread has other things to do.
                let taken = tokio::task::spawn_blocking(move || match state {
                    Ok(state) => {
                        // No resources mean no domains: it is what the control plane says.
                        let offer =
                            Offer { files: &state.files, skipped: &[], empty_refused: None, lines: None };
                        installer.take(&offer, |problem| state.problem(problem))
                    }
                    Err(messages) => {
                        let report = Report { messages, ..Report::default() };
                        installer.refuse(&report);
                        Err(report.messages)
                    }
                });
                async move {
                    taken.await.unwrap_or_else(|_| Err(vec!["loading broke off".to_owned()]))?;
                    health.serve();
                    Ok(())
                }
            })
            .await
    }
}

fn options(settings: &Settings) -> XdsOptions {
    let path = |path: &Option<String>| path.as_ref().filter(|path| !path.is_empty()).map(PathBuf::from);
    let tls = XdsTls {
        ca: path(&settings.config_grpc_xds_server_tls_cacert),
        identity: path(&settings.config_grpc_xds_client_tls_cert)
            .zip(path(&settings.config_grpc_xds_client_tls_key)),
        server_name: settings.config_grpc_xds_server_tls_san.clone().filter(|name| !name.is_empty()),
    };
    XdsOptions {
        server: settings.config_grpc_xds_server_url.clone(),
        node_id: settings.config_grpc_xds_node_id.clone(),
        node_metadata: settings.config_grpc_xds_node_metadata.0.clone(),
        headers: settings.config_grpc_xds_client_additional_headers.0.clone(),
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
