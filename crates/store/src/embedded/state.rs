//! The state in memory, and the journal records that restore it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use ade_domain::Moment;
use ade_domain::agent::Agent;
use ade_domain::lock::{
    Deadlock, Holder, LockChange, LockLimits, LockRequest, LockTable, RequestKey, TableChange,
};
use ade_domain::rate::RateWindow;
use serde::{Deserialize, Serialize};

use super::journal::{Journal, JournalError, NewSegment, NextSegment, Snapshot};
use super::requests::RequestExpiries;
use super::silent_agents::SilenceChecks;
use crate::coordination::{LockEvent, LockEventKind, Ticket, UnreportedGrant};

/// A line of the journal.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum JournalRecord {
    /// The time of the records that follow.
    At(Moment),
    #[serde(untagged)]
    Locks(TableChange),
    #[serde(untagged)]
    State(StateChange),
}

impl JournalRecord {
    /// Nearly all records are changes of locks. Tried first, they are read without being copied for every untagged variant.
    pub(super) fn parse(json: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(json).map(Self::Locks).or_else(|_| serde_json::from_slice(json))
    }
}

/// A change of anything but locks. The variants must differ in name from those of lock changes: both are untagged in the journal.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum StateChange {
    RequestRegistered(RequestKey, RegisteredRequest),
    RequestForgotten(RequestKey),
    /// An agent was registered or updated.
    Agent(String, Agent),
    AgentHeartbeat(String, Moment),
    AgentRemoved(String),
    /// Agent, task, and the end of the claim.
    TaskClaimed(String, String, Moment),
    TaskReleased(String, String),
    /// A deadlock was resolved by a call that does not return it.
    DeadlockUnreported(Deadlock),
    /// A sweep returned all unreported deadlocks.
    DeadlocksReported,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct RegisteredRequest {
    /// Of the body, in hexadecimal.
    pub(super) digest: String,
    pub(super) until: Moment,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) ticket: Option<(LockRequest, Moment)>,
}

impl RegisteredRequest {
    pub(super) fn ticket(&self) -> Option<Ticket> {
        let (request, deadline) = self.ticket.clone()?;
        Some(Ticket { request, deadline })
    }
}

/// Entries of a snapshot that are copied at once: nobody waits for long.
const SLICE: usize = 500;

/// How far a snapshot is, behind the locks.
#[derive(Debug, Default)]
pub(super) struct SliceCursor {
    request: Option<RequestKey>,
    agent: Option<String>,
}

/// A request that something happened to, with its grant if that needs no claim.
pub(super) type Notification = (RequestKey, Option<UnreportedGrant>);

/// Everything behind the mutex.
#[derive(Debug)]
pub(super) struct State {
    pub(super) table: LockTable,
    pub(super) requests: BTreeMap<RequestKey, RegisteredRequest>,
    pub(super) request_expiries: RequestExpiries,
    pub(super) agents: BTreeMap<String, Agent>,
    /// How many of the agents were registered automatically.
    pub(super) auto_registered: usize,
    pub(super) rates: BTreeMap<String, RateWindow>,
    /// Deadlocks that the next sweep returns, also one of the next process.
    unreported: Vec<Deadlock>,
    pub(super) silence_checks: SilenceChecks,
    /// When the waits of each agent were last searched for cycles, and those of which holder were the last.
    pub(super) checked_for_cycles: BTreeMap<String, Moment>,
    pub(super) last_checked: Option<Holder>,
    pub(super) last_maintenance: Moment,
    pub(super) last_eviction: Moment,
    now: Moment,
    /// Requests to be notified once the journal is written.
    to_notify: Vec<Notification>,
    /// Changes that are not written to the journal yet, besides those of the table.
    state_changes: Vec<StateChange>,
    journal: Option<Journal>,
    is_snapshotting: bool,
}

impl State {
    pub(super) fn new(limits: LockLimits) -> Self {
        Self {
            table: LockTable::new(limits),
            requests: BTreeMap::new(),
            request_expiries: RequestExpiries::default(),
            agents: BTreeMap::new(),
            auto_registered: 0,
            rates: BTreeMap::new(),
            unreported: Vec::new(),
            silence_checks: SilenceChecks::default(),
            checked_for_cycles: BTreeMap::new(),
            last_checked: None,
            last_maintenance: Moment::default(),
            last_eviction: Moment::default(),
            now: Moment::default(),
            to_notify: Vec::new(),
            state_changes: Vec::new(),
            journal: None,
            is_snapshotting: false,
        }
    }

    /// The time of the next command: that of the clock, but never before the last command.
    pub(super) fn advance(&mut self, clock: Moment) -> Moment {
        self.now = self.now.max(clock);
        self.now
    }

    /// Counts as a heartbeat of every server that has waiters.
    pub(super) fn reset_server_heartbeats(&mut self, now: Moment) {
        self.table.reset_server_heartbeats(now);
    }

    /// The time of the last command.
    pub(super) const fn last_moment(&self) -> Moment {
        self.now
    }

    pub(super) fn replay(&mut self, record: JournalRecord) {
        match record {
            JournalRecord::At(moment) => self.now = self.now.max(moment),
            JournalRecord::Locks(change) => self.table.apply(&change),
            JournalRecord::State(change) => self.apply(change),
        }
    }

    /// Continues after the journal was replayed. Waiters with an open connection have lost it; they get some time to come back with the
    /// same request before others pass them.
    pub(super) fn resume(&mut self, clock: Moment, journal: Journal) -> Result<(), JournalError> {
        self.journal = Some(journal);
        let now = self.advance(clock);
        self.reset_server_heartbeats(now);
        // No heartbeat could arrive while the server was down.
        for (holder, _) in self.table.all_waits() {
            if let Some(agent) = self.agents.get_mut(holder.agent_id()) {
                agent.last_heartbeat = now;
            }
            self.silence_checks.add(holder.agent_id(), now);
        }
        Ok(())
    }

    /// Applies a change, and queues it for the journal.
    pub(super) fn change(&mut self, change: StateChange) {
        self.apply(change.clone());
        self.state_changes.push(change);
    }

    /// Keeps resolved deadlocks for the next sweep to return.
    pub(super) fn add_unreported(&mut self, deadlocks: Vec<Deadlock>) {
        deadlocks.into_iter().for_each(|deadlock| self.change(StateChange::DeadlockUnreported(deadlock)));
    }

    /// The deadlocks that a sweep must return.
    pub(super) fn take_unreported(&mut self) -> Vec<Deadlock> {
        let unreported = self.unreported.clone();
        if !unreported.is_empty() {
            self.change(StateChange::DeadlocksReported);
        }
        unreported
    }

    fn apply(&mut self, change: StateChange) {
        match change {
            StateChange::RequestRegistered(key, request) => {
                if let Some(before) = self.requests.get(&key) {
                    self.request_expiries.of(before).remove(&(before.until, key));
                }
                self.request_expiries.of(&request).insert((request.until, key));
                self.requests.insert(key, request);
            }
            StateChange::RequestForgotten(key) => {
                if let Some(before) = self.requests.remove(&key) {
                    self.request_expiries.of(&before).remove(&(before.until, key));
                }
            }
            StateChange::Agent(id, agent) => {
                self.auto_registered += usize::from(agent.is_auto_registered);
                let before = self.agents.insert(id, agent);
                self.auto_registered -= usize::from(before.is_some_and(|agent| agent.is_auto_registered));
            }
            StateChange::AgentHeartbeat(id, at) => {
                if let Some(agent) = self.agents.get_mut(&id) {
                    agent.last_heartbeat = agent.last_heartbeat.max(at);
                }
            }
            StateChange::AgentRemoved(id) => {
                let before = self.agents.remove(&id);
                // Its tickets end with it.
                self.silence_checks.add(&id, self.now);
                self.auto_registered -= usize::from(before.is_some_and(|agent| agent.is_auto_registered));
            }
            StateChange::TaskClaimed(id, task, until) => {
                let now = self.now;
                if let Some(agent) = self.agents.get_mut(&id) {
                    agent.restore_claim(&task, until, now);
                }
            }
            StateChange::TaskReleased(id, task) => {
                if let Some(agent) = self.agents.get_mut(&id) {
                    agent.release(&task);
                }
            }
            StateChange::DeadlockUnreported(deadlock) => self.unreported.push(deadlock),
            StateChange::DeadlocksReported => self.unreported.clear(),
        }
    }

    /// Writes all pending changes to the journal. Returns the requests to be notified and the lock events; `None` if nothing changed.
    pub(super) fn commit(&mut self, now: Moment) -> io::Result<Option<(Vec<Notification>, Vec<LockEvent>)>> {
        if self.table.changes.is_empty() && self.state_changes.is_empty() {
            return Ok(None);
        }
        let mut events = Vec::new();
        let Some(journal) = &mut self.journal else { return Err(io::ErrorKind::NotConnected.into()) };
        let lock_changes = std::mem::take(&mut self.table.changes);
        for entry in &lock_changes {
            if let TableChange::Lock(name, change) = entry {
                match change {
                    LockChange::Granted(hold) | LockChange::Promoted(hold) => {
                        let unreported = || UnreportedGrant {
                            lock: name.clone(),
                            holder: hold.holder.clone(),
                            grant: hold.grant(),
                        };
                        let grant = hold.unreported_by.as_ref().map(|_| unreported());
                        self.to_notify.extend(hold.requests.iter().map(|request| (*request, grant.clone())));
                    }
                    LockChange::WaitEnded { request, .. } => self.to_notify.push((*request, None)),
                    _ => {}
                }
                self.silence_checks.note(change, now);
                let event = LockEventKind::from_change(change);
                events.extend(event.map(|event| LockEvent { lock: name.clone(), at: now, kind: event }));
            }
        }
        let state_changes = std::mem::take(&mut self.state_changes);
        let records: Vec<JournalRecord> = [JournalRecord::At(now)]
            .into_iter()
            .chain(lock_changes.into_iter().map(JournalRecord::Locks))
            .chain(state_changes.into_iter().map(JournalRecord::State))
            .collect();
        journal.append(&records)?;
        Ok(Some((std::mem::take(&mut self.to_notify), events)))
    }

    /// Writes what an earlier commit could not write; `false` if there is nothing.
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        let Some(journal) = self.journal.as_mut().filter(|journal| journal.has_pending()) else {
            return Ok(false);
        };
        journal.flush().map(|()| true)
    }

    /// Replaces the journal file, to simulate a failing disk.
    #[cfg(test)]
    pub(super) fn swap_journal_file(&mut self, file: Arc<File>) -> Option<Arc<File>> {
        self.journal.as_mut().map(|journal| journal.swap_file(file))
    }

    pub(super) fn journal_file(&self) -> Option<Arc<File>> {
        self.journal.as_ref().map(Journal::file)
    }

    /// Whether the journal is long enough for a snapshot, and none is being written.
    pub(super) fn is_snapshot_due(&self, after_bytes: u64) -> bool {
        !self.is_snapshotting && self.journal.as_ref().is_some_and(|journal| journal.is_long(after_bytes))
    }

    /// What is needed to prepare a snapshot while commands go on; none before the journal is open.
    pub(super) fn prepare_snapshot(&mut self) -> Option<NextSegment> {
        let next = self.journal.as_mut().map(Journal::next_segment);
        self.is_snapshotting = next.is_some();
        next
    }

    /// Begins a snapshot: the journal goes on in its new segment. Returns the first records.
    pub(super) fn begin_snapshot(
        &mut self,
        segment: NewSegment,
    ) -> Result<(Snapshot, Vec<JournalRecord>), JournalError> {
        let closed = || JournalError::Unsynced(io::ErrorKind::NotConnected.into());
        let snapshot = self.journal.as_mut().ok_or_else(closed)?.rotate(segment)?;
        let unreported = self.unreported.iter().cloned().map(StateChange::DeadlockUnreported);
        let records = [JournalRecord::At(self.now)]
            .into_iter()
            .chain(self.table.begin_snapshot().into_iter().map(JournalRecord::Locks))
            .chain(unreported.map(JournalRecord::State))
            .collect();
        Ok((snapshot, records))
    }

    /// The next slice of a snapshot; `None` at its end. What follows the locks may contain later changes already: each of them sets
    /// or removes one entry, so it has the same effect again when the journal is replayed.
    pub(super) fn next_slice(&mut self, after: &mut SliceCursor) -> Option<Vec<JournalRecord>> {
        if let Some(slice) = self.table.next_slice(SLICE) {
            return Some(slice.into_iter().map(JournalRecord::Locks).collect());
        }
        let requests = self.requests.range((after.request.map_or(Unbounded, Excluded), Unbounded));
        let request = |(key, request): (&RequestKey, &RegisteredRequest)| {
            StateChange::RequestRegistered(*key, request.clone())
        };
        let mut records: Vec<StateChange> = requests.take(SLICE).map(request).collect();
        if records.is_empty() {
            let from = after.agent.as_ref().map_or(Unbounded, Excluded);
            let agents = self.agents.range::<String, _>((from, Unbounded)).take(SLICE);
            records = agents.map(|(id, agent)| StateChange::Agent(id.clone(), agent.clone())).collect();
        }
        match records.last()? {
            StateChange::RequestRegistered(key, _) => after.request = Some(*key),
            StateChange::Agent(id, _) => after.agent = Some(id.clone()),
            _ => {}
        }
        Some(records.into_iter().map(JournalRecord::State).collect())
    }

    /// `bytes` is the size of the snapshot, if it was written.
    pub(super) fn end_snapshot(&mut self, bytes: Option<u64>) {
        self.table.end_snapshot();
        self.is_snapshotting = false;
        if let (Some(journal), Some(bytes)) = (&mut self.journal, bytes) {
            journal.set_snapshot_bytes(bytes);
        }
    }
}
