//! Deadlocks across slots: what matters of the wait-for graph is read, `domain` searches it, and a
//! cycle counts only if a second reading, begun when the first was over, shows the same waits and the same grants.
//!
//! Then all its edges stood at one moment, and a cycle of waits does not open by itself. The victim's own wait is checked
//! once more inside the script that ends it.

use std::collections::BTreeSet;
use std::sync::Arc;

use ade_domain::Moment;
use ade_domain::lock::graph::{self, Candidate};
use ade_domain::lock::{Cycle, Deadlock, Entry, Holder, LockCommand, LockName, Outcome, Table};
use futures_util::future::try_join_all;
use redis::Value;

use super::step::Changed;
use super::{Inner, encoding, foreign, locked, step};
use crate::coordination::CoordinationError;

/// Searches for one holder before it is left to the next round.
const MOST_SEARCHES: usize = 10;

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
    ) -> Result<Vec<Deadlock>, CoordinationError> {
        let mut ended = Vec::new();
        if !self.rules().deadlock_detection {
            return Ok(ended);
        }
        for _ in 0..MOST_SEARCHES {
            match self.end_one(through, name, is_last).await {
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

    /// Ends the cycles among those whom an agent's waits lead to, as one reading shows them. Whether nobody is suspected any
    /// more whom a closer look did not clear.
    pub(super) async fn end_suspected(
        &self,
        table: &Table,
        ended: &mut Vec<Deadlock>,
    ) -> Result<bool, CoordinationError> {
        let mut is_clear = true;
        let waiting = table.all_waiting().map(|(holder, _)| holder);
        for holder in graph::suspects(table, waiting) {
            let Some(cycle) = graph::cycle_through(table, holder) else { continue };
            match self.end_found(table, cycle).await? {
                Search::Ended(deadlock) => ended.push(deadlock),
                Search::Free | Search::Again => is_clear = false,
            }
        }
        Ok(is_clear)
    }

    async fn end_one(
        &self,
        through: &Holder,
        name: &LockName,
        is_last: bool,
    ) -> Result<Search, CoordinationError> {
        let Some((first, cycle)) = self.find_cycle(through, name, is_last).await? else {
            return Ok(Search::Free);
        };
        self.end_found(&first, cycle).await
    }

    /// Ends a cycle that was found in a reading, if a second one shows the same.
    async fn end_found(&self, first: &Table, cycle: Cycle) -> Result<Search, CoordinationError> {
        let Some(second) = self.read_again(first, &cycle).await? else { return Ok(Search::Again) };
        Ok(self.abort_one(second, cycle).await?.map_or(Search::Again, Search::Ended))
    }

    /// Lets happen what is due at the locks of a cycle, and reads them again with all that its holders hold. `None` if
    /// anything is not as it was.
    async fn read_again(&self, first: &Table, cycle: &Cycle) -> Result<Option<Table>, CoordinationError> {
        let own: BTreeSet<LockName> = cycle.iter().map(|edge| edge.waits_for.clone()).collect();
        try_join_all(own.iter().map(|name| self.step(name, &LockCommand::Tick))).await?;
        let held = try_join_all(cycle.iter().map(|edge| self.held_by(&edge.holder))).await?;
        let held: BTreeSet<LockName> =
            held.into_iter().flatten().filter(|name| !own.contains(name)).collect();
        let mut second = Table::new(self.rules().clone());
        // Of what else they hold only the grants matter: they say who is the youngest.
        for (names, most) in [(own, usize::MAX), (held, 0)] {
            let names: Vec<LockName> = names.into_iter().collect();
            for (name, seen) in names.iter().zip(self.see_all(&names, most).await?) {
                seen.changes().for_each(|change| second.apply(&Entry::Lock(name.clone(), change)));
            }
        }
        Ok(stands(first, &second, cycle).then_some(second))
    }

    /// Ends the wait and the holds of whoever gives way; `None` if it stopped waiting meanwhile.
    async fn abort_one(&self, mut seen: Table, cycle: Cycle) -> Result<Option<Deadlock>, CoordinationError> {
        let now = self.clock.now();
        let ages = try_join_all(cycle.iter().map(|edge| self.age(&edge.holder))).await?;
        for (edge, age) in cycle.iter().zip(ages) {
            if let Some((since, until)) = age {
                seen.apply(&Entry::Aged { holder: edge.holder.clone(), since, until });
            }
        }
        let Some(Candidate { holder, oldest_grant, .. }) = seen.victim(&cycle, now) else { return Ok(None) };
        let Some(edge) = cycle.iter().find(|edge| edge.holder == holder).cloned() else { return Ok(None) };
        let cycle = Arc::new(cycle);
        let abort = |waits_by| LockCommand::Abort { holder: holder.clone(), waits_by, cycle: cycle.clone() };
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
        // Its wait has ended, and that is told whatever happens to the rest.
        let mut others = self.all_of_holder(&holder).await.unwrap_or_else(|error| {
            tracing::warn!(%holder, %error, "the locks of a deadlock's victim cannot be found; they end with their leases");
            BTreeSet::new()
        });
        others.remove(&edge.waits_for);
        for name in others {
            // What cannot be reached ends with its lease.
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
    async fn age(&self, holder: &Holder) -> Result<Option<(Moment, Moment)>, CoordinationError> {
        let mut ask = redis::cmd("HGET");
        ask.arg(self.keys.ages.as_str()).arg(encoding::who(holder));
        let value = self.ask(&self.keys.ages, ask).await?;
        if value == Value::Nil {
            return Ok(None);
        }
        let text = step::text(&value).map_err(foreign)?;
        let (since, until) = text.split_once(' ').unwrap_or_default();
        Ok(encoding::moment(since).zip(encoding::moment(until)))
    }

    async fn keep_age(&self, holder: &Holder, since: Moment, now: Moment) -> Result<(), CoordinationError> {
        let repeat_ms = self.rules().repeat_ms;
        let (mut set, mut expire) = (redis::cmd("HSET"), redis::cmd("PEXPIRE"));
        let age = format!("{} {}", since.micros(), now.plus_ms(repeat_ms).micros());
        set.arg(self.keys.ages.as_str()).arg(encoding::who(holder)).arg(age);
        expire.arg(self.keys.ages.as_str()).arg(repeat_ms);
        let key = &self.keys.ages;
        self.ask_each(vec![(key.clone(), set), (key.clone(), expire)]).await?;
        locked(&self.aged).insert(encoding::who(holder));
        Ok(())
    }

    /// A holder that got what it wanted and gave it back counts as old as it is again.
    pub(super) async fn forget_age(&self, holder: &Holder) {
        if locked(&self.aged).is_empty() || !locked(&self.aged).remove(&encoding::who(holder)) {
            return;
        }
        let mut forget = redis::cmd("HDEL");
        forget.arg(self.keys.ages.as_str()).arg(encoding::who(holder));
        if let Err(error) = self.ask(&self.keys.ages, forget).await {
            tracing::warn!(%error, "the age of a holder cannot be forgotten; it ends by itself");
        }
    }

    /// Learns who gave way lately, wherever that was decided, and forgets those for whom it does not count any more.
    pub(super) async fn learn_ages(&self) -> Result<(), CoordinationError> {
        let mut ask = redis::cmd("HGETALL");
        ask.arg(self.keys.ages.as_str());
        let ages = super::locks::texts(&self.ask(&self.keys.ages, ask).await?)?;
        let now = self.clock.now();
        let counts = |age: &str| {
            let until = age.split_once(' ').and_then(|(_, until)| encoding::moment(until));
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
