//! Coordination in this process, with a journal, so that a kill -9 loses no lock.
//!
//! One mutex guards the lock table, the requests, the agents and the journal. A command is decided, written to the journal and
//! acknowledged inside it; it blocks for nothing but write(2). A thread syncs the journal every 50 ms, and another one replaces a long
//! journal by a snapshot, which it takes in slices. After a failed write nothing is acknowledged until the same bytes were written;
//! after a failed sync the backend refuses all commands, because it cannot know what is on the disk.

mod agents;
mod capacity;
mod journal;
#[cfg(test)]
mod journal_format;
mod journal_threads;
mod locks;
mod rate_limits;
mod requests;
mod silent_agents;
mod state;
mod wake_ups;

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ade_domain::lock::LockLimits;
use ade_domain::{Clock, Moment};
use tokio::sync::{broadcast, watch};

use crate::coordination::{
    AsyncResult, CoordinationError, EventAnnouncements, LockEvent, Result, Subscriptions,
};
use crate::data_folder::{DataFolder, FolderError};
use crate::rate_windows::RateWindows;
use journal::Journal;
pub use journal::JournalError;
use journal_threads::Syncer;
use state::{JournalRecord, State};

/// After a pause this long, the whole process was suspended.
const SUSPENSION_MS: u64 = 1_500;
/// Lock events that are buffered for a slow subscriber.
const EVENT_BUFFER: usize = 4_096;

#[derive(Debug, thiserror::Error)]
pub enum EmbeddedOpenError {
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error(transparent)]
    Journal(#[from] JournalError),
}

#[derive(Debug, Clone)]
pub struct EmbeddedOptions {
    pub limits: LockLimits,
    /// A journal is replaced by a snapshot when it is longer than this, and than four snapshots.
    pub snapshot_after_bytes: u64,
    /// How many agents are registered automatically.
    pub max_auto_registered_agents: usize,
}

impl Default for EmbeddedOptions {
    fn default() -> Self {
        Self {
            limits: LockLimits::default(),
            snapshot_after_bytes: 64 << 20,
            max_auto_registered_agents: 10_000,
        }
    }
}

/// A handle to the backend; clones share it.
#[derive(Clone)]
pub struct EmbeddedCoordination {
    inner: Arc<Inner>,
}

struct Inner {
    options: EmbeddedOptions,
    clock: Arc<dyn Clock>,
    /// By how much the journal was ahead of the clock when it was opened. It is added to the clock, so that time never runs backwards.
    clock_offset_us: u64,
    /// Held by the thread that is next to lock the state. A mutex alone lets its last owner lock it again before the threads that
    /// wait: the parts of a batch would follow each other without a gap.
    turnstile: Mutex<()>,
    state: Mutex<State>,
    rate_windows: Mutex<RateWindows>,
    wake_ups: wake_ups::WakeUpQueues,
    subscriptions: Subscriptions,
    events: broadcast::Sender<Arc<LockEvent>>,
    announcements: watch::Sender<()>,
    syncer: Syncer,
    _folder: DataFolder,
}

impl EmbeddedCoordination {
    /// Locks a data folder, and restores the state from its journal. Leases continue to run while no process is running.
    pub fn open(
        data: &Path,
        options: EmbeddedOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, EmbeddedOpenError> {
        let folder = DataFolder::lock(data)?;
        let mut state = State::new(options.limits.clone());
        let journal = Journal::open(&data.join("coordination"), |json| {
            JournalRecord::parse(json).map(|record| state.replay(record))
        })?;
        let clock_offset_us = state.last_moment().micros().saturating_sub(clock.now().micros());
        if clock_offset_us > 0 {
            tracing::warn!(
                seconds = clock_offset_us / 1_000_000,
                "the system clock was set back; lock time continues from the journal"
            );
        }
        state.resume(add_micros(clock.now(), clock_offset_us), journal)?;
        let syncer = Syncer::start(&state.journal_file())
            .map_err(|source| FolderError::Unusable { path: data.to_owned(), source })?;
        let (events, _) = broadcast::channel(EVENT_BUFFER);
        Ok(Self {
            inner: Arc::new(Inner {
                options,
                clock,
                clock_offset_us,
                turnstile: Mutex::default(),
                state: Mutex::new(state),
                rate_windows: Mutex::default(),
                wake_ups: wake_ups::WakeUpQueues::default(),
                subscriptions: Subscriptions::default(),
                events,
                announcements: watch::Sender::new(()),
                syncer,
                _folder: folder,
            }),
        })
    }

    /// Locks the state. Returns it with the current time, which never runs backwards.
    fn enter(&self) -> Result<(MutexGuard<'_, State>, Moment)> {
        if let Some(why) = self.inner.syncer.failure() {
            return Err(CoordinationError(format!("cannot sync the journal: {why}. Restart the server.")));
        }
        let mut state = self
            .inner
            .lock_state()
            .ok_or_else(|| CoordinationError("an earlier command panicked; restart the server".to_owned()))?;
        // Changes that could not be written were not acknowledged, and nobody may see them before they are written.
        if state.flush().map_err(write_error)? {
            self.inner.syncer.mark_dirty();
        }
        let before = state.last_moment();
        let now = state.advance(self.inner.now());
        if now.ms_since(before) >= SUSPENSION_MS {
            // A sweep runs every 200 ms, so this process was suspended, and could not send heartbeats for its waiters: they must
            // not be cancelled by the first command.
            state.reset_server_heartbeats(now);
        }
        Ok((state, now))
    }

    /// Writes the changes to the journal, then notifies subscribers. Nothing may be acknowledged before.
    fn commit(&self, state: &mut State, now: Moment) -> Result<()> {
        let Some((requests, events)) = state.commit(now).map_err(write_error)? else { return Ok(()) };
        if state.is_snapshot_due(self.inner.options.snapshot_after_bytes) {
            self.start_snapshot(state);
        }
        self.inner.syncer.mark_dirty();
        for (request, grant) in requests {
            match grant {
                Some(grant) => self.inner.subscriptions.deliver(request, grant),
                None => self.inner.subscriptions.notify(request),
            }
        }
        if self.inner.events.receiver_count() > 0 {
            for event in events {
                // It fails only if the last subscriber has gone meanwhile.
                let _ = self.inner.events.send(Arc::new(event));
            }
        }
        Ok(())
    }
}

impl EventAnnouncements for EmbeddedCoordination {
    /// Does nothing: there is no other process.
    fn announce_events(&self) -> AsyncResult<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn event_announcements(&self) -> watch::Receiver<()> {
        self.inner.announcements.subscribe()
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn write_error(error: io::Error) -> CoordinationError {
    tracing::error!(%error, "cannot write the journal");
    CoordinationError(format!("cannot write the journal: {error}"))
}

impl Inner {
    /// Locks the state in turn with everyone else; `None` if a command panicked.
    fn lock_state(&self) -> Option<MutexGuard<'_, State>> {
        let _next = self.turnstile.lock().unwrap_or_else(PoisonError::into_inner);
        self.state.lock().ok()
    }

    fn now(&self) -> Moment {
        add_micros(self.clock.now(), self.clock_offset_us)
    }
}

const fn add_micros(moment: Moment, micros: u64) -> Moment {
    Moment::from_micros(moment.micros().saturating_add(micros))
}

impl std::fmt::Debug for EmbeddedCoordination {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EmbeddedCoordination").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use ade_domain::lock::{Acquisition, Holder, LockCommand, LockMode, LockName, RequestKey};
    use ade_testkit::ManualClock;

    use super::*;
    use crate::coordination::{Agents, Locks};

    #[tokio::test]
    async fn acknowledges_nothing_until_a_failed_write_succeeds() {
        let folder = tempfile::tempdir().expect("folder");
        let clock = ManualClock::new(Moment::from_micros(1_000_000).timestamp());
        let open =
            || EmbeddedCoordination::open(folder.path(), EmbeddedOptions::default(), Arc::new(clock.clone()));
        let backend = open().expect("opened");
        let lock: LockName = "task:1".parse().expect("valid");
        let holder = Holder::new("ann", None).expect("valid");
        let acquire = || {
            let acquire = Acquisition {
                request: RequestKey::derive(&holder, "1"),
                holder: holder.clone(),
                leave_tombstone: true,
                mode: LockMode::Exclusive,
                ttl_ms: 30_000,
                claimed: true,
                wait: None,
                purpose: "".into(),
                priority: 0,
            };
            backend.execute_commands(vec![(lock.clone(), LockCommand::Acquire(acquire))])
        };
        let swap = |file| backend.inner.state.lock().expect("whole").swap_journal_file(file);
        let read_only = std::fs::File::open(folder.path().join("in-use")).expect("readable");
        let good = swap(Arc::new(read_only)).expect("a journal");
        assert!(acquire().await.is_err(), "the grant is not written");
        assert!(acquire().await.is_err(), "a repetition gets no reply");
        assert!(backend.lock_view(lock.clone()).await.is_err(), "nobody sees the grant");
        assert!(backend.agents(None, 1).await.is_err());
        swap(good);
        let granted = acquire().await.expect("written now");
        drop(backend);
        let backend = open().expect("opened");
        let view = backend.lock_view(lock.clone()).await.expect("readable");
        assert_eq!(view.holders.len(), 1, "{granted:?}");
    }
}
