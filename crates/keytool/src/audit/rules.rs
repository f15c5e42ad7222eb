//! The rules of an audit that concern a single key. Lifetimes are those that are left, so a TTL can be too long, never too short.

use std::time::Duration;

use ade_catalog::KeyMatch;
use ade_catalog::find::MatchedLayout;
use ade_catalog::key::MAX_TTL;
use ade_catalog::model::KeyShape;
use ade_catalog::ttl::TtlRule;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::scan::{KeyKind, KeyTtl};
use crate::text;

/// What an audit can find.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// No catalog has the key.
    Orphan,
    /// The value has another type.
    WrongType,
    /// The key never expires although it should.
    TtlMissing,
    /// The key expires later than its rule allows, or at all.
    TtlOutOfRule,
    /// The key has as many bytes as the limit of its catalog, or more.
    KeyTooLong,
    /// The value is not a valid envelope.
    BadEnvelope,
    /// The key or its value seems to contain a secret.
    SuspectedSecret,
    /// The number of keys differs from the baseline.
    CardinalityDrift,
}

impl Rule {
    /// Its name, as in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Orphan => "orphan",
            Self::WrongType => "wrong-type",
            Self::TtlMissing => "ttl-missing",
            Self::TtlOutOfRule => "ttl-out-of-rule",
            Self::KeyTooLong => "key-too-long",
            Self::BadEnvelope => "bad-envelope",
            Self::SuspectedSecret => "suspected-secret",
            Self::CardinalityDrift => "cardinality-drift",
        }
    }
}

/// Why a key that resembles an entry is not one of its keys.
pub(super) fn misfit(found: &KeyMatch<'_>) -> Option<String> {
    let name = &found.entry.name;
    if found.layout == MatchedLayout::Former {
        return Some(format!("it has a former pattern of {name}: ade keys migrate renames it"));
    }
    let invalid = found.ids.iter().find(|id| id.identifier.is_none())?;
    Some(format!("it resembles {name}, but no builder writes its {} like this", invalid.kind.name))
}

pub(super) fn wrong_type(kind: &KeyKind, shape: &KeyShape) -> Option<String> {
    let actual = match kind {
        KeyKind::Known(actual) if *actual != shape.value_type => actual.as_str(),
        KeyKind::Other(actual) => actual.as_str(),
        KeyKind::Known(_) | KeyKind::Unknown => return None,
    };
    Some(format!("is a {actual}, the catalog says {}", shape.value_type))
}

pub(super) fn wrong_ttl(ttl: KeyTtl, rule: &TtlRule) -> Option<(Rule, String)> {
    let left = match ttl {
        KeyTtl::Unknown => return None,
        KeyTtl::Never if rule.expires() => {
            return Some((Rule::TtlMissing, format!("never expires, the catalog says {rule}")));
        }
        KeyTtl::Never => return None,
        KeyTtl::Left(ms) => Duration::from_millis(ms),
    };
    let shown = text::duration(u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
    let max = match rule.resolved() {
        TtlRule::None | TtlRule::Like { .. } => {
            return Some((Rule::TtlOutOfRule, format!("expires in {shown}, the catalog says it never does")));
        }
        TtlRule::Exact(ttl) => Some(ttl),
        TtlRule::Range { max, .. } => max.as_ref(),
        TtlRule::Default { at_most, .. } => at_most.as_ref(),
        TtlRule::Renewable { ttl, at_most } => at_most.as_ref().or(Some(ttl)),
        TtlRule::Given { .. } => None,
    };
    let is_too_long = left > max.map_or(MAX_TTL, |max| max.duration);
    is_too_long.then(|| (Rule::TtlOutOfRule, format!("expires in {shown}, the catalog says {rule}")))
}

pub(super) fn too_long(name: &[u8], limit: usize) -> Option<String> {
    (name.len() >= limit).then(|| format!("has {} bytes, keys must stay below {limit}", name.len()))
}

/// Why a value is not an envelope. The reason never quotes the value.
pub(super) fn bad_envelope(value: &[u8]) -> Option<String> {
    const FIELDS: [&str; 5] = ["createdAt", "expiresAt", "version", "payload", "meta"];
    let Ok(Json::Object(fields)) = serde_json::from_slice::<Json>(value) else {
        return Some("is not a JSON object".to_owned());
    };
    if let Some(missing) = FIELDS.into_iter().find(|name| !fields.contains_key(*name)) {
        return Some(format!("lacks {missing}"));
    }
    if fields.len() > FIELDS.len() {
        return Some(
            "has fields besides those of an envelope: business data belongs into payload".to_owned(),
        );
    }
    let time = |name: &str| fields.get(name)?.as_str()?.parse::<jiff::Timestamp>().ok();
    let times = ["createdAt", "expiresAt"].map(|name| time(name).ok_or(name));
    let [created, expires] = match times {
        [Err(name), _] | [_, Err(name)] => return Some(format!("{name} is not an RFC 3339 time")),
        [Ok(created), Ok(expires)] => [created, expires],
    };
    if fields.get("version").and_then(Json::as_u64).is_none_or(|version| u32::try_from(version).is_err()) {
        return Some("version is not a whole number".to_owned());
    }
    (expires < created).then(|| "expires before it was created".to_owned())
}

#[cfg(test)]
mod tests {
    use ade_catalog::ttl::TtlDuration;

    use super::*;

    fn ttl(text: &str) -> TtlDuration {
        TtlDuration::try_from(text.to_owned()).expect("a duration")
    }

    #[test]
    fn lifetimes_are_bounded_by_their_rule() {
        let exact = TtlRule::Exact(ttl("90s"));
        assert_eq!(wrong_ttl(KeyTtl::Never, &exact).expect("wrong").0, Rule::TtlMissing);
        assert_eq!(wrong_ttl(KeyTtl::Left(90_001), &exact).expect("wrong").0, Rule::TtlOutOfRule);
        assert_eq!(wrong_ttl(KeyTtl::Left(90_000), &exact), None);
        assert_eq!(wrong_ttl(KeyTtl::Unknown, &exact), None);
        assert_eq!(wrong_ttl(KeyTtl::Left(1), &TtlRule::None).expect("wrong").0, Rule::TtlOutOfRule);
        assert_eq!(wrong_ttl(KeyTtl::Never, &TtlRule::None), None);
        let at_most = TtlRule::Default { ttl: ttl("1s"), at_most: Some(ttl("10s")) };
        assert_eq!(wrong_ttl(KeyTtl::Left(10_000), &at_most), None);
        assert!(wrong_ttl(KeyTtl::Left(10_001), &at_most).is_some());
        let renewable = TtlRule::Renewable { ttl: ttl("30s"), at_most: None };
        assert!(wrong_ttl(KeyTtl::Left(30_001), &renewable).is_some());
        let given = TtlRule::Given { by: "it".to_owned(), plus: None };
        assert_eq!(wrong_ttl(KeyTtl::Left(u64::from(u32::MAX)), &given), None);
        assert_eq!(wrong_ttl(KeyTtl::Never, &given).expect("wrong").0, Rule::TtlMissing);
    }

    #[test]
    fn envelopes_are_complete_and_never_quoted() {
        let valid = r#"{"createdAt":"2026-01-01T00:00:00Z","expiresAt":"2026-01-02T00:00:00Z","version":1,"payload":{},"meta":{}}"#;
        assert_eq!(bad_envelope(valid.as_bytes()), None);
        for (change, by, reason) in [
            ("\"meta\":{}", "\"more\":{}", "lacks meta"),
            ("{}}", "{},\"more\":1}", "besides"),
            ("\"version\":1", "\"version\":\"hunter2\"", "version"),
            ("2026-01-02T00:00:00Z", "hunter2", "expiresAt"),
            ("2026-01-02", "2025-01-02", "before"),
            ("{\"createdAt", "hunter2", "JSON"),
        ] {
            let found = bad_envelope(valid.replace(change, by).as_bytes()).expect(by);
            assert!(found.contains(reason) && !found.contains("hunter2"), "{found}");
        }
    }
}
