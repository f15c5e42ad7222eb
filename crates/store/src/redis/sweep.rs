//! What happens without anybody asking: leases and waits that ended, agents that went silent, cycles that were left over,
//! and indexes that lost something. Every server does all of it; doing it twice does no harm.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use ade_domain::Moment;
use ade_domain::agent::OFFLINE_AFTER_MS;
use ade_domain::lock::{Deadlock, End, Holder, LockCommand, LockName, RequestKey, Waiter};
use ade_keyspace::RedisKey;
use futures_util::future::{join_all, try_join_all};
use redis::{Cmd, Value};
use tokio::time::Instant;

use super::indexes::{add_to_index, remove_from_index, seconds};
use super::locks::texts;
use super::step::Changed;
use super::{Inner, foreign, keys, locked, step};
use crate::coordination::{CoordinationError, Counts};

/// Locks of the registry that are looked at together.
const BATCH: usize = 100;
/// Batches of one sweep; what is left is due at the next.
const MOST_BATCHES: usize = 20;
/// When a lock that cannot be swept is tried again.
const PUT_OFF_MS: u64 = 1_000;
/// When an idle lock of a cluster is looked at once more before it leaves the registry: longer than a call may take.
const IDLE_AGAIN_MS: u64 = 5_000;
/// How often what is not urgent is done.
const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// How often the waiters of one lock are searched for cycles that nobody closed by queueing, and its indexes repaired.
const INSPECT: Duration = Duration::from_secs(5);
/// Agents whose waits one inspection searches.
const CHECKED_AT_ONCE: usize = 20;
/// How long an agent's waits are not searched again; the schema's own number.
const CHECK_SECONDS: u64 = 30;
/// How often locks with heartbeats are looked for in the registry.
const ENLIST_AGAIN: Duration = Duration::from_secs(10);
/// Agents that were only named are removed when idle for so long.
const IDLE_MS: u64 = 86_400_000;

/// When what was done last by this server.
#[derive(Default)]
pub(super) struct Rounds {
    housekept: Option<Instant>,
    inspected: HashMap<LockName, Instant>,
    /// Locks with heartbeats since the registry was last looked at, and whose they are.
    pub(super) alive: HashSet<(LockName, Holder)>,
    enlisted: Option<Instant>,
    /// How far the names of locks were looked through.
    names_from: String,
    /// What is left to a task of its own.
    pub(super) later: Vec<Later>,
    /// Cycles that were ended by a call which does not answer with them; the next sweep does.
    pub(super) untold: Vec<Deadlock>,
    pub(super) counted: Option<(Counts, Instant)>,
    /// Why a lock could not be swept, as it was told last.
    failure: Option<String>,
}

/// The score of a lock that was idle when it was looked at: a tenth of a millisecond that no other score has, so that any
/// server sees it.
fn idle_until(again: Moment) -> String {
    seconds(again) + "5"
}

fn was_idle(score: &str) -> bool {
    let tenths = score.parse::<f64>().map_or(0.0, |score| (score * 10_000.0).round() % 10.0);
    (tenths - 5.0).abs() < 0.5
}

/// Work that may wait.
pub(super) enum Later {
    Inspect(LockName),
    Search(Holder, LockName),
}

fn is_due(last: Option<Instant>, every: Duration) -> bool {
    last.is_none_or(|last| last.elapsed() >= every)
}

impl Inner {
    pub(super) async fn sweep(&self) -> Result<Vec<Deadlock>, CoordinationError> {
        self.hearing.tidy();
        if is_due(locked(&self.rounds).housekept, HOUSEKEEPING) {
            locked(&self.rounds).housekept = Some(Instant::now());
            self.keep_house().await;
        }
        for _ in 0..MOST_BATCHES {
            let due = self.due().await?;
            let visits =
                due.iter().map(|(key, score, name)| self.visit_or_put_off(key, score, name.as_ref()));
            let failed: Vec<CoordinationError> = join_all(visits).await.into_iter().flatten().collect();
            self.tell_failure(&failed);
            if due.len() < BATCH {
                break;
            }
        }
        Ok(std::mem::take(&mut locked(&self.rounds).untold))
    }

    /// What fails the same way again and again is said once.
    fn tell_failure(&self, failed: &[CoordinationError]) {
        let now = failed.first().map(ToString::to_string);
        let mut rounds = locked(&self.rounds);
        if let Some(error) = now.as_ref().filter(|_| now != rounds.failure) {
            tracing::warn!(locks = failed.len(), %error, "some locks cannot be swept; they are tried again every second");
        }
        // Those that were put off are not due in every round.
        if now.is_some() {
            rounds.failure = now;
        }
    }

    /// What need not be done at once, for a task of its own: a long search must not keep leases from ending.
    pub(super) async fn work_off(&self) {
        let work = std::mem::take(&mut locked(&self.rounds).later);
        for work in work {
            let done = match &work {
                Later::Inspect(name) => self.inspect(name).await,
                Later::Search(holder, name) => self.search(holder, name).await,
            };
            if let Err(error) = done {
                tracing::debug!(%error, "waits cannot be searched now; later");
            }
        }
    }

    /// A lock that cannot be swept is tried again later: it must not stand in the way of those behind it.
    async fn visit_or_put_off(
        &self,
        key: &str,
        score: &str,
        name: Option<&LockName>,
    ) -> Option<CoordinationError> {
        let error = self.visit(key, score, name).await.err()?;
        let later = seconds(self.clock.now().plus_ms(PUT_OFF_MS));
        if let Err(error) = self.revise(&self.keys.registry, key, score, &later).await {
            tracing::debug!(%error, "a lock cannot be put off");
        }
        Some(error)
    }

    /// Locks at which something may be due, with their scores.
    async fn due(&self) -> Result<Vec<(String, String, Option<LockName>)>, CoordinationError> {
        let mut ask = redis::cmd("ZRANGEBYSCORE");
        ask.arg(self.keys.registry.as_str()).arg("-inf").arg(seconds(self.clock.now()));
        ask.arg("WITHSCORES").arg("LIMIT").arg(0).arg(BATCH);
        let found = texts(&self.ask(&self.keys.registry, ask).await?)?;
        let (pairs, _) = found.as_chunks::<2>();
        let keys: Vec<String> = pairs.iter().map(|[key, _]| key.clone()).collect();
        let mut names: HashMap<String, LockName> = self.resolve(keys).await?.into_iter().collect();
        Ok(pairs.iter().map(|[key, score]| (key.clone(), score.clone(), names.remove(key))).collect())
    }

    async fn visit(&self, key: &str, score: &str, name: Option<&LockName>) -> Result<(), CoordinationError> {
        let Some(name) = name else {
            // Nobody could do anything with it.
            self.revise(&self.keys.registry, key, score, "").await?;
            return Ok(());
        };
        let said = self.step(name, &LockCommand::Sweep).await?;
        if said.due.is_none() {
            return self.leave_registry(key, score, name).await;
        }
        if self.in_cluster() {
            self.revise(&self.keys.registry, key, score, said.due.as_deref().unwrap_or_default()).await?;
        }
        for change in &said.changed {
            if let Changed::Back { holder } = change {
                locked(&self.rounds).later.push(Later::Search(holder.clone(), name.clone()));
            }
        }
        let mut rounds = locked(&self.rounds);
        // Nobody who waits, no cycle; the indexes of a lock that is merely held are renewed by its heartbeats.
        if said.queued > 0 && is_due(rounds.inspected.get(name).copied(), INSPECT) {
            rounds.inspected.insert(name.clone(), Instant::now());
            rounds.later.push(Later::Inspect(name.clone()));
        }
        Ok(())
    }

    /// An idle lock leaves the registry. On a cluster somebody may just be about to take it, who put it there before: it
    /// leaves if it is idle again a while later, and nobody touched its entry meanwhile.
    async fn leave_registry(&self, key: &str, score: &str, name: &LockName) -> Result<(), CoordinationError> {
        if self.in_cluster() {
            if !was_idle(score) {
                let again = self.clock.now().plus_ms(IDLE_AGAIN_MS);
                return self.revise(&self.keys.registry, key, score, &idle_until(again)).await;
            }
            self.revise(&self.keys.registry, key, score, "").await?;
        }
        self.forget_lock(name).await
    }

    /// Ends the cycles through a holder. Whatever else fails, they are told of.
    async fn search(&self, holder: &Holder, name: &LockName) -> Result<(), CoordinationError> {
        let ended = self.end_deadlocks(holder, name, false).await?;
        locked(&self.rounds).untold.extend(ended);
        Ok(())
    }

    /// What a lock leaves behind that nobody holds or waits for.
    async fn forget_lock(&self, name: &LockName) -> Result<(), CoordinationError> {
        locked(&self.rounds).inspected.remove(name);
        let keys = self.lock_keys(name)?;
        let mut left = Vec::new();
        if let Some(by_type) = &keys.by_type {
            left.push(remove_from_index(by_type, keys.lock()));
        }
        if keys::is_long(name, &keys) {
            let mut forget = redis::cmd("HDEL");
            forget.arg(self.keys.names.as_str()).arg(keys.lock().as_str());
            left.push((self.keys.names.clone(), forget));
        }
        self.ask_each(left).await.map(drop)
    }

    /// Repairs the indexes of a lock, and searches the waits of agents that were not searched lately.
    async fn inspect(&self, name: &LockName) -> Result<(), CoordinationError> {
        let seen = self.see(name, usize::MAX).await?;
        let keys = self.lock_keys(name)?;
        // One holder of each agent is enough.
        let by_agent: BTreeMap<&str, &Holder> =
            seen.holds.iter().map(|hold| (hold.holder.agent_id(), &hold.holder)).collect();
        let held: Vec<(LockName, Holder)> =
            by_agent.into_values().map(|holder| (name.clone(), holder.clone())).collect();
        self.list_held(&held).await?;
        let mut repairs = Vec::new();
        let mut waiting: BTreeSet<&str> = BTreeSet::new();
        for waiter in &seen.waiters {
            let ttl = step::QUEUE_MS.max(waiter.deadline.ms_since(seen.now) + 5_000);
            let agent = waiter.holder.agent_id();
            if waiting.insert(agent) {
                repairs.extend(add_to_index(&self.agent_keys(agent)?.waitfor, keys.lock(), ttl));
            }
        }
        self.ask_each(repairs).await?;
        if !self.rules().deadlock_detection {
            return Ok(());
        }
        let mut checked = 0;
        let agents: Vec<&str> = waiting.into_iter().collect();
        for agent in self.who_hold_what_others_want(&agents).await? {
            if checked >= CHECKED_AT_ONCE {
                break;
            }
            if self.may_check(agent, seen.now).await? {
                checked += 1;
                self.search_around(agent, seen.now).await?;
            }
        }
        Ok(())
    }

    /// Searches for every cycle that an agent's waits lead to. Whoever was met on the way has been searched too, and need not
    /// be again soon.
    async fn search_around(&self, agent: &str, now: Moment) -> Result<(), CoordinationError> {
        let (table, met, is_everything) = self.reach(agent).await?;
        let mut ended = Vec::new();
        let searched = self.end_suspected(&table, &mut ended).await;
        locked(&self.rounds).untold.extend(ended);
        if searched? && is_everything {
            let stamps = met.iter().map(|agent| self.stamp(agent, now)).collect::<Result<_, _>>()?;
            self.ask_each(stamps).await?;
        }
        Ok(())
    }

    /// Those of the agents that hold a lock which somebody waits for. Every cycle leads through one of them: whoever only
    /// waits is waited for by those behind it alone, and they wait for the same holders.
    async fn who_hold_what_others_want<'a>(
        &self,
        agents: &[&'a str],
    ) -> Result<Vec<&'a str>, CoordinationError> {
        let mut found = Vec::new();
        for some in agents.chunks(BATCH) {
            let held = try_join_all(some.iter().map(|agent| async {
                let index = self.agent_keys(agent)?.by_agent.clone();
                self.members(&index).await
            }))
            .await?;
            let all: BTreeSet<LockName> = held.iter().flatten().cloned().collect();
            let all: Vec<LockName> = all.into_iter().collect();
            let wanted: HashSet<LockName> = self.with_queue(&all).await?.into_iter().collect();
            let holds_some = |held: &[LockName]| held.iter().any(|name| wanted.contains(name));
            found
                .extend(some.iter().zip(&held).filter(|(_, held)| holds_some(held)).map(|(agent, _)| *agent));
        }
        Ok(found)
    }

    /// Whether nobody searched an agent's waits lately; if so, we do.
    async fn may_check(&self, agent: &str, now: Moment) -> Result<bool, CoordinationError> {
        let (check, stamp) = self.stamp(agent, now)?;
        Ok(self.ask(&check, stamp).await? == Value::Okay)
    }

    fn stamp(&self, agent: &str, now: Moment) -> Result<(RedisKey, Cmd), CoordinationError> {
        let check = self.agent_keys(agent)?.check.clone();
        let mut stamp = redis::cmd("SET");
        stamp.arg(check.as_str()).arg(now.to_string()).arg("NX").arg("EX").arg(CHECK_SECONDS);
        Ok((check, stamp))
    }

    async fn revise(
        &self,
        index: &RedisKey,
        member: &str,
        seen: &str,
        new: &str,
    ) -> Result<(), CoordinationError> {
        let args = [member.as_bytes(), seen.as_bytes(), new.as_bytes()];
        self.link.call(&self.scripts.revise, std::slice::from_ref(index), &args).await.map(drop)
    }

    /// None of it depends on the rest: what fails is done next time.
    async fn keep_house(&self) {
        locked(&self.rounds).inspected.retain(|_, at| at.elapsed() < 2 * INSPECT);
        let enlist = is_due(locked(&self.rounds).enlisted, ENLIST_AGAIN);
        let done = [
            self.ask_time().await,
            self.learn_ages().await,
            self.find_silent_agents().await,
            self.forget_idle_agents().await,
            self.forget_names().await,
            if enlist { self.enlist_again().await } else { Ok(()) },
        ];
        if enlist {
            locked(&self.rounds).enlisted = Some(Instant::now());
        }
        if let Some(error) = done.into_iter().find_map(Result::err) {
            tracing::debug!(%error, "housekeeping of locks is not complete; the next round goes on");
        }
    }

    /// Locks that are held and that the registry has lost, with a part of the cluster perhaps, come back. On a cluster the
    /// indexes are prolonged too; elsewhere each heartbeat does that itself.
    async fn enlist_again(&self) -> Result<(), CoordinationError> {
        let alive: Vec<(LockName, Holder)> =
            std::mem::take(&mut locked(&self.rounds).alive).into_iter().collect();
        for some in alive.chunks(BATCH) {
            if self.in_cluster() {
                self.list_held(some).await?;
            }
            let mut lock_keys = Vec::with_capacity(some.len());
            let mut ask = redis::cmd("ZMSCORE");
            ask.arg(self.keys.registry.as_str());
            for (name, _) in some {
                let keys = self.lock_keys(name)?;
                ask.arg(keys.lock().as_str());
                lock_keys.push(keys.lock().clone());
            }
            let scores = self.ask(&self.keys.registry, ask).await?;
            let scores = step::list(&scores).map_err(foreign)?;
            for (key, _) in lock_keys.iter().zip(scores).filter(|(_, score)| **score == Value::Nil) {
                self.enlist(key, self.clock.now()).await?;
            }
        }
        Ok(())
    }

    /// Tickets of agents that were not heard of are cancelled, and the agents count as offline.
    async fn find_silent_agents(&self) -> Result<(), CoordinationError> {
        let now = self.clock.now();
        let limit = (now.micros() / 1000).saturating_sub(OFFLINE_AFTER_MS);
        let mut ask = redis::cmd("ZRANGEBYSCORE");
        ask.arg(self.keys.alive.as_str())
            .arg("-inf")
            .arg(limit)
            .arg("WITHSCORES")
            .arg("LIMIT")
            .arg(0)
            .arg(BATCH);
        let silent = texts(&self.ask(&self.keys.alive, ask).await?)?;
        for [agent, score] in silent.as_chunks::<2>().0 {
            // One whose locks cannot be reached does not keep the others from being found.
            if let Err(error) = self.silence(agent, score).await {
                tracing::warn!(agent, %error, "tickets of a silent agent cannot be cancelled now; later");
            }
        }
        Ok(())
    }

    async fn silence(&self, agent: &str, score: &str) -> Result<(), CoordinationError> {
        for (name, holder, request) in self.tickets_of(agent).await? {
            let command = LockCommand::Cancel { holder, request, why: End::AgentOffline, begun: false };
            let answer = self.command(&name, &command).await?;
            locked(&self.rounds).untold.extend(answer.deadlocks);
        }
        let keys = self.agent_keys(agent)?;
        let pair = [keys.profile.clone(), keys.capacity.clone()];
        self.link.call(&self.scripts.silence_agent, &pair, &[]).await?;
        self.revise(&self.keys.alive, agent, score, "").await
    }

    /// The waits of an agent that no server holds an answer open for.
    async fn tickets_of(
        &self,
        agent: &str,
    ) -> Result<Vec<(LockName, Holder, RequestKey)>, CoordinationError> {
        let waits = self.waits_of(agent).await?.into_iter();
        let unserved = waits.filter(|(_, _, waiter)| waiter.served_by.is_none());
        Ok(unserved.map(|(name, holder, waiter)| (name, holder, waiter.request)).collect())
    }

    /// Every wait of an agent.
    async fn waits_of(&self, agent: &str) -> Result<Vec<(LockName, Holder, Waiter)>, CoordinationError> {
        let names = self.members(&self.agent_keys(agent)?.waitfor).await?;
        let mut waits = Vec::new();
        for (name, seen) in names.iter().zip(self.see_all(&names, usize::MAX).await?) {
            let of_agent = seen.waiters.into_iter().filter(|waiter| waiter.holder.agent_id() == agent);
            waits.extend(of_agent.map(|waiter| (name.clone(), waiter.holder.clone(), waiter)));
        }
        Ok(waits)
    }

    /// Looks at some of the long names, each time at the next ones; elsewhere than on a cluster a lock leaves the registry
    /// with its last holder, and no sweep comes to it any more.
    async fn forget_names(&self) -> Result<(), CoordinationError> {
        if self.in_cluster() {
            return Ok(());
        }
        let from = locked(&self.rounds).names_from.clone();
        let mut scan = redis::cmd("HSCAN");
        scan.arg(self.keys.names.as_str()).arg(if from.is_empty() { "0" } else { &from });
        scan.arg("COUNT").arg(BATCH);
        let page = texts(&self.ask(&self.keys.names, scan).await?)?;
        let Some((next, fields)) = page.split_first() else { return Ok(()) };
        next.clone_into(&mut locked(&self.rounds).names_from);
        let locks: Vec<&[u8]> = fields.as_chunks::<2>().0.iter().map(|[lock, _]| lock.as_bytes()).collect();
        if !locks.is_empty() {
            let keys = [self.keys.names.clone(), self.keys.registry.clone()];
            self.link.call(&self.scripts.forget_names, &keys, &locks).await?;
        }
        Ok(())
    }

    async fn forget_idle_agents(&self) -> Result<(), CoordinationError> {
        let limit = (self.clock.now().micros() / 1000).saturating_sub(IDLE_MS);
        let mut ask = redis::cmd("ZRANGEBYSCORE");
        ask.arg(self.keys.named.as_str()).arg("-inf").arg(limit).arg("LIMIT").arg(0).arg(BATCH);
        for agent in texts(&self.ask(&self.keys.named, ask).await?)? {
            self.remove_agent(&agent).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_score_tells_whether_its_lock_was_idle() {
        let now = Moment::from_micros(1_794_764_406_206_898);
        assert_eq!(idle_until(now), "1794764406.2065");
        assert!(was_idle(&idle_until(now)) && was_idle("1794764406.2065001"));
        assert!(
            !was_idle(&seconds(now))
                && !was_idle("1794764406.205")
                && !was_idle("1794764406")
                && !was_idle("")
        );
    }
}
