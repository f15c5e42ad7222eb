//! What `ade lock hold` says while it waits: who holds the lock and why, and its own place.

use std::io::Write;
use std::time::Duration;

use ade_client::Client;
use ade_client::wire::Lock;
use owo_colors::OwoColorize;
use tokio::time::{Instant, interval_at};

use super::see::name;
use crate::output::safe;
use crate::times::{now, until};

/// How long to wait before saying for whom one waits, and how often to look again.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Says for whom one waits, and again when that changes.
pub(super) struct Telling {
    quiet: bool,
    tick: tokio::time::Interval,
    said: Vec<String>,
    /// Whether it was said that the server cannot be asked.
    away: bool,
}

impl Telling {
    pub(super) fn new(quiet: bool) -> Self {
        Self {
            quiet,
            tick: interval_at(Instant::now() + LOOK_EVERY / 4, LOOK_EVERY),
            said: Vec::new(),
            away: false,
        }
    }

    pub(super) async fn look(&mut self, client: &Client, locks: &[String], holder_id: &str) {
        self.tick.tick().await;
        if self.quiet {
            return;
        }
        for lock in locks {
            let lock = match client.lock(lock).await {
                Ok(lock) => lock,
                // Not seeing it is no reason to stop waiting for it, but one to say so.
                Err(error) => {
                    if !self.away {
                        self.away = true;
                        say(&format!("{}; trying again", safe(&error.to_string())));
                    }
                    continue;
                }
            };
            if self.away {
                // Whatever was said before may not be true any more.
                self.away = false;
                self.said.clear();
            }
            if let Some((key, text)) = tell(&lock, holder_id)
                && !self.said.contains(&key)
            {
                self.said.push(key);
                say(&text);
            }
        }
    }
}

/// If standard error is gone there is nobody to tell.
fn say(text: &str) {
    let _ = writeln!(anstream::stderr().lock(), "{} {text}", "waiting:".yellow().bold());
}

/// What to say about a lock that is waited for, and what would make it worth saying again.
fn tell(lock: &Lock, holder_id: &str) -> Option<(String, String)> {
    let own = lock.queue.iter().find(|waiter| waiter.holder_id == holder_id)?;
    let by = lock.holders.first()?;
    let who = name(&by.agent_id, &by.holder_id);
    let more = match lock.holders.len() {
        1 => String::new(),
        several => format!(" and {} more", several - 1),
    };
    let why = if by.purpose.is_empty() { String::new() } else { format!(" for \"{}\"", safe(&by.purpose)) };
    let expires = until(by.expires_at, now());
    let place =
        if own.position == 1 { "next in line".to_owned() } else { format!("{} in line", own.position) };
    let key = format!("{} {} {}", lock.lock, by.fencing_token, own.position);
    Some((
        key,
        format!(
            "{} is held by {who}{more}{why}, expires in {expires} unless renewed; {place}",
            safe(&lock.lock)
        ),
    ))
}
