//! Registered requests on Redis: one key each with a TTL, so that a repeated request is recognised.

use ade_domain::Moment;
use ade_domain::lock::{LockRequest, RequestKey};
use redis::Value;
use serde::{Deserialize, Serialize};

use super::encoding::CorruptValue;
use super::{Inner, RedisCoordination, keys, reply};
use crate::coordination::{CoordinationError, CoordinationFuture, LockRequests, Registration, Ticket};

#[derive(Debug, Serialize, Deserialize)]
struct StoredRequest {
    digest: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ticket: Option<(LockRequest, Moment)>,
}

impl Inner {
    async fn load_request(&self, key: RequestKey) -> Result<Option<StoredRequest>, CoordinationError> {
        let key = keys::request(key, self.layout())?;
        let mut get = redis::cmd("GET");
        get.arg(key.as_str());
        let value = self.query(&key, get).await?;
        if value == Value::Nil {
            return Ok(None);
        }
        let text = reply::text(&value)?;
        let request =
            serde_json::from_str(text).map_err(|_| CorruptValue::new("a registered request", text))?;
        Ok(Some(request))
    }
}

impl LockRequests for RedisCoordination {
    fn register_request(
        &self,
        key: RequestKey,
        digest: u128,
        ticket: Option<Ticket>,
        until: Moment,
    ) -> CoordinationFuture<'_, Registration> {
        Box::pin(async move {
            let digest = format!("{digest:032x}");
            let ticket = ticket.map(|ticket| (ticket.request, ticket.deadline));
            let request = StoredRequest { digest: digest.clone(), ticket };
            let text = serde_json::to_string(&request)
                .map_err(|error| CoordinationError(format!("cannot serialize a lock request: {error}")))?;
            let redis_key = keys::request(key, self.inner.layout())?;
            let ttl_ms = until.ms_since(self.inner.clock.now()).max(1);
            let mut set = redis::cmd("SET");
            set.arg(redis_key.as_str()).arg(text).arg("NX").arg("PX").arg(ttl_ms);
            if self.inner.query(&redis_key, set).await? == Value::Okay {
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

    fn forget_request(&self, key: RequestKey) -> CoordinationFuture<'_, ()> {
        Box::pin(async move {
            let key = keys::request(key, self.inner.layout())?;
            let mut del = redis::cmd("DEL");
            del.arg(key.as_str());
            self.inner.query(&key, del).await.map(drop)
        })
    }

    fn ticket(&self, key: RequestKey) -> CoordinationFuture<'_, Option<Ticket>> {
        Box::pin(async move {
            let stored = self.inner.load_request(key).await?;
            let ticket = stored.and_then(|stored| stored.ticket);
            Ok(ticket.map(|(request, deadline)| Ticket { request, deadline }))
        })
    }
}
