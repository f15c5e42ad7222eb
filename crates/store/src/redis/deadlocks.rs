//! Deadlocks across slots: the part of the wait-for graph that a holder can reach is read, `domain` searches it, and a
//! cycle counts only if a second reading, begun when the first was over, shows the same waits and the same grants.
//!
//! Then all its edges stood at one moment, and a cycle of waits does not open by itself. The victim's own wait is checked
//! once more inside the script that ends it.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use ade_domain::Moment;
use ade_domain::lock::graph::{self, Candidate};
use ade_domain::lock::{Command, Cycle, Deadlock, Entry, Holder, LockName, Outcome, Table};
use ade_keyspace::RedisKey;
use futures_util::future::try_join_all;
use redis::Value;

use super::keys::LockKeys;
use super::step::Changed;
use super::{Inner, foreign, locked, record, step};
use crate::coordination::Unavailable;

/// Searches for one holder before it is left to the next round.
const MOST_SEARCHES: usize = 10;
/// Locks that one search reads; what is beyond is not searched.
const MOST_LOCKS: usize = 5_000;

/// What one search came to.
enum Search {
    /// There is no cycle.
    Free,
    /// There was one, and it opened by itself.
    Again,
    /// Somebody gave way.
    Ended(Deadlock),
}

impl Inner {
    /// Ends every cycle through this holder, which waits for `name`; `is_last`: behind everybody else there.
    pub(super) async fn end_deadlocks(
        &self,
        through: &Holder,
        name: &LockName,
        is_last: bool,
    ) -> Result<Vec<Deadlock>, Unavailable> {
        let mut ended = Vec::new();
        if !self.rules().deadlock_detection || (is_last && !self.may_be_waited_for(through, name).await?) {
            return Ok(ended);
        }
        for _ in 0..MOST_SEARCHES {
            match self.end_one(through, name).await {
                Ok(Search::Free) => return Ok(ended),
                Ok(Search::Again) => {}
                Ok(Search::Ended(deadlock)) => ended.push(deadlock),
                Err(error) => {
                    // Who gave way has given way: the next sweep tells of it.
                    locked(&self.rounds).untold.extend(ended);
                    return Err(error);
                }
            }
        }
        tracing::warn!(holder = %through, "cycles of waiting holders keep forming; the rest is left to the next round");
        Ok(ended)
    }

    async fn end_one(&self, through: &Holder, name: &LockName) -> Result<Search, Unavailable> {
        let first = self.reach(name).await?;
        let Some(cycle) = graph::cycle_through(&first, through) else { return Ok(Search::Free) };
        let Some(second) = self.read_again(&first, &cycle).await? else { return Ok(Search::Again) };
        Ok(self.abort_one(second, cycle).await?.map_or(Search::Again, Search::Ended))
    }

    /// Whether anybody waits for something that the holder's agent holds, or may stand behind it elsewhere. Most of those
    /// who queue hold nothing that others want and wait for nothing else: no way leads back to them.
    async fn may_be_waited_for(&self, holder: &Holder, name: &LockName) -> Result<bool, Unavailable> {
        let keys = self.agent_keys(holder.agent_id())?;
        let (held, waits) = tokio::join!(self.members(&keys.by_agent), self.members(&keys.waitfor));
        let (held, waits) = (held?, waits?);
        let held = self.those_with(holder, held, |keys| (keys.lock().clone(), "h:")).await?;
        if !self.with_queue(&held).await?.is_empty() {
            return Ok(true);
        }
        let waits: Vec<LockName> = waits.into_iter().filter(|other| other != name).collect();
        let waits = self.those_with(holder, waits, |keys| (keys.waiting().clone(), "")).await?;
        Ok(self.queue_lengths(&waits).await?.into_iter().any(|length| length > 1))
    }

    /// Those of the locks where this holder has a field of its own in a hash, not only another one of its agent.
    async fn those_with(
        &self,
        holder: &Holder,
        names: Vec<LockName>,
        hash: impl Fn(&LockKeys) -> (RedisKey, &'static str),
    ) -> Result<Vec<LockName>, Unavailable> {
        let who = record::who(holder);
        let mut questions = Vec::with_capacity(names.len());
        for name in &names {
            let (key, prefix) = hash(&*self.lock_keys(name)?);
            let mut ask = redis::cmd("HEXISTS");
            ask.arg(key.as_str()).arg(format!("{prefix}{who}"));
            questions.push((key, ask));
        }
        let answers = self.ask_each(questions).await?;
        let is_there = |answer: &Value| matches!(answer, Value::Int(1) | Value::Boolean(true));
        Ok(names
            .into_iter()
            .zip(&answers)
            .filter(|(_, answer)| is_there(answer))
            .map(|(name, _)| name)
            .collect())
    }

    /// Everything that can be reached from a lock: its holders and waiters, what their agents wait for, and so on.
    async fn reach(&self, from: &LockName) -> Result<Table, Unavailable> {
        let mut table = Table::new(self.rules().clone());
        let mut known: HashSet<LockName> = HashSet::from([from.clone()]);
        let mut agents: HashSet<String> = HashSet::new();
        let mut next = vec![from.clone()];
        while !next.is_empty() && known.len() <= MOST_LOCKS {
            let mut met: BTreeSet<String> = BTreeSet::new();
            for (name, seen) in next.iter().zip(self.see_all(&next, usize::MAX).await?) {
                let of_lock = seen.holds.iter().map(|hold| &hold.holder);
                for holder in of_lock.chain(seen.waiters.iter().map(|waiter| &waiter.holder)) {
                    if !agents.contains(holder.agent_id()) {
                        met.insert(holder.agent_id().to_owned());
                    }
                }
                seen.changes().for_each(|change| table.apply(&Entry::Lock(name.clone(), change)));
            }
            let waits = try_join_all(met.iter().map(|agent| self.waited_for_by(agent))).await?;
            next = waits.into_iter().flatten().filter(|name| known.insert(name.clone())).collect();
            agents.extend(met);
        }
        Ok(table)
    }

    async fn waited_for_by(&self, agent: &str) -> Result<Vec<LockName>, Unavailable> {
        self.members(&self.agent_keys(agent)?.waitfor).await
    }

    /// Lets happen what is due at the locks of a cycle, and reads them again with all that its holders hold. `None` if
    /// anything is not as it was.
    async fn read_again(&self, first: &Table, cycle: &Cycle) -> Result<Option<Table>, Unavailable> {
        let own: BTreeSet<LockName> = cycle.iter().map(|edge| edge.waits_for.clone()).collect();
        try_join_all(own.iter().map(|name| self.step(name, &Command::Tick))).await?;
        let mut names = own;
        for edge in cycle {
            names.extend(self.members(&self.agent_keys(edge.holder.agent_id())?.by_agent).await?);
        }
        let names: Vec<LockName> = names.into_iter().collect();
        let mut second = Table::new(self.rules().clone());
        for (name, seen) in names.iter().zip(self.see_all(&names, usize::MAX).await?) {
            seen.changes().for_each(|change| second.apply(&Entry::Lock(name.clone(), change)));
        }
        Ok(stands(first, &second, cycle).then_some(second))
    }

    /// Ends the wait and the holds of whoever gives way; `None` if it stopped waiting meanwhile.
    async fn abort_one(&self, mut seen: Table, cycle: Cycle) -> Result<Option<Deadlock>, Unavailable> {
        let now = self.clock.now();
        for edge in &cycle {
            if let Some((since, until)) = self.age(&edge.holder).await? {
                seen.apply(&Entry::Aged { holder: edge.holder.clone(), since, until });
            }
        }
        let Some(Candidate { holder, oldest_grant, .. }) = seen.victim(&cycle, now) else { return Ok(None) };
        let Some(edge) = cycle.iter().find(|edge| edge.holder == holder).cloned() else { return Ok(None) };
        let cycle = Arc::new(cycle);
        let abort = |waits_by| Command::Abort { holder: holder.clone(), waits_by, cycle: cycle.clone() };
        if let Some(since) = oldest_grant {
            self.keep_age(&holder, since, now).await?;
        }
        let said = self.step(&edge.waits_for, &abort(Some(edge.request))).await?;
        if said.outcome == Outcome::Lost {
            return Ok(None);
        }
        let freed_here = |name: &LockName, changed: &[Changed]| {
            let of_victim =
                |change: &Changed| matches!(change, Changed::Freed { holder: of, .. } if *of == holder);
            changed.iter().any(of_victim).then(|| name.clone())
        };
        let mut freed: BTreeSet<LockName> = freed_here(&edge.waits_for, &said.changed).into_iter().collect();
        let keys = self.agent_keys(holder.agent_id())?;
        let mut others: BTreeSet<LockName> = self.members(&keys.waitfor).await?.into_iter().collect();
        others.extend(self.members(&keys.by_agent).await?);
        others.remove(&edge.waits_for);
        for name in others {
            // Its wait has ended, and that is told whatever happens to the rest; what cannot be reached ends with its lease.
            match self.step(&name, &abort(None)).await {
                Ok(said) => freed.extend(freed_here(&name, &said.changed)),
                Err(error) => {
                    tracing::warn!(lock = %name, %error, "a lock of a deadlock's victim cannot be freed");
                }
            }
        }
        Ok(Some(Deadlock { cycle, victim: holder, freed: freed.into_iter().collect() }))
    }

    /// Since when a holder counts as old, and until when, if it gave way before.
    async fn age(&self, holder: &Holder) -> Result<Option<(Moment, Moment)>, Unavailable> {
        let mut ask = redis::cmd("HGET");
        ask.arg(self.keys.ages.as_str()).arg(record::who(holder));
        let value = self.ask(&self.keys.ages, ask).await?;
        if value == Value::Nil {
            return Ok(None);
        }
        let text = step::text(&value).map_err(foreign)?;
        let (since, until) = text.split_once(' ').unwrap_or_default();
        Ok(record::moment(since).zip(record::moment(until)))
    }

    async fn keep_age(&self, holder: &Holder, since: Moment, now: Moment) -> Result<(), Unavailable> {
        let repeat_ms = self.rules().repeat_ms;
        let (mut set, mut expire) = (redis::cmd("HSET"), redis::cmd("PEXPIRE"));
        let age = format!("{} {}", since.micros(), now.plus_ms(repeat_ms).micros());
        set.arg(self.keys.ages.as_str()).arg(record::who(holder)).arg(age);
        expire.arg(self.keys.ages.as_str()).arg(repeat_ms);
        let key = &self.keys.ages;
        self.ask_each(vec![(key.clone(), set), (key.clone(), expire)]).await?;
        locked(&self.aged).insert(record::who(holder));
        Ok(())
    }

    /// A holder that got what it wanted and gave it back counts as old as it is again.
    pub(super) async fn forget_age(&self, holder: &Holder) {
        if locked(&self.aged).is_empty() || !locked(&self.aged).remove(&record::who(holder)) {
            return;
        }
        let mut forget = redis::cmd("HDEL");
        forget.arg(self.keys.ages.as_str()).arg(record::who(holder));
        if let Err(error) = self.ask(&self.keys.ages, forget).await {
            tracing::warn!(%error, "the age of a holder cannot be forgotten; it ends by itself");
        }
    }

    /// Learns who gave way lately, wherever that was decided, and forgets those for whom it does not count any more.
    pub(super) async fn learn_ages(&self) -> Result<(), Unavailable> {
        let mut ask = redis::cmd("HGETALL");
        ask.arg(self.keys.ages.as_str());
        let ages = super::locks::texts(&self.ask(&self.keys.ages, ask).await?)?;
        let now = self.clock.now();
        let counts = |age: &str| {
            let until = age.split_once(' ').and_then(|(_, until)| record::moment(until));
            until.is_some_and(|until| until > now)
        };
        let (count, over): (Vec<_>, Vec<_>) =
            ages.as_chunks::<2>().0.iter().partition(|[_, age]| counts(age));
        *locked(&self.aged) = count.into_iter().map(|[who, _]| who.clone()).collect();
        if !over.is_empty() {
            let mut forget = redis::cmd("HDEL");
            forget.arg(self.keys.ages.as_str()).arg(over.iter().map(|[who, _]| who).collect::<Vec<_>>());
            self.ask(&self.keys.ages, forget).await?;
        }
        Ok(())
    }
}

/// Whether every edge of a cycle is the same in both readings: the same wait at the same place, behind the same grant.
fn stands(first: &Table, second: &Table, cycle: &Cycle) -> bool {
    let wait = |table: &Table, name: &LockName, holder: &Holder| {
        let waiter = table.lock(name)?.wait_of(holder)?;
        Some((waiter.request, waiter.score))
    };
    let token =
        |table: &Table, name: &LockName, holder: &Holder| Some(table.lock(name)?.hold_of(holder)?.token);
    let next = cycle.iter().skip(1).chain(cycle.first());
    // Whoever is next holds the lock, or waits just before.
    let blocks = |name: &LockName, holder: &Holder, next: &Holder| {
        let Some(lock) = second.lock(name) else { return false };
        let ahead = lock.wait_and_ahead(holder).map(|(_, ahead)| ahead).unwrap_or_default();
        lock.hold_of(next).is_some() || ahead.iter().any(|waiter| waiter.holder == *next)
    };
    cycle.iter().zip(next).all(|(edge, next)| {
        let (lock, holder) = (&edge.waits_for, &edge.holder);
        let waits = wait(second, lock, holder);
        waits.is_some_and(|(request, _)| request == edge.request)
            && waits == wait(first, lock, holder)
            && blocks(lock, holder, &next.holder)
            && token(first, lock, &next.holder) == token(second, lock, &next.holder)
            && wait(first, lock, &next.holder) == wait(second, lock, &next.holder)
    })
}
