//! Deadlocks across slots. The relevant part of the wait-for graph is read, the `domain` crate searches it, and a
//! cycle counts only if a second read, started after the first one finished, shows the same waits and the same
//! grants.
//!
//! Then all edges existed at one moment, and a cycle of waits does not dissolve by itself. The script that aborts the
//! victim checks its wait once more.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use ade_domain::Moment;
use ade_domain::lock::graph::{self, VictimCandidate};
use ade_domain::lock::{Cycle, Deadlock, Holder, LockCommand, LockName, LockOutcome, LockTable, TableChange};
use futures_util::future::try_join_all;

use super::command::{ChangeKind, CommandReply};
use super::query::command;
use super::{Inner, Result, encoding, locked};

/// Ages of victims that are read at once.
const AGES_PAGE_SIZE: usize = 1_000;
/// Searches for one holder before the rest is left to the next sweep.
const MAX_SEARCHES: usize = 10;

enum SearchResult {
    NoCycle,
    /// The cycle was gone at the second read.
    Vanished,
    /// A victim was aborted.
    Resolved(Deadlock),
}

impl Inner {
    /// Resolves every deadlock through this holder, which waits for `name`. `is_last`: nobody waits behind it.
    pub(super) async fn resolve_deadlocks(
        &self,
        through: &Holder,
        name: &LockName,
        is_last: bool,
    ) -> Result<Vec<Deadlock>> {
        let mut resolved = Vec::new();
        if !self.detects_deadlocks() {
            return Ok(resolved);
        }
        for _ in 0..MAX_SEARCHES {
            match self.resolve_next(through, name, is_last).await {
                Ok(SearchResult::NoCycle) => return Ok(resolved),
                Ok(SearchResult::Vanished) => {}
                Ok(SearchResult::Resolved(deadlock)) => resolved.push(deadlock),
                Err(error) => {
                    // Resolved deadlocks must be reported despite the error.
                    locked(&self.maintenance).unreported_deadlocks.extend(resolved);
                    return Err(error);
                }
            }
        }
        tracing::warn!(holder = %through, "new deadlocks keep forming; the next sweep continues");
        Ok(resolved)
    }

    /// Resolves the deadlocks that one read of the graph shows. Returns whether every suspected cycle was resolved.
    pub(super) async fn resolve_suspected(
        &self,
        table: &LockTable,
        resolved: &mut Vec<Deadlock>,
    ) -> Result<bool> {
        let mut is_clear = true;
        let waiting = table.all_waits().map(|(holder, _)| holder);
        for holder in graph::find_cycle_candidates(table, waiting) {
            let Some(cycle) = graph::find_cycle_through(table, holder) else { continue };
            match self.resolve_cycle(table, cycle).await? {
                SearchResult::Resolved(deadlock) => resolved.push(deadlock),
                SearchResult::NoCycle | SearchResult::Vanished => is_clear = false,
            }
        }
        Ok(is_clear)
    }

    async fn resolve_next(&self, through: &Holder, name: &LockName, is_last: bool) -> Result<SearchResult> {
        match self.find_cycle(through, name, is_last).await? {
            Some((first, cycle)) => self.resolve_cycle(&first, cycle).await,
            None => Ok(SearchResult::NoCycle),
        }
    }

    /// Resolves a cycle if a second read confirms it.
    async fn resolve_cycle(&self, first: &LockTable, cycle: Cycle) -> Result<SearchResult> {
        let Some(second) = self.reread(first, &cycle).await? else { return Ok(SearchResult::Vanished) };
        Ok(self.abort_victim(second, cycle).await?.map_or(SearchResult::Vanished, SearchResult::Resolved))
    }

    /// Expires leases and waits at the locks of a cycle, and reads them again with everything that its holders hold. Returns
    /// `None` if the cycle changed.
    async fn reread(&self, first: &LockTable, cycle: &Cycle) -> Result<Option<LockTable>> {
        let in_cycle: BTreeSet<LockName> = cycle.iter().map(|edge| edge.waits_for.clone()).collect();
        try_join_all(in_cycle.iter().map(|name| self.apply(name, &LockCommand::Tick))).await?;
        let held = try_join_all(cycle.iter().map(|edge| self.held_by(&edge.holder))).await?;
        let held: BTreeSet<LockName> =
            held.into_iter().flatten().filter(|name| !in_cycle.contains(name)).collect();
        let mut second = LockTable::new(self.limits().clone());
        // Of the other locks only the grants matter: they determine the youngest holder.
        for (names, max_waiters) in [(in_cycle, usize::MAX), (held, 0)] {
            let names: Vec<LockName> = names.into_iter().collect();
            for (name, snapshot) in names.iter().zip(self.read_locks(&names, max_waiters).await?) {
                snapshot.changes().for_each(|change| second.apply(&TableChange::Lock(name.clone(), change)));
            }
        }
        Ok(is_unchanged(first, &second, cycle).then_some(second))
    }

    /// Aborts the wait and the holds of the victim. Returns `None` if it does not wait any more.
    async fn abort_victim(&self, mut table: LockTable, cycle: Cycle) -> Result<Option<Deadlock>> {
        let now = self.clock.now();
        let ages = try_join_all(cycle.iter().map(|edge| self.victim_age(&edge.holder))).await?;
        for (edge, age) in cycle.iter().zip(ages) {
            if let Some((oldest_grant, expires_at)) = age {
                let holder = edge.holder.clone();
                table.apply(&TableChange::VictimAge { holder, oldest_grant, expires_at });
            }
        }
        let Some(VictimCandidate { holder, oldest_grant, .. }) = table.choose_victim(&cycle, now) else {
            return Ok(None);
        };
        let Some(edge) = cycle.iter().find(|edge| edge.holder == holder).cloned() else { return Ok(None) };
        let cycle = Arc::new(cycle);
        let abort = |expected_request| LockCommand::Abort {
            holder: holder.clone(),
            expected_request,
            cycle: cycle.clone(),
        };
        if let Some(since) = oldest_grant {
            self.record_victim_age(&holder, since, now).await?;
        }
        let reply = self.apply(&edge.waits_for, &abort(Some(edge.request))).await?;
        if reply.outcome == LockOutcome::NotFound {
            return Ok(None);
        }
        let has_freed = |reply: &CommandReply| {
            reply.has_change_of(&holder, |kind| matches!(kind, ChangeKind::HoldEnded { .. }))
        };
        let mut freed = BTreeSet::new();
        if has_freed(&reply) {
            freed.insert(edge.waits_for.clone());
        }
        // Its wait has ended; the deadlock is reported even if the rest fails.
        let mut others = self.locks_of(&holder).await.unwrap_or_else(|error| {
            tracing::warn!(%holder, %error, "cannot find the locks of a deadlock victim; they end with their leases");
            BTreeSet::new()
        });
        others.remove(&edge.waits_for);
        for name in others {
            // A hold that cannot be freed ends with its lease.
            match self.apply(&name, &abort(None)).await {
                Ok(reply) if has_freed(&reply) => drop(freed.insert(name)),
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(lock = %name, %error, "cannot free a lock of a deadlock victim; it ends with its lease");
                }
            }
        }
        Ok(Some(Deadlock { cycle, victim: holder, freed_locks: freed.into_iter().collect() }))
    }

    /// Since when a victim counts as old, and until when that applies.
    async fn victim_age(&self, holder: &Holder) -> Result<Option<(Moment, Moment)>> {
        let digest = encoding::holder_digest(holder);
        let age: Option<String> = self.query("HGET", &self.keys.victim_ages, digest).await?;
        Ok(age.as_deref().and_then(parse_age))
    }

    async fn record_victim_age(&self, holder: &Holder, since: Moment, now: Moment) -> Result<()> {
        let (ages, digest) = (&self.keys.victim_ages, encoding::holder_digest(holder));
        let ttl_ms = self.limits().idempotency_ttl_ms;
        let age = format!("{} {}", since.micros(), now.plus_ms(ttl_ms).micros());
        let commands = vec![command("HSET", ages, (&digest, age)), command("PEXPIRE", ages, ttl_ms)];
        self.run_all(commands).await?;
        locked(&self.victims).insert(digest);
        Ok(())
    }

    /// A holder that released a lock regularly gets its real age back.
    pub(super) async fn forget_victim_age(&self, holder: &Holder) {
        if locked(&self.victims).is_empty() {
            return;
        }
        let digest = encoding::holder_digest(holder);
        if locked(&self.victims).remove(&digest)
            && let Err(error) = self.query::<()>("HDEL", &self.keys.victim_ages, digest).await
        {
            tracing::warn!(%error, "cannot delete the age of a deadlock victim; it expires by itself");
        }
    }

    /// Loads the current victims, also those of other servers, and deletes expired entries.
    pub(super) async fn refresh_victim_ages(&self) -> Result<()> {
        let now = self.clock.now();
        let (mut current, mut expired, mut cursor) = (HashSet::new(), Vec::new(), 0_u64);
        loop {
            let ages: (u64, Vec<(String, String)>) =
                self.query("HSCAN", &self.keys.victim_ages, (cursor, "COUNT", AGES_PAGE_SIZE)).await?;
            for (digest, age) in ages.1 {
                if parse_age(&age).is_some_and(|(_, until)| until > now) {
                    current.insert(digest);
                } else {
                    expired.push(command("HDEL", &self.keys.victim_ages, digest));
                }
            }
            cursor = ages.0;
            if cursor == 0 {
                break;
            }
        }
        *locked(&self.victims) = current;
        self.run_all(expired).await
    }
}

/// Since when, and until when that applies.
fn parse_age(age: &str) -> Option<(Moment, Moment)> {
    let (since, until) = age.split_once(' ')?;
    encoding::parse_moment(since).zip(encoding::parse_moment(until))
}

/// Whether every edge of a cycle is the same in both reads: the same wait at the same position, behind the same
/// grant.
fn is_unchanged(first: &LockTable, second: &LockTable, cycle: &Cycle) -> bool {
    let wait = |table: &LockTable, name: &LockName, holder: &Holder| {
        let waiter = table.lock(name)?.waiter_of(holder)?;
        Some((waiter.request, waiter.score))
    };
    let token =
        |table: &LockTable, name: &LockName, holder: &Holder| Some(table.lock(name)?.hold_of(holder)?.token);
    let next = cycle.iter().skip(1).chain(cycle.first());
    // The next holder of the cycle holds the lock or waits just ahead.
    let blocks = |name: &LockName, holder: &Holder, next: &Holder| {
        let Some(lock) = second.lock(name) else { return false };
        let ahead = lock.waiter_and_blockers(holder).map(|(_, ahead)| ahead).unwrap_or_default();
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
