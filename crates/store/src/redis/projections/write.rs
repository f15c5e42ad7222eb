//! Writes projections in batches.
//!
//! 1. The keys of each object are replaced in one step, unless Redis has the same or a later revision. The step notes in the guard that
//!    the indexes are pending.
//! 2. The indexes, which are in other slots, are brought up to date.
//! 3. The note is removed, unless somebody wrote a later revision meanwhile: then the object is written again from its row.
//!
//! After a crash in between, the next writer finds the note. Whatever happens, the indexes are those of the last revision in the end.

use std::collections::BTreeSet;

use ade_domain::people::UserId;
use ade_keyspace::RedisKey;
use futures_util::future::try_join_all;
use redis::{Cmd, FromRedisValue, Value};

use super::membership::{Index, Membership};
use super::{ObjectId, ProjectedValue, Projection, RedisProjections, Result};
use crate::redis::encoding::to_json;
use crate::redis::query::{NO_ARGS, command};

/// Calls that are under way at the same time.
const MAX_CONCURRENT: usize = 128;
/// Commands that are sent together.
const MAX_COMMANDS: usize = 2_000;

/// How to treat keys that are in Redis already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overwrite {
    /// Only an earlier revision is replaced.
    Earlier,
    /// Whatever is there is replaced, even if it is later: the caller writes what changed meanwhile again, with [`Self::Earlier`].
    Everything,
}

/// An object whose indexes are pending.
struct Pending<'a> {
    projection: &'a Projection,
    /// The earlier indexes, as stored.
    before: String,
}

impl RedisProjections {
    /// Writes objects. Returns those of which Redis has a later revision than given here: read their rows again and repeat.
    pub async fn write(&self, batch: &[Projection], overwrite: Overwrite) -> Result<Vec<ObjectId>> {
        let (guarded, others): (Vec<_>, Vec<_>) =
            batch.iter().partition(|projection| projection.id != ObjectId::Settings);
        for settings in others {
            self.write_settings(settings).await?;
        }
        let (mut later, mut pending) = (Vec::new(), Vec::new());
        for projections in guarded.chunks(MAX_CONCURRENT) {
            let calls = projections.iter().map(|projection| self.replace(projection, overwrite));
            for (projection, (stored, before)) in projections.iter().zip(try_join_all(calls).await?) {
                if stored > projection.revision {
                    later.push(projection.id.clone());
                } else if let Some(before) = before {
                    pending.push(Pending { projection, before });
                }
            }
        }
        self.update_indexes(&pending).await?;
        for pending in pending.chunks(MAX_CONCURRENT) {
            let stored = try_join_all(pending.iter().map(|pending| self.confirm(pending))).await?;
            let overtaken = pending.iter().zip(stored);
            let overtaken =
                overtaken.filter(|(pending, stored)| *stored != Some(pending.projection.revision));
            later.extend(overtaken.map(|(pending, _)| pending.projection.id.clone()));
        }
        Ok(later)
    }

    /// Notes that the indexes of an object are up to date. Returns the stored revision.
    async fn confirm(&self, Pending { projection, before }: &Pending<'_>) -> Result<Option<u64>> {
        let Some(guard) = projection.keys.first() else { return Ok(None) };
        let revision = projection.revision.to_string();
        let reply = self.client.call(&self.scripts.confirm, &[&guard.key], &[&revision, before]).await?;
        Ok(redis::from_redis_value(reply)?)
    }

    /// Replaces the keys of an object. Returns the revision that is stored then, and the earlier indexes if some are pending.
    async fn replace(&self, projection: &Projection, overwrite: Overwrite) -> Result<(u64, Option<String>)> {
        let always = if overwrite == Overwrite::Everything { "always" } else { "" };
        let indexes = to_json("indexes", &projection.memberships)?;
        let mut args = vec![projection.revision.to_string(), always.to_owned(), indexes];
        for key in &projection.keys {
            let (kind, values) = match &key.value {
                ProjectedValue::Absent => ("absent", Vec::new()),
                ProjectedValue::Text(text) => ("string", vec![text.clone()]),
                ProjectedValue::Hash(fields) => {
                    let pairs = fields.iter().flat_map(|(name, value)| [(*name).to_owned(), value.clone()]);
                    ("hash", pairs.collect())
                }
                ProjectedValue::Set(members) => ("set", members.clone()),
            };
            let ttl = key.ttl.filter(|_| kind != "absent").map(|ttl| ttl.as_millis().to_string());
            args.extend([kind.to_owned(), ttl.unwrap_or_default(), values.len().to_string()]);
            args.extend(values);
        }
        let keys: Vec<&RedisKey> = projection.keys.iter().map(|key| &key.key).collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let reply = self.client.call(&self.scripts.project, &keys, &args).await?;
        let (stored, pending): (u64, Option<String>) = redis::from_redis_value(reply)?;
        Ok((stored, pending))
    }

    /// Settings have no guard: they are few, and the caller repeats this if they have changed meanwhile.
    async fn write_settings(&self, settings: &Projection) -> Result<()> {
        let mut commands = Vec::new();
        for key in &settings.keys {
            if let ProjectedValue::Text(text) = &key.value {
                commands.push(command("SET", &key.key, text));
            }
        }
        self.run_all(commands).await
    }

    /// Adds objects to their indexes, and removes them from those that they left.
    async fn update_indexes(&self, pending: &[Pending<'_>]) -> Result<()> {
        let layout = self.layout();
        let mut commands = Vec::new();
        for Pending { projection, before } in pending {
            let member = projection.id.member();
            let mut current = BTreeSet::new();
            let mut added = Vec::new();
            for membership in &projection.memberships {
                if let Some(index) = membership.index(projection.created, layout)? {
                    current.insert(index.key.clone());
                    added.push(index);
                }
            }
            for membership in earlier_memberships(before) {
                match membership.index(projection.created, layout)? {
                    Some(index) if !current.contains(&index.key) => commands.push(index.remove(member)),
                    Some(_) => {}
                    None => {
                        if let Membership::Request(id) = &membership
                            && !projection.memberships.contains(&membership)
                        {
                            self.remove(&ObjectId::Approval(id.clone())).await?;
                        }
                    }
                }
            }
            commands.extend(added.iter().flat_map(|index| index.add(member)));
        }
        self.run_all(commands).await
    }

    /// Removes an object that the database does not have, with its indexes and its approval requests.
    pub async fn remove(&self, id: &ObjectId) -> Result<()> {
        let (layout, keys) = (self.layout(), id.keys(self.layout())?);
        let Some(guard) = keys.first() else { return Ok(()) };
        let read = command("HMGET", guard, &["revision", "indexes", "pending"][..]);
        let stored: Vec<(Option<String>, Option<String>, Option<String>)> =
            self.query_all(vec![read]).await?;
        let Some((Some(revision), indexes, pending)) = stored.into_iter().next() else {
            // Somebody removed or replaced the guard: what is left of the object has no revision, and is removed as well.
            let deletions = keys.iter().map(|key| command("DEL", key, NO_ARGS)).collect();
            return self.run_all(deletions).await;
        };
        let mut commands = Vec::new();
        for membership in
            earlier_memberships(&format!("{}\n{}", pending.unwrap_or_default(), indexes.unwrap_or_default()))
        {
            match (membership.index(0, layout)?, membership) {
                (Some(index), _) => commands.push(index.remove(id.member())),
                (None, Membership::Request(request)) => {
                    Box::pin(self.remove(&ObjectId::Approval(request))).await?;
                }
                (None, _) => {}
            }
        }
        self.run_all(commands).await?;
        let keys: Vec<&RedisKey> = keys.iter().collect();
        self.client.call(&self.scripts.remove, &keys, &[&revision]).await.map(drop)
    }

    /// Removes a member from an index that it does not belong to.
    pub async fn remove_member(&self, membership: &Membership, member: &str) -> Result<()> {
        let index: Option<Index> = membership.index(0, self.layout())?;
        self.run_all(index.iter().map(|index| index.remove(member)).collect()).await
    }

    /// Owner and id of the delegations in the indexes of these people.
    pub async fn delegations_of(&self, owners: &[UserId]) -> Result<Vec<(UserId, String)>> {
        let mut reads = Vec::with_capacity(owners.len());
        for owner in owners {
            if let Some(index) = Membership::DelegationOf(owner.clone()).index(0, self.layout())? {
                reads.push(command("SMEMBERS", &index.key, NO_ARGS));
            }
        }
        let members: Vec<Vec<String>> = self.query_all(reads).await?;
        let pairs = owners.iter().zip(members);
        Ok(pairs.flat_map(|(owner, ids)| ids.into_iter().map(move |id| (owner.clone(), id))).collect())
    }

    pub(super) async fn query_all<T: FromRedisValue>(
        &self,
        commands: Vec<(RedisKey, Cmd)>,
    ) -> Result<Vec<T>> {
        let mut values = Vec::with_capacity(commands.len());
        for chunk in commands.chunks(MAX_COMMANDS) {
            for reply in self.client.query_all(chunk.to_vec()).await {
                values.push(redis::from_redis_value(reply?)?);
            }
        }
        Ok(values)
    }

    pub(super) async fn run_all(&self, commands: Vec<(RedisKey, Cmd)>) -> Result<()> {
        self.query_all::<Value>(commands).await.map(drop)
    }
}

/// The memberships in the lines of a field `pending`. What ade did not write is left out.
fn earlier_memberships(lines: &str) -> BTreeSet<Membership> {
    let sets = lines.lines().filter_map(|line| serde_json::from_str::<Vec<Membership>>(line).ok());
    sets.flatten().collect()
}
