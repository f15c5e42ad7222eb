//! Finds differences between what Redis has and what the database says.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use ade_catalog::{Catalog, Identifier};
use ade_domain::people::UserId;
use ade_domain::task::TaskState;
use ade_keyspace::RedisKey;
use redis::{Cmd, Value};
use serde::Serialize;

use super::membership::Membership;
use super::{ObjectId, ProjectedKey, ProjectedValue, Projection, RedisProjections, Result};
use crate::redis::query::{NO_ARGS, command};

/// The TTL of a key counts as exceeded only beyond this.
const TTL_TOLERANCE: Duration = Duration::from_secs(60);
/// Fields of the guard that are about the projection itself.
const GUARD_FIELDS: [&str; 3] = ["revision", "indexes", "pending"];
/// Members of an index that are read together.
const MAX_MEMBERS: usize = 1_000;

/// A key that does not contain what the database says.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Difference {
    pub key: String,
    /// What the key is about.
    pub object: String,
    /// What is wrong with it.
    pub detail: String,
}

/// What a scan of Redis has found.
#[derive(Debug, Clone, Default)]
pub struct StoredObject {
    /// Objects that have at least one key.
    pub objects: BTreeSet<ObjectId>,
    /// Indexes that have at least one member.
    pub indexes: BTreeSet<Membership>,
}

impl RedisProjections {
    /// Compares objects with their keys and indexes.
    pub async fn compare(&self, projections: &[Projection]) -> Result<Vec<Difference>> {
        let keys: Vec<(&Projection, usize, &ProjectedKey)> = projections
            .iter()
            .flat_map(|projection| {
                projection.keys.iter().enumerate().map(move |(at, key)| (projection, at, key))
            })
            .collect();
        let reads = keys
            .iter()
            .flat_map(|(_, _, key)| [command("TYPE", &key.key, NO_ARGS), command("PTTL", &key.key, NO_ARGS)]);
        let mut about: std::vec::IntoIter<Value> = self.query_all(reads.collect()).await?.into_iter();
        let mut differences = Vec::new();
        let mut readable = Vec::new();
        for (projection, at, key) in keys {
            let (Some(kind), Some(ttl)) = (about.next(), about.next()) else { break };
            let (kind, ttl): (String, i64) = (redis::from_redis_value(kind)?, redis::from_redis_value(ttl)?);
            match about_key(key, &kind, ttl) {
                Some(detail) => differences.push(difference(projection, &key.key, detail)),
                None if key.value != ProjectedValue::Absent => readable.push((projection, at == 0, key)),
                None => {}
            }
        }
        let reads = readable.iter().map(|(_, _, key)| read(key)).collect();
        let contents: Vec<Value> = self.query_all(reads).await?;
        for ((projection, is_guard, key), content) in readable.into_iter().zip(contents) {
            let is_guard = is_guard && projection.id != ObjectId::Settings;
            if let Some(detail) = about_content(projection, key, is_guard, content)? {
                differences.push(difference(projection, &key.key, detail));
            }
        }
        differences.extend(self.compare_memberships(projections).await?);
        Ok(differences)
    }

    async fn compare_memberships(&self, projections: &[Projection]) -> Result<Vec<Difference>> {
        let (mut reads, mut expected) = (Vec::new(), Vec::new());
        for projection in projections {
            for membership in &projection.memberships {
                let Some(index) = membership.index(projection.created, self.layout())? else { continue };
                let name = if index.score.is_some() { "ZSCORE" } else { "SISMEMBER" };
                reads.push(command(name, &index.key, projection.id.member()));
                expected.push((projection, index));
            }
        }
        let mut differences = Vec::new();
        for ((projection, index), stored) in expected.into_iter().zip(self.query_all::<Value>(reads).await?) {
            let detail = match index.score {
                Some(score) => match redis::from_redis_value::<Option<f64>>(stored)? {
                    None => Some("is not a member of its index".to_owned()),
                    #[expect(clippy::cast_precision_loss, reason = "scores are far below 2^52")]
                    Some(found) if found != score as f64 => {
                        Some(format!("has the score {found} in its index instead of {score}"))
                    }
                    Some(_) => None,
                },
                None => {
                    let is_member = redis::from_redis_value::<bool>(stored)?;
                    (!is_member).then(|| "is not a member of its index".to_owned())
                }
            };
            differences.extend(detail.map(|detail| difference(projection, &index.key, detail)));
        }
        Ok(differences)
    }

    /// Everything in Redis that looks like a projection.
    pub async fn stored_objects(&self) -> Result<StoredObject> {
        let catalogs = ade_keyspace::catalogs();
        let Some(catalog) = catalogs.iter().find(|catalog| catalog.name == "ade") else {
            return Ok(StoredObject::default());
        };
        let mut found = StoredObject::default();
        self.client.scan_keys("ade:*", |keys| keys.iter().for_each(|key| found.add(catalog, key))).await?;
        Ok(found)
    }

    /// The members of an index.
    pub async fn members(&self, index: &Membership) -> Result<Vec<String>> {
        let Some(index) = index.index(0, self.layout())? else { return Ok(Vec::new()) };
        let (name, mut cursor, mut members) =
            (if index.score.is_some() { "ZSCAN" } else { "SSCAN" }, "0".to_owned(), Vec::new());
        loop {
            let scan = command(name, &index.key, (&cursor, "COUNT", MAX_MEMBERS));
            let replies: Vec<(String, Vec<String>)> = self.query_all(vec![scan]).await?;
            let Some((next, items)) = replies.into_iter().next() else { break };
            // A sorted set lists each member with its score.
            let step = if index.score.is_some() { 2 } else { 1 };
            members.extend(items.into_iter().step_by(step));
            if next == "0" {
                break;
            }
            cursor = next;
        }
        Ok(members)
    }

    /// The difference of a member that does not belong to an index.
    pub fn unexpected_member(&self, index: &Membership, member: &str) -> Result<Option<Difference>> {
        let index = index.index(0, self.layout())?;
        Ok(index.map(|index| Difference {
            key: index.key.as_str().to_owned(),
            object: member.to_owned(),
            detail: "is a member of an index that it does not belong to".to_owned(),
        }))
    }

    /// The difference of an object that the database does not have.
    pub fn unexpected_object(&self, id: &ObjectId) -> Result<Difference> {
        let keys = id.keys(self.layout())?;
        Ok(Difference {
            key: keys.first().map(|key| key.as_str().to_owned()).unwrap_or_default(),
            object: id.to_string(),
            detail: "has keys, but the database does not have it".to_owned(),
        })
    }
}

impl StoredObject {
    fn add(&mut self, catalog: &Catalog, key: &str) {
        let Some(found) = catalog.find(key) else { return };
        let exact = |at: usize| match found.ids.get(at).map(|id| &id.identifier) {
            Some(Some(Identifier::Exact(text))) => Some(text.clone()),
            // A hashed identifier cannot be read back; its object is compared from the database.
            _ => None,
        };
        let user = |at| exact(at).map(UserId::new);
        let entry = found.entry.name.as_str();
        let object = match entry {
            "task.state"
            | "task.data"
            | "task.config"
            | "task.metadata"
            | "task.execution"
            | "task.preview"
            | "task.risk"
            | "approval.by_task"
            | "approval.task_stats" => exact(0).map(ObjectId::Task),
            "approval.request" => exact(0).map(ObjectId::Approval),
            "session.session" => exact(0).map(ObjectId::Session),
            "approval.user_stats" => user(0).map(ObjectId::Reviewer),
            "approval.delegation" => user(0).zip(exact(1)).map(|(owner, id)| ObjectId::Delegation(owner, id)),
            _ => None,
        };
        let state = || exact(0).and_then(|name| serde_json::from_value::<TaskState>(name.into()).ok());
        let index = match entry {
            "task.by_state" => state().map(Membership::State),
            "task.by_author" => user(0).map(Membership::Author),
            "task.by_resource" => exact(0).zip(exact(1)).map(|(kind, id)| Membership::Resource(kind, id)),
            "task.by_tag" => exact(0).map(Membership::Tag),
            "approval.user_queue" => user(0).map(|user| Membership::ReviewerQueue(user, 0)),
            "approval.global_queue" => Some(Membership::DueQueue(0)),
            "session.by_user" => user(0).map(Membership::SessionOf),
            "approval.delegations_by_user" => user(0).map(Membership::DelegationOf),
            _ => None,
        };
        self.objects.extend(object);
        self.indexes.extend(index);
    }
}

fn difference(projection: &Projection, key: &RedisKey, detail: String) -> Difference {
    Difference { key: key.as_str().to_owned(), object: projection.id.to_string(), detail }
}

/// What is wrong with the type or the TTL of a key.
fn about_key(key: &ProjectedKey, kind: &str, ttl_ms: i64) -> Option<String> {
    let expected = match &key.value {
        ProjectedValue::Absent => "none",
        ProjectedValue::Text(_) => "string",
        ProjectedValue::Hash(_) => "hash",
        ProjectedValue::Set(_) => "set",
    };
    match (kind, expected) {
        ("none", "none") => return None,
        ("none", _) => return Some("is missing".to_owned()),
        (_, "none") => return Some("should not exist".to_owned()),
        (kind, expected) if kind != expected => return Some(format!("is a {kind} instead of a {expected}")),
        _ => {}
    }
    match key.ttl {
        None if ttl_ms >= 0 => Some("expires, and should not".to_owned()),
        Some(_) if ttl_ms < 0 => Some("has no TTL".to_owned()),
        Some(ttl) if u128::try_from(ttl_ms).unwrap_or_default() > (ttl + TTL_TOLERANCE).as_millis() => {
            Some(format!("has a TTL of {} s, more than {} s", ttl_ms / 1_000, ttl.as_secs()))
        }
        _ => None,
    }
}

fn read(key: &ProjectedKey) -> (RedisKey, Cmd) {
    match &key.value {
        ProjectedValue::Hash(_) => command("HGETALL", &key.key, NO_ARGS),
        ProjectedValue::Set(_) => command("SMEMBERS", &key.key, NO_ARGS),
        ProjectedValue::Text(_) | ProjectedValue::Absent => command("GET", &key.key, NO_ARGS),
    }
}

/// What is wrong with the content of a key.
fn about_content(
    projection: &Projection,
    key: &ProjectedKey,
    is_guard: bool,
    content: Value,
) -> Result<Option<String>> {
    Ok(match &key.value {
        ProjectedValue::Absent => None,
        ProjectedValue::Text(expected) => {
            let stored: Option<String> = redis::from_redis_value(content)?;
            (stored.as_ref() != Some(expected)).then(|| "has another value".to_owned())
        }
        ProjectedValue::Set(expected) => {
            let stored: BTreeSet<String> = redis::from_redis_value(content)?;
            let expected: BTreeSet<String> = expected.iter().cloned().collect();
            (stored != expected).then(|| "has other members".to_owned())
        }
        ProjectedValue::Hash(expected) => {
            let mut stored: HashMap<String, String> = redis::from_redis_value(content)?;
            let own = is_guard.then(|| GUARD_FIELDS.map(|field| stored.remove(field)));
            let revision = projection.revision.to_string();
            if let Some([found, _, pending]) = own {
                // Statistics have no revision of their own.
                let has_revision = !matches!(projection.id, ObjectId::Reviewer(_));
                if has_revision && found.as_deref() != Some(revision.as_str()) {
                    let found = found.unwrap_or_else(|| "none".to_owned());
                    return Ok(Some(format!("has revision {found} instead of {revision}")));
                }
                if pending.is_some() {
                    return Ok(Some("has indexes that are not up to date".to_owned()));
                }
            }
            for (field, value) in expected {
                match stored.remove(*field) {
                    Some(found) if found == *value => {}
                    Some(_) => return Ok(Some(format!("has another value in the field {field}"))),
                    None => return Ok(Some(format!("lacks the field {field}"))),
                }
            }
            let mut others: Vec<String> = stored.into_keys().collect();
            others.sort();
            others.first().map(|field| format!("has the unknown field {field:?}"))
        }
    })
}
