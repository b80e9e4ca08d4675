//! The seam for calls of gRPC that came in together: many with one system call.

use std::time::Instant;

use super::{Refusal, Seam, wire};
use crate::clock;
use crate::metrics::{Front, GrpcMethod, Outcome};
use crate::service::TOGETHER_MAX;
use tidegate_engine::decision::Code;
use tidegate_engine::request::Request;

impl Seam {
    /// Whether no answer ever waits for somebody else.
    pub fn answers_at_once(&self) -> bool {
        self.service.shared().is_none()
    }

    /// Answers encoded `RateLimitRequest`s that came in together over gRPC, one after the other, as
    /// [`answer`](Self::answer) would: `tell` gets the message of each answer, or the refusal, with its place; `None`
    /// where somebody else has to be asked first ([`answer_later`](Self::answer_later)).
    pub fn answer_together(
        &self,
        messages: &[&[u8]],
        mut tell: impl FnMut(usize, Option<Result<&[u8], Refusal>>),
    ) {
        let began = clock::monotonic();
        let mut answer = Vec::with_capacity(wire::ANSWER_BYTES);
        if let ([message], true) = (messages, self.answers_at_once()) {
            return tell(0, Some(self.answer_alone(message, &mut answer, began)));
        }
        // Read where they are to be: they are too large to be handed around.
        let mut requests: [Request<'_>; TOGETHER_MAX] = Default::default();
        let (mut first, mut read) = (0, 0);
        for (place, message) in messages.iter().enumerate() {
            let is_usual = wire::in_place::parse(message, &self.bounds, &mut requests[read]).is_some();
            read += usize::from(is_usual);
            if is_usual && read < TOGETHER_MAX && place + 1 < messages.len() {
                continue;
            }
            self.answer_usual(&requests[..read], &mut answer, began, |at, answer| tell(first + at, answer));
            if !is_usual {
                let is_now = self.answers_at_once();
                tell(place, is_now.then(|| self.answer_alone(message, &mut answer, clock::monotonic())));
            }
            (first, read) = (place + 1, 0);
        }
    }

    /// Requests of the usual form, decided together.
    fn answer_usual(
        &self,
        requests: &[Request<'_>],
        answer: &mut Vec<u8>,
        began: Instant,
        mut tell: impl FnMut(usize, Option<Result<&[u8], Refusal>>),
    ) {
        let (mut admitted, mut told) = (0, 0);
        let decided = self.service.decide_together(requests, |at, decision| {
            let Some(decision) = decision else { return tell(at, None) };
            told += 1;
            admitted += usize::from(decision.code == Code::Ok);
            answer.clear();
            wire::encode(&self.telling, &requests[at], decision, answer);
            tell(at, Some(Ok(answer)));
        });
        if let Err(error) = decided {
            let refusal = Refusal::from(error);
            return (0..requests.len())
                .for_each(|at| tell(at, Some(Err(self.refuse(Front::Grpc, refusal.clone())))));
        }
        self.metrics.requests(Front::Grpc, Outcome::Ok, admitted);
        self.metrics.requests(Front::Grpc, Outcome::OverLimit, told - admitted);
        self.metrics.grpc_calls(GrpcMethod::ShouldRateLimit, clock::nanos_since(began), told);
    }

    /// One call by itself: that which came alone, or is not of the usual form. Its answer is written to `out`.
    fn answer_alone<'o>(
        &self,
        message: &[u8],
        out: &'o mut Vec<u8>,
        began: Instant,
    ) -> Result<&'o [u8], Refusal> {
        out.clear();
        let code = self.decide(message, |request, decision| {
            wire::encode(&self.telling, request, decision, out);
            decision.code
        });
        self.count(Front::Grpc, code.as_ref().copied(), began);
        code.map(|_| &**out)
    }
}
