//! The rate limit of tokens: the shared setting `ratelimit:token`, read again at most once a second because every request needs it.

use std::sync::{Arc, Mutex, PoisonError};

use ade_domain::Moment;
use ade_store::database::{Setting, Versioned};

use crate::Context;
use crate::shared_settings::{Settings, TOKEN_RATE_LIMIT};

const MAX_AGE_MS: u64 = 1_000;

#[derive(Debug, Clone)]
pub struct TokenRateLimit {
    context: Context,
    /// The last value, and when it was read.
    last: Arc<Mutex<(u64, Option<Moment>)>>,
}

impl TokenRateLimit {
    #[must_use]
    pub fn new(context: Context) -> Self {
        Self { context, last: Arc::new(Mutex::new((Settings::default().token_requests_per_minute, None))) }
    }

    /// Requests per minute; `None` without a limit. The last known value if the database is unavailable.
    pub async fn per_minute(&self) -> Option<u32> {
        let now = self.context.now();
        let must_read = {
            let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            let is_fresh = last.1.is_some_and(|read_at| now.ms_since(read_at) < MAX_AGE_MS);
            // Others use the last value while one request reads the next; the first ones all read.
            if !is_fresh && last.1.is_some() {
                last.1 = Some(now);
            }
            !is_fresh
        };
        if must_read {
            match self.context.database.document::<Setting>(TOKEN_RATE_LIMIT).await {
                Ok(stored) => {
                    let value = stored.and_then(|Versioned { value: Setting(value), .. }| value.as_u64());
                    let value = value.unwrap_or(Settings::default().token_requests_per_minute);
                    *self.last.lock().unwrap_or_else(PoisonError::into_inner) = (value, Some(now));
                }
                Err(error) => tracing::debug!(%error, "cannot read ratelimit:token; using its last value"),
            }
        }
        let (value, _) = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        (value > 0).then(|| u32::try_from(value).unwrap_or(u32::MAX))
    }
}
