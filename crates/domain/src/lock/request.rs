//! A request for one or several locks, validated before any lock is touched.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{Holder, LockLimits, LockMode, LockName, RequestKey, SharedStr, digest};
use crate::{InvalidField, Validator};

pub const MAX_LOCKS_PER_REQUEST: usize = 100;
const MAX_PURPOSE_BYTES: usize = 256;
const MAX_REQUEST_ID_BYTES: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestedLock {
    pub lock: LockName,
    pub mode: LockMode,
}

/// Whether and how a request waits for locks that are not free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitPolicy {
    /// The request is refused at once.
    NoWait,
    /// The server holds the request open until it is granted.
    LongPoll { timeout_ms: u64 },
    /// The caller gets a ticket, polls it and claims the grant.
    Ticket { timeout_ms: u64 },
}

/// A valid request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockRequest {
    pub holder: Holder,
    pub key: RequestKey,
    /// Whether the caller gave a request id, so that it can retry the request.
    pub has_request_id: bool,
    /// In the global order in which locks are acquired.
    pub locks: Vec<RequestedLock>,
    pub ttl_ms: u64,
    pub wait: WaitPolicy,
    /// Informational; the queue order ignores it.
    pub priority: i32,
    pub purpose: SharedStr,
}

/// A request as it was received, before validation.
#[derive(Debug, Clone, Default)]
pub struct LockRequestDraft<'a> {
    /// Names and modes; the default mode is exclusive.
    pub locks: Vec<(&'a str, Option<LockMode>)>,
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
        draft: &LockRequestDraft<'_>,
        limits: &LockLimits,
        nonce: u128,
    ) -> Result<Self, Vec<InvalidField>> {
        let mut input = Validator::default();
        let locks = parse_locks(&draft.locks, &mut input.errors);
        let ttl_ms = parse_ttl_ms("ttl_seconds", draft.ttl_seconds, limits, &mut input);
        let wait_ms = draft.wait_seconds.map(|seconds| {
            parse_millis("wait_seconds", seconds, 0, limits.max_wait_ms, &mut input)
                .unwrap_or(limits.default_wait_ms)
        });
        let priority = i32::try_from(draft.priority.unwrap_or(0));
        let rule = format_args!("must be between {} and {}", i32::MIN, i32::MAX);
        input.check(priority.is_ok(), "priority", rule);
        let purpose = draft.purpose.unwrap_or_default();
        let rule = format_args!("must have at most {MAX_PURPOSE_BYTES} bytes");
        input.check(purpose.len() <= MAX_PURPOSE_BYTES, "purpose", rule);
        input.check(draft.request_id != Some(""), "request_id", "must not be empty; omit it instead");
        let fits = draft.request_id.is_none_or(|id| id.len() <= MAX_REQUEST_ID_BYTES);
        input.check(fits, "request_id", format_args!("must have at most {MAX_REQUEST_ID_BYTES} bytes"));
        let (Ok(priority), true) = (priority, input.errors.is_empty()) else { return Err(input.errors) };
        let wait = match (draft.queue, wait_ms) {
            (true, wait_ms) => WaitPolicy::Ticket { timeout_ms: wait_ms.unwrap_or(limits.default_wait_ms) },
            (false, None | Some(0)) => WaitPolicy::NoWait,
            (false, Some(timeout_ms)) => WaitPolicy::LongPoll { timeout_ms },
        };
        Ok(Self {
            key: draft
                .request_id
                .map_or_else(|| RequestKey::from_nonce(nonce), |id| RequestKey::derive(&holder, id)),
            has_request_id: draft.request_id.is_some(),
            holder,
            locks,
            ttl_ms,
            wait,
            priority,
            purpose: purpose.into(),
        })
    }

    /// A digest of everything but holder and request id. A retry must have the same digest.
    pub fn body_digest(&self) -> u128 {
        let wait = match self.wait {
            WaitPolicy::NoWait => "now".to_owned(),
            WaitPolicy::LongPoll { timeout_ms } => format!("open {timeout_ms}"),
            WaitPolicy::Ticket { timeout_ms } => format!("ticket {timeout_ms}"),
        };
        let values = [self.ttl_ms.to_string(), self.priority.to_string(), wait];
        let locks =
            self.locks.iter().flat_map(|requested| [requested.lock.as_str(), requested.mode.as_str()]);
        let parts: Vec<&str> =
            values.iter().map(String::as_str).chain([&*self.purpose]).chain(locks).collect();
        digest(&parts)
    }
}

/// The requested lease in milliseconds, or the default. A lease above the limit is rejected, not shortened.
pub fn parse_ttl_ms(field: &str, seconds: Option<f64>, limits: &LockLimits, input: &mut Validator) -> u64 {
    let ms = seconds.and_then(|seconds| parse_millis(field, seconds, 1, limits.max_ttl_ms, input));
    ms.unwrap_or(limits.default_ttl_ms)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be within bounds")]
#[expect(clippy::cast_precision_loss, reason = "bounds are far below 2^53")]
fn parse_millis(field: &str, seconds: f64, min_ms: u64, max_ms: u64, input: &mut Validator) -> Option<u64> {
    let ms = (seconds * 1000.0).round();
    let in_range = ms >= min_ms as f64 && ms <= max_ms as f64;
    let min = if min_ms == 0 { "0" } else { "0.001" };
    let max = max_ms as f64 / 1000.0;
    input.check(in_range, field, format_args!("must be between {min} and {max} seconds"));
    in_range.then_some(ms as u64)
}

fn parse_locks(locks: &[(&str, Option<LockMode>)], errors: &mut Vec<InvalidField>) -> Vec<RequestedLock> {
    if locks.is_empty() {
        errors.push(InvalidField::at("locks", "must contain at least one lock"));
    }
    if locks.len() > MAX_LOCKS_PER_REQUEST {
        errors.push(InvalidField::at("locks", format!("must contain at most {MAX_LOCKS_PER_REQUEST} locks")));
        return Vec::new();
    }
    let mut seen = BTreeSet::new();
    let mut requested = Vec::with_capacity(locks.len());
    for (index, (name, mode)) in locks.iter().enumerate() {
        let mode = mode.unwrap_or_default();
        let (field, detail) = match name.parse::<LockName>() {
            Err(error) => ("lock", error.to_string()),
            Ok(lock) if !seen.insert(lock.clone()) => ("lock", "is a duplicate".to_owned()),
            Ok(lock) if !lock.kind().supports(mode) => {
                ("mode", "must be exclusive for a task lock".to_owned())
            }
            Ok(lock) => {
                requested.push(RequestedLock { lock, mode });
                continue;
            }
        };
        errors.push(InvalidField::at(format!("locks.{index}.{field}"), detail));
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

    fn draft() -> LockRequestDraft<'static> {
        LockRequestDraft {
            locks: vec![("resource:db:b", None), ("task:9", None), ("resource:db:a", None)],
            ..LockRequestDraft::default()
        }
    }

    fn request(draft: &LockRequestDraft<'_>) -> LockRequest {
        LockRequest::new(holder(), draft, &LockLimits::default(), 7).expect("valid")
    }

    #[test]
    fn sorts_locks_into_the_global_order() {
        let request = request(&draft());
        let names: Vec<String> = request.locks.iter().map(|requested| requested.lock.to_string()).collect();
        assert_eq!(names, ["task:9", "resource:db:a", "resource:db:b"]);
    }

    #[test]
    fn reports_every_invalid_field() {
        let (long, many) = ("x".repeat(257), vec![("task:1", None); 101]);
        let invalid_fields = |change: &dyn Fn(&mut LockRequestDraft<'_>)| {
            let mut draft = draft();
            change(&mut draft);
            let errors = LockRequest::new(holder(), &draft, &LockLimits::default(), 7).expect_err("invalid");
            errors.into_iter().map(|error| error.path.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(invalid_fields(&|draft| draft.locks.clear()), ["locks"]);
        assert_eq!(
            invalid_fields(&|draft| draft.locks = vec![("task:1", None), ("task:1", None)]),
            ["locks.1.lock"]
        );
        assert_eq!(
            invalid_fields(&|draft| draft.locks = vec![("", None), ("task:1", Some(LockMode::Shared))]),
            ["locks.0.lock", "locks.1.mode"]
        );
        for ttl in [0.0, -1.0, 300.1, 1e300, f64::INFINITY, f64::NAN, 0.000_4] {
            assert_eq!(invalid_fields(&|draft| draft.ttl_seconds = Some(ttl)), ["ttl_seconds"], "{ttl}");
        }
        for wait in [-0.1, 3_600.1, f64::INFINITY] {
            assert_eq!(invalid_fields(&|draft| draft.wait_seconds = Some(wait)), ["wait_seconds"], "{wait}");
        }
        assert_eq!(invalid_fields(&|draft| draft.priority = Some(i64::MAX)), ["priority"]);
        let errors = LockRequest::new(
            holder(),
            &LockRequestDraft { locks: many, ..LockRequestDraft::default() },
            &LockLimits::default(),
            7,
        );
        assert_eq!(errors.expect_err("too many").len(), 1);
        for draft in [
            LockRequestDraft { purpose: Some(&long), ..draft() },
            LockRequestDraft { request_id: Some(&long), ..draft() },
            LockRequestDraft { request_id: Some(""), ..draft() },
        ] {
            assert_eq!(
                LockRequest::new(holder(), &draft, &LockLimits::default(), 7).expect_err("invalid").len(),
                1
            );
        }
    }

    #[test]
    fn derives_the_wait_policy_from_queue_and_wait_seconds() {
        let wait = |queue, wait_seconds| request(&LockRequestDraft { queue, wait_seconds, ..draft() }).wait;
        assert_eq!(wait(false, None), WaitPolicy::NoWait);
        assert_eq!(wait(false, Some(0.0)), WaitPolicy::NoWait);
        assert_eq!(wait(false, Some(1.5)), WaitPolicy::LongPoll { timeout_ms: 1_500 });
        assert_eq!(wait(true, None), WaitPolicy::Ticket { timeout_ms: 60_000 });
        assert_eq!(wait(true, Some(5.0)), WaitPolicy::Ticket { timeout_ms: 5_000 });
    }

    #[test]
    fn digest_covers_the_whole_body_but_not_order_or_request_id() {
        let expected = request(&draft()).body_digest();
        let reordered = LockRequestDraft { locks: draft().locks.into_iter().rev().collect(), ..draft() };
        assert_eq!(request(&LockRequestDraft { request_id: Some("x"), ..reordered }).body_digest(), expected);
        for other in [
            LockRequestDraft { locks: vec![("task:9", None)], ..draft() },
            LockRequestDraft { locks: vec![("resource:db:a", Some(LockMode::Shared))], ..draft() },
            LockRequestDraft { ttl_seconds: Some(31.0), ..draft() },
            LockRequestDraft { wait_seconds: Some(1.0), ..draft() },
            LockRequestDraft { queue: true, ..draft() },
            LockRequestDraft { priority: Some(1), ..draft() },
            LockRequestDraft { purpose: Some("p"), ..draft() },
        ] {
            assert_ne!(request(&other).body_digest(), expected, "{other:?}");
        }
    }
}
