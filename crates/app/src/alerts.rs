//! Alerts: what happens only if somebody changed the database by hand, or keeps it locked. They are counted for the metrics of this
//! process. A log that contradicts its checkpoints, or in which entries get no numbers, keeps the process degraded meanwhile.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

pub(crate) const HELD_UP: &str = "audit entries wait for their numbers for more than 30 seconds: look in the log for errors; \
    on PostgreSQL, end the session that keeps a lock: SELECT pid, query, pg_blocking_pids(pid) FROM pg_stat_activity \
    WHERE wait_event_type = 'Lock'";
pub(crate) const SUPERSEDED: &str = "the secret was replaced while this process ran: it numbers no audit entries and applies no task \
    until it is restarted with the present one";

/// Clones share the counts.
#[derive(Debug, Clone, Default)]
pub struct Alerts(Arc<State>);

#[derive(Debug, Default)]
struct State {
    quarantined_entries: AtomicU64,
    unproven_approvals: AtomicU64,
    audit_mismatches: AtomicU64,
    mismatch: Mutex<Option<(LogCheck, String)>>,
    held_up: Mutex<Option<&'static str>>,
}

/// A check of the audit log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogCheck {
    /// Of the whole log, on request.
    Full,
    /// Of what follows the last checkpoint, periodically.
    SinceCheckpoint,
}

/// How often something was found since the process started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AlertCounts {
    /// Rows of the audit log that no process with the secret wrote.
    pub quarantined_entries: u64,
    /// Tasks that were not applied or rolled back because the audit log does not prove their approval.
    pub unproven_approvals: u64,
    /// Audit logs that contradict their hash chain or a checkpoint.
    pub audit_mismatches: u64,
}

impl Alerts {
    pub(crate) fn add_quarantined(&self, count: usize) {
        self.0.quarantined_entries.fetch_add(count as u64, Ordering::Relaxed);
    }

    pub(crate) fn add_unproven(&self) {
        self.0.unproven_approvals.fetch_add(1, Ordering::Relaxed);
    }

    /// Sets why the audit log is not intact. Returns whether it was intact so far.
    pub(crate) fn set_mismatch(&self, check: LogCheck, reason: String) -> bool {
        let mut mismatch = self.0.mismatch.lock().unwrap_or_else(PoisonError::into_inner);
        let found_by = mismatch.as_ref().map(|(found_by, _)| *found_by);
        let is_full = [Some(check), found_by].contains(&Some(LogCheck::Full));
        *mismatch = Some((if is_full { LogCheck::Full } else { check }, reason));
        if found_by.is_none() {
            self.0.audit_mismatches.fetch_add(1, Ordering::Relaxed);
        }
        found_by.is_none()
    }

    /// The check found nothing. What a full check found only a full check clears.
    pub(crate) fn clear_mismatch(&self, check: LogCheck) {
        let mut mismatch = self.0.mismatch.lock().unwrap_or_else(PoisonError::into_inner);
        mismatch.take_if(|(found_by, _)| check == LogCheck::Full || *found_by == LogCheck::SinceCheckpoint);
    }

    /// Sets why this process numbers no audit entries, if so. Returns whether it did not so far.
    pub(crate) fn set_held_up(&self, reason: Option<&'static str>) -> bool {
        std::mem::replace(&mut *self.0.held_up.lock().unwrap_or_else(PoisonError::into_inner), reason)
            .is_some()
    }

    fn held_up(&self) -> Option<&'static str> {
        *self.0.held_up.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this process numbers no audit entries.
    #[must_use]
    pub fn is_held_up(&self) -> bool {
        self.held_up().is_some()
    }

    /// What an operator must look at; none if all is well.
    #[must_use]
    pub fn reasons(&self) -> Vec<String> {
        let mismatch = self.mismatch().map(|reason| format!("audit log: {reason}"));
        mismatch.into_iter().chain(self.held_up().map(str::to_owned)).collect()
    }

    /// Why the audit log is not intact, if it is not.
    #[must_use]
    pub fn mismatch(&self) -> Option<String> {
        let mismatch = self.0.mismatch.lock().unwrap_or_else(PoisonError::into_inner);
        mismatch.as_ref().map(|(_, reason)| reason.clone())
    }

    #[must_use]
    pub fn counts(&self) -> AlertCounts {
        let State { quarantined_entries, unproven_approvals, audit_mismatches, .. } = &*self.0;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        AlertCounts {
            quarantined_entries: count(quarantined_entries),
            unproven_approvals: count(unproven_approvals),
            audit_mismatches: count(audit_mismatches),
        }
    }
}
