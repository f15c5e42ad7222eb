//! Agents on Redis: a profile hash and a capacity hash per agent in one slot, and indexes in other slots.

use ade_domain::Moment;
use ade_domain::agent::{Agent, AgentProfile, DEFAULT_MAX_TASKS};
use redis::{Cmd, Value};
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

use super::encoding::CorruptValue;
use super::keys::AgentKeys;
use super::{Inner, RedisCoordination, locked, reply};
use crate::coordination::{AgentUpdate, AgentView, Agents, CoordinationError, CoordinationFuture};

/// How often the heartbeat of one agent is written to Redis.
const HEARTBEAT_WRITE_INTERVAL: Duration = Duration::from_secs(1);
/// Agents whose last written heartbeat is cached.
const MAX_CACHED_HEARTBEATS: usize = 50_000;

const MAX_PAGE_SIZE: usize = 10_000;

/// The profile of an agent that did not register one.
fn default_profile(agent_id: &str) -> Result<String, CoordinationError> {
    encode_profile(&AgentProfile { name: agent_id.to_owned(), ..AgentProfile::default() })
}

fn encode_profile(profile: &AgentProfile) -> Result<String, CoordinationError> {
    serde_json::to_string(profile)
        .map_err(|error| CoordinationError(format!("cannot serialize an agent profile: {error}")))
}

/// Returns `None` if the agent has no profile hash.
fn parse_agent(profile: &Value, capacity: &Value, now: Moment) -> Result<Option<Agent>, CorruptValue> {
    let fields = parse_fields(profile)?;
    if fields.is_empty() {
        return Ok(None);
    }
    let capacity = parse_fields(capacity)?;
    let corrupt = |name: &str| CorruptValue::new("an agent", format!("{fields:?} (field {name})"));
    let text = |name: &str| fields.get(name).copied().ok_or_else(|| corrupt(name));
    let number = |name: &str| text(name)?.parse::<u64>().map_err(|_| corrupt(name));
    let profile = serde_json::from_str(text("profile")?).map_err(|_| corrupt("profile"))?;
    let registered_at = Moment::from_micros(number("registered_at")?);
    let mut agent = Agent::new(profile, number("named")? == 1, registered_at);
    agent.draining = number("draining")? == 1;
    agent.last_heartbeat = Moment::from_micros(number("heard")?);
    let max_tasks = capacity.get("max_tasks").and_then(|max| max.parse().ok());
    agent.max_tasks = max_tasks.unwrap_or(DEFAULT_MAX_TASKS);
    for (field, expires) in &capacity {
        let Some(expires) = expires.parse().ok().map(|ms| Moment::default().plus_ms(ms)) else { continue };
        if let Some(task) = field.strip_prefix("t:") {
            agent.restore_claim(task, expires, now);
        } else if let Some(task) = field.strip_prefix("q:") {
            agent.enqueue(task, expires, now);
        }
    }
    Ok(Some(agent))
}

fn parse_fields(value: &Value) -> Result<HashMap<&str, &str>, CorruptValue> {
    let fields = reply::array(value)?;
    let (pairs, _) = fields.as_chunks::<2>();
    pairs.iter().map(|[name, value]| Ok((reply::text(name)?, reply::text(value)?))).collect()
}

fn command(name: &str, key: &ade_keyspace::RedisKey, args: &[&str]) -> (ade_keyspace::RedisKey, Cmd) {
    let mut command = redis::cmd(name);
    command.arg(key.as_str()).arg(args);
    (key.clone(), command)
}

impl Inner {
    async fn fetch_agent(&self, agent_id: &str) -> Result<Option<AgentView>, CoordinationError> {
        let keys = self.agent_keys(agent_id)?;
        let commands = vec![command("HGETALL", &keys.profile, &[]), command("HGETALL", &keys.capacity, &[])];
        let values = self.query_all(commands).await?;
        let [profile, capacity] = values.as_slice() else { return Ok(None) };
        let now = self.clock.now();
        let Some(mut agent) = parse_agent(profile, capacity, now)? else { return Ok(None) };
        if let Some((_, last_heartbeat)) = locked(&self.heartbeats).get(agent_id) {
            agent.last_heartbeat = agent.last_heartbeat.max(*last_heartbeat);
        }
        Ok(Some(AgentView::new(agent_id, &agent, now)))
    }

    /// Returns whether the agent is known or could be added.
    pub(super) async fn record_heartbeat(&self, agent_id: &str) -> Result<bool, CoordinationError> {
        let keys = self.agent_keys(agent_id)?;
        let mut known = self.send_heartbeat(&keys, agent_id, false).await?;
        if known == 0 {
            let (_, count) = command("ZCARD", &self.keys.named_agents, &[]);
            let named = reply::number(&self.query(&self.keys.named_agents, count).await?)?;
            if named >= self.options.max_named_agents {
                return Ok(false);
            }
            known = self.send_heartbeat(&keys, agent_id, true).await?;
        }
        let now = (self.clock.now().micros() / 1000).to_string();
        let mut indexes = vec![
            command("ZADD", &self.keys.alive_agents, &[&now, agent_id]),
            command("ZADD", &self.keys.agents, &["0", agent_id]),
        ];
        if known == 2 {
            indexes.push(command("ZADD", &self.keys.named_agents, &[&now, agent_id]));
        }
        // The indexes are in other slots; a heartbeat must not fail because of them.
        if let Err(error) = self.query_all(indexes).await {
            tracing::warn!(%error, "cannot update agent indexes; the next heartbeat retries");
        }
        Ok(true)
    }

    async fn send_heartbeat(
        &self,
        keys: &AgentKeys,
        agent_id: &str,
        allow_new: bool,
    ) -> Result<usize, CoordinationError> {
        let args = [
            self.clock.now().to_string(),
            if allow_new { "1" } else { "0" }.to_owned(),
            default_profile(agent_id)?,
            DEFAULT_MAX_TASKS.to_string(),
        ];
        let value = self.call_agent(&self.scripts.record_heartbeat, keys, &args).await?;
        let parts = reply::array(&value)?;
        Ok(parts.get(1).map_or(Ok(0), reply::number)?)
    }

    pub(super) async fn call_agent(
        &self,
        script: &super::connection::Script,
        keys: &AgentKeys,
        args: &[String],
    ) -> Result<Value, CoordinationError> {
        let args: Vec<&[u8]> = args.iter().map(String::as_bytes).collect();
        let value = self.client.call(script, &[keys.profile.clone(), keys.capacity.clone()], &args).await?;
        if let Some(now) = reply::array(&value)?.first() {
            self.clock.observe(reply::moment(now)?);
        }
        Ok(value)
    }

    /// Returns whether the agent was known.
    pub(super) async fn remove_agent(&self, agent_id: &str) -> Result<bool, CoordinationError> {
        let keys = self.agent_keys(agent_id)?;
        let removed = self
            .query_all(vec![
                command("DEL", &keys.profile, &[]),
                command("DEL", &keys.capacity, &[]),
                command("ZREM", &self.keys.agents, &[agent_id]),
                command("ZREM", &self.keys.alive_agents, &[agent_id]),
                command("ZREM", &self.keys.named_agents, &[agent_id]),
            ])
            .await?;
        locked(&self.heartbeats).remove(agent_id);
        Ok(removed.first().is_some_and(|known| *known == Value::Int(1)))
    }
}

impl Agents for RedisCoordination {
    fn put_agent(
        &self,
        agent_id: String,
        update: AgentUpdate,
        create: bool,
    ) -> CoordinationFuture<'_, Option<AgentView>> {
        Box::pin(async move {
            let inner = &self.inner;
            let keys = inner.agent_keys(&agent_id)?;
            let flag = |is_set: bool| if is_set { "1" } else { "0" }.to_owned();
            let args = [
                flag(create),
                update.profile.as_ref().map_or_else(|| Ok(String::new()), encode_profile)?,
                update.max_tasks.map_or_else(String::new, |max| max.to_string()),
                update.draining.map_or_else(String::new, flag),
                default_profile(&agent_id)?,
                DEFAULT_MAX_TASKS.to_string(),
            ];
            let value = inner.call_agent(&inner.scripts.put_agent, &keys, &args).await?;
            let [_, profile, capacity] = reply::array(&value)? else { return Ok(None) };
            let now = inner.clock.now();
            let agent = parse_agent(profile, capacity, now)?;
            let view = agent.map(|agent| AgentView::new(&agent_id, &agent, now));
            let last_heartbeat =
                view.as_ref().map_or(0, |view| view.last_heartbeat.micros() / 1000).to_string();
            inner
                .query_all(vec![
                    command("ZADD", &inner.keys.agents, &["0", &agent_id]),
                    command("ZADD", &inner.keys.alive_agents, &["GT", &last_heartbeat, &agent_id]),
                    command("ZREM", &inner.keys.named_agents, &[&agent_id]),
                ])
                .await?;
            Ok(view)
        })
    }

    fn agent(&self, agent_id: String) -> CoordinationFuture<'_, Option<AgentView>> {
        Box::pin(async move { self.inner.fetch_agent(&agent_id).await })
    }

    fn agents(&self, after: Option<String>, limit: usize) -> CoordinationFuture<'_, Vec<AgentView>> {
        Box::pin(async move {
            let inner = &self.inner;
            let from = after.map_or_else(|| "-".to_owned(), |after| format!("({after}"));
            let range = ["+", "LIMIT", "0", &limit.min(MAX_PAGE_SIZE).to_string()].map(str::to_owned);
            let mut list = redis::cmd("ZRANGEBYLEX");
            list.arg(inner.keys.agents.as_str()).arg(from).arg(&range);
            let ids = inner.query(&inner.keys.agents, list).await?;
            let mut views = Vec::new();
            for id in reply::array(&ids)? {
                views.extend(inner.fetch_agent(reply::text(id)?).await?);
            }
            Ok(views)
        })
    }

    fn remove_agent(&self, agent_id: String) -> CoordinationFuture<'_, bool> {
        Box::pin(async move { self.inner.remove_agent(&agent_id).await })
    }

    fn record_heartbeat(&self, agent_id: String) -> CoordinationFuture<'_, bool> {
        Box::pin(async move {
            let now = self.inner.clock.now();
            let is_recent = |at: &Instant| at.elapsed() < HEARTBEAT_WRITE_INTERVAL;
            if let Some((written, last_heartbeat)) = locked(&self.inner.heartbeats).get_mut(&agent_id)
                && is_recent(written)
            {
                *last_heartbeat = now;
                return Ok(true);
            }
            let known = self.inner.record_heartbeat(&agent_id).await?;
            if known {
                let mut heartbeats = locked(&self.inner.heartbeats);
                if heartbeats.len() >= MAX_CACHED_HEARTBEATS {
                    heartbeats.retain(|_, (written, _)| is_recent(written));
                }
                heartbeats.insert(agent_id, (Instant::now(), now));
            }
            Ok(known)
        })
    }

    fn admit_acquisition(&self, agent_id: String, locks: u32) -> CoordinationFuture<'_, Result<(), Moment>> {
        Box::pin(async move {
            let inner = &self.inner;
            let rate = inner.agent_keys(&agent_id)?.acquire_rate.clone();
            let args = [locks.to_string(), inner.limits().acquisitions_per_minute.to_string()];
            let args: Vec<&[u8]> = args.iter().map(String::as_bytes).collect();
            let value = inner.client.call(&inner.scripts.admit_acquisition, &[rate], &args).await?;
            let [now, retry_at] = reply::array(&value)? else {
                return Err(CorruptValue::new("a rate limit", format!("{value:?}")).into());
            };
            inner.clock.observe(reply::moment(now)?);
            let retry_at = reply::number(retry_at)? as u64;
            if retry_at == 0 {
                return Ok(Ok(()));
            }
            Ok(Err(Moment::default().plus_ms(retry_at)))
        })
    }
}
