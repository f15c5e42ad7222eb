//! Decides what has to change of a key. Only reads.

use std::collections::BTreeMap;

use ade_catalog::find::MatchedLayout;
use ade_catalog::model::{EntryKind, FieldType, KeyShape, ValueType};
use ade_catalog::{Catalog, KeyIndex, Layout};
use redis::Value;
use serde_json::{Value as Json, json};

use crate::scan::{KeyKind, ScannedKey};
use crate::server::{Node, ServerError};
use crate::text::shown_key;

/// The entry whose states were numbers, and their field.
const STATUS_ENTRY: &str = "approval.request";
const STATUS_FIELD: &str = "status";
/// Larger hashes and collections are read in parts by other tools; a lock or an index is smaller.
const MAX_MEMBERS: i64 = 100_000;

/// What numbers of approval states mean.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatusMap(BTreeMap<i64, String>);

impl Default for StatusMap {
    fn default() -> Self {
        let states = ["PENDING", "APPROVED", "REJECTED", "DELEGATED"];
        Self((0..).zip(states).map(|(number, state)| (number, state.to_owned())).collect())
    }
}

impl StatusMap {
    /// Adds numbers, such as `4=CANCELLED,5=EXPIRED`, or replaces their meaning.
    pub fn extend(&mut self, text: &str) -> Result<(), String> {
        for pair in text.split(',') {
            let (number, state) = pair
                .split_once('=')
                .ok_or_else(|| format!("{pair:?} is not NUMBER=STATUS, as in 4=CANCELLED"))?;
            let number = number.trim().parse().map_err(|_| format!("{number:?} is not a whole number"))?;
            let state = state.trim();
            let is_word =
                !state.is_empty() && state.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_');
            if !is_word {
                return Err(format!("{state:?} is not a status: use capital letters"));
            }
            self.0.insert(number, state.to_owned());
        }
        Ok(())
    }
}

/// One change of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    Rename {
        entry: String,
        from: Vec<u8>,
        to: String,
    },
    /// A field of a hash; only if it still has the old text.
    Field {
        entry: String,
        name: &'static str,
        key: Vec<u8>,
        field: String,
        from: Vec<u8>,
        to: String,
    },
    /// A member of a set or sorted set that names a key.
    Member {
        entry: String,
        key: Vec<u8>,
        kind: ValueType,
        from: Vec<u8>,
        to: String,
    },
    Problem {
        key: Vec<u8>,
        reason: String,
    },
}

impl Step {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Rename { .. } => "rename",
            Self::Field { name, .. } => name,
            Self::Member { .. } => "rename member",
            Self::Problem { .. } => "problem",
        }
    }

    pub(super) fn entry(&self) -> &str {
        match self {
            Self::Rename { entry, .. } | Self::Field { entry, .. } | Self::Member { entry, .. } => entry,
            Self::Problem { .. } => "",
        }
    }

    pub(super) fn key(&self) -> &[u8] {
        match self {
            Self::Rename { from: key, .. }
            | Self::Field { key, .. }
            | Self::Member { key, .. }
            | Self::Problem { key, .. } => key,
        }
    }

    /// What changes. Values other than states and keys are not shown.
    pub(super) fn describe(&self) -> String {
        let key = shown_key(self.key());
        match self {
            Self::Rename { to, .. } => format!("{key} → {to}"),
            Self::Field { field, from, to, name: "status", .. } => {
                format!("{key} {field}: {} → {to}", shown_key(from))
            }
            Self::Field { field, to, .. } => format!("{key} {field}: text → JSON with {} bytes", to.len()),
            Self::Member { from, to, .. } => format!("{key}: {} → {to}", shown_key(from)),
            Self::Problem { reason, .. } => format!("{key}: {reason}"),
        }
    }
}

/// Plans the steps of each key.
pub(super) struct Planner<'a> {
    pub(super) index: KeyIndex<'a>,
    pub(super) catalog: &'a Catalog,
    pub(super) layout: Layout,
    pub(super) statuses: &'a StatusMap,
}

impl Planner<'_> {
    /// The steps of a key, in their order: values are converted before the key gets its new name, which completes its migration.
    pub(super) async fn steps(&self, node: &Node, key: &ScannedKey) -> Result<Vec<Step>, ServerError> {
        let Some((_, found)) = std::str::from_utf8(&key.name).ok().and_then(|text| self.index.find(text))
        else {
            return Ok(Vec::new());
        };
        let EntryKind::Key(shape) = &found.entry.kind else { return Ok(Vec::new()) };
        let entry = &found.entry.name;
        let mut steps = Vec::new();
        let problem = |reason: String| Step::Problem { key: key.name.clone(), reason };
        let is_former = found.layout == MatchedLayout::Former;
        let has_type = key.kind == KeyKind::Known(shape.value_type);
        if is_former && !has_type {
            return Ok(vec![problem(format!(
                "{entry} is a {}, this key is not: decide by hand",
                shape.value_type
            ))]);
        }
        if has_type && shape.value_type == ValueType::Hash {
            self.convert_fields(node, key, entry, shape, &mut steps).await?;
        }
        if has_type && self.has_former_members(shape) {
            self.convert_members(node, key, entry, shape.value_type, &mut steps).await?;
        }
        if is_former {
            match self.new_name(&key.name) {
                Some(to) => steps.push(Step::Rename { entry: entry.clone(), from: key.name.clone(), to }),
                None => {
                    steps.push(problem("its identifiers have no present form: rename it by hand".to_owned()));
                }
            }
        }
        Ok(steps)
    }

    /// The present name of a key with a former one.
    fn new_name(&self, former: &[u8]) -> Option<String> {
        let (_, found) = self.index.find(std::str::from_utf8(former).ok()?)?;
        if found.layout != MatchedLayout::Former {
            return None;
        }
        let written: Option<Vec<String>> =
            found.ids.iter().map(|id| id.kind.canonicalize(&id.written).ok()).collect();
        let written = written?;
        let mut written = written.iter().map(String::as_str);
        Some(found.entry.pattern(self.layout).fill(|_| written.next().unwrap_or_default()))
    }

    /// Whether members of this key are names of keys, which may be former ones.
    fn has_former_members(&self, shape: &KeyShape) -> bool {
        let is_list_of_keys = shape.members.as_ref().is_some_and(|members| members.starts_with("lock keys"));
        is_list_of_keys && self.catalog.entries.iter().any(|entry| !entry.formerly.is_empty())
    }

    async fn convert_fields(
        &self,
        node: &Node,
        key: &ScannedKey,
        entry: &str,
        shape: &KeyShape,
        steps: &mut Vec<Step>,
    ) -> Result<(), ServerError> {
        let is_json = |name: &str| {
            let mut fields = shape.fields.iter();
            fields.any(|field| field.name == name && field.field_type == FieldType::Json)
        };
        let names: Vec<&str> = shape
            .fields
            .iter()
            .map(|field| field.name.as_str())
            .filter(|name| is_json(name) || (entry == STATUS_ENTRY && *name == STATUS_FIELD))
            .collect();
        if names.is_empty() {
            return Ok(());
        }
        let mut command = redis::cmd("HMGET");
        command.arg(&key.name).arg(&names).arg("acquired_at");
        let values: Vec<Option<Vec<u8>>> = node.clone().query("HMGET", &command).await?;
        let acquired_at = values.last().cloned().flatten().and_then(|at| String::from_utf8(at).ok());
        for (field, value) in names.iter().zip(values) {
            let Some(from) = value else { continue };
            let text = String::from_utf8_lossy(&from).into_owned();
            let (entry, key, field) = (entry.to_owned(), key.name.clone(), (*field).to_owned());
            if field == STATUS_FIELD && entry == STATUS_ENTRY {
                let Ok(number) = text.trim().parse::<i64>() else { continue };
                steps.push(match self.statuses.0.get(&number) {
                    Some(to) => Step::Field { entry, name: "status", key, field, from, to: to.clone() },
                    None => Step::Problem {
                        key,
                        reason: format!("the status {number} has no name: add --status-map {number}=NAME"),
                    },
                });
            } else if serde_json::from_str::<serde::de::IgnoredAny>(&text).is_err() {
                let to = to_json(&field, &text, acquired_at.as_deref()).to_string();
                steps.push(Step::Field { entry, name: "JSON field", key, field, from, to });
            }
        }
        Ok(())
    }

    async fn convert_members(
        &self,
        node: &Node,
        key: &ScannedKey,
        entry: &str,
        kind: ValueType,
        steps: &mut Vec<Step>,
    ) -> Result<(), ServerError> {
        let scan = match kind {
            ValueType::Set => "SSCAN",
            ValueType::Zset => "ZSCAN",
            _ => return Ok(()),
        };
        let (mut cursor, mut seen) = (0_u64, 0);
        loop {
            let mut command = redis::cmd(scan);
            command.arg(&key.name).arg(cursor).arg("COUNT").arg(500);
            let (next, members): (u64, Vec<Vec<u8>>) = node.clone().query(scan, &command).await?;
            let width = if kind == ValueType::Zset { 2 } else { 1 };
            for member in members.iter().step_by(width) {
                seen += 1;
                if let Some(to) = self.new_name(member) {
                    let (entry, key, from) = (entry.to_owned(), key.name.clone(), member.clone());
                    steps.push(Step::Member { entry, key, kind, from, to });
                }
            }
            cursor = next;
            if cursor == 0 || seen > MAX_MEMBERS {
                return Ok(());
            }
        }
    }
}

/// A text of a former field as JSON: a list becomes an array.
fn to_json(field: &str, text: &str, acquired_at: Option<&str>) -> Json {
    let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
    match field {
        "holders" => items.map(|agent| json!({ "agent_id": agent, "acquired_at": acquired_at })).collect(),
        "parameters" | "error_details" => Json::String(text.to_owned()),
        _ => items.map(|item| Json::String(item.to_owned())).collect(),
    }
}

/// Whether a reply is a number above zero.
pub(super) fn is_positive(reply: &Value) -> bool {
    matches!(reply, Value::Int(number) if *number > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_maps_extend_the_known_numbers() {
        let mut statuses = StatusMap::default();
        statuses.extend("4=CANCELLED, 3=DONE").expect("valid");
        assert_eq!(
            statuses.0.values().map(String::as_str).collect::<Vec<_>>(),
            ["PENDING", "APPROVED", "REJECTED", "DONE", "CANCELLED"]
        );
        for invalid in ["", "4", "x=Y", "4=", "4=lower"] {
            assert!(statuses.extend(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn lists_become_arrays() {
        assert_eq!(to_json("tags", "a, b,", None).to_string(), r#"["a","b"]"#);
        assert_eq!(
            to_json("holders", "ann,ben", Some("now")),
            json!([{ "agent_id": "ann", "acquired_at": "now" }, { "agent_id": "ben", "acquired_at": "now" }])
        );
        assert_eq!(to_json("parameters", "a,b", None).to_string(), r#""a,b""#);
    }
}
