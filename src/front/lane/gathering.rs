//! Calls that came in on several connections at about one time, answered together. In: messages of the calls of one
//! worker. Out: their answers, to the mailbox of each connection. No frame and no socket.
//!
//! A connection with a call or two under way has nothing to decide beside them. But a worker that is busy finds many
//! connections with something to read: each leaves its calls here and lets the others have their turn; the first that
//! is back has all of them answered. Memory then brings their counters side by side, and clocks are read once for all.

use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::connection::Status;
use crate::front::Seam;
use crate::service::TOGETHER_MAX;

/// Calls of one connection that are worth it: with more of them, it has company enough.
const CALLS_MAX: usize = 2;
/// Bytes of their messages: what is left here is copied.
const MESSAGE_BYTES_MAX: usize = 1_024;
/// Where nobody else had anything to read, that is presumed of so many times more: a turn costs little, but not nothing.
const PAUSE: u32 = 15;

/// What the connections of a worker have left.
#[derive(Debug, Default)]
pub struct Gathering {
    left: Mutex<Left>,
}

#[derive(Debug, Default)]
struct Left {
    /// The messages, one behind the other.
    messages: Vec<u8>,
    calls: SmallVec<[LeftCall; TOGETHER_MAX]>,
    pause: u32,
}

#[derive(Debug)]
struct LeftCall {
    /// Where its message ends.
    end: usize,
    stream: u32,
    from: Arc<Mailbox>,
}

/// Answers for one connection.
#[derive(Debug, Default)]
pub struct Mailbox {
    answers: Mutex<Answers>,
}

#[derive(Debug, Default)]
struct Answers {
    /// The messages, one behind the other.
    messages: Vec<u8>,
    /// For which stream, and where its message ends.
    told: SmallVec<[(u32, Result<usize, Status>); CALLS_MAX]>,
}

impl Gathering {
    /// Leaves calls, each with its stream, to be answered by [`collect`](Self::collect). `false`: they are better
    /// answered at once. Only for a seam that [answers at once](Seam::answers_at_once).
    pub fn leave(&self, streams: impl Iterator<Item = u32>, messages: &[&[u8]], from: &Arc<Mailbox>) -> bool {
        let bytes: usize = messages.iter().map(|message| message.len()).sum();
        if !(1..=CALLS_MAX).contains(&messages.len()) || bytes > MESSAGE_BYTES_MAX {
            return false;
        }
        let mut left = self.left.lock();
        if left.pause > 0 || left.calls.len() + messages.len() > TOGETHER_MAX {
            left.pause = left.pause.saturating_sub(1);
            return false;
        }
        for (stream, message) in streams.zip(messages) {
            left.messages.extend_from_slice(message);
            let end = left.messages.len();
            left.calls.push(LeftCall { end, stream, from: Arc::clone(from) });
        }
        true
    }

    /// Tells the answers to what was left for this mailbox.
    pub fn collect(
        &self,
        seam: &Seam,
        mailbox: &Arc<Mailbox>,
        mut tell: impl FnMut(u32, Result<&[u8], Status>),
    ) {
        self.answer(seam, mailbox);
        let mut answers = mailbox.answers.lock();
        let Answers { messages, told } = &mut *answers;
        let mut start = 0;
        for (stream, answer) in told.drain(..) {
            tell(stream, answer.map(|end| &messages[std::mem::replace(&mut start, end)..end]));
        }
        messages.clear();
    }

    /// Answers all that was left, unless somebody has.
    pub fn answer(&self, seam: &Seam, for_whom: &Arc<Mailbox>) {
        let mut left = self.left.lock();
        let Left { messages, calls, pause } = &mut *left;
        if calls.is_empty() {
            return;
        }
        if calls.iter().all(|call| Arc::ptr_eq(&call.from, for_whom)) {
            *pause = PAUSE;
        }
        let mut start = 0;
        let each = calls.iter().map(|call| &messages[std::mem::replace(&mut start, call.end)..call.end]);
        let each: SmallVec<[&[u8]; TOGETHER_MAX]> = each.collect();
        seam.answer_together(&each, |at, answer| {
            let answer = answer.expect("calls are left only where answers are there at once");
            calls[at].from.put(calls[at].stream, answer.map_err(Status::from));
        });
        drop(each);
        messages.clear();
        calls.clear();
    }
}

impl Mailbox {
    fn put(&self, stream: u32, answer: Result<&[u8], Status>) {
        let mut answers = self.answers.lock();
        let Answers { messages, told } = &mut *answers;
        let answer = answer.map(|message| {
            messages.extend_from_slice(message);
            messages.len()
        });
        told.push((stream, answer));
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::front::Bounds;
    use crate::front::lane::LaneFront;
    use crate::front::lane::calls::Calls;
    use crate::front::lane::connection::{Call, Outcome, Serve};
    use crate::front::lane::hpack::Route;
    use crate::front::proto::envoy::service::ratelimit::v3::RateLimitResponse;
    use crate::front::tests::{metrics, service};
    use crate::health::Health;

    const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 10}}
";
    /// Requests for users of five letters, by hand.
    const ALICE: &[u8] = b"\x0a\x04shop\x12\x0f\x0a\x0d\x0a\x04user\x12\x05alice";
    const BOBBY: &[u8] = b"\x0a\x04shop\x12\x0f\x0a\x0d\x0a\x04user\x12\x05bobby";

    fn seam() -> Seam {
        let metrics = metrics();
        Seam::new(service(Some(RULES), &metrics).into(), metrics, Bounds::default())
    }

    /// What is told to a mailbox: for each stream what remains, or the status.
    fn told(gathering: &Gathering, seam: &Seam, mailbox: &Arc<Mailbox>) -> Vec<(u32, Result<u32, u8>)> {
        let mut told = Vec::new();
        gathering.collect(seam, mailbox, |stream, answer| {
            let remaining = answer.map(|message| {
                let answer = RateLimitResponse::decode(message).expect("an encoded answer");
                answer.statuses[0].limit_remaining
            });
            told.push((stream, remaining.map_err(|status| status.code)));
        });
        told
    }

    #[test]
    fn each_connection_gets_the_answers_to_its_own_calls_in_the_order_in_which_all_were_left() {
        let (gathering, seam) = (Gathering::default(), seam());
        let [one, other] = [(); 2].map(|()| Arc::<Mailbox>::default());
        assert!(gathering.leave([1].into_iter(), &[ALICE], &one));
        assert!(gathering.leave([5, 7].into_iter(), &[BOBBY, ALICE], &other));
        assert!(gathering.leave([3].into_iter(), &[b"\xff"], &one));
        assert_eq!(told(&gathering, &seam, &other), [(5, Ok(9)), (7, Ok(8))]);
        assert_eq!(told(&gathering, &seam, &one), [(1, Ok(9)), (3, Err(3))]);
        assert_eq!(told(&gathering, &seam, &one), [], "told once");
    }

    #[test]
    fn who_was_alone_is_presumed_to_stay_so_for_a_while() {
        let (gathering, seam) = (Gathering::default(), seam());
        let [one, other] = [(); 2].map(|()| Arc::<Mailbox>::default());
        let leave = |from| gathering.leave([1].into_iter(), &[ALICE], from);
        assert!(leave(&one));
        assert_eq!(told(&gathering, &seam, &one), [(1, Ok(9))]);
        assert!((0..PAUSE).all(|_| !leave(&one)), "it is answered at once");
        for _ in 0..3 {
            assert!(leave(&one) && leave(&other));
            assert_eq!(told(&gathering, &seam, &one).len() + told(&gathering, &seam, &other).len(), 2);
        }
    }

    #[test]
    fn what_is_left_is_bounded() {
        let (gathering, mailbox) = (Gathering::default(), Arc::default());
        assert!(!gathering.leave([1, 3, 5].into_iter(), &[ALICE; 3], &mailbox), "company enough");
        assert!(!gathering.leave([1].into_iter(), &[&[0; MESSAGE_BYTES_MAX + 1]], &mailbox), "too large");
        let left = (0..100).filter(|_| gathering.leave([1].into_iter(), &[ALICE], &mailbox)).count();
        assert_eq!(left, TOGETHER_MAX);
    }

    #[test]
    fn a_call_that_was_left_counts_though_its_connection_is_gone() {
        let seam = Arc::new(seam());
        let front = LaneFront::new(Arc::clone(&seam), Arc::new(Health::starting())).for_worker();
        let mut calls = Calls::new(front);
        let body = [&[0, 0, 0, 0, ALICE.len() as u8], ALICE].concat();
        let call = Call { stream: 1, route: Route::ShouldRateLimit, timeout: None, body: &body };
        calls.whole(&[call], true, |_, outcome| assert!(matches!(outcome, Outcome::Later(_))));
        drop(calls);
        let (gathering, mailbox) = (Gathering::default(), Arc::default());
        assert!(gathering.leave([1].into_iter(), &[ALICE], &mailbox));
        assert_eq!(told(&gathering, &seam, &mailbox), [(1, Ok(8))]);
    }
}
