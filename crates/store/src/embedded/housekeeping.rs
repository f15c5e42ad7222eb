//! Threads beside the commands: syncing the journal, and replacing it by a snapshot.

use std::fs::File;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::EmbeddedCoordination;
use super::journal::JournalError;
use super::state::State;

/// The longest time that something answered may be missing from the disk.
const SYNC_EVERY: Duration = Duration::from_millis(50);

/// Syncs the journal while there is something to sync.
#[derive(Debug)]
pub(super) struct Syncer {
    shared: Arc<(Mutex<Work>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Work {
    file: Option<Arc<File>>,
    dirty: bool,
    stop: bool,
    failure: Option<String>,
}

impl Syncer {
    pub(super) fn start(file: &Option<Arc<File>>) -> io::Result<Self> {
        let work = Work { file: file.clone(), ..Work::default() };
        let shared = Arc::new((Mutex::new(work), Condvar::new()));
        let of_thread = shared.clone();
        let thread =
            thread::Builder::new().name("journal-sync".to_owned()).spawn(move || sync(&of_thread))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Something was written.
    pub(super) fn dirty(&self) {
        let mut work = lock(&self.shared.0);
        if !work.dirty {
            work.dirty = true;
            self.shared.1.notify_one();
        }
    }

    /// What is written from now on is in another file.
    pub(super) fn use_file(&self, file: Option<Arc<File>>) {
        lock(&self.shared.0).file = file;
    }

    /// Nobody can know any more what the disk has.
    pub(super) fn fail(&self, error: &io::Error) {
        tracing::error!(%error, "the journal cannot be synced; locks are not served any more");
        lock(&self.shared.0).failure = Some(error.to_string());
    }

    pub(super) fn failure(&self) -> Option<String> {
        lock(&self.shared.0).failure.clone()
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        lock(&self.shared.0).stop = true;
        self.shared.1.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported by the thread itself.
            let _ = thread.join();
        }
    }
}

fn lock(work: &Mutex<Work>) -> MutexGuard<'_, Work> {
    work.lock().unwrap_or_else(PoisonError::into_inner)
}

fn sync((work, changed): &(Mutex<Work>, Condvar)) {
    let mut current = lock(work);
    loop {
        current =
            changed.wait_while(current, |w| !w.dirty && !w.stop).unwrap_or_else(PoisonError::into_inner);
        let stop = current.stop;
        if current.dirty {
            current.dirty = false;
            let file = current.file.clone();
            drop(current);
            let failure = file.and_then(|file| file.sync_data().err());
            current = lock(work);
            if let Some(failure) = failure {
                tracing::error!(error = %failure, "the journal cannot be synced; locks are not served any more");
                current.failure = Some(failure.to_string());
                return;
            }
        }
        if stop {
            return;
        }
        // Not a wait for something to happen, but the pace of syncing; stopping ends it early.
        let pause = changed.wait_timeout_while(current, SYNC_EVERY, |w| !w.stop);
        current = pause.unwrap_or_else(PoisonError::into_inner).0;
    }
}

impl EmbeddedCoordination {
    /// Starts to replace the journal by a snapshot. The state is copied at once and written by a thread.
    pub(super) fn snapshot(&self, state: &mut State) {
        let (snapshot, records) = match state.begin_snapshot() {
            Ok(Some(begun)) => begun,
            Ok(None) => return,
            Err(JournalError::Unsynced(error)) => return self.inner.syncer.fail(&error),
            // The old segment goes on; when it is as long once more, this is tried again.
            Err(error) => return tracing::error!(%error, "cannot begin a snapshot of the journal"),
        };
        self.inner.syncer.use_file(state.journal_file());
        let backend = self.clone();
        let write = move || {
            let written = snapshot.write(records.into_iter());
            if let Err(error) = &written {
                tracing::error!(%error, "cannot write a snapshot of the journal");
            }
            if let Ok(mut state) = backend.inner.state.lock() {
                state.end_snapshot(written.ok());
            }
        };
        if let Err(error) = thread::Builder::new().name("journal-snapshot".to_owned()).spawn(write) {
            tracing::error!(%error, "cannot start a snapshot of the journal");
            state.end_snapshot(None);
        }
    }
}
