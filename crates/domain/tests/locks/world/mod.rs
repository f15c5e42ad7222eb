//! A table of locks in the hands of a test: short names for commands, invariants after each, and a brute-force oracle of
//! who waits for whom that shares no code with the search.

use std::collections::{BTreeMap, BTreeSet};

use ade_domain::Moment;
use ade_domain::lock::{
    Acquire, Answer, Change, Cycle, End, Entry, Grant, Holder, Lock, LockCommand, LockLimits, LockName, Mode,
    Outcome, RequestKey, Standing, Table, Token, Wait,
};

/// When a test begins.
pub(crate) const START: Moment = Moment::from_micros(1_794_744_000_000_000);

pub(crate) fn holder(name: &str) -> Holder {
    Holder::new(name, None).expect("valid")
}

pub(crate) fn lock(name: &str) -> LockName {
    format!("resource:test:{name}").parse().expect("valid")
}

/// A wish for a lock by a holder's request, ready to wait a minute as a ticket.
pub(crate) fn wish(who: &str, request: &str, mode: Mode) -> Acquire {
    let holder = holder(who);
    Acquire {
        request: RequestKey::of(&holder, request),
        holder,
        remember: true,
        mode,
        ttl_ms: 30_000,
        claimed: true,
        wait: Some(Wait { ms: 60_000, served_by: None }),
        purpose: "".into(),
        priority: 0,
    }
}

#[derive(Debug, Clone)]
pub(crate) struct World {
    pub(crate) table: Table,
    pub(crate) now: Moment,
    /// Everything that happened.
    pub(crate) entries: Vec<Entry>,
    /// What the last command changed.
    pub(crate) last: Vec<Entry>,
    tokens: BTreeMap<LockName, Token>,
}

impl World {
    pub(crate) fn new(rules: LockLimits) -> Self {
        let table = Table::new(rules);
        Self { table, now: START, entries: Vec::new(), last: Vec::new(), tokens: BTreeMap::new() }
    }

    pub(crate) fn pass(&mut self, ms: u64) {
        self.now = self.now.plus_ms(ms);
    }

    /// A command, and then every invariant.
    pub(crate) fn send(&mut self, name: &LockName, command: &LockCommand) -> Answer {
        let before = self.table.clone();
        let mut entries = Vec::new();
        let answer = self.table.command(name, command, self.now, &mut entries);
        check_order(&before, &self.table, &entries);
        check_ends(&before, command, &entries);
        self.check_tokens(&before, &entries);
        check(&self.table);
        self.entries.extend(entries.iter().cloned());
        self.last = entries;
        answer
    }

    /// Lets everything happen that is due.
    pub(crate) fn sweep(&mut self) {
        while let Some(name) = self.table.first_due(self.now) {
            self.send(&name, &LockCommand::Sweep);
        }
        for (name, lock) in self.table.locks_after(None) {
            let late = lock.holds().iter().find(|hold| hold.expires_at <= self.now);
            assert_eq!(late, None, "{name}: held beyond the lease");
            let late = lock.waiters().find(|waiter| waiter.deadline <= self.now);
            assert_eq!(late, None, "{name}: waits beyond the deadline");
        }
    }

    pub(crate) fn acquire(&mut self, name: &str, wish: Acquire) -> Standing {
        match self.send(&lock(name), &LockCommand::Acquire(wish)).outcome {
            Outcome::Standing(standing) => standing,
            other => panic!("not an answer to acquire: {other:?}"),
        }
    }

    pub(crate) fn grant(&mut self, name: &str, wish: Acquire) -> Grant {
        match self.acquire(name, wish) {
            Standing::Held(grant) => grant,
            other => panic!("not granted: {other:?}"),
        }
    }

    pub(crate) fn position(&mut self, name: &str, wish: Acquire) -> usize {
        match self.acquire(name, wish) {
            Standing::Waiting { position, .. } => position,
            other => panic!("not waiting: {other:?}"),
        }
    }

    pub(crate) fn release(&mut self, name: &str, who: &str) -> Outcome {
        let token =
            self.table.lock(&lock(name)).and_then(|lock| lock.hold_of(&holder(who))).map(|hold| hold.token);
        let token = token.unwrap_or_default();
        self.send(&lock(name), &LockCommand::Release { holder: holder(who), token }).outcome
    }

    pub(crate) fn holders(&self, name: &str) -> Vec<String> {
        let lock = self.table.lock(&lock(name));
        lock.into_iter().flat_map(Lock::holds).map(|hold| hold.holder.to_string()).collect()
    }

    pub(crate) fn queue(&self, name: &str) -> Vec<String> {
        let lock = self.table.lock(&lock(name));
        lock.into_iter().flat_map(Lock::waiters).map(|waiter| waiter.holder.to_string()).collect()
    }

    /// A token is larger than every earlier one, unless an upgrade fell back to the hold that was under it.
    fn check_tokens(&mut self, before: &Table, entries: &[Entry]) {
        for entry in entries {
            if let Entry::Lock(name, Change::Granted(hold)) = entry {
                let last = self.tokens.entry(name.clone()).or_default();
                let held = before.lock(name).and_then(|lock| lock.hold_of(&hold.holder));
                let under = held.and_then(|held| held.before.as_deref()).map(|under| under.token);
                assert!(
                    hold.token > *last || under == Some(hold.token),
                    "{name}: token {} after {last}",
                    hold.token
                );
                *last = hold.token.max(*last);
            }
        }
    }
}

/// Nobody passed anybody: whoever left the queue with the lock had nobody before it who still waits.
fn check_order(before: &Table, after: &Table, entries: &[Entry]) {
    for entry in entries {
        let Entry::Lock(name, Change::Granted(hold)) = entry else { continue };
        let place = |table: &Table, holder: &Holder| Some(table.lock(name)?.wait_of(holder)?.place());
        let Some(own) = place(before, &hold.holder) else { continue };
        for waiter in after.lock(name).into_iter().flat_map(Lock::waiters) {
            // Where it stands now: a waiter that lost the place of an upgrade is passed by those who came before it.
            let passed = place(before, &waiter.holder).is_some() && waiter.place() < own;
            assert!(!passed, "{name}: {} passed {}", hold.holder, waiter.holder);
        }
    }
}

/// A lease that has begun ends by its holder's wish, by time, by an administrator or by a deadlock, and by nothing else;
/// unless whoever began it says that nobody was told.
fn check_ends(before: &Table, command: &LockCommand, entries: &[Entry]) {
    let untold =
        matches!(command, LockCommand::Cancel { begun: true, .. } | LockCommand::HangUp { begun: true, .. });
    for entry in entries {
        let Entry::Lock(name, Change::Freed { holder, token, why }) = entry else { continue };
        let hold =
            before.lock(name).and_then(|lock| lock.hold_of(holder)).filter(|hold| hold.token == *token);
        let ended =
            matches!(why, End::Released | End::Expired | End::Broken | End::Cancelled | End::Deadlock(_));
        let untold = untold && command.holder() == Some(holder);
        assert!(
            ended || untold || hold.is_none_or(|hold| !hold.claimed),
            "{name}: {holder} lost a lease by {why:?}"
        );
    }
}

/// The table as a snapshot brings it back.
pub(crate) fn copy(table: &Table) -> Table {
    let mut copy = Table::new(table.rules().clone());
    table.entries().for_each(|entry| copy.apply(&entry));
    copy
}

/// What must hold after every step.
pub(crate) fn check(table: &Table) {
    let (mut held, mut waiting) = (BTreeSet::new(), BTreeSet::new());
    for (name, lock) in table.locks_after(None) {
        let exclusive = lock.holds().iter().any(|hold| hold.mode == Mode::Exclusive);
        assert!(!exclusive || lock.holds().len() == 1, "{name}: held twice");
        assert!(lock.queue_length() <= table.rules().max_queue, "{name}: queue too long");
        for hold in lock.holds() {
            held.insert((hold.holder.clone(), name.clone()));
        }
        for waiter in lock.waiters() {
            waiting.insert((waiter.holder.clone(), name.clone()));
            let holds = lock.hold_of(&waiter.holder).is_some();
            assert_eq!(waiter.upgrade, holds, "{name}: {} holds and waits", waiter.holder);
        }
        if let Some(head) = lock.waiters().next() {
            let others: Vec<_> = lock.holds().iter().filter(|hold| hold.holder != head.holder).collect();
            let may = others.iter().all(|hold| hold.mode.goes_with(head.mode));
            let room = lock.holds().len() < table.rules().max_holders;
            assert!(!(may && room), "{name}: {} could hold and waits", head.holder);
        }
    }
    let listed = |(holder, name): (&Holder, &LockName)| (holder.clone(), name.clone());
    assert_eq!(table.all_held().map(listed).collect::<BTreeSet<_>>(), held, "index of holds");
    assert_eq!(table.all_waiting().map(listed).collect::<BTreeSet<_>>(), waiting, "index of waits");
}

/// Everyone whom each waiting holder waits for, by the definition: incompatible holders and all earlier incompatible
/// waiters.
pub(crate) fn oracle(table: &Table) -> BTreeMap<Holder, BTreeMap<LockName, BTreeSet<Holder>>> {
    let mut graph: BTreeMap<Holder, BTreeMap<LockName, BTreeSet<Holder>>> = BTreeMap::new();
    for (name, lock) in table.locks_after(None) {
        let waiters: Vec<_> = lock.waiters().collect();
        for (at, waiter) in waiters.iter().enumerate() {
            let mut blockers: BTreeSet<Holder> = BTreeSet::new();
            for hold in lock.holds() {
                if !(hold.mode == Mode::Shared && waiter.mode == Mode::Shared) {
                    blockers.insert(hold.holder.clone());
                }
            }
            for earlier in waiters.iter().take(at) {
                if !(earlier.mode == Mode::Shared && waiter.mode == Mode::Shared) {
                    blockers.insert(earlier.holder.clone());
                }
            }
            blockers.remove(&waiter.holder);
            graph.entry(waiter.holder.clone()).or_default().insert(name.clone(), blockers);
        }
    }
    graph
}

/// Whether a holder waits for itself in the end, by walking every way.
pub(crate) fn is_in_cycle(table: &Table, start: &Holder) -> bool {
    let graph = oracle(table);
    let step = |from: &Holder| -> BTreeSet<Holder> {
        graph.get(from).into_iter().flat_map(BTreeMap::values).flatten().cloned().collect()
    };
    let mut reached = step(start);
    loop {
        let more: BTreeSet<Holder> = reached.iter().flat_map(step).collect();
        let before = reached.len();
        reached.extend(more);
        if reached.len() == before {
            return reached.contains(start);
        }
    }
}

/// A cycle must be made of real waits for real obstacles. The search goes by the nearest obstacle; a farther one is real
/// too.
pub(crate) fn check_cycle(table: &Table, cycle: &Cycle) {
    let graph = oracle(table);
    for (at, edge) in cycle.iter().enumerate() {
        let next = &cycle[(at + 1) % cycle.len()].holder;
        let blockers = graph.get(&edge.holder).and_then(|waits| waits.get(&edge.waits_for));
        let real = blockers.is_some_and(|blockers| blockers.contains(next));
        // Through a lock's node a sharer may reach the sharers that hold it, around the writer it stands behind.
        let around = blockers.is_some_and(|blockers| {
            blockers
                .iter()
                .any(|b| graph.get(b).and_then(|w| w.get(&edge.waits_for)).is_some_and(|o| o.contains(next)))
        });
        assert!(real || around, "{} does not wait for {next} at {}", edge.holder, edge.waits_for);
    }
}

pub(crate) fn deadlock(standing: &Standing) -> Option<&Cycle> {
    match standing {
        Standing::Over(End::Deadlock(cycle)) => Some(cycle),
        _ => None,
    }
}
