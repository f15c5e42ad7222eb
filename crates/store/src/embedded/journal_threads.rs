//! Threads of the journal: one syncs it, another one replaces it by a snapshot.

use std::fs::File;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{io, iter};

use super::EmbeddedCoordination;
use super::journal::{JournalError, NextSegment};
use super::state::{SliceCursor, State};

/// How long an acknowledged change may be missing from the disk.
const SYNC_INTERVAL: Duration = Duration::from_millis(50);

/// Syncs the journal while there is something to sync.
#[derive(Debug)]
pub(super) struct Syncer {
    shared: Arc<(Mutex<SyncState>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct SyncState {
    file: Option<Arc<File>>,
    is_dirty: bool,
    is_stopping: bool,
    failure: Option<String>,
}

impl SyncState {
    /// Nobody knows any more what is on the disk.
    fn fail(&mut self, error: &io::Error) {
        tracing::error!(%error, "cannot sync the journal; refusing all lock commands");
        self.failure = Some(error.to_string());
    }
}

impl Syncer {
    pub(super) fn start(file: &Option<Arc<File>>) -> io::Result<Self> {
        let state = SyncState { file: file.clone(), ..SyncState::default() };
        let shared = Arc::new((Mutex::new(state), Condvar::new()));
        let of_thread = shared.clone();
        let thread =
            thread::Builder::new().name("journal-sync".to_owned()).spawn(move || sync(&of_thread))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Call it after each write.
    pub(super) fn mark_dirty(&self) {
        let mut state = lock(&self.shared.0);
        if !state.is_dirty {
            state.is_dirty = true;
            self.shared.1.notify_one();
        }
    }

    /// Switches to a new segment of the journal.
    pub(super) fn use_file(&self, file: Option<Arc<File>>) {
        lock(&self.shared.0).file = file;
    }

    pub(super) fn fail(&self, error: &io::Error) {
        lock(&self.shared.0).fail(error);
    }

    pub(super) fn failure(&self) -> Option<String> {
        lock(&self.shared.0).failure.clone()
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        lock(&self.shared.0).is_stopping = true;
        self.shared.1.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was already reported by the panic hook.
            let _ = thread.join();
        }
    }
}

fn lock(state: &Mutex<SyncState>) -> MutexGuard<'_, SyncState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn sync((state, changed): &(Mutex<SyncState>, Condvar)) {
    let mut current = lock(state);
    loop {
        let is_idle = |state: &mut SyncState| !state.is_dirty && !state.is_stopping;
        current = changed.wait_while(current, is_idle).unwrap_or_else(PoisonError::into_inner);
        let is_stopping = current.is_stopping;
        if current.is_dirty {
            current.is_dirty = false;
            let file = current.file.clone();
            drop(current);
            let failure = file.and_then(|file| file.sync_data().err());
            current = lock(state);
            if let Some(error) = failure {
                return current.fail(&error);
            }
        }
        if is_stopping {
            return;
        }
        // The pause between two syncs, which stopping ends early.
        let pause = changed.wait_timeout_while(current, SYNC_INTERVAL, |state| !state.is_stopping);
        current = pause.unwrap_or_else(PoisonError::into_inner).0;
    }
}

impl EmbeddedCoordination {
    /// Starts to replace the journal by a snapshot, which a thread takes in slices.
    pub(super) fn start_snapshot(&self, state: &mut State) {
        let Some(next) = state.prepare_snapshot() else { return };
        let backend = self.clone();
        let thread = thread::Builder::new().name("journal-snapshot".to_owned());
        if let Err(error) = thread.spawn(move || backend.take_snapshot(next)) {
            tracing::error!(%error, "cannot start a snapshot of the journal");
            state.end_snapshot(None);
        }
    }

    fn take_snapshot(&self, next: NextSegment) {
        let written = self.write_snapshot(next);
        match &written {
            Ok(_) => {}
            Err(JournalError::Unsynced(error)) => self.inner.syncer.fail(error),
            // The next attempt follows when the journal has grown as much again.
            Err(error) => tracing::error!(%error, "cannot write a snapshot of the journal"),
        }
        if let Some(mut state) = self.inner.lock_state() {
            state.end_snapshot(written.ok());
        }
    }

    /// Locks the state for each slice only, and syncs as much as possible without it.
    fn write_snapshot(&self, next: NextSegment) -> Result<u64, JournalError> {
        let segment = next.create()?;
        let lock = || self.inner.lock_state().ok_or(JournalError::Interrupted);
        let (snapshot, first) = {
            let mut state = lock()?;
            let begun = state.begin_snapshot(segment)?;
            self.inner.syncer.use_file(state.journal_file());
            begun
        };
        let mut cursor = SliceCursor::default();
        let slices = iter::from_fn(|| lock().map(|mut state| state.next_slice(&mut cursor)).transpose());
        snapshot.write(iter::once(Ok(first)).chain(slices))
    }
}
