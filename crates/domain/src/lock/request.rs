//! A request for one or several locks: what may be asked for, checked before anything happens.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{Holder, LockLimits, LockName, Mode, RequestKey, Text, digest};
use crate::Invalid;

/// Locks that one request may name.
pub const MAX_LOCKS: usize = 100;
/// Bytes of a purpose.
const MAX_PURPOSE_BYTES: usize = 256;
/// Bytes of a request's id.
const MAX_REQUEST_ID_BYTES: usize = 256;

/// One lock of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    /// Which lock.
    pub lock: LockName,
    /// How.
    pub mode: Mode,
}

/// How long a request is ready to wait, and where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Patience {
    /// Not at all.
    None,
    /// With the answer held open.
    HeldOpen {
        /// For how long.
        ms: u64,
    },
    /// With a ticket that is polled and claimed.
    Ticket {
        /// For how long.
        ms: u64,
    },
}

/// A request that may be carried out. Its locks are in the one order in which locks are taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockRequest {
    /// Who asks.
    pub holder: Holder,
    /// What it is known by.
    pub key: RequestKey,
    /// Whether it has an id of its caller's, so that it can be repeated.
    pub repeatable: bool,
    /// For what.
    pub asks: Vec<Ask>,
    /// Length of the leases.
    pub ttl_ms: u64,
    /// How it waits.
    pub patience: Patience,
    /// Carried and shown.
    pub priority: i32,
    /// Why.
    pub purpose: Text,
}

/// A request as it came, with numbers that may be anything.
#[derive(Debug, Clone, Default)]
pub struct Draft<'a> {
    /// Names and modes; a lock is exclusive unless it says otherwise.
    pub locks: Vec<(&'a str, Option<Mode>)>,
    /// Length of the leases.
    pub ttl_seconds: Option<f64>,
    /// How long to wait.
    pub wait_seconds: Option<f64>,
    /// Whether to answer with a ticket instead of holding the answer open.
    pub queue: bool,
    /// Importance.
    pub priority: Option<i64>,
    /// Why.
    pub purpose: Option<&'a str>,
    /// The caller's own id.
    pub request_id: Option<&'a str>,
}

impl LockRequest {
    /// Checks a draft. `once` is a number for a request without an id, used for no other.
    pub fn new(
        holder: Holder,
        draft: &Draft<'_>,
        rules: &LockLimits,
        once: u128,
    ) -> Result<Self, Vec<Invalid>> {
        let mut faults = Vec::new();
        let asks = asks(&draft.locks, &mut faults);
        let ttl_ms = ttl_ms("/ttl_seconds", draft.ttl_seconds, rules, &mut faults);
        let wait_ms = draft.wait_seconds.map(|wait| {
            millis("/wait_seconds", wait, 0, rules.max_wait_ms, &mut faults).unwrap_or(rules.default_wait_ms)
        });
        let priority = match draft.priority.map_or(Ok(0), i32::try_from) {
            Ok(priority) => priority,
            Err(_) => {
                faults.push(Invalid::at("/priority", "must be a whole number of 32 bits"));
                0
            }
        };
        let purpose = draft.purpose.unwrap_or_default();
        if purpose.len() > MAX_PURPOSE_BYTES {
            faults.push(Invalid::at("/purpose", format!("may have at most {MAX_PURPOSE_BYTES} bytes")));
        }
        match draft.request_id {
            Some("") => faults.push(Invalid::at("/request_id", "must not be empty; leave it out instead")),
            Some(id) if id.len() > MAX_REQUEST_ID_BYTES => {
                faults.push(Invalid::at(
                    "/request_id",
                    format!("may have at most {MAX_REQUEST_ID_BYTES} bytes"),
                ));
            }
            _ => {}
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        let patience = match (draft.queue, wait_ms) {
            (true, ms) => Patience::Ticket { ms: ms.unwrap_or(rules.default_wait_ms) },
            (false, None | Some(0)) => Patience::None,
            (false, Some(ms)) => Patience::HeldOpen { ms },
        };
        Ok(Self {
            key: draft.request_id.map_or_else(|| RequestKey::once(once), |id| RequestKey::of(&holder, id)),
            repeatable: draft.request_id.is_some(),
            holder,
            asks,
            ttl_ms,
            patience,
            priority,
            purpose: purpose.into(),
        })
    }

    /// A digest of all but who asks and under which id: a repetition must have the same.
    #[must_use]
    pub fn body_digest(&self) -> u128 {
        let patience = match self.patience {
            Patience::None => "now".to_owned(),
            Patience::HeldOpen { ms } => format!("open {ms}"),
            Patience::Ticket { ms } => format!("ticket {ms}"),
        };
        let numbers = [self.ttl_ms.to_string(), self.priority.to_string(), patience];
        let asks = self.asks.iter().flat_map(|ask| [ask.lock.as_str(), ask.mode.word()]);
        let parts: Vec<&str> =
            numbers.iter().map(String::as_str).chain([&*self.purpose]).chain(asks).collect();
        digest(&parts)
    }
}

/// The length of a lease in milliseconds: what was asked for, or the default. Longer than allowed is refused, not clipped.
pub fn ttl_ms(pointer: &str, seconds: Option<f64>, rules: &LockLimits, faults: &mut Vec<Invalid>) -> u64 {
    let asked = seconds.and_then(|seconds| millis(pointer, seconds, 1, rules.max_ttl_ms, faults));
    asked.unwrap_or(rules.default_ttl_ms)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be within bounds")]
#[expect(clippy::cast_precision_loss, reason = "bounds are far below 2^53")]
fn millis(
    pointer: &str,
    seconds: f64,
    least_ms: u64,
    most_ms: u64,
    faults: &mut Vec<Invalid>,
) -> Option<u64> {
    let ms = (seconds * 1000.0).round();
    if ms >= least_ms as f64 && ms <= most_ms as f64 {
        return Some(ms as u64);
    }
    let least = if least_ms == 0 { "0" } else { "0.001" };
    let most = most_ms as f64 / 1000.0;
    faults.push(Invalid::at(pointer, format!("must be between {least} and {most} seconds")));
    None
}

fn asks(locks: &[(&str, Option<Mode>)], faults: &mut Vec<Invalid>) -> Vec<Ask> {
    if locks.is_empty() {
        faults.push(Invalid::at("/locks", "must name at least one lock"));
    }
    if locks.len() > MAX_LOCKS {
        faults.push(Invalid::at("/locks", format!("may name at most {MAX_LOCKS} locks")));
        return Vec::new();
    }
    let mut seen = BTreeSet::new();
    let mut asks = Vec::with_capacity(locks.len());
    for (at, (name, mode)) in locks.iter().enumerate() {
        match name.parse::<LockName>() {
            Err(why) => faults.push(Invalid::at(format!("/locks/{at}/lock"), why.to_string())),
            Ok(lock) if !seen.insert(lock.clone()) => {
                faults.push(Invalid::at(format!("/locks/{at}/lock"), "is named twice"));
            }
            Ok(lock) if mode.is_some_and(|mode| !lock.kind().admits(mode)) => {
                faults.push(Invalid::at(format!("/locks/{at}/mode"), "task locks are exclusive only"));
            }
            Ok(lock) => asks.push(Ask { lock, mode: mode.unwrap_or(Mode::Exclusive) }),
        }
    }
    asks.sort_by(|a, b| a.lock.cmp(&b.lock));
    asks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder() -> Holder {
        Holder::new("ann", None).expect("valid")
    }

    fn draft() -> Draft<'static> {
        Draft {
            locks: vec![("resource:db:b", None), ("task:9", None), ("resource:db:a", None)],
            ..Draft::default()
        }
    }

    fn request(draft: &Draft<'_>) -> LockRequest {
        LockRequest::new(holder(), draft, &LockLimits::default(), 7).expect("valid")
    }

    #[test]
    fn locks_are_put_into_the_one_order() {
        let names: Vec<String> = request(&draft()).asks.iter().map(|ask| ask.lock.to_string()).collect();
        assert_eq!(names, ["task:9", "resource:db:a", "resource:db:b"]);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        let (long, many) = ("x".repeat(257), vec![("task:1", None); 101]);
        let wrong = |change: &dyn Fn(&mut Draft<'_>)| {
            let mut draft = draft();
            change(&mut draft);
            let faults = LockRequest::new(holder(), &draft, &LockLimits::default(), 7).expect_err("wrong");
            faults.into_iter().map(|fault| fault.pointer).collect::<Vec<_>>()
        };
        assert_eq!(wrong(&|draft| draft.locks.clear()), ["/locks"]);
        assert_eq!(wrong(&|draft| draft.locks = vec![("task:1", None), ("task:1", None)]), ["/locks/1/lock"]);
        assert_eq!(
            wrong(&|draft| draft.locks = vec![("", None), ("task:1", Some(Mode::Shared))]),
            ["/locks/0/lock", "/locks/1/mode"]
        );
        for ttl in [0.0, -1.0, 300.1, 1e300, f64::INFINITY, f64::NAN, 0.000_4] {
            assert_eq!(wrong(&|draft| draft.ttl_seconds = Some(ttl)), ["/ttl_seconds"], "{ttl}");
        }
        for wait in [-0.1, 3_600.1, f64::INFINITY] {
            assert_eq!(wrong(&|draft| draft.wait_seconds = Some(wait)), ["/wait_seconds"], "{wait}");
        }
        assert_eq!(wrong(&|draft| draft.priority = Some(i64::MAX)), ["/priority"]);
        let faults =
            LockRequest::new(holder(), &Draft { locks: many, ..Draft::default() }, &LockLimits::default(), 7);
        assert_eq!(faults.expect_err("too many").len(), 1);
        for draft in [
            Draft { purpose: Some(&long), ..draft() },
            Draft { request_id: Some(&long), ..draft() },
            Draft { request_id: Some(""), ..draft() },
        ] {
            assert_eq!(
                LockRequest::new(holder(), &draft, &LockLimits::default(), 7).expect_err("wrong").len(),
                1
            );
        }
    }

    #[test]
    fn waiting_is_asked_for_in_three_ways() {
        let patience = |queue, wait_seconds| request(&Draft { queue, wait_seconds, ..draft() }).patience;
        assert_eq!(patience(false, None), Patience::None);
        assert_eq!(patience(false, Some(0.0)), Patience::None);
        assert_eq!(patience(false, Some(1.5)), Patience::HeldOpen { ms: 1_500 });
        assert_eq!(patience(true, None), Patience::Ticket { ms: 60_000 });
        assert_eq!(patience(true, Some(5.0)), Patience::Ticket { ms: 5_000 });
    }

    #[test]
    fn every_part_of_the_body_counts_and_nothing_else() {
        let same = request(&draft()).body_digest();
        let reordered = Draft { locks: draft().locks.into_iter().rev().collect(), ..draft() };
        assert_eq!(request(&Draft { request_id: Some("x"), ..reordered }).body_digest(), same);
        for other in [
            Draft { locks: vec![("task:9", None)], ..draft() },
            Draft { locks: vec![("resource:db:a", Some(Mode::Shared))], ..draft() },
            Draft { ttl_seconds: Some(31.0), ..draft() },
            Draft { wait_seconds: Some(1.0), ..draft() },
            Draft { queue: true, ..draft() },
            Draft { priority: Some(1), ..draft() },
            Draft { purpose: Some("p"), ..draft() },
        ] {
            assert_ne!(request(&other).body_digest(), same, "{other:?}");
        }
    }
}
