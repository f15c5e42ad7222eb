//! Repeated requests: how a request is known, and which ones are over and must not come back.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

use super::{Holder, command::End};
use crate::Moment;

/// What a request is known by: 128 bits made of its holder and its id. As text it is the request's ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestKey(u128);

impl RequestKey {
    /// The key of a holder's request with an id of the caller's own.
    #[must_use]
    pub fn of(holder: &Holder, request_id: &str) -> Self {
        Self(digest(&[holder.agent_id(), holder.holder_id(), request_id]))
    }

    /// The key of a request that cannot be repeated, because it has no id: any number that is used once.
    #[must_use]
    pub const fn once(number: u128) -> Self {
        Self(number)
    }
}

/// A digest of texts, told apart by their lengths.
#[must_use]
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

/// 32 hexadecimal digits.
impl fmt::Display for RequestKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A text that is not a request's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a ticket is 32 hexadecimal digits")]
pub struct NoKey;

impl FromStr for RequestKey {
    type Err = NoKey;

    fn from_str(text: &str) -> Result<Self, NoKey> {
        let digits = text.len() == 32 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if digits { u128::from_str_radix(text, 16).map(Self).map_err(|_| NoKey) } else { Err(NoKey) }
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

/// Requests of one lock that are over. The oldest are forgotten first, by time and by number.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Tombstones {
    ends: BTreeMap<RequestKey, (End, Moment)>,
    order: VecDeque<(Moment, RequestKey)>,
}

impl Tombstones {
    pub(super) fn get(&self, request: RequestKey, now: Moment) -> Option<&End> {
        self.ends.get(&request).filter(|(_, until)| *until > now).map(|(end, _)| end)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    pub(super) fn put(&mut self, request: RequestKey, end: End, until: Moment, most: usize) {
        self.ends.insert(request, (end, until));
        self.order.push_back((until, request));
        while self.order.len() > most {
            self.forget_first();
        }
    }

    /// Forgets one of them; its place in the order goes with its time.
    pub(super) fn remove(&mut self, request: RequestKey) {
        self.ends.remove(&request);
    }

    /// Until when the last of them is remembered.
    pub(super) fn last_until(&self) -> Option<Moment> {
        self.order.back().map(|(until, _)| *until)
    }

    /// Forgets those whose time is over, at most `most` of them.
    pub(super) fn expire(&mut self, now: Moment, most: usize) {
        for _ in 0..most {
            match self.order.front() {
                Some((until, _)) if *until <= now => self.forget_first(),
                _ => return,
            }
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (RequestKey, &End, Moment)> {
        let found = |(at, request): &(Moment, RequestKey)| {
            let (end, until) = self.ends.get(request).filter(|(_, until)| until == at)?;
            Some((*request, end, *until))
        };
        self.order.iter().filter_map(found)
    }

    fn forget_first(&mut self) {
        if let Some((until, request)) = self.order.pop_front()
            && self.ends.get(&request).is_some_and(|(_, of_end)| *of_end == until)
        {
            self.ends.remove(&request);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_depends_on_every_part_and_reads_back() {
        let holder = Holder::new("a", Some("b")).expect("valid");
        let key = RequestKey::of(&holder, "1");
        assert_ne!(key, RequestKey::of(&holder, "2"));
        assert_ne!(key, RequestKey::of(&Holder::new("a", Some("b1")).expect("valid"), ""));
        assert_eq!(key.to_string().parse(), Ok(key));
        for wrong in ["", "x", "+0000000000000000000000000000001", &"0".repeat(33), &"A".repeat(32)] {
            assert_eq!(wrong.parse::<RequestKey>(), Err(NoKey), "{wrong}");
        }
    }

    #[test]
    fn tombstones_end_by_time_and_by_number() {
        let (mut stones, now) = (Tombstones::default(), Moment::from_micros(1_000_000));
        for n in 0..5 {
            stones.put(RequestKey::once(n), End::Released, now.plus_ms(10), 3);
        }
        assert_eq!(stones.get(RequestKey::once(1), now), None);
        assert_eq!(stones.get(RequestKey::once(2), now), Some(&End::Released));
        assert_eq!(stones.get(RequestKey::once(2), now.plus_ms(10)), None);
        stones.expire(now.plus_ms(10), 2);
        assert_eq!(stones.iter().count(), 1);
        stones.expire(now.plus_ms(10), 2);
        assert!(stones.is_empty());
    }
}
