//! A request for one or several locks, validated before any lock is touched.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{Holder, LockLimits, LockName, Mode, RequestKey, Text, digest};
use crate::Invalid;

pub const MAX_LOCKS: usize = 100;
const MAX_PURPOSE_BYTES: usize = 256;
const MAX_REQUEST_ID_BYTES: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    pub lock: LockName,
    pub mode: Mode,
}

/// Whether and how a request waits for locks that are not free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Patience {
    None,
    /// The server holds the request open until it is granted.
    HeldOpen {
        ms: u64,
    },
    /// The caller gets a ticket, polls it and claims the grant.
    Ticket {
        ms: u64,
    },
}

/// A valid request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockRequest {
    pub holder: Holder,
    pub key: RequestKey,
    /// Whether the caller gave a request id, so that it can retry the request.
    pub repeatable: bool,
    /// In the global order in which locks are acquired.
    pub asks: Vec<Ask>,
    pub ttl_ms: u64,
    pub patience: Patience,
    /// Informational; the queue order ignores it.
    pub priority: i32,
    pub purpose: Text,
}

/// A request as it was received, before validation.
#[derive(Debug, Clone, Default)]
pub struct Draft<'a> {
    /// Names and modes; the default mode is exclusive.
    pub locks: Vec<(&'a str, Option<Mode>)>,
    pub ttl_seconds: Option<f64>,
    pub wait_seconds: Option<f64>,
    /// Whether to wait with a ticket instead of an open request.
    pub queue: bool,
    pub priority: Option<i64>,
    pub purpose: Option<&'a str>,
    /// The caller's idempotency key.
    pub request_id: Option<&'a str>,
}

impl LockRequest {
    /// Validates a draft. `nonce` is a unique number that identifies the request if it has no request id.
    pub fn new(
        holder: Holder,
        draft: &Draft<'_>,
        limits: &LockLimits,
        nonce: u128,
    ) -> Result<Self, Vec<Invalid>> {
        let mut errors = Vec::new();
        let locks = parse_locks(&draft.locks, &mut errors);
        let ttl_ms = ttl_ms("/ttl_seconds", draft.ttl_seconds, limits, &mut errors);
        let wait_ms = draft.wait_seconds.map(|seconds| {
            parse_millis("/wait_seconds", seconds, 0, limits.max_wait_ms, &mut errors)
                .unwrap_or(limits.default_wait_ms)
        });
        let priority = match draft.priority.map_or(Ok(0), i32::try_from) {
            Ok(priority) => priority,
            Err(_) => {
                errors
                    .push(Invalid::at("/priority", format!("must be between {} and {}", i32::MIN, i32::MAX)));
                0
            }
        };
        let purpose = draft.purpose.unwrap_or_default();
        if purpose.len() > MAX_PURPOSE_BYTES {
            errors.push(Invalid::at("/purpose", format!("must have at most {MAX_PURPOSE_BYTES} bytes")));
        }
        match draft.request_id {
            Some("") => errors.push(Invalid::at("/request_id", "must not be empty; omit it instead")),
            Some(id) if id.len() > MAX_REQUEST_ID_BYTES => {
                errors.push(Invalid::at(
                    "/request_id",
                    format!("must have at most {MAX_REQUEST_ID_BYTES} bytes"),
                ));
            }
            _ => {}
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        let wait = match (draft.queue, wait_ms) {
            (true, wait_ms) => Patience::Ticket { ms: wait_ms.unwrap_or(limits.default_wait_ms) },
            (false, None | Some(0)) => Patience::None,
            (false, Some(timeout_ms)) => Patience::HeldOpen { ms: timeout_ms },
        };
        Ok(Self {
            key: draft.request_id.map_or_else(|| RequestKey::once(nonce), |id| RequestKey::of(&holder, id)),
            repeatable: draft.request_id.is_some(),
            holder,
            asks: locks,
            ttl_ms,
            patience: wait,
            priority,
            purpose: purpose.into(),
        })
    }

    /// A digest of everything but holder and request id. A retry must have the same digest.
    #[must_use]
    pub fn body_digest(&self) -> u128 {
        let wait = match self.patience {
            Patience::None => "now".to_owned(),
            Patience::HeldOpen { ms: timeout_ms } => format!("open {timeout_ms}"),
            Patience::Ticket { ms: timeout_ms } => format!("ticket {timeout_ms}"),
        };
        let values = [self.ttl_ms.to_string(), self.priority.to_string(), wait];
        let locks = self.asks.iter().flat_map(|requested| [requested.lock.as_str(), requested.mode.word()]);
        let parts: Vec<&str> =
            values.iter().map(String::as_str).chain([&*self.purpose]).chain(locks).collect();
        digest(&parts)
    }
}

/// The requested lease in milliseconds, or the default. A lease above the limit is rejected, not shortened.
pub fn ttl_ms(pointer: &str, seconds: Option<f64>, limits: &LockLimits, errors: &mut Vec<Invalid>) -> u64 {
    seconds
        .and_then(|seconds| parse_millis(pointer, seconds, 1, limits.max_ttl_ms, errors))
        .unwrap_or(limits.default_ttl_ms)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be within bounds")]
#[expect(clippy::cast_precision_loss, reason = "bounds are far below 2^53")]
fn parse_millis(
    pointer: &str,
    seconds: f64,
    min_ms: u64,
    max_ms: u64,
    errors: &mut Vec<Invalid>,
) -> Option<u64> {
    let ms = (seconds * 1000.0).round();
    if ms >= min_ms as f64 && ms <= max_ms as f64 {
        return Some(ms as u64);
    }
    let min = if min_ms == 0 { "0" } else { "0.001" };
    let max = max_ms as f64 / 1000.0;
    errors.push(Invalid::at(pointer, format!("must be between {min} and {max} seconds")));
    None
}

fn parse_locks(locks: &[(&str, Option<Mode>)], errors: &mut Vec<Invalid>) -> Vec<Ask> {
    if locks.is_empty() {
        errors.push(Invalid::at("/locks", "must contain at least one lock"));
    }
    if locks.len() > MAX_LOCKS {
        errors.push(Invalid::at("/locks", format!("must contain at most {MAX_LOCKS} locks")));
        return Vec::new();
    }
    let mut seen = BTreeSet::new();
    let mut requested = Vec::with_capacity(locks.len());
    for (index, (name, mode)) in locks.iter().enumerate() {
        match name.parse::<LockName>() {
            Err(error) => errors.push(Invalid::at(format!("/locks/{index}/lock"), error.to_string())),
            Ok(lock) if !seen.insert(lock.clone()) => {
                errors.push(Invalid::at(format!("/locks/{index}/lock"), "is a duplicate"));
            }
            Ok(lock) if mode.is_some_and(|mode| !lock.kind().admits(mode)) => {
                errors.push(Invalid::at(format!("/locks/{index}/mode"), "must be exclusive for a task lock"));
            }
            Ok(lock) => requested.push(Ask { lock, mode: mode.unwrap_or(Mode::Exclusive) }),
        }
    }
    requested.sort_by(|a, b| a.lock.cmp(&b.lock));
    requested
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
    fn sorts_locks_into_the_global_order() {
        let request = request(&draft());
        let names: Vec<String> = request.asks.iter().map(|requested| requested.lock.to_string()).collect();
        assert_eq!(names, ["task:9", "resource:db:a", "resource:db:b"]);
    }

    #[test]
    fn reports_every_invalid_field_with_its_pointer() {
        let (long, many) = ("x".repeat(257), vec![("task:1", None); 101]);
        let invalid_fields = |change: &dyn Fn(&mut Draft<'_>)| {
            let mut draft = draft();
            change(&mut draft);
            let errors = LockRequest::new(holder(), &draft, &LockLimits::default(), 7).expect_err("invalid");
            errors.into_iter().map(|error| error.pointer).collect::<Vec<_>>()
        };
        assert_eq!(invalid_fields(&|draft| draft.locks.clear()), ["/locks"]);
        assert_eq!(
            invalid_fields(&|draft| draft.locks = vec![("task:1", None), ("task:1", None)]),
            ["/locks/1/lock"]
        );
        assert_eq!(
            invalid_fields(&|draft| draft.locks = vec![("", None), ("task:1", Some(Mode::Shared))]),
            ["/locks/0/lock", "/locks/1/mode"]
        );
        for ttl in [0.0, -1.0, 300.1, 1e300, f64::INFINITY, f64::NAN, 0.000_4] {
            assert_eq!(invalid_fields(&|draft| draft.ttl_seconds = Some(ttl)), ["/ttl_seconds"], "{ttl}");
        }
        for wait in [-0.1, 3_600.1, f64::INFINITY] {
            assert_eq!(invalid_fields(&|draft| draft.wait_seconds = Some(wait)), ["/wait_seconds"], "{wait}");
        }
        assert_eq!(invalid_fields(&|draft| draft.priority = Some(i64::MAX)), ["/priority"]);
        let errors =
            LockRequest::new(holder(), &Draft { locks: many, ..Draft::default() }, &LockLimits::default(), 7);
        assert_eq!(errors.expect_err("too many").len(), 1);
        for draft in [
            Draft { purpose: Some(&long), ..draft() },
            Draft { request_id: Some(&long), ..draft() },
            Draft { request_id: Some(""), ..draft() },
        ] {
            assert_eq!(
                LockRequest::new(holder(), &draft, &LockLimits::default(), 7).expect_err("invalid").len(),
                1
            );
        }
    }

    #[test]
    fn derives_the_wait_policy_from_queue_and_wait_seconds() {
        let wait = |queue, wait_seconds| request(&Draft { queue, wait_seconds, ..draft() }).patience;
        assert_eq!(wait(false, None), Patience::None);
        assert_eq!(wait(false, Some(0.0)), Patience::None);
        assert_eq!(wait(false, Some(1.5)), Patience::HeldOpen { ms: 1_500 });
        assert_eq!(wait(true, None), Patience::Ticket { ms: 60_000 });
        assert_eq!(wait(true, Some(5.0)), Patience::Ticket { ms: 5_000 });
    }

    #[test]
    fn digest_covers_the_whole_body_but_not_order_or_request_id() {
        let expected = request(&draft()).body_digest();
        let reordered = Draft { locks: draft().locks.into_iter().rev().collect(), ..draft() };
        assert_eq!(request(&Draft { request_id: Some("x"), ..reordered }).body_digest(), expected);
        for other in [
            Draft { locks: vec![("task:9", None)], ..draft() },
            Draft { locks: vec![("resource:db:a", Some(Mode::Shared))], ..draft() },
            Draft { ttl_seconds: Some(31.0), ..draft() },
            Draft { wait_seconds: Some(1.0), ..draft() },
            Draft { queue: true, ..draft() },
            Draft { priority: Some(1), ..draft() },
            Draft { purpose: Some("p"), ..draft() },
        ] {
            assert_ne!(request(&other).body_digest(), expected, "{other:?}");
        }
    }
}
