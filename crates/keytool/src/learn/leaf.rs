//! What the keys of one pattern have in common: type, lifetime, and the form of the value.

use std::collections::{BTreeMap, BTreeSet};

use ade_catalog::model::ValueType;
use serde_json::Value as Json;

use crate::scan::{KeyKind, KeyTtl, ReadValue};

/// More names of fields are a pattern of their own.
const MAX_FIELDS: usize = 40;
/// Longer texts are no identifiers.
const MAX_KNOWN_BYTES: usize = 64;

#[derive(Debug, Clone, Default)]
pub(super) struct Leaf {
    pub(super) keys: u64,
    types: BTreeMap<String, u64>,
    pub(super) never: u64,
    pub(super) expiring: u64,
    pub(super) min_ms: u64,
    pub(super) max_ms: u64,
    sum_ms: u128,
    /// Fields of hashes and streams, with how often they were integers, JSON, times, or anything.
    pub(super) fields: BTreeMap<String, [u64; 4]>,
    values: u64,
    json: u64,
    envelopes: u64,
    /// Hash tags by their first and last segment; empty: none.
    pub(super) tags: BTreeSet<Option<(usize, usize)>>,
    pub(super) separator: Option<char>,
}

impl Leaf {
    pub(super) fn add(&mut self, kind: &KeyKind, ttl: KeyTtl, separator: char, tag: Option<(usize, usize)>) {
        self.keys += 1;
        self.separator = Some(separator);
        self.tags.insert(tag);
        let name = match kind {
            KeyKind::Known(kind) => kind.as_str(),
            KeyKind::Other(name) => name.as_str(),
            KeyKind::Unknown => "unknown",
        };
        *self.types.entry(name.to_owned()).or_default() += 1;
        match ttl {
            KeyTtl::Never => self.never += 1,
            KeyTtl::Unknown => {}
            KeyTtl::Left(ms) => {
                self.min_ms = if self.expiring == 0 { ms } else { self.min_ms.min(ms) };
                self.max_ms = self.max_ms.max(ms);
                self.sum_ms += u128::from(ms);
                self.expiring += 1;
            }
        }
    }

    /// Takes a value as a sample. Short texts in it go to `known`: they may be identifiers elsewhere.
    pub(super) fn sample(&mut self, value: &ReadValue, known: &mut BTreeSet<String>) {
        match value {
            ReadValue::Text { bytes, is_truncated } => self.sample_text(bytes, *is_truncated, known),
            ReadValue::Members(members) => {
                members.iter().for_each(|member| self.sample_text(member, false, known));
            }
            ReadValue::Fields(fields) => {
                for (name, value) in fields {
                    let (name, value) = (String::from_utf8_lossy(name), String::from_utf8_lossy(value));
                    if self.fields.len() < MAX_FIELDS || self.fields.contains_key(&*name) {
                        let counts = self.fields.entry(name.into_owned()).or_default();
                        let kind = match () {
                            () if value.parse::<i64>().is_ok() => 0,
                            () if is_json(&value) => 1,
                            () if value.parse::<jiff::Timestamp>().is_ok() => 2,
                            () => 3,
                        };
                        if let Some(count) = counts.get_mut(kind) {
                            *count += 1;
                        }
                    }
                    remember(&value, known);
                }
            }
        }
    }

    fn sample_text(&mut self, bytes: &[u8], is_truncated: bool, known: &mut BTreeSet<String>) {
        let text = String::from_utf8_lossy(bytes);
        self.values += 1;
        let parsed = if is_json(&text) { serde_json::from_str::<Json>(&text).ok() } else { None };
        match parsed {
            Some(json) => {
                self.json += 1;
                let fields = ["createdAt", "expiresAt", "version", "payload", "meta"];
                self.envelopes += u64::from(fields.iter().all(|field| json.get(field).is_some()));
                remember_json(&json, known);
            }
            None if is_truncated => self.json += u64::from(text.starts_with(['{', '['])),
            None => remember(&text, known),
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        if other.expiring > 0 {
            self.min_ms = if self.expiring == 0 { other.min_ms } else { self.min_ms.min(other.min_ms) };
        }
        self.keys += other.keys;
        self.never += other.never;
        self.expiring += other.expiring;
        self.max_ms = self.max_ms.max(other.max_ms);
        self.sum_ms += other.sum_ms;
        self.values += other.values;
        self.json += other.json;
        self.envelopes += other.envelopes;
        self.tags.extend(&other.tags);
        self.separator = self.separator.or(other.separator);
        for (name, keys) in &other.types {
            *self.types.entry(name.clone()).or_default() += keys;
        }
        for (name, counts) in &other.fields {
            let sums = self.fields.entry(name.clone()).or_default();
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
    }

    /// The most frequent type.
    pub(super) fn type_name(&self) -> &str {
        self.types.iter().max_by_key(|(_, keys)| **keys).map_or("unknown", |(name, _)| name)
    }

    /// Keys of other types.
    pub(super) fn other_types(&self) -> u64 {
        self.keys - self.types.get(self.type_name()).copied().unwrap_or(0)
    }

    pub(super) fn value_type(&self) -> Option<ValueType> {
        const TYPES: [ValueType; 6] = [
            ValueType::String,
            ValueType::Hash,
            ValueType::List,
            ValueType::Set,
            ValueType::Zset,
            ValueType::Stream,
        ];
        TYPES.into_iter().find(|kind| kind.as_str() == self.type_name())
    }

    pub(super) fn mean_ms(&self) -> u64 {
        u64::try_from(self.sum_ms / u128::from(self.expiring.max(1))).unwrap_or(u64::MAX)
    }

    /// `envelope`, `json` or `plain`, if all samples are.
    pub(super) fn format(&self) -> &'static str {
        match self.values {
            0 => "plain",
            all if self.envelopes == all => "envelope",
            all if self.json == all => "json",
            _ => "plain",
        }
    }
}

fn is_json(text: &str) -> bool {
    text.starts_with(['{', '[']) && serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

fn remember(text: &str, known: &mut BTreeSet<String>) {
    const MAX_KNOWN: usize = 200_000;
    if text.starts_with(['{', '['])
        && let Ok(json) = serde_json::from_str::<Json>(text)
    {
        return remember_json(&json, known);
    }
    let is_short = !text.is_empty() && text.len() <= MAX_KNOWN_BYTES && known.len() < MAX_KNOWN;
    if is_short && !text.bytes().all(|byte| byte.is_ascii_digit()) {
        known.insert(text.to_owned());
    }
}

fn remember_json(json: &Json, known: &mut BTreeSet<String>) {
    match json {
        Json::String(text) if !text.starts_with(['{', '[']) => remember(text, known),
        Json::Array(items) => items.iter().for_each(|item| remember_json(item, known)),
        Json::Object(fields) => fields.values().for_each(|value| remember_json(value, known)),
        _ => {}
    }
}
