//! Coordination in this process, journaled so that a kill -9 loses no lock.
//!
//! One mutex guards the table of locks, the requests, the agents and the journal: a command is decided, written and
//! answered inside it, and waits for nothing but write(2), except when a long journal is replaced by a snapshot. The journal is synced every 50 ms by a thread of its
//! own. If a write fails, nothing is answered until the same bytes have been written after all; if a sync fails, the
//! backend stops answering, because it cannot know what the disk has.

mod agents;
mod capacity;
mod housekeeping;
mod jobs;
mod journal;
mod limits;
mod locks;
mod requests;
mod state;

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use ade_domain::lock::LockLimits;
use ade_domain::{Clock, Moment};
use tokio::sync::broadcast;

use crate::coordination::{CoordinationError, LockEvent, Subscriptions};
use crate::folder::{DataFolder, FolderError};
use housekeeping::Syncer;
use journal::Journal;
pub use journal::JournalError;
use state::{Record, State};

/// A pause after which waiters of this process get their time again.
const PAUSE_MS: u64 = 1_500;
/// Events that may wait for a slow listener.
const EVENT_BACKLOG: usize = 4_096;

/// Why the backend cannot start.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The folder.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// What it holds cannot be read.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// How the backend keeps its journal.
#[derive(Debug, Clone)]
pub struct Options {
    /// What locks go by.
    pub rules: LockLimits,
    /// A journal is replaced by a snapshot when it is longer than this and than four snapshots.
    pub snapshot_after_bytes: u64,
    /// Agents that are known by their name only.
    pub max_named_agents: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { rules: LockLimits::default(), snapshot_after_bytes: 64 << 20, max_named_agents: 10_000 }
    }
}

/// The backend; clones are the same one.
#[derive(Clone)]
pub struct EmbeddedCoordination {
    inner: Arc<Inner>,
}

struct Inner {
    options: Options,
    clock: Arc<dyn Clock>,
    /// By how much the journal was ahead of the clock when it was opened: time runs on from there.
    ahead_us: u64,
    state: Mutex<State>,
    windows: Mutex<limits::Windows>,
    board: jobs::Board,
    watchers: Subscriptions,
    events: broadcast::Sender<Arc<LockEvent>>,
    syncer: Syncer,
    _folder: DataFolder,
}

impl EmbeddedCoordination {
    /// Opens a data folder, alone, and brings back what its journal holds. Time that passed since counts against leases.
    pub fn open(data: &Path, options: Options, clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        let folder = DataFolder::claim(data)?;
        let mut state = State::new(options.rules.clone());
        let journal = Journal::open(&data.join("coordination"), |record: Record| state.replay(record))?;
        let ahead_us = state.last_moment().micros().saturating_sub(clock.now().micros());
        if ahead_us > 0 {
            tracing::warn!(
                seconds = ahead_us / 1_000_000,
                "the clock was set back; the time of locks runs on from the journal"
            );
        }
        state.resume(ahead_of(clock.now(), ahead_us), journal)?;
        let syncer = Syncer::start(&state.journal_file())
            .map_err(|source| FolderError::Unusable { path: data.to_owned(), source })?;
        let (events, _) = broadcast::channel(EVENT_BACKLOG);
        let (state, watchers) = (Mutex::new(state), Subscriptions::default());
        Ok(Self {
            inner: Arc::new(Inner {
                options,
                clock,
                ahead_us,
                state,
                windows: Mutex::default(),
                board: jobs::Board::default(),
                watchers,
                events,
                syncer,
                _folder: folder,
            }),
        })
    }

    /// The state, and the moment at which it is used: never earlier than before, whatever the clock says.
    fn enter(&self) -> Result<(MutexGuard<'_, State>, Moment), CoordinationError> {
        if let Some(why) = self.inner.syncer.failure() {
            return Err(CoordinationError(format!("the journal could not be synced: {why}")));
        }
        let poisoned =
            |_| CoordinationError("a bug stopped a command half-way; restart the server".to_owned());
        let mut state = self.inner.state.lock().map_err(poisoned)?;
        // What could not be written so far was answered to nobody, and nobody may see it before it is written.
        if state.flush().map_err(unwritten)? {
            self.inner.syncer.dirty();
        }
        let before = state.last_moment();
        let now = state.advance(self.inner.now());
        if now.ms_since(before) >= PAUSE_MS {
            // Something comes by every 200 ms, so this whole process stood still, and with it the renewal of its marks: its
            // own waiters must not look abandoned to whoever comes first.
            state.wake_up(now);
        }
        Ok((state, now))
    }

    /// Writes what was changed, then tells those who wait or listen. Nothing may be answered before.
    fn commit(&self, state: &mut State, now: Moment) -> Result<(), CoordinationError> {
        let Some((requests, happenings)) = state.commit(now).map_err(unwritten)? else { return Ok(()) };
        if state.wants_snapshot(self.inner.options.snapshot_after_bytes) {
            self.snapshot(state);
        }
        self.inner.syncer.dirty();
        for request in requests {
            self.inner.watchers.wake(request);
        }
        if self.inner.events.receiver_count() > 0 {
            for happening in happenings {
                // Nobody listens any more: then nobody misses it.
                let _ = self.inner.events.send(Arc::new(happening));
            }
        }
        Ok(())
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn unwritten(error: io::Error) -> CoordinationError {
    tracing::error!(%error, "the journal cannot be written");
    CoordinationError(format!("the journal cannot be written: {error}"))
}

impl Inner {
    fn now(&self) -> Moment {
        ahead_of(self.clock.now(), self.ahead_us)
    }
}

const fn ahead_of(moment: Moment, micros: u64) -> Moment {
    Moment::from_micros(moment.micros().saturating_add(micros))
}

impl std::fmt::Debug for EmbeddedCoordination {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Embedded").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use ade_domain::lock::{Acquire, Holder, LockCommand, LockName, Mode, RequestKey};
    use ade_testkit::ManualClock;

    use super::*;
    use crate::coordination::{Agents, Locks};

    #[tokio::test]
    async fn nothing_is_answered_until_what_could_not_be_written_is() {
        let folder = tempfile::tempdir().expect("folder");
        let clock = ManualClock::new(Moment::from_micros(1_000_000).timestamp());
        let open = || EmbeddedCoordination::open(folder.path(), Options::default(), Arc::new(clock.clone()));
        let backend = open().expect("opened");
        let lock: LockName = "task:1".parse().expect("valid");
        let holder = Holder::new("ann", None).expect("valid");
        let acquire = || {
            let wish = Acquire {
                request: RequestKey::of(&holder, "1"),
                holder: holder.clone(),
                remember: true,
                mode: Mode::Exclusive,
                ttl_ms: 30_000,
                claimed: true,
                wait: None,
                purpose: "".into(),
                priority: 0,
            };
            backend.commands(vec![(lock.clone(), LockCommand::Acquire(wish))])
        };
        let swap = |file| backend.inner.state.lock().expect("whole").swap_journal_file(file);
        let read_only = std::fs::File::open(folder.path().join("in-use")).expect("readable");
        let good = swap(Arc::new(read_only)).expect("a journal");
        assert!(acquire().await.is_err(), "the grant is not written");
        assert!(acquire().await.is_err(), "nor is it told to who asks again");
        assert!(backend.look(lock.clone()).await.is_err(), "nor to others");
        assert!(backend.agents(None, 1).await.is_err());
        swap(good);
        let granted = acquire().await.expect("written after all");
        drop(backend);
        let backend = open().expect("opened");
        let view = backend.look(lock.clone()).await.expect("answers");
        assert_eq!(view.holders.len(), 1, "{granted:?}");
    }
}
