//! Agents on Redis: a profile hash and a capacity hash per agent in one slot, and indexes in other slots.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ade_domain::Moment;
use ade_domain::agent::{Agent, AgentProfile, DEFAULT_MAX_TASKS};
use futures_util::future::try_join_all;
use redis::FromRedisValue;
use tokio::time::Instant;

use super::connection::Script;
use super::encoding::{CorruptValue, to_json};
use super::query::{NO_ARGS, UnixMicros, command};
use super::{Inner, RedisCoordination, Result, locked};
use crate::coordination::{AgentUpdate, AgentView, Agents, AsyncResult, Counting};

/// How often the heartbeat of one agent is written to Redis.
const HEARTBEAT_WRITE_INTERVAL: Duration = Duration::from_secs(1);
/// Agents whose last written heartbeat is cached.
const MAX_CACHED_HEARTBEATS: usize = 50_000;

const MAX_PAGE_SIZE: usize = 10_000;
/// Agents that a list fetches at the same time.
const FETCHED_AT_ONCE: usize = 32;

/// The profile of an agent that did not register one.
fn default_profile(agent_id: &str) -> Result<String> {
    encode_profile(&AgentProfile { name: agent_id.to_owned(), ..AgentProfile::default() })
}

fn encode_profile(profile: &AgentProfile) -> Result<String> {
    to_json("an agent profile", profile)
}

/// The fields of a hash.
type Fields = HashMap<String, String>;

/// Returns `None` if the agent has no profile hash.
fn parse_agent(fields: &Fields, capacity: &Fields, now: Moment) -> Result<Option<Agent>, CorruptValue> {
    if fields.is_empty() {
        return Ok(None);
    }
    let corrupt = |name: &str| CorruptValue::new("an agent", format!("{fields:?} (field {name})"));
    let text = |name: &str| fields.get(name).ok_or_else(|| corrupt(name));
    let number = |name: &str| text(name)?.parse::<u64>().map_err(|_| corrupt(name));
    let profile = serde_json::from_str(text("profile")?).map_err(|_| corrupt("profile"))?;
    let registered_at = Moment::from_micros(number("registered_at")?);
    let mut agent = Agent::new(profile, number("named")? == 1, registered_at);
    agent.draining = number("draining")? == 1;
    agent.last_heartbeat = Moment::from_micros(number("last_heartbeat")?);
    let max_tasks = capacity.get("max_tasks").and_then(|max| max.parse().ok());
    agent.max_tasks = max_tasks.unwrap_or(DEFAULT_MAX_TASKS);
    for (field, expires) in capacity {
        let Some(expires) = expires.parse().ok().map(|ms| Moment::default().plus_ms(ms)) else { continue };
        if let Some(task) = field.strip_prefix("t:") {
            agent.restore_claim(task, expires, now);
        } else if let Some(task) = field.strip_prefix("q:") {
            agent.enqueue(task, expires, now);
        }
    }
    Ok(Some(agent))
}

impl Inner {
    async fn fetch_agent(&self, agent_id: &str) -> Result<Option<AgentView>> {
        let keys = self.agent_keys(agent_id)?;
        let hashes = [&keys.profile, &keys.capacity].map(|key| command("HGETALL", key, NO_ARGS));
        let values = self.query_all(hashes.into()).await?;
        let [profile, capacity] = values.as_slice() else { return Ok(None) };
        let now = self.clock.now();
        let Some(mut agent) = parse_agent(profile, capacity, now)? else { return Ok(None) };
        if let Some((_, last_heartbeat)) = locked(&self.heartbeats).get(agent_id) {
            agent.last_heartbeat = agent.last_heartbeat.max(*last_heartbeat);
        }
        Ok(Some(AgentView::new(agent_id, &agent, now)))
    }

    /// Returns whether the agent is known or could be added.
    pub(super) async fn record_heartbeat(&self, agent_id: &str) -> Result<bool> {
        let (is_known, mut is_named) = self.send_heartbeat(agent_id, "0").await?;
        if !is_known {
            let named: usize = self.query("ZCARD", &self.keys.named_agents, NO_ARGS).await?;
            if named >= self.options.max_named_agents {
                return Ok(false);
            }
            (_, is_named) = self.send_heartbeat(agent_id, "1").await?;
        }
        let now = self.clock.now().micros() / 1000;
        let mut indexes = vec![
            command("ZADD", &self.keys.alive_agents, (now, agent_id)),
            command("ZADD", &self.keys.agents, (0, agent_id)),
        ];
        if is_named {
            indexes.push(command("ZADD", &self.keys.named_agents, (now, agent_id)));
        }
        // The indexes are in other slots; a heartbeat must not fail because of them.
        if let Err(error) = self.run_all(indexes).await {
            tracing::warn!(%error, "cannot update agent indexes; the next heartbeat retries");
        }
        Ok(true)
    }

    /// Returns whether the agent is known, and whether it was only named in a request.
    async fn send_heartbeat(&self, agent_id: &str, allow_new: &str) -> Result<(bool, bool)> {
        let (time, max_tasks) = (self.clock.now().to_string(), DEFAULT_MAX_TASKS.to_string());
        let args = [&time, allow_new, &default_profile(agent_id)?, &max_tasks];
        let (UnixMicros(now), is_known, is_named) =
            self.call_agent(&self.scripts.record_heartbeat, agent_id, &args).await?;
        self.clock.observe(now);
        Ok((is_known, is_named))
    }

    pub(super) async fn call_agent<T>(&self, script: &Script, agent_id: &str, args: &[&str]) -> Result<T>
    where
        T: FromRedisValue,
    {
        let keys = self.agent_keys(agent_id)?;
        self.call(script, &[&keys.profile, &keys.capacity], args).await
    }

    /// Returns whether the agent was known.
    pub(super) async fn remove_agent(&self, agent_id: &str) -> Result<bool> {
        let keys = self.agent_keys(agent_id)?;
        let removals = vec![
            command("DEL", &keys.profile, NO_ARGS),
            command("DEL", &keys.capacity, NO_ARGS),
            command("ZREM", &self.keys.agents, agent_id),
            command("ZREM", &self.keys.alive_agents, agent_id),
            command("ZREM", &self.keys.named_agents, agent_id),
        ];
        let removed: Vec<usize> = self.query_all(removals).await?;
        locked(&self.heartbeats).remove(agent_id);
        Ok(removed.first() == Some(&1))
    }

    async fn put_agent(
        &self,
        agent_id: &str,
        update: AgentUpdate,
        create: bool,
    ) -> Result<Option<AgentView>> {
        let flag = |is_set: bool| if is_set { "1" } else { "0" };
        let args = [
            flag(create),
            &update.profile.as_ref().map_or_else(|| Ok(String::new()), encode_profile)?,
            &update.max_tasks.map_or_else(String::new, |max| max.to_string()),
            update.draining.map_or("", flag),
            &default_profile(agent_id)?,
            &DEFAULT_MAX_TASKS.to_string(),
            &self.clock.now().to_string(),
        ];
        let (UnixMicros(now), profile, capacity) =
            self.call_agent(&self.scripts.put_agent, agent_id, &args).await?;
        self.clock.observe(now);
        let now = self.clock.now();
        let Some(agent) = parse_agent(&profile, &capacity, now)? else { return Ok(None) };
        let last_heartbeat = agent.last_heartbeat.micros() / 1000;
        let indexes = vec![
            command("ZADD", &self.keys.agents, (0, agent_id)),
            command("ZADD", &self.keys.alive_agents, ("GT", last_heartbeat, agent_id)),
            command("ZREM", &self.keys.named_agents, agent_id),
        ];
        self.run_all(indexes).await?;
        Ok(Some(AgentView::new(agent_id, &agent, now)))
    }

    async fn admit_acquisition(self: &Arc<Self>, agent_id: &str, locks: u32) -> Result<Result<(), Moment>> {
        let (keys, limit) = (self.agent_keys(agent_id)?, self.limits().acquisitions_per_minute);
        let count = self.count_rate(&keys.acquire_rate, locks, limit, Counting::InBlocks).await?;
        Ok(if count.allowed { Ok(()) } else { Err(count.reset_at) })
    }
}

impl Agents for RedisCoordination {
    fn put_agent(&self, id: String, update: AgentUpdate, create: bool) -> AsyncResult<'_, Option<AgentView>> {
        Box::pin(async move { self.inner.put_agent(&id, update, create).await })
    }

    fn agent(&self, id: String) -> AsyncResult<'_, Option<AgentView>> {
        Box::pin(async move { self.inner.fetch_agent(&id).await })
    }

    fn agents(&self, after: Option<String>, limit: usize) -> AsyncResult<'_, Vec<AgentView>> {
        Box::pin(async move {
            let inner = &self.inner;
            let from = after.map_or_else(|| "-".to_owned(), |after| format!("({after}"));
            let range = (from, "+", "LIMIT", 0, limit.min(MAX_PAGE_SIZE));
            let ids: Vec<String> = inner.query("ZRANGEBYLEX", &inner.keys.agents, range).await?;
            let mut views = Vec::new();
            for batch in ids.chunks(FETCHED_AT_ONCE) {
                let fetched = try_join_all(batch.iter().map(|id| inner.fetch_agent(id))).await?;
                views.extend(fetched.into_iter().flatten());
            }
            Ok(views)
        })
    }

    fn remove_agent(&self, id: String) -> AsyncResult<'_, bool> {
        Box::pin(async move { self.inner.remove_agent(&id).await })
    }

    fn record_heartbeat(&self, id: String) -> AsyncResult<'_, bool> {
        Box::pin(async move {
            let now = self.inner.clock.now();
            let is_recent = |at: &Instant| at.elapsed() < HEARTBEAT_WRITE_INTERVAL;
            if let Some((written, last_heartbeat)) = locked(&self.inner.heartbeats).get_mut(&id)
                && is_recent(written)
            {
                *last_heartbeat = now;
                return Ok(true);
            }
            let known = self.inner.record_heartbeat(&id).await?;
            if known {
                let mut heartbeats = locked(&self.inner.heartbeats);
                if heartbeats.len() >= MAX_CACHED_HEARTBEATS {
                    heartbeats.retain(|_, (written, _)| is_recent(written));
                }
                heartbeats.insert(id, (Instant::now(), now));
            }
            Ok(known)
        })
    }

    fn admit_acquisition(&self, id: String, locks: u32) -> AsyncResult<'_, Result<(), Moment>> {
        Box::pin(async move { self.inner.admit_acquisition(&id, locks).await })
    }
}
