//! Draining: connections learn that they should end, and the program learns when all have ended.

use tokio::sync::watch;

/// Waits for the beginning of draining. As long as it lives, its holder has not ended.
#[derive(Clone, Debug)]
pub struct Drain(watch::Receiver<Stage>);

/// Begins the draining that a [`Drain`] waits for.
#[derive(Debug)]
pub struct DrainSwitch(watch::Sender<Stage>);

/// The phases of the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Serving,
    Draining,
    /// Everything that is still open ends at once.
    Cut,
}

impl DrainSwitch {
    /// A switch whose draining has not begun.
    #[must_use]
    pub fn new() -> Self {
        Self(watch::Sender::new(Stage::Serving))
    }

    /// A receiver of the beginning.
    pub fn drain(&self) -> Drain {
        Drain(self.0.subscribe())
    }

    /// Begins draining.
    pub fn throw(&self) {
        self.0.send_replace(Stage::Draining);
    }

    /// Ends everything that is still open.
    pub fn cut(&self) {
        self.0.send_replace(Stage::Cut);
    }

    /// Waits until every [`Drain`] is dropped.
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
    /// Waits until draining begins, or the switch is dropped.
    pub async fn begun(&mut self) {
        let _ = self.0.wait_for(|stage| *stage >= Stage::Draining).await;
    }

    /// Waits until nothing may be finished any more.
    pub async fn cut(&mut self) {
        if self.0.wait_for(|stage| *stage == Stage::Cut).await.is_err() {
            // The switch is gone, so nothing can be cancelled any more.
            std::future::pending().await
        }
    }
}
