//! Password hashing with argon2id, on blocking threads and with bounded concurrency: each hash costs memory and time on
//! purpose.

use std::sync::{Arc, OnceLock};

use argon2::Argon2;
use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{PasswordHasher, PasswordVerifier};
use tokio::sync::Semaphore;

use crate::{Error, Result};

/// Each hash takes 19 MiB.
const MAX_CONCURRENT: usize = 2;
const MIN_CHARS: usize = 8;
const MAX_BYTES: usize = 1_024;

/// A hash that no password of a user matches: verifying an unknown user takes as long as a known one.
static DUMMY_HASH: OnceLock<String> = OnceLock::new();

#[derive(Debug, Clone)]
pub(super) struct PasswordHashing {
    permits: Arc<Semaphore>,
}

fn argon2_hash(password: &str) -> Result<String> {
    Ok(Argon2::default().hash_password(password.as_bytes()).map_err(Error::system)?.to_string())
}

impl PasswordHashing {
    pub(super) fn new() -> Self {
        Self { permits: Arc::new(Semaphore::new(MAX_CONCURRENT)) }
    }

    async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let _permit = self.permits.clone().acquire_owned().await.map_err(Error::system)?;
        tokio::task::spawn_blocking(work).await.map_err(Error::system)?
    }

    pub(super) async fn hash(&self, password: String) -> Result<String> {
        if password.chars().count() < MIN_CHARS || password.len() > MAX_BYTES {
            let detail = format!("must have at least {MIN_CHARS} characters and at most {MAX_BYTES} bytes");
            return Err(Error::invalid("password", detail));
        }
        self.run_blocking(move || argon2_hash(&password)).await
    }

    /// Whether the password matches the hash. Without a hash the answer is no, and takes as long.
    pub(super) async fn verify(&self, password: String, hash: Option<String>) -> Result<bool> {
        if password.len() > MAX_BYTES {
            return Ok(false);
        }
        self.run_blocking(move || {
            let is_known = hash.is_some();
            let hash = hash.unwrap_or_else(|| {
                DUMMY_HASH.get_or_init(|| argon2_hash("nobody's").unwrap_or_default()).clone()
            });
            let Ok(hash) = PasswordHash::new(&hash) else { return Ok(false) };
            let matches = Argon2::default().verify_password(password.as_bytes(), &hash).is_ok();
            Ok(matches && is_known)
        })
        .await
    }
}
