//! Agents on Redis: a profile and a capacity each, in one slot, and indexes beside them.

use ade_domain::Moment;
use ade_domain::agent::{Agent, DEFAULT_MAX_TASKS, Profile};
use redis::{Cmd, Value};
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

use super::encoding::Foreign;
use super::keys::AgentKeys;
use super::{Inner, RedisCoordination, foreign, locked, step};
use crate::coordination::{AgentUpdate, AgentView, Agents, CoordinationError, Reply};

/// How often it is written down that an agent is alive.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// Agents of which it is known that they were written down lately.
const MAX_TOLD: usize = 50_000;

/// Agents in one page.
const MAX_LISTED: usize = 10_000;

/// What is written of an agent that says nothing about itself.
fn nameless(agent_id: &str) -> Result<String, CoordinationError> {
    write(&Profile { name: agent_id.to_owned(), ..Profile::default() })
}

fn write(profile: &Profile) -> Result<String, CoordinationError> {
    serde_json::to_string(profile)
        .map_err(|error| CoordinationError(format!("a profile cannot be written down: {error}")))
}

/// An agent from the fields of its two hashes; `None` if there are none.
fn read_agent(profile: &Value, capacity: &Value, now: Moment) -> Result<Option<Agent>, Foreign> {
    let fields = read_fields(profile)?;
    if fields.is_empty() {
        return Ok(None);
    }
    let capacity = read_fields(capacity)?;
    let wrong = |what: &str| Foreign::new("an agent", format!("{what} of {fields:?}"));
    let text = |name: &str| fields.get(name).copied().ok_or_else(|| wrong(name));
    let number = |name: &str| text(name)?.parse::<u64>().map_err(|_| wrong(name));
    let profile = serde_json::from_str(text("profile")?).map_err(|_| wrong("profile"))?;
    let registered_at = Moment::from_micros(number("registered_at")?);
    let mut agent = Agent::new(profile, number("named")? == 1, registered_at);
    agent.draining = number("draining")? == 1;
    agent.last_heartbeat = Moment::from_micros(number("heard")?);
    let most = capacity.get("max_tasks").and_then(|most| most.parse().ok());
    agent.max_tasks = most.unwrap_or(DEFAULT_MAX_TASKS);
    for (field, ends) in &capacity {
        let Some(ends) = ends.parse().ok().map(|ends| Moment::default().plus_ms(ends)) else { continue };
        if let Some(task) = field.strip_prefix("t:") {
            agent.keep(task, ends, now);
        } else if let Some(task) = field.strip_prefix("q:") {
            agent.queue(task, ends, now);
        }
    }
    Ok(Some(agent))
}

fn read_fields(value: &Value) -> Result<HashMap<&str, &str>, Foreign> {
    let fields = step::list(value)?;
    let (pairs, _) = fields.as_chunks::<2>();
    pairs.iter().map(|[name, value]| Ok((step::text(name)?, step::text(value)?))).collect()
}

fn command(verb: &str, key: &ade_keyspace::RedisKey, args: &[&str]) -> (ade_keyspace::RedisKey, Cmd) {
    let mut command = redis::cmd(verb);
    command.arg(key.as_str()).arg(args);
    (key.clone(), command)
}

impl Inner {
    async fn fetch_agent(&self, agent_id: &str) -> Result<Option<AgentView>, CoordinationError> {
        let keys = self.agent_keys(agent_id)?;
        let questions = vec![command("HGETALL", &keys.profile, &[]), command("HGETALL", &keys.capacity, &[])];
        let answers = self.ask_each(questions).await?;
        let [profile, capacity] = answers.as_slice() else { return Ok(None) };
        let now = self.clock.now();
        let Some(mut agent) = read_agent(profile, capacity, now).map_err(foreign)? else { return Ok(None) };
        if let Some((_, heard)) = locked(&self.told).get(agent_id) {
            agent.last_heartbeat = agent.last_heartbeat.max(*heard);
        }
        Ok(Some(AgentView::of(agent_id, &agent, now)))
    }

    /// Writes that an agent was heard of. Whether it is known, or there was room for it.
    pub(super) async fn hear(&self, agent_id: &str) -> Result<bool, CoordinationError> {
        let keys = self.agent_keys(agent_id)?;
        let mut known = self.hear_on(&keys, agent_id, false).await?;
        if known == 0 {
            let (_, count) = command("ZCARD", &self.keys.named, &[]);
            let named = step::number(&self.ask(&self.keys.named, count).await?).map_err(foreign)?;
            if named >= self.options.max_named_agents {
                return Ok(false);
            }
            known = self.hear_on(&keys, agent_id, true).await?;
        }
        let now = (self.clock.now().micros() / 1000).to_string();
        let mut indexes = vec![
            command("ZADD", &self.keys.alive, &[&now, agent_id]),
            command("ZADD", &self.keys.agents, &["0", agent_id]),
        ];
        if known == 2 {
            indexes.push(command("ZADD", &self.keys.named, &[&now, agent_id]));
        }
        // Indexes lie elsewhere: that an agent is alive does not depend on them.
        if let Err(error) = self.ask_each(indexes).await {
            tracing::warn!(%error, "indexes of agents cannot be written; the next sign of life does");
        }
        Ok(true)
    }

    async fn hear_on(
        &self,
        keys: &AgentKeys,
        agent_id: &str,
        room: bool,
    ) -> Result<usize, CoordinationError> {
        let args = [
            self.clock.now().to_string(),
            if room { "1" } else { "0" }.to_owned(),
            nameless(agent_id)?,
            DEFAULT_MAX_TASKS.to_string(),
        ];
        let value = self.call_agent(&self.scripts.hear_agent, keys, &args).await?;
        let parts = step::list(&value).map_err(foreign)?;
        parts.get(1).map_or(Ok(0), |known| step::number(known).map_err(foreign))
    }

    pub(super) async fn call_agent(
        &self,
        script: &super::link::Script,
        keys: &AgentKeys,
        args: &[String],
    ) -> Result<Value, CoordinationError> {
        let args: Vec<&[u8]> = args.iter().map(String::as_bytes).collect();
        let value = self.link.call(script, &[keys.profile.clone(), keys.capacity.clone()], &args).await?;
        if let Some(now) = step::list(&value).map_err(foreign)?.first() {
            self.clock.heard(step::moment(now).map_err(foreign)?);
        }
        Ok(value)
    }

    /// Removes everything that is known of an agent; whether anything was.
    pub(super) async fn remove_agent(&self, agent_id: &str) -> Result<bool, CoordinationError> {
        let keys = self.agent_keys(agent_id)?;
        let removed = self
            .ask_each(vec![
                command("DEL", &keys.profile, &[]),
                command("DEL", &keys.capacity, &[]),
                command("ZREM", &self.keys.agents, &[agent_id]),
                command("ZREM", &self.keys.alive, &[agent_id]),
                command("ZREM", &self.keys.named, &[agent_id]),
            ])
            .await?;
        locked(&self.told).remove(agent_id);
        Ok(removed.first().is_some_and(|known| *known == Value::Int(1)))
    }
}

impl Agents for RedisCoordination {
    fn put(&self, agent_id: String, update: AgentUpdate, create: bool) -> Reply<'_, Option<AgentView>> {
        Box::pin(async move {
            let inner = &self.inner;
            let keys = inner.agent_keys(&agent_id)?;
            let flag = |yes: bool| if yes { "1" } else { "0" }.to_owned();
            let args = [
                flag(create),
                update.profile.as_ref().map_or_else(|| Ok(String::new()), write)?,
                update.max_tasks.map_or_else(String::new, |most| most.to_string()),
                update.draining.map_or_else(String::new, flag),
                nameless(&agent_id)?,
                DEFAULT_MAX_TASKS.to_string(),
            ];
            let value = inner.call_agent(&inner.scripts.put_agent, &keys, &args).await?;
            let [_, profile, capacity] = step::list(&value).map_err(foreign)? else { return Ok(None) };
            let now = inner.clock.now();
            let agent = read_agent(profile, capacity, now).map_err(foreign)?;
            let view = agent.map(|agent| AgentView::of(&agent_id, &agent, now));
            let heard = view.as_ref().map_or(0, |view| view.last_heartbeat.micros() / 1000).to_string();
            inner
                .ask_each(vec![
                    command("ZADD", &inner.keys.agents, &["0", &agent_id]),
                    command("ZADD", &inner.keys.alive, &["GT", &heard, &agent_id]),
                    command("ZREM", &inner.keys.named, &[&agent_id]),
                ])
                .await?;
            Ok(view)
        })
    }

    fn agent(&self, agent_id: String) -> Reply<'_, Option<AgentView>> {
        Box::pin(async move { self.inner.fetch_agent(&agent_id).await })
    }

    fn agents(&self, after: Option<String>, limit: usize) -> Reply<'_, Vec<AgentView>> {
        Box::pin(async move {
            let inner = &self.inner;
            let from = after.map_or_else(|| "-".to_owned(), |after| format!("({after}"));
            let range = ["+", "LIMIT", "0", &limit.min(MAX_LISTED).to_string()].map(str::to_owned);
            let mut list = redis::cmd("ZRANGEBYLEX");
            list.arg(inner.keys.agents.as_str()).arg(from).arg(&range);
            let ids = inner.ask(&inner.keys.agents, list).await?;
            let mut views = Vec::new();
            for id in step::list(&ids).map_err(foreign)? {
                views.extend(inner.fetch_agent(step::text(id).map_err(foreign)?).await?);
            }
            Ok(views)
        })
    }

    fn remove(&self, agent_id: String) -> Reply<'_, bool> {
        Box::pin(async move { self.inner.remove_agent(&agent_id).await })
    }

    fn heard(&self, agent_id: String) -> Reply<'_, bool> {
        Box::pin(async move {
            let now = self.inner.clock.now();
            let lately = |at: &Instant| at.elapsed() < TELL_EVERY;
            if let Some((written, heard)) = locked(&self.inner.told).get_mut(&agent_id)
                && lately(written)
            {
                *heard = now;
                return Ok(true);
            }
            let known = self.inner.hear(&agent_id).await?;
            if known {
                let mut told = locked(&self.inner.told);
                if told.len() >= MAX_TOLD {
                    told.retain(|_, (written, _)| lately(written));
                }
                told.insert(agent_id, (Instant::now(), now));
            }
            Ok(known)
        })
    }

    fn admit(&self, agent_id: String, locks: u32) -> Reply<'_, Result<(), Moment>> {
        Box::pin(async move {
            let inner = &self.inner;
            let rate = inner.agent_keys(&agent_id)?.rate.clone();
            let args = [locks.to_string(), inner.rules().acquisitions_per_minute.to_string()];
            let args: Vec<&[u8]> = args.iter().map(String::as_bytes).collect();
            let answer = inner.link.call(&inner.scripts.admit, &[rate], &args).await?;
            let [now, retry_at] = step::list(&answer).map_err(foreign)? else {
                return Err(foreign(Foreign::new("no answer", format!("{answer:?}"))));
            };
            inner.clock.heard(step::moment(now).map_err(foreign)?);
            let retry_at = step::number(retry_at).map_err(foreign)? as u64;
            if retry_at == 0 {
                return Ok(Ok(()));
            }
            Ok(Err(Moment::default().plus_ms(retry_at)))
        })
    }
}
