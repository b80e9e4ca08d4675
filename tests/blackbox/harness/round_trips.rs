//! A wire to a Redis that counts round trips, whoever makes them.

use std::sync::{Arc, Mutex, PoisonError};

use super::faulty::relay_watched;

/// A proxy for TCP.
pub struct RoundTrips {
    pub port: u16,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    /// What was sent in each round trip.
    sent: Vec<String>,
    /// Since then the server has answered: what is sent now may follow from it.
    is_answered: bool,
}

impl RoundTrips {
    /// A wire to this port of loopback.
    pub fn to(port: u16) -> Self {
        let seen = Arc::<Mutex<Seen>>::default();
        let (asked, answered) = (Arc::clone(&seen), Arc::clone(&seen));
        let asked = move |bytes: &[u8]| lock(&asked).ask(&String::from_utf8_lossy(bytes));
        let port = relay_watched(port, asked, move || {
            let answered = Arc::clone(&answered);
            move |_: &mut [u8]| {
                lock(&answered).is_answered = true;
                true
            }
        });
        Self { port, seen }
    }

    /// What was sent in each round trip since this was asked last.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.seen).sent)
    }
}

impl Seen {
    fn ask(&mut self, text: &str) {
        match self.sent.last_mut() {
            Some(last) if !self.is_answered => last.push_str(text),
            _ => self.sent.push(text.to_owned()),
        }
        self.is_answered = false;
    }
}

fn lock(seen: &Mutex<Seen>) -> impl std::ops::DerefMut<Target = Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}
