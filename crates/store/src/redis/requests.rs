//! Requests that may be repeated, on Redis: one key each, which ends by itself.

use ade_domain::Moment;
use ade_domain::lock::{LockRequest, RequestKey};
use redis::Value;
use serde::{Deserialize, Serialize};

use super::encoding::Foreign;
use super::{Inner, RedisCoordination, foreign, keys, step};
use crate::coordination::{CoordinationError, Registration, Reply, Requests, Ticket};

/// What is remembered of a request.
#[derive(Debug, Serialize, Deserialize)]
struct Remembered {
    digest: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ticket: Option<(LockRequest, Moment)>,
}

impl Inner {
    async fn remembered(&self, key: RequestKey) -> Result<Option<Remembered>, CoordinationError> {
        let key = keys::request(key, self.layout())?;
        let mut get = redis::cmd("GET");
        get.arg(key.as_str());
        let value = self.ask(&key, get).await?;
        if value == Value::Nil {
            return Ok(None);
        }
        let text = step::text(&value).map_err(foreign)?;
        let read = serde_json::from_str(text).map_err(|_| foreign(Foreign::new("a request", text)))?;
        Ok(Some(read))
    }
}

impl Requests for RedisCoordination {
    fn remember(
        &self,
        key: RequestKey,
        digest: u128,
        ticket: Option<Ticket>,
        until: Moment,
    ) -> Reply<'_, Registration> {
        Box::pin(async move {
            let digest = format!("{digest:032x}");
            let ticket = ticket.map(|ticket| (ticket.request, ticket.deadline));
            let remembered = Remembered { digest: digest.clone(), ticket };
            let text = serde_json::to_string(&remembered)
                .map_err(|error| CoordinationError(format!("a request cannot be written down: {error}")))?;
            let at = keys::request(key, self.inner.layout())?;
            let ttl_ms = until.ms_since(self.inner.clock.now()).max(1);
            let mut set = redis::cmd("SET");
            set.arg(at.as_str()).arg(text).arg("NX").arg("PX").arg(ttl_ms);
            if self.inner.ask(&at, set).await? == Value::Okay {
                return Ok(Registration::New);
            }
            Ok(match self.inner.remembered(key).await? {
                // It ended between the two questions, which is as good as an end between this and the next one.
                None => Registration::Same,
                Some(known) if known.digest == digest => Registration::Same,
                Some(_) => Registration::Other,
            })
        })
    }

    fn forget(&self, key: RequestKey) -> Reply<'_, ()> {
        Box::pin(async move {
            let key = keys::request(key, self.inner.layout())?;
            let mut del = redis::cmd("DEL");
            del.arg(key.as_str());
            self.inner.ask(&key, del).await.map(drop)
        })
    }

    fn recall(&self, key: RequestKey) -> Reply<'_, Option<Ticket>> {
        Box::pin(async move {
            let known = self.inner.remembered(key).await?;
            let ticket = known.and_then(|known| known.ticket);
            Ok(ticket.map(|(request, deadline)| Ticket { request, deadline }))
        })
    }
}
