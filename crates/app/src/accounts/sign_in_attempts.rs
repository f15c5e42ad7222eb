//! Sign-in attempts: delays after failed ones, and devices that are exempt from the failures of others because their user signed in
//! there before.
//!
//! The delays are kept in this process: names that do not exist are delayed like others and must not be stored, because they may
//! be passwords typed into the wrong field.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ade_domain::Moment;
use ade_domain::people::UserId;
use ade_domain::sign_in::{FREE_FAILURES, FREE_FAILURES_PER_ADDRESS, FailedSignIns};
use ade_store::database::{Commit, KnownDevice, Write};

use super::{AccountService, hash_secret, random_secrets};
use crate::{Error, Result};

/// Names, addresses and devices with failed attempts. Above that, those with the oldest ones are forgotten.
const MAX_SUBJECTS: usize = 100_000;
/// How long a device is known after its last sign-in.
pub const DEVICE_TTL_MS: u64 = 365 * 86_400_000;
/// The time of the last sign-in is stored this exactly.
const DEVICE_RENEWAL_MS: u64 = 86_400_000;
/// Characters of a device secret: its prefix and 256 bits.
const MAX_DEVICE_SECRET_LEN: usize = 80;

/// Whose failures count for an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Subject {
    Name(String),
    Address(String),
    /// By the hash of its secret.
    Device(String),
}

impl Subject {
    const fn free_failures(&self) -> u32 {
        match self {
            Self::Name(_) | Self::Device(_) => FREE_FAILURES,
            Self::Address(_) => FREE_FAILURES_PER_ADDRESS,
        }
    }
}

/// An attempt to sign in that is not decided yet.
#[derive(Debug)]
pub struct SignInAttempt {
    subjects: Vec<Subject>,
    device: Option<KnownDevice>,
    _pending: Pending,
}

/// Counts as a failure until it ends: attempts at the same time cannot be more than those one after another.
#[derive(Debug)]
struct Pending {
    attempts: FailedAttempts,
    subjects: Vec<Subject>,
}

impl Drop for Pending {
    fn drop(&mut self) {
        let mut attempts = self.attempts.lock();
        for subject in &self.subjects {
            if let Some(pending) = attempts.pending.get_mut(subject).filter(|pending| **pending > 1) {
                *pending -= 1;
            } else {
                attempts.pending.remove(subject);
            }
        }
    }
}

impl SignInAttempt {
    /// The hash of the secret of a known device, whose attempts are counted by themselves.
    #[must_use]
    pub fn device_hash(&self) -> Option<&str> {
        self.device.as_ref().map(|device| device.device_hash.as_str())
    }
}

/// The failed attempts that this process saw, and those that are not decided; clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct FailedAttempts(Arc<Mutex<Attempts>>);

#[derive(Debug, Default)]
struct Attempts {
    failed: HashMap<Subject, FailedSignIns>,
    /// Bounded by the requests under way.
    pending: HashMap<Subject, u32>,
}

impl Attempts {
    fn next_attempt_at(&self, subjects: &[Subject], now: Moment) -> Moment {
        let delays = subjects.iter().map(|subject| {
            let mut failures = self.failed.get(subject).copied().unwrap_or_default();
            for _ in 0..self.pending.get(subject).copied().unwrap_or_default() {
                failures.record(now);
            }
            failures.next_attempt_at(subject.free_failures())
        });
        delays.max().unwrap_or_default()
    }
}

impl FailedAttempts {
    fn lock(&self) -> MutexGuard<'_, Attempts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `Err` with the time of the next attempt if one now would come too early.
    fn begin(&self, subjects: &[Subject], now: Moment) -> Result<Pending, Moment> {
        let mut attempts = self.lock();
        let next_at = attempts.next_attempt_at(subjects, now);
        if next_at > now {
            return Err(next_at);
        }
        // Several people may share an address.
        let is_counted = |subject: &&Subject| !matches!(subject, Subject::Address(_));
        let subjects: Vec<Subject> = subjects.iter().filter(is_counted).cloned().collect();
        for subject in &subjects {
            *attempts.pending.entry(subject.clone()).or_default() += 1;
        }
        Ok(Pending { attempts: self.clone(), subjects })
    }

    fn record(&self, subjects: &[Subject], now: Moment) {
        let failed = &mut self.lock().failed;
        for subject in subjects {
            if failed.len() >= MAX_SUBJECTS && !failed.contains_key(subject) {
                failed.retain(|_, failures| !failures.is_forgotten(now));
                make_room(failed);
            }
            failed.entry(subject.clone()).or_default().record(now);
        }
    }

    /// A name or device is forgiven; an address is not, because somebody with an account could reset it.
    fn forgive(&self, subjects: &[Subject]) {
        let failed = &mut self.lock().failed;
        for subject in subjects.iter().filter(|subject| !matches!(subject, Subject::Address(_))) {
            failed.remove(subject);
        }
    }
}

/// Drops the tenth that is allowed to try again first: the fewest failures, or the oldest.
fn make_room(failed: &mut HashMap<Subject, FailedSignIns>) {
    if failed.len() < MAX_SUBJECTS {
        return;
    }
    let mut ends: Vec<Moment> =
        failed.iter().map(|(subject, failures)| failures.next_attempt_at(subject.free_failures())).collect();
    ends.sort_unstable();
    let limit = ends.get(MAX_SUBJECTS / 10).copied().unwrap_or_default();
    let mut dropped = 0;
    failed.retain(|subject, failures| {
        let is_kept =
            dropped >= MAX_SUBJECTS / 10 || failures.next_attempt_at(subject.free_failures()) > limit;
        dropped += usize::from(!is_kept);
        is_kept
    });
}

impl AccountService {
    /// Begins an attempt to sign in, with the secret that the device kept. `Err` with the time of the next attempt if this one
    /// comes too early.
    pub async fn begin_sign_in(
        &self,
        name: &str,
        address: Option<String>,
        device_secret: Option<&str>,
    ) -> Result<Result<SignInAttempt, Moment>> {
        let now = self.context.now();
        let device = match device_secret.filter(|secret| secret.len() <= MAX_DEVICE_SECRET_LEN) {
            Some(secret) => self.context.database.known_device(&hash_secret(secret), name).await?,
            None => None,
        };
        let device = device.filter(|device| device.last_used_at.plus_ms(DEVICE_TTL_MS) > now);
        let subjects = match &device {
            Some(device) => vec![Subject::Device(device.device_hash.clone())],
            None => {
                address.map(Subject::Address).into_iter().chain([Subject::Name(name.to_owned())]).collect()
            }
        };
        let begun = self.failed_attempts.begin(&subjects, now);
        Ok(begun.map(|pending| SignInAttempt { subjects, device, _pending: pending }))
    }

    /// Counts a wrong password; other errors say nothing about it.
    pub fn record_failure(&self, attempt: &SignInAttempt, error: &Error) {
        if matches!(error, Error::Unauthenticated(_) | Error::WrongPassword) {
            self.failed_attempts.record(&attempt.subjects, self.context.now());
        }
    }

    /// The password was right.
    pub fn forgive_failures(&self, attempt: &SignInAttempt) {
        self.failed_attempts.forgive(&attempt.subjects);
    }

    /// The password was right: the device is known from now on. Returns the secret of a device that was unknown.
    pub async fn remember_device(&self, attempt: &SignInAttempt, user_id: &UserId) -> Result<Option<String>> {
        self.forgive_failures(attempt);
        let now = self.context.now();
        let (secret, device) = match &attempt.device {
            Some(known) if known.last_used_at.plus_ms(DEVICE_RENEWAL_MS) > now => return Ok(None),
            Some(known) => (None, KnownDevice { last_used_at: now, ..known.clone() }),
            None => {
                // Never a secret that the client chose: somebody else might know it.
                let secret = random_secrets::new("aded_")?;
                let device_hash = hash_secret(&secret);
                (Some(secret), KnownDevice { device_hash, user_id: user_id.clone(), last_used_at: now })
            }
        };
        let commit = Commit { writes: vec![Write::KnownDevice(device)], ..Commit::default() };
        self.context.database.commit(commit).await?;
        Ok(secret)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_longest_delays_when_there_are_too_many() {
        let (attempts, now) = (FailedAttempts::default(), Moment::from_micros(1));
        let attacked = Subject::Name("ann".to_owned());
        (0..10).for_each(|_| attempts.record(std::slice::from_ref(&attacked), now));
        for number in 0..MAX_SUBJECTS + 10 {
            attempts.record(&[Subject::Address(number.to_string())], now.plus_ms(1));
        }
        assert!(attempts.lock().failed.len() <= MAX_SUBJECTS);
        assert!(attempts.begin(std::slice::from_ref(&attacked), now).is_err());
        attempts.forgive(&[attacked.clone(), Subject::Address("1".to_owned())]);
        assert!(attempts.begin(&[attacked], now).is_ok());
    }

    #[test]
    fn attempts_at_the_same_time_are_no_more_than_one_after_another() {
        let (attempts, now) = (FailedAttempts::default(), Moment::from_micros(1));
        let names = [Subject::Name("ann".to_owned())];
        let mut pending: Vec<Pending> =
            (0..FREE_FAILURES).map(|_| attempts.begin(&names, now).expect("is free")).collect();
        assert!(attempts.begin(&names, now).is_err());
        // One that ends without a failure makes room for another; one that fails does not.
        pending.pop();
        pending.push(attempts.begin(&names, now).expect("one has ended"));
        attempts.record(&names, now);
        pending.clear();
        let last: Vec<Pending> =
            (1..FREE_FAILURES).map(|_| attempts.begin(&names, now).expect("is free")).collect();
        assert!(attempts.begin(&names, now).is_err());
        drop(last);
        assert!(attempts.lock().pending.is_empty());
    }
}
