//! A lock table that checks all invariants after each command, and a brute-force oracle of the wait-for graph that shares no
//! code with the search under test.

use std::collections::{BTreeMap, BTreeSet};

use ade_domain::Moment;
use ade_domain::lock::{
    AcquireStatus, Acquisition, Cycle, EndReason, FencingToken, Grant, Holder, Lock, LockChange, LockCommand,
    LockLimits, LockMode, LockName, LockOutcome, LockReply, LockTable, RequestKey, TableChange, WaitOptions,
};

pub(crate) const START: Moment = Moment::from_micros(1_794_744_000_000_000);

pub(crate) fn holder(name: &str) -> Holder {
    Holder::new(name, None).expect("valid")
}

pub(crate) fn lock(name: &str) -> LockName {
    format!("resource:test:{name}").parse().expect("valid")
}

/// A request that waits with a ticket for up to one minute.
pub(crate) fn ticket(agent: &str, request_id: &str, mode: LockMode) -> Acquisition {
    let holder = holder(agent);
    Acquisition {
        request: RequestKey::derive(&holder, request_id),
        holder,
        leave_tombstone: true,
        mode,
        ttl_ms: 30_000,
        claimed: true,
        wait: Some(WaitOptions { timeout_ms: 60_000, served_by: None }),
        purpose: "".into(),
        priority: 0,
    }
}

#[derive(Debug, Clone)]
pub(crate) struct LockFixture {
    pub(crate) table: LockTable,
    pub(crate) now: Moment,
    /// The changes of all commands, as a journal would have them.
    pub(crate) journal: Vec<TableChange>,
    /// The changes of the last command.
    pub(crate) last_changes: Vec<TableChange>,
    last_tokens: BTreeMap<LockName, FencingToken>,
}

impl LockFixture {
    pub(crate) fn new(limits: LockLimits) -> Self {
        Self {
            table: LockTable::new(limits),
            now: START,
            journal: Vec::new(),
            last_changes: Vec::new(),
            last_tokens: BTreeMap::new(),
        }
    }

    pub(crate) fn advance(&mut self, ms: u64) {
        self.now = self.now.plus_ms(ms);
    }

    /// Executes a command, then checks every invariant.
    pub(crate) fn execute(&mut self, name: &LockName, command: &LockCommand) -> LockReply {
        let before = self.table.clone();
        let reply = self.table.execute(name, command, self.now);
        let changes = std::mem::take(&mut self.table.changes);
        assert_fifo_order(&before, &self.table, &changes);
        assert_leases_end_for_a_valid_reason(&before, command, &changes);
        self.assert_tokens_grow(&before, &changes);
        assert_invariants(&self.table);
        self.journal.extend(changes.iter().cloned());
        self.last_changes = changes;
        reply
    }

    /// Processes everything that is due.
    pub(crate) fn sweep(&mut self) {
        loop {
            let mut budget = 2;
            if let Some(name) = self.table.next_due_lock(self.now, &mut budget) {
                self.execute(&name, &LockCommand::Sweep);
            } else if budget > 0 {
                break;
            }
        }
        for (name, lock) in self.table.locks_after(None) {
            let overdue = lock.holds().iter().find(|hold| hold.expires_at <= self.now);
            assert_eq!(overdue, None, "{name}: held after the lease expired");
            let overdue = lock.waiters().find(|waiter| waiter.deadline <= self.now);
            assert_eq!(overdue, None, "{name}: waits after its deadline");
        }
    }

    pub(crate) fn acquire(&mut self, name: &str, acquisition: Acquisition) -> AcquireStatus {
        match self.execute(&lock(name), &LockCommand::Acquire(acquisition)).outcome {
            LockOutcome::Status(status) => status,
            other => panic!("acquire returned {other:?}"),
        }
    }

    /// Acquires a lock that can be granted at once.
    pub(crate) fn grant(&mut self, name: &str, acquisition: Acquisition) -> Grant {
        match self.acquire(name, acquisition) {
            AcquireStatus::Held(grant) => grant,
            other => panic!("not granted: {other:?}"),
        }
    }

    /// Acquires a lock that is not free. Returns the position in the queue.
    pub(crate) fn enqueue(&mut self, name: &str, acquisition: Acquisition) -> usize {
        match self.acquire(name, acquisition) {
            AcquireStatus::Waiting { position, .. } => position,
            other => panic!("not waiting: {other:?}"),
        }
    }

    pub(crate) fn release(&mut self, name: &str, agent: &str) -> LockOutcome {
        let holder = holder(agent);
        let hold = self.table.lock(&lock(name)).and_then(|lock| lock.hold_of(&holder));
        let token = hold.map(|hold| hold.token).unwrap_or_default();
        self.execute(&lock(name), &LockCommand::Release { holder, token, server: None }).outcome
    }

    pub(crate) fn holders(&self, name: &str) -> Vec<String> {
        let lock = self.table.lock(&lock(name));
        lock.into_iter().flat_map(Lock::holds).map(|hold| hold.holder.to_string()).collect()
    }

    pub(crate) fn queue(&self, name: &str) -> Vec<String> {
        let lock = self.table.lock(&lock(name));
        lock.into_iter().flat_map(Lock::waiters).map(|waiter| waiter.holder.to_string()).collect()
    }

    /// A token is larger than every earlier one, unless an upgrade falls back to the shared hold it replaced.
    fn assert_tokens_grow(&mut self, before: &LockTable, changes: &[TableChange]) {
        for change in changes {
            if let TableChange::Lock(name, LockChange::Granted(hold) | LockChange::Promoted(hold)) = change {
                let last = self.last_tokens.entry(name.clone()).or_default();
                let held = before.lock(name).and_then(|lock| lock.hold_of(&hold.holder));
                let fallback =
                    held.and_then(|held| held.upgraded_from.as_deref()).map(|previous| previous.token);
                assert!(
                    hold.token > *last || fallback == Some(hold.token),
                    "{name}: token {} after {last}",
                    hold.token
                );
                *last = hold.token.max(*last);
            }
        }
    }
}

/// A promoted waiter had nobody ahead of it who still waits.
fn assert_fifo_order(before: &LockTable, after: &LockTable, changes: &[TableChange]) {
    for change in changes {
        let TableChange::Lock(name, LockChange::Granted(hold) | LockChange::Promoted(hold)) = change else {
            continue;
        };
        let queue_key =
            |table: &LockTable, holder: &Holder| Some(table.lock(name)?.waiter_of(holder)?.queue_key());
        let Some(own_key) = queue_key(before, &hold.holder) else { continue };
        for waiter in after.lock(name).into_iter().flat_map(Lock::waiters) {
            // Compares with the present key: an upgrade that lost its shared hold is back among the regular waiters.
            let was_overtaken = queue_key(before, &waiter.holder).is_some() && waiter.queue_key() < own_key;
            assert!(!was_overtaken, "{name}: {} overtook {}", hold.holder, waiter.holder);
        }
    }
}

/// A claimed lease ends by its holder, by expiry, by a break or by a deadlock, and for no other reason, unless the command
/// says that the lease was not reported to the caller.
fn assert_leases_end_for_a_valid_reason(before: &LockTable, command: &LockCommand, changes: &[TableChange]) {
    let include_claimed = matches!(
        command,
        LockCommand::Cancel { include_claimed: true, .. }
            | LockCommand::Disconnect { include_claimed: true, .. }
    );
    for change in changes {
        let TableChange::Lock(name, LockChange::HoldEnded { holder, token, reason }) = change else {
            continue;
        };
        let hold =
            before.lock(name).and_then(|lock| lock.hold_of(holder)).filter(|hold| hold.token == *token);
        let is_valid_reason = matches!(
            reason,
            EndReason::Released
                | EndReason::Expired
                | EndReason::Broken
                | EndReason::Cancelled
                | EndReason::Deadlock(_)
        );
        let is_returned = matches!(command, LockCommand::ReturnUnreported { .. })
            && hold.is_some_and(|hold| hold.unreported_by.is_some());
        let is_unreported = (include_claimed || is_returned) && command.holder() == Some(holder);
        assert!(
            is_valid_reason || is_unreported || hold.is_none_or(|hold| !hold.claimed),
            "{name}: {holder} lost a lease by {reason:?}"
        );
    }
}

pub(crate) fn restore_from_snapshot(table: &LockTable) -> LockTable {
    let mut restored = LockTable::new(table.limits().clone());
    let mut copied = table.clone();
    let mut changes = copied.begin_snapshot();
    while let Some(slice) = copied.next_slice(2) {
        changes.extend(slice);
    }
    changes.iter().for_each(|change| restored.apply(change));
    restored
}

pub(crate) fn assert_invariants(table: &LockTable) {
    let (mut held, mut waiting) = (BTreeSet::new(), BTreeSet::new());
    for (name, lock) in table.locks_after(None) {
        let exclusive = lock.holds().iter().any(|hold| hold.mode == LockMode::Exclusive);
        assert!(!exclusive || lock.holds().len() == 1, "{name}: incompatible holders");
        assert!(lock.queue_length() <= table.limits().max_queue, "{name}: queue too long");
        for hold in lock.holds() {
            held.insert((hold.holder.clone(), name.clone()));
        }
        for waiter in lock.waiters() {
            waiting.insert((waiter.holder.clone(), name.clone()));
            let is_holder = lock.hold_of(&waiter.holder).is_some();
            assert_eq!(waiter.is_upgrade, is_holder, "{name}: {} is no upgrade", waiter.holder);
        }
        if let Some(head) = lock.waiters().next() {
            let mut others = lock.holds().iter().filter(|hold| hold.holder != head.holder);
            let is_compatible = others.all(|hold| hold.mode.is_compatible_with(head.mode));
            let has_capacity = lock.holds().len() < table.limits().max_holders;
            assert!(!(is_compatible && has_capacity), "{name}: {} was not promoted", head.holder);
        }
    }
    let pair = |(holder, name): (&Holder, &LockName)| (holder.clone(), name.clone());
    assert_eq!(table.all_holds().map(pair).collect::<BTreeSet<_>>(), held, "index of holds");
    assert_eq!(table.all_waits().map(pair).collect::<BTreeSet<_>>(), waiting, "index of waits");
    let used: BTreeSet<&LockName> = held.iter().chain(&waiting).map(|(_, name)| name).collect();
    assert_eq!(table.used_count(), used.len(), "locks in use");
    let waiting: BTreeSet<&Holder> = waiting.iter().map(|(holder, _)| holder).collect();
    let next = |last: &Option<Holder>| table.next_waiting_holder(last.as_ref()).cloned();
    let in_turn = std::iter::successors(Some(next(&None)), |last| Some(next(last))).take(2 * waiting.len());
    let expected = waiting.iter().chain(&waiting).map(|holder| Some((*holder).clone()));
    assert!(in_turn.eq(expected), "every waiting holder in turn");
}

/// The blockers of every wait, by definition: all incompatible holders and all earlier incompatible waiters.
pub(crate) fn wait_for_graph(table: &LockTable) -> BTreeMap<Holder, BTreeMap<LockName, BTreeSet<Holder>>> {
    let are_shared = |a: LockMode, b: LockMode| a == LockMode::Shared && b == LockMode::Shared;
    let mut graph: BTreeMap<Holder, BTreeMap<LockName, BTreeSet<Holder>>> = BTreeMap::new();
    for (name, lock) in table.locks_after(None) {
        let waiters: Vec<_> = lock.waiters().collect();
        for (index, waiter) in waiters.iter().enumerate() {
            let mut blockers: BTreeSet<Holder> = BTreeSet::new();
            for hold in lock.holds() {
                if !are_shared(hold.mode, waiter.mode) {
                    blockers.insert(hold.holder.clone());
                }
            }
            for earlier in waiters.iter().take(index) {
                if !are_shared(earlier.mode, waiter.mode) {
                    blockers.insert(earlier.holder.clone());
                }
            }
            blockers.remove(&waiter.holder);
            graph.entry(waiter.holder.clone()).or_default().insert(name.clone(), blockers);
        }
    }
    graph
}

/// Whether a holder transitively waits for itself.
pub(crate) fn is_in_cycle(table: &LockTable, start: &Holder) -> bool {
    let graph = wait_for_graph(table);
    let blockers_of = |from: &Holder| -> BTreeSet<Holder> {
        graph.get(from).into_iter().flat_map(BTreeMap::values).flatten().cloned().collect()
    };
    let mut reached = blockers_of(start);
    loop {
        let more: BTreeSet<Holder> = reached.iter().flat_map(blockers_of).collect();
        let before = reached.len();
        reached.extend(more);
        if reached.len() == before {
            return reached.contains(start);
        }
    }
}

/// Every edge of a cycle must be a real wait for a real blocker.
pub(crate) fn assert_real_cycle(table: &LockTable, cycle: &Cycle) {
    let graph = wait_for_graph(table);
    let blockers = |holder: &Holder, lock: &LockName| graph.get(holder).and_then(|waits| waits.get(lock));
    for (index, edge) in cycle.iter().enumerate() {
        let next = &cycle[(index + 1) % cycle.len()].holder;
        let blockers_of_edge = blockers(&edge.holder, &edge.waits_for);
        let is_direct = blockers_of_edge.is_some_and(|blockers| blockers.contains(next));
        // Through the node of a lock, a shared waiter reaches its shared holders past the exclusive waiter ahead of it.
        let is_indirect = blockers_of_edge.into_iter().flatten().any(|blocker| {
            blockers(blocker, &edge.waits_for).is_some_and(|blockers| blockers.contains(next))
        });
        assert!(is_direct || is_indirect, "{} does not wait for {next} at {}", edge.holder, edge.waits_for);
    }
}

pub(crate) fn deadlock_cycle(status: &AcquireStatus) -> Option<&Cycle> {
    match status {
        AcquireStatus::Ended(EndReason::Deadlock(cycle)) => Some(cycle),
        _ => None,
    }
}
