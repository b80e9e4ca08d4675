//! Rings a bell of Envoy's from the limiter's thread, until what it calls, a configuration or a stream, is gone.
//!
//! Envoy keeps a configuration while its bell rings. If nothing else uses it by then, Envoy destroys it before the call
//! returns, on the thread that rings. So that thread may take the lock a second time.

use std::cell::Cell;

use parking_lot::ReentrantMutex;

/// A bell, and whether it was removed.
pub struct Doorbell<B>(ReentrantMutex<(B, Cell<bool>)>);

impl<B> Doorbell<B> {
    pub fn new(bell: B) -> Self {
        Self(ReentrantMutex::new((bell, Cell::new(false))))
    }

    /// Rings the bell, unless it was removed. Returns whether it is still there.
    pub fn ring(&self, call: impl FnOnce(&B)) -> bool {
        let locked = self.0.lock();
        let (bell, is_removed) = &*locked;
        if !is_removed.get() {
            call(bell);
        }
        !is_removed.get()
    }

    /// Nobody rings it from now on. Waits for another thread that rings it.
    pub fn remove(&self) {
        self.0.lock().1.set(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Envoy 1.40 does, if a listener is removed meanwhile.
    #[test]
    fn a_bell_may_be_removed_while_it_rings() {
        let (doorbell, rung) = (Doorbell::new("ding"), Cell::new(0));
        let count = |_: &&str| rung.set(rung.get() + 1);
        assert!(doorbell.ring(count));
        assert!(!doorbell.ring(|bell| {
            count(bell);
            doorbell.remove();
        }));
        assert!(!doorbell.ring(count));
        assert_eq!(rung.get(), 2);
    }
}
