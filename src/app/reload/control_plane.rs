//! Puts the rules that a control plane sends in force.

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::source::xds::{ResourceError, Resources, XdsOptions, XdsSource};
use tidegate_serve::health::Health;
use tidegate_serve::reload::{Installer, Offer};

/// A control plane whose sets are put in force.
pub(in crate::app) struct ControlPlane {
    source: XdsSource,
    installer: Installer,
    health: Arc<Health>,
    /// Whether requests may come before there are rules.
    pub(super) forced: bool,
}

impl ControlPlane {
    /// The control plane of these options.
    pub(super) fn new(options: XdsOptions, installer: Installer, health: Arc<Health>, forced: bool) -> Self {
        Self { source: XdsSource::new(options), installer, health, forced }
    }

    pub(super) async fn follow(self) -> Infallible {
        let Self { source, installer, health, .. } = self;
        // A control plane sends all of its resources at each change, so most warnings come again.
        let warned = Arc::new(Mutex::new(HashSet::new()));
        let installer = Arc::new(installer);
        let metrics = Arc::clone(installer.metrics());
        let take = |state: Result<Resources, Vec<ResourceError>>| {
            let (installer, health) = (Arc::clone(&installer), Arc::clone(&health));
            let warned = Arc::clone(&warned);
            // Loading many rules takes a while, and this thread has other work.
            let taken = tokio::task::spawn_blocking(move || match state {
                Ok(state) => {
                    // No resources means that the control plane has no domains.
                    let offer = Offer {
                        files: &state.files,
                        skipped: &[],
                        empty_refused: None,
                        lines: None,
                        warned: Some(&warned),
                    };
                    installer.take(&offer, |problem| state.problem(problem))
                }
                Err(problems) => {
                    Err(installer.refuse_whole(problems.iter().map(ToString::to_string).collect()))
                }
            });
            async move {
                taken.await.unwrap_or_else(|_| Err(vec!["loading broke off".to_owned()]))?;
                health.serve();
                Ok(())
            }
        };
        source.follow(take, || metrics.config_failed()).await
    }
}
