//! How everything that serves learns that it should end, and how the one who said so learns that all have.

use tokio::sync::watch;

/// Tells connections that they should end.
#[derive(Clone, Debug)]
pub struct Drain(watch::Receiver<bool>);

/// Begins the draining that a [`Drain`] waits for.
#[derive(Debug)]
pub struct DrainSwitch(watch::Sender<bool>);

impl DrainSwitch {
    /// A switch that is not thrown.
    #[must_use]
    pub fn new() -> Self {
        Self(watch::Sender::new(false))
    }

    /// Someone to tell.
    pub fn drain(&self) -> Drain {
        Drain(self.0.subscribe())
    }

    /// Draining begins.
    pub fn throw(&self) {
        self.0.send_replace(true);
    }

    /// Waits until everybody who was to be told has ended.
    pub async fn all_ended(&self) {
        self.0.closed().await;
    }
}

impl Default for DrainSwitch {
    fn default() -> Self {
        Self::new()
    }
}

impl Drain {
    /// Waits until draining begins (or nobody is left who could begin it).
    pub async fn begun(&mut self) {
        let _ = self.0.wait_for(|thrown| *thrown).await;
    }
}
