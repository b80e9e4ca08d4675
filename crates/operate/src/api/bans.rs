//! Bans: those that this node has seen, and those that an operator begins or lifts.

use std::sync::Arc;

use http::StatusCode;
use serde_json::json;

use super::counters::request;
use super::{AdminApi, Answer, Problem, line, lines, refused, shown};
use crate::audit::{Author, Caller, DONE, Does};
use crate::bodies::answered::{BanChanged, BanOutcome, KnownBan};
use crate::bodies::asked::{Ban, DomainEntries, Entry, LiftBan};
use crate::bodies::values::{List, Time};
use crate::bodies::{Mistake, json as body};
use crate::page::Page;
use tidegate_engine::rules::parse_duration_nanos;
use tidegate_engine::time::SECOND_NANOS;
use tidegate_serve::refusal::Refusal;
use tidegate_serve::service::BanError;

/// The longest ban of an operator: 366 days.
const SECONDS_MAX: u64 = 366 * 86_400;

impl AdminApi {
    /// The bans that this node has seen.
    pub(super) fn bans(&self) -> Page {
        let known = |ban: tidegate_serve::bans::SeenBan| {
            let entry = |(key, value): &(Box<str>, Box<str>)| Entry {
                key: key.to_string(),
                value: value.to_string(),
            };
            line(&KnownBan {
                domain: ban.domain.into(),
                rule: ban.rule.into(),
                entries: List(ban.entries.iter().map(entry).collect()),
                since: Time(ban.since),
                until: Time(ban.until),
            })
        };
        lines(self.service.known_bans().into_iter().map(known).collect::<Vec<_>>())
    }

    /// Bans the keys of a descriptor.
    pub(super) async fn ban(&self, asked: Ban, caller: Caller) -> Answer {
        let secs = seconds(asked.lasts.as_str())?;
        let of = DomainEntries { domain: asked.domain, entries: asked.entries };
        let what =
            json!({"domain": of.domain, "entries": body(&of.entries), "for": asked.lasts, "why": asked.why});
        let (service, author) = (Arc::clone(&self.service), Author { who: asked.who.into_string(), caller });
        let change = async move {
            service.ban(&request(&of), secs).await.map(|()| (BanOutcome::Banned, DONE.to_owned()))
        };
        let done = self.audited(author, Does::Ban, what, change).await?;
        Ok(shown(StatusCode::OK, &BanChanged { done }))
    }

    /// Lifts the bans of a descriptor's keys.
    pub(super) async fn lift_ban(&self, asked: LiftBan, caller: Caller) -> Answer {
        let of = DomainEntries { domain: asked.domain, entries: asked.entries };
        let what = json!({"domain": of.domain, "entries": body(&of.entries), "why": asked.why});
        let (service, author) = (Arc::clone(&self.service), Author { who: asked.who.into_string(), caller });
        let change = async move {
            let was_banned = service.lift(&request(&of)).await?;
            let done = if was_banned { BanOutcome::Lifted } else { BanOutcome::Unchanged };
            Ok::<_, BanError>((done, DONE.to_owned()))
        };
        let done = self.audited(author, Does::LiftBan, what, change).await?;
        Ok(shown(StatusCode::OK, &BanChanged { done }))
    }
}

/// A time in whole seconds.
fn seconds(text: &str) -> Result<u32, Mistake> {
    let nanos = parse_duration_nanos(text).filter(|nanos| nanos % SECOND_NANOS == 0);
    let secs = nanos.map(|nanos| nanos / SECOND_NANOS).filter(|secs| (1..=SECONDS_MAX).contains(secs));
    let secs = secs.and_then(|secs| u32::try_from(secs).ok());
    secs.ok_or_else(|| {
        Mistake::of(
            "for",
            "is no time from 1 second to 366 days (expected whole seconds, such as 90s or 1h30m)",
        )
    })
}

impl From<BanError> for Problem {
    fn from(error: BanError) -> Self {
        match error {
            BanError::NoBan => Self(StatusCode::NOT_FOUND, error.to_string()),
            BanError::NoRoom => Self(StatusCode::INSUFFICIENT_STORAGE, error.to_string()),
            BanError::Service(error) => refused(&Refusal::from(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ban_lasts_for_seconds_within_a_year() {
        for (text, secs) in [("1s", 1), ("90s", 90), ("1h30m", 5_400), ("8784h", 366 * 86_400)] {
            assert_eq!(seconds(text), Ok(secs), "{text}");
        }
        for bad in ["", "0s", "0", "500ms", "1500ms", "8784h1s", "90", "-1s", "5000000h"] {
            assert!(seconds(bad).is_err_and(|mistake| mistake.to_string().starts_with("for: ")), "{bad}");
        }
    }
}
