//! Registered requests on Redis: one key each with a TTL, so that a repeated request is recognised.

use ade_domain::Moment;
use ade_domain::lock::{LockRequest, RequestKey};
use serde::{Deserialize, Serialize};

use super::encoding::{CorruptValue, to_json};
use super::query::NO_ARGS;
use super::{Inner, RedisCoordination, Result, keys};
use crate::coordination::{AsyncResult, LockRequests, Registration, Ticket};

#[derive(Debug, Serialize, Deserialize)]
struct StoredRequest {
    digest: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ticket: Option<(LockRequest, Moment)>,
}

impl Inner {
    async fn load_request(&self, key: RequestKey) -> Result<Option<StoredRequest>> {
        let text: Option<String> = self.query("GET", &keys::request(key, self.layout())?, NO_ARGS).await?;
        let Some(text) = text else { return Ok(None) };
        Ok(Some(serde_json::from_str(&text).map_err(|_| CorruptValue::new("a registered request", text))?))
    }
}

impl LockRequests for RedisCoordination {
    fn register_request(
        &self,
        key: RequestKey,
        digest: u128,
        ticket: Option<Ticket>,
        until: Moment,
    ) -> AsyncResult<'_, Registration> {
        Box::pin(async move {
            let digest = format!("{digest:032x}");
            let ticket = ticket.map(|ticket| (ticket.request, ticket.deadline));
            let request = StoredRequest { digest: digest.clone(), ticket };
            let text = to_json("a lock request", &request)?;
            let redis_key = keys::request(key, self.inner.layout())?;
            let ttl_ms = until.ms_since(self.inner.clock.now()).max(1);
            if self.inner.query("SET", &redis_key, (text, "NX", "PX", ttl_ms)).await? {
                return Ok(Registration::New);
            }
            Ok(match self.inner.load_request(key).await? {
                // It expired between the two commands, which is no different from expiring right after this one.
                None => Registration::Repeated,
                Some(stored) if stored.digest == digest => Registration::Repeated,
                Some(_) => Registration::KeyReused,
            })
        })
    }

    fn forget_request(&self, key: RequestKey) -> AsyncResult<'_, ()> {
        Box::pin(async move {
            let key = keys::request(key, self.inner.layout())?;
            self.inner.query("DEL", &key, NO_ARGS).await
        })
    }

    fn ticket(&self, key: RequestKey) -> AsyncResult<'_, Option<Ticket>> {
        Box::pin(async move {
            let stored = self.inner.load_request(key).await?;
            let ticket = stored.and_then(|stored| stored.ticket);
            Ok(ticket.map(|(request, deadline)| Ticket { request, deadline }))
        })
    }
}
