//! Waiting for the state of another process that sends no signal: bounded polling, in this file only.

use std::future::Future;
use std::thread;
use std::time::{Duration, Instant};

use crate::error::StartError;

/// Calls `observe` until it returns `Ok`. Its `Err` is the last observed state.
#[expect(clippy::disallowed_methods, reason = "another process changes its state without a signal")]
pub fn eventually<T>(
    what: &str,
    timeout: Duration,
    mut observe: impl FnMut() -> Result<T, String>,
) -> Result<T, StartError> {
    let started = Instant::now();
    loop {
        match observe() {
            Ok(value) => return Ok(value),
            Err(seen) if started.elapsed() >= timeout => {
                return Err(StartError::TimedOut { what: what.to_owned(), seen });
            }
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// [`eventually`] for async observations.
pub async fn until<T, F: Future<Output = Result<T, String>>>(
    what: &str,
    timeout: Duration,
    mut observe: impl FnMut() -> F,
) -> Result<T, StartError> {
    let started = tokio::time::Instant::now();
    loop {
        match observe().await {
            Ok(value) => return Ok(value),
            Err(seen) if started.elapsed() >= timeout => {
                return Err(StartError::TimedOut { what: what.to_owned(), seen });
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}
