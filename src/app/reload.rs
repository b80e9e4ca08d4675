//! Follows a source of rules: files at the start and whenever they change, or a control plane.
//! [`tidegate_serve::reload`] decides what comes into force.

mod control_plane;
mod files;

use std::io;
use std::sync::Arc;

use self::control_plane::ControlPlane;
use self::files::Reloader;
pub(super) use self::files::Watching;
use crate::app::{AppError, Essential, dead};
use crate::configuration::Rules;
use crate::source::file::Reread;
use tidegate_engine::cost::Cost;
use tidegate_engine::rules::{Ink, SourceFile};
use tidegate_serve::health::Health;
use tidegate_serve::metrics::{MetricType, Metrics};
use tidegate_serve::reload::{Installer, Offer};
use tidegate_serve::service::Service;

/// The name of rules that are part of the limiter's configuration.
const INLINE: &str = "inline";

/// Rules that are not loaded yet.
pub(super) enum Starting {
    /// Files. The flag says whether they may be bad or missing at first.
    Files(Box<Reloader>, bool),
    /// A control plane.
    ControlPlane(Box<ControlPlane>),
    /// A text, which does not change.
    Text(Box<Installer>, String),
}

/// A source of rules that reports changes.
pub(super) enum Following {
    /// Files; a set was loaded, or the start was forced.
    Files(Watching),
    /// A control plane that has not sent anything yet.
    ControlPlane(Box<ControlPlane>),
    /// A text, which was loaded.
    Text,
}

impl Starting {
    /// The source of `rules`. The first rules of a control plane make `health` serve.
    pub(super) fn new(rules: Rules, installer: Installer, lines: Option<Ink>, health: Arc<Health>) -> Self {
        let Rules { files, control_plane, text, start_without, .. } = rules;
        if let Some(text) = text {
            return Self::Text(Box::new(installer), text);
        }
        match control_plane {
            None => Self::Files(Box::new(Reloader::new(files, installer, lines)), start_without),
            Some(options) => {
                Self::ControlPlane(Box::new(ControlPlane::new(options, installer, health, start_without)))
            }
        }
    }

    /// Loads the rules of files. Those of a control plane come later, while everything else runs.
    pub(super) async fn load(self) -> Result<Following, AppError> {
        match self {
            // Loading many rules takes a while, and a signal must work at every moment.
            Self::Files(reloader, forced) => tokio::task::spawn_blocking(move || reloader.start(forced))
                .await
                .map_err(io::Error::other)?
                .map(Following::Files),
            Self::ControlPlane(plane) => Ok(Following::ControlPlane(plane)),
            Self::Text(installer, text) => {
                let file = SourceFile { name: INLINE.into(), bytes: text.into_bytes(), presumed: false };
                let offer =
                    Offer { files: &[file], skipped: &[], empty_refused: None, lines: None, warned: None };
                let taken = installer.take(&offer, ToString::to_string);
                taken.map(|()| Following::Text).map_err(|problems| AppError::Rules(problems.len()))
            }
        }
    }
}

impl Following {
    /// Whether requests may come before the source reports anything more.
    pub(super) fn is_ready(&self) -> bool {
        match self {
            Self::Files(_) | Self::Text => true,
            Self::ControlPlane(plane) => plane.forced,
        }
    }

    /// Follows the source. The task ends only when that breaks. The returned handle reads files again even if they
    /// did not change; a control plane reports every change by itself.
    pub(super) fn keep(self, tasks: &mut Essential) -> Option<Reread> {
        let reread = match &self {
            Self::Files(watching) => Some(watching.reread()),
            Self::ControlPlane(_) => None,
            Self::Text => return None,
        };
        tasks.spawn(async move {
            match self {
                Self::Files(mut watching) => watching.died().await,
                Self::ControlPlane(plane) => match plane.follow().await {},
                Self::Text => std::future::pending().await,
            }
            dead("watching the rules", "its thread has died")
        });
        reread
    }
}

/// Shows how rules treat the costs of descriptors.
pub(super) fn register(metrics: &Metrics, service: &Arc<Service>) {
    metrics.of(service).samples(
        MetricType::Gauge,
        "tidegate_rule_costs",
        "Rules by how they treat costs in descriptors (reported, asked), auto_ if that is learnt.",
        |service, samples| {
            let mut counts = [0_u64; 4];
            service.with_rules(|rules| {
                for rule in rules.iter().flat_map(|rules| rules.rules()) {
                    let learnt = usize::from(rule.cost.said() == Cost::Auto);
                    counts[2 * learnt + usize::from(!rule.cost.is_reported())] += 1;
                }
            });
            for (cost, count) in ["reported", "asked", "auto_reported", "auto_asked"].into_iter().zip(counts)
            {
                samples.push(&[("cost", cost)], count);
            }
        },
    );
}
