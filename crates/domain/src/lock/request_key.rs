//! Idempotency of lock requests: the key of a request, and the tombstones of requests that must not be revived.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

use super::{Holder, command::EndReason};
use crate::Moment;

/// Identifies a request: a 128-bit digest of its holder and its request id. Its text form is the ticket of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestKey(u128);

impl RequestKey {
    pub fn derive(holder: &Holder, request_id: &str) -> Self {
        Self(digest(&[holder.agent_id(), holder.holder_id(), request_id]))
    }

    /// The key of a request without a request id, which cannot be retried.
    pub const fn from_nonce(nonce: u128) -> Self {
        Self(nonce)
    }
}

/// The first 128 bits of a SHA-256 digest. Each part is prefixed with its length, so that parts cannot run together.
pub fn digest(parts: &[&str]) -> u128 {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    let mut first = [0; 16];
    for (to, from) in first.iter_mut().zip(hash.finalize()) {
        *to = from;
    }
    u128::from_be_bytes(first)
}

/// 32 lowercase hexadecimal digits.
impl fmt::Display for RequestKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a ticket has 32 lowercase hexadecimal digits")]
pub struct InvalidRequestKey;

impl FromStr for RequestKey {
    type Err = InvalidRequestKey;

    fn from_str(text: &str) -> Result<Self, InvalidRequestKey> {
        let is_valid = text.len() == 32 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if !is_valid {
            return Err(InvalidRequestKey);
        }
        u128::from_str_radix(text, 16).map(Self).map_err(|_| InvalidRequestKey)
    }
}

impl Serialize for RequestKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for RequestKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Ended requests of one lock. The oldest are evicted first, by age and by number.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Tombstones {
    by_request: BTreeMap<RequestKey, (EndReason, Moment)>,
    /// In order of insertion. An entry is stale if its expiry differs from the one in `by_request`.
    order: VecDeque<(Moment, RequestKey)>,
}

impl Tombstones {
    pub(super) fn get(&self, request: RequestKey, now: Moment) -> Option<&EndReason> {
        let (reason, expires_at) = self.by_request.get(&request)?;
        (*expires_at > now).then_some(reason)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub(super) fn insert(&mut self, request: RequestKey, reason: EndReason, expires_at: Moment, max: usize) {
        self.by_request.insert(request, (reason, expires_at));
        self.order.push_back((expires_at, request));
        while self.order.len() > max {
            self.evict_oldest();
        }
    }

    /// Leaves a stale entry in `order`, which is evicted in its turn.
    pub(super) fn remove(&mut self, request: RequestKey) {
        self.by_request.remove(&request);
    }

    pub(super) fn last_expiry(&self) -> Option<Moment> {
        self.order.back().map(|(expires_at, _)| *expires_at)
    }

    pub(super) fn evict_expired(&mut self, now: Moment, max: usize) {
        for _ in 0..max {
            match self.order.front() {
                Some((expires_at, _)) if *expires_at <= now => self.evict_oldest(),
                _ => return,
            }
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (RequestKey, &EndReason, Moment)> {
        self.order.iter().filter_map(|(ordered_expiry, request)| {
            let (reason, expires_at) = self.by_request.get(request)?;
            (expires_at == ordered_expiry).then_some((*request, reason, *expires_at))
        })
    }

    fn evict_oldest(&mut self) {
        if let Some((ordered_expiry, request)) = self.order.pop_front()
            && self.by_request.get(&request).is_some_and(|(_, expires_at)| *expires_at == ordered_expiry)
        {
            self.by_request.remove(&request);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_depends_on_every_part_and_round_trips() {
        let holder = Holder::new("a", Some("b")).expect("valid");
        let key = RequestKey::derive(&holder, "1");
        assert_ne!(key, RequestKey::derive(&holder, "2"));
        assert_ne!(key, RequestKey::derive(&Holder::new("a", Some("b1")).expect("valid"), ""));
        assert_eq!(key.to_string().parse(), Ok(key));
        for invalid in ["", "x", "+0000000000000000000000000000001", &"0".repeat(33), &"A".repeat(32)] {
            assert_eq!(invalid.parse::<RequestKey>(), Err(InvalidRequestKey), "{invalid}");
        }
    }

    #[test]
    fn tombstones_are_bounded_by_age_and_number() {
        let (mut tombstones, now) = (Tombstones::default(), Moment::from_micros(1_000_000));
        for n in 0..5 {
            tombstones.insert(RequestKey::from_nonce(n), EndReason::Released, now.plus_ms(10), 3);
        }
        assert_eq!(tombstones.get(RequestKey::from_nonce(1), now), None);
        assert_eq!(tombstones.get(RequestKey::from_nonce(2), now), Some(&EndReason::Released));
        assert_eq!(tombstones.get(RequestKey::from_nonce(2), now.plus_ms(10)), None);
        tombstones.evict_expired(now.plus_ms(10), 2);
        assert_eq!(tombstones.iter().count(), 1);
        tombstones.evict_expired(now.plus_ms(10), 2);
        assert!(tombstones.is_empty());
    }
}
