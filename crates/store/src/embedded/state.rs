//! What the backend keeps in memory, and the records that bring it back.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::sync::Arc;

use ade_domain::Moment;
use ade_domain::agent::{Agent, RateWindow};
use ade_domain::lock::{Change, Deadlock, Entry, LockLimits, LockRequest, RequestKey, Table};
use serde::{Deserialize, Serialize};

use super::journal::{Journal, JournalError, Snapshot};
use crate::coordination::{LockEvent, LockEventKind, Ticket};

/// A line of the journal.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Record {
    /// The time; everything that follows happened at it or later.
    At(Moment),
    /// Something happened to locks.
    #[serde(untagged)]
    Locks(Entry),
    /// A request is remembered.
    #[serde(untagged)]
    Other(Other),
}

/// A line of the journal that is not about locks.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Other {
    /// A request is remembered.
    Remembered(RequestKey, Remembered),
    /// A request is forgotten.
    Forgotten(RequestKey),
    /// An agent is known, or has changed.
    Agent(String, Agent),
    /// An agent was heard of.
    Heard(String, Moment),
    /// An agent is not known any more.
    Removed(String),
    /// An agent has claimed a task until a moment.
    Claimed(String, String, Moment),
    /// An agent has given a task back.
    Unclaimed(String, String),
    /// A cycle was ended by a call that does not answer with it.
    Untold(Deadlock),
    /// A sweep answers with all of those.
    Told,
}

/// What is remembered of a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Remembered {
    /// Of its body, as hexadecimal digits.
    pub(super) digest: String,
    pub(super) until: Moment,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) ticket: Option<(LockRequest, Moment)>,
}

impl Remembered {
    pub(super) fn ticket(&self) -> Option<Ticket> {
        let (request, deadline) = self.ticket.clone()?;
        Some(Ticket { request, deadline })
    }
}

/// Everything behind the mutex.
#[derive(Debug)]
pub(super) struct State {
    pub(super) table: Table,
    pub(super) requests: BTreeMap<RequestKey, Remembered>,
    /// Requests by when they are forgotten.
    pub(super) forgetting: BTreeSet<(Moment, RequestKey)>,
    pub(super) agents: BTreeMap<String, Agent>,
    /// How many of them are known by their name only.
    pub(super) named: usize,
    pub(super) rates: BTreeMap<String, RateWindow>,
    /// Cycles that were ended by a call which does not answer with them; the next sweep does, also of the next process.
    untold: Vec<Deadlock>,
    /// When each agent's waits were last searched for cycles.
    pub(super) checked: BTreeMap<String, Moment>,
    pub(super) housekept: Moment,
    pub(super) tidied: Moment,
    now: Moment,
    /// Requests that must be woken once what concerns them is written.
    unwoken: Vec<RequestKey>,
    /// Changes that were made and not yet written.
    pub(super) changes: Vec<Entry>,
    pub(super) others: Vec<Other>,
    journal: Option<Journal>,
    snapshotting: bool,
}

impl State {
    pub(super) fn new(rules: LockLimits) -> Self {
        Self {
            table: Table::new(rules),
            requests: BTreeMap::new(),
            forgetting: BTreeSet::new(),
            agents: BTreeMap::new(),
            named: 0,
            rates: BTreeMap::new(),
            untold: Vec::new(),
            checked: BTreeMap::new(),
            housekept: Moment::default(),
            tidied: Moment::default(),
            now: Moment::default(),
            unwoken: Vec::new(),
            changes: Vec::new(),
            others: Vec::new(),
            journal: None,
            snapshotting: false,
        }
    }

    /// The moment of the next command: the clock's, but never earlier than the last one.
    pub(super) fn advance(&mut self, clock: Moment) -> Moment {
        self.now = self.now.max(clock);
        self.now
    }

    /// Counts every server that serves waiters as heard of now.
    pub(super) fn wake_up(&mut self, now: Moment) {
        self.table.revive(now, &mut self.changes);
    }

    /// The last moment at which anything was done.
    pub(super) const fn last_moment(&self) -> Moment {
        self.now
    }

    /// Makes a record of the journal again.
    pub(super) fn replay(&mut self, record: Record) {
        match record {
            Record::At(moment) => self.now = self.now.max(moment),
            Record::Locks(entry) => self.table.apply(&entry),
            Record::Other(other) => self.apply(other),
        }
    }

    /// Goes on where the journal ends. Whoever waited with an open answer has lost its connection, and has a moment to
    /// come back with the same request before others pass.
    pub(super) fn resume(&mut self, clock: Moment, journal: Journal) -> Result<(), JournalError> {
        self.journal = Some(journal);
        let now = self.advance(clock);
        self.table.revive(now, &mut self.changes);
        // Nobody could be heard of while the server was away.
        for (holder, _) in self.table.all_waiting() {
            if let Some(agent) = self.agents.get_mut(holder.agent_id()) {
                agent.last_heartbeat = now;
            }
        }
        Ok(())
    }

    /// Changes something that is not a lock.
    pub(super) fn make(&mut self, other: Other) {
        self.apply(other.clone());
        self.others.push(other);
    }

    /// Lets the next sweep tell of cycles that were ended.
    pub(super) fn owe(&mut self, ended: Vec<Deadlock>) {
        ended.into_iter().for_each(|deadlock| self.make(Other::Untold(deadlock)));
    }

    /// What the next sweep must tell of; nobody else will.
    pub(super) fn settle(&mut self) -> Vec<Deadlock> {
        let owed = self.untold.clone();
        if !owed.is_empty() {
            self.make(Other::Told);
        }
        owed
    }

    fn apply(&mut self, other: Other) {
        match other {
            Other::Remembered(key, remembered) => {
                let until = remembered.until;
                if let Some(before) = self.requests.insert(key, remembered) {
                    self.forgetting.remove(&(before.until, key));
                }
                self.forgetting.insert((until, key));
            }
            Other::Forgotten(key) => {
                if let Some(before) = self.requests.remove(&key) {
                    self.forgetting.remove(&(before.until, key));
                }
            }
            Other::Agent(id, agent) => {
                self.named += usize::from(agent.by_name_only);
                let before = self.agents.insert(id, agent);
                self.named -= usize::from(before.is_some_and(|agent| agent.by_name_only));
            }
            Other::Heard(id, at) => {
                if let Some(agent) = self.agents.get_mut(&id) {
                    agent.last_heartbeat = agent.last_heartbeat.max(at);
                }
            }
            Other::Claimed(id, task, until) => {
                let now = self.now;
                if let Some(agent) = self.agents.get_mut(&id) {
                    agent.keep(&task, until, now);
                }
            }
            Other::Unclaimed(id, task) => {
                if let Some(agent) = self.agents.get_mut(&id) {
                    agent.give_back(&task);
                }
            }
            Other::Untold(deadlock) => self.untold.push(deadlock),
            Other::Told => self.untold.clear(),
            Other::Removed(id) => {
                let before = self.agents.remove(&id);
                self.named -= usize::from(before.is_some_and(|agent| agent.by_name_only));
            }
        }
    }

    /// Writes what was changed, if anything was. Afterwards: the requests that may want to know, and what happened.
    pub(super) fn commit(&mut self, now: Moment) -> io::Result<Option<(Vec<RequestKey>, Vec<LockEvent>)>> {
        if self.changes.is_empty() && self.others.is_empty() {
            return Ok(None);
        }
        let mut happenings = Vec::new();
        let Some(journal) = &mut self.journal else { return Err(io::ErrorKind::NotConnected.into()) };
        let changes = std::mem::take(&mut self.changes);
        for entry in &changes {
            if let Entry::Lock(name, change) = entry {
                match change {
                    Change::Granted(hold) => self.unwoken.extend(&hold.requests),
                    Change::Left { request, .. } => self.unwoken.push(*request),
                    _ => {}
                }
                let event = LockEventKind::of(change);
                happenings.extend(event.map(|event| LockEvent { lock: name.clone(), at: now, event }));
            }
        }
        let others = std::mem::take(&mut self.others);
        let records: Vec<Record> = [Record::At(now)]
            .into_iter()
            .chain(changes.into_iter().map(Record::Locks))
            .chain(others.into_iter().map(Record::Other))
            .collect();
        journal.append(&records)?;
        Ok(Some((std::mem::take(&mut self.unwoken), happenings)))
    }

    /// Writes what could not be written before; whether there was anything.
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        let Some(journal) = self.journal.as_mut().filter(|journal| journal.is_behind()) else {
            return Ok(false);
        };
        journal.append::<Record>(&[]).map(|()| true)
    }

    /// Lets a test take the disk away and give it back.
    #[cfg(test)]
    pub(super) fn swap_journal_file(&mut self, file: Arc<File>) -> Option<Arc<File>> {
        self.journal.as_mut().map(|journal| journal.swap_file(file))
    }

    pub(super) fn journal_file(&self) -> Option<Arc<File>> {
        self.journal.as_ref().map(Journal::file)
    }

    /// Whether the journal is long enough for a snapshot, and none is being written.
    pub(super) fn wants_snapshot(&self, after_bytes: u64) -> bool {
        !self.snapshotting && self.journal.as_ref().is_some_and(|journal| journal.is_long(after_bytes))
    }

    /// Everything as it is now, to be written while commands go on.
    pub(super) fn begin_snapshot(&mut self) -> Result<Option<(Snapshot, Vec<Record>)>, JournalError> {
        let Some(journal) = &mut self.journal else { return Ok(None) };
        let snapshot = journal.rotate()?;
        self.snapshotting = true;
        let requests =
            self.requests.iter().map(|(key, remembered)| Other::Remembered(*key, remembered.clone()));
        let agents = self.agents.iter().map(|(id, agent)| Other::Agent(id.clone(), agent.clone()));
        let untold = self.untold.iter().cloned().map(Other::Untold);
        let records = [Record::At(self.now)]
            .into_iter()
            .chain(self.table.entries().map(Record::Locks))
            .chain(requests.chain(agents).chain(untold).map(Record::Other))
            .collect();
        Ok(Some((snapshot, records)))
    }

    pub(super) const fn end_snapshot(&mut self, bytes: Option<u64>) {
        self.snapshotting = false;
        if let (Some(journal), Some(bytes)) = (&mut self.journal, bytes) {
            journal.snapshot_done(bytes);
        }
    }
}
