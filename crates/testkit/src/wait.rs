//! Waiting for the state of a foreign process that sends no signal: bounded polling, in this one place only.

use std::future::Future;
use std::thread;
use std::time::{Duration, Instant};

use crate::error::StartError;

/// Asks `observe` until it answers `Ok`; its `Err` is what was seen instead.
#[expect(clippy::disallowed_methods, reason = "a foreign process changes its state without telling")]
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

/// The same for a question that is asked over a connection.
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
