//! Follows a source of rules: files at start and whenever they change, or what a control plane sends. What is taken of
//! them, [`tidegate_serve::reload`] decides.

mod control_plane;
mod files;

use std::io;
use std::sync::Arc;

use self::control_plane::ControlPlane;
use self::files::Reloader;
pub(super) use self::files::Watching;
use crate::app::{AppError, dead};
use crate::configuration::Rules;
use crate::source::file::Reread;
use tidegate_engine::rules::Ink;
use tidegate_serve::health::Health;
use tidegate_serve::reload::Installer;

/// Rules that are not loaded yet.
pub(super) enum Starting {
    /// Files. The flag says whether they may be bad or missing at first.
    Files(Box<Reloader>, bool),
    /// A control plane.
    ControlPlane(Box<ControlPlane>),
}

/// A source of rules that reports changes.
pub(super) enum Following {
    /// Files; a set was loaded, or the start was forced.
    Files(Watching),
    /// A control plane that has not sent anything yet.
    ControlPlane(Box<ControlPlane>),
}

impl Starting {
    /// The source of `rules`. The first rules of a control plane make `health` serve.
    pub(super) fn new(rules: Rules, installer: Installer, lines: Option<Ink>, health: Arc<Health>) -> Self {
        let Rules { files, control_plane, start_without, .. } = rules;
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
        }
    }
}

impl Following {
    /// Whether requests may come before the source reports anything more.
    pub(super) fn is_ready(&self) -> bool {
        match self {
            Self::Files(_) => true,
            Self::ControlPlane(plane) => plane.forced,
        }
    }

    /// Reads the files again although they did not change. A control plane reports every change by itself.
    pub(super) fn reread(&self) -> Option<Reread> {
        match self {
            Self::Files(watching) => Some(watching.reread()),
            Self::ControlPlane(_) => None,
        }
    }

    /// Follows the source. Ends only when that breaks.
    pub(super) async fn until_it_dies(self) -> AppError {
        match self {
            Self::Files(mut watching) => watching.died().await,
            Self::ControlPlane(plane) => match plane.follow().await {},
        }
        dead("watching the rules", "its thread has died")
    }
}
