//! Passwords: argon2id, beside the runtime's threads, and only so many at once: each costs memory and time on purpose.

use std::sync::{Arc, OnceLock};

use ade_store::DatabaseError;
use argon2::Argon2;
use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{PasswordHasher, PasswordVerifier};
use tokio::sync::Semaphore;

use crate::Error;

/// Passwords that are hashed at once: each takes 19 MiB.
const AT_ONCE: usize = 2;
const SHORTEST: usize = 8;
const LONGEST: usize = 1_024;

/// The hash of nobody's password: whoever is not known costs as much time as whoever is.
static NOBODY: OnceLock<String> = OnceLock::new();

#[derive(Clone)]
pub(super) struct Passwords {
    room: Arc<Semaphore>,
}

#[expect(clippy::needless_pass_by_value, reason = "it is what errors are mapped with")]
fn away(why: impl ToString) -> Error {
    Error::Record(DatabaseError::Unavailable(why.to_string()))
}

fn hashed(password: &str) -> Result<String, Error> {
    Ok(Argon2::default().hash_password(password.as_bytes()).map_err(away)?.to_string())
}

impl Passwords {
    pub(super) fn new() -> Self {
        Self { room: Arc::new(Semaphore::new(AT_ONCE)) }
    }

    async fn beside<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let _permit = self.room.clone().acquire_owned().await.map_err(away)?;
        tokio::task::spawn_blocking(work).await.map_err(away)?
    }

    /// How a password is recognised from now on.
    pub(super) async fn hash(&self, password: String) -> Result<String, Error> {
        if !(SHORTEST..=LONGEST).contains(&password.len()) {
            let detail = format!("must have between {SHORTEST} and {LONGEST} bytes");
            return Err(Error::invalid("/password", detail));
        }
        self.beside(move || hashed(&password)).await
    }

    /// Whether a password is the right one. Nobody has none, and finding that out takes as long.
    pub(super) async fn fits(&self, password: String, known: Option<String>) -> Result<bool, Error> {
        if password.len() > LONGEST {
            return Ok(false);
        }
        self.beside(move || {
            let is_known = known.is_some();
            let known = match known {
                Some(known) => known,
                None => match NOBODY.get() {
                    Some(nobody) => nobody.clone(),
                    None => NOBODY.get_or_init(|| hashed("nobody's").unwrap_or_default()).clone(),
                },
            };
            let Ok(known) = PasswordHash::new(&known) else { return Ok(false) };
            let fits = Argon2::default().verify_password(password.as_bytes(), &known).is_ok();
            Ok(fits && is_known)
        })
        .await
    }
}
