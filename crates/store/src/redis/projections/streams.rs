//! The event streams for services of the user: bounded, with one consumer group for each kind of service.
//!
//! A numbered event has the id `<number>-0`, so that appending it twice does nothing. The stream of locks also has events without a
//! number, and its entries have ids of Redis.

use std::time::Duration;

use ade_domain::Moment;
use ade_domain::event::Event;
use ade_keyspace::ade::{self as keys, ids};
use ade_keyspace::{Layout, RedisKey, Writable};
use jiff::Timestamp;
use redis::Value;
use redis::streams::{StreamInfoGroupsReply, StreamReadReply};

use super::{RedisProjections, Result};
use crate::redis::encoding::to_json;
use crate::redis::query::command;

/// The consumer groups of every stream.
pub const CONSUMER_GROUPS: [&str; 4] =
    ["notification-service", "audit-logger", "webhook-dispatcher", "analytics-pipeline"];
const MAX_LEN: u64 = 10_000;
/// Entries that are read together.
const MAX_ENTRIES: usize = 500;

/// A topic that has a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum EventTopic {
    Task,
    Approval,
    Lock,
    Agent,
}

impl EventTopic {
    pub const ALL: [Self; 4] = [Self::Task, Self::Approval, Self::Lock, Self::Agent];

    /// The topic of an event such as `task:approved`; none if there is no stream for it.
    #[must_use]
    pub fn of(event: &str) -> Option<Self> {
        let noun = event.split(':').next().unwrap_or(event);
        Self::ALL.into_iter().find(|topic| <&str>::from(topic) == noun)
    }

    fn key(self) -> Result<StreamKey> {
        Ok(StreamKey { event_type: ids::EventType::new(self.into())? })
    }
}

struct StreamKey {
    event_type: ids::EventType,
}

impl StreamKey {
    fn writable(&self) -> Writable<'_> {
        keys::events::stream(&self.event_type).writable()
    }

    fn in_layout(&self, layout: Layout) -> RedisKey {
        self.writable().in_layout(layout)
    }
}

/// An entry of a stream.
#[derive(Debug, Clone, PartialEq)]
pub struct StreamEntry {
    /// None for an event that is not in the database.
    pub number: Option<u64>,
    pub event: String,
    pub at: Moment,
    /// JSON.
    pub payload: String,
    pub source: String,
    /// Counts the events of one lock from one source, so that a gap is visible.
    pub sequence: Option<u64>,
}

impl StreamEntry {
    pub fn of(number: u64, event: &Event) -> Result<Self> {
        Ok(Self {
            number: Some(number),
            event: event.event.clone(),
            at: event.at,
            payload: to_json("the payload of an event", &event.payload)?,
            source: event.source.clone(),
            sequence: None,
        })
    }

    fn fields(&self, topic: EventTopic) -> Vec<String> {
        let StreamEntry { event, at, payload, source, .. } = self;
        let pairs =
            [("event", event), ("timestamp", &at.to_string()), ("payload", payload), ("source", source)];
        let mut fields: Vec<String> =
            pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value.clone()]).collect();
        if topic == EventTopic::Lock {
            let counts = [("number", self.number), ("sequence", self.sequence)];
            let counts = counts.into_iter().filter_map(|(name, count)| Some((name, count?)));
            fields.extend(counts.flat_map(|(name, count)| [name.to_owned(), count.to_string()]));
        }
        fields
    }
}

/// The id of a numbered event, except in the stream of locks.
#[must_use]
pub fn entry_id(number: u64) -> String {
    format!("{number}-0")
}

impl RedisProjections {
    /// Appends entries in order, and creates the stream and its groups if they are missing. Numbered entries that the stream has, or that
    /// are older than its last one, are skipped; the stream of locks gets them again.
    pub async fn append(&self, topic: EventTopic, entries: &[StreamEntry]) -> Result<()> {
        let key = topic.key()?;
        let ttl_ms = key.writable().ttl().map_or(0, |ttl| ttl.as_millis());
        let mut args = vec![MAX_LEN.to_string(), ttl_ms.to_string(), CONSUMER_GROUPS.len().to_string()];
        args.extend(CONSUMER_GROUPS.map(str::to_owned));
        for entry in entries {
            let id = entry.number.filter(|_| topic != EventTopic::Lock).map(entry_id);
            let fields = entry.fields(topic);
            args.extend([id.unwrap_or_else(|| "*".to_owned()), fields.len().to_string()]);
            args.extend(fields);
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let key = key.in_layout(self.layout());
        self.client.call(&self.scripts.append_entries, &[&key], &args).await.map(drop)
    }

    /// The key of a stream.
    pub fn stream_key(&self, topic: EventTopic) -> Result<String> {
        Ok(topic.key()?.in_layout(self.layout()).as_str().to_owned())
    }

    /// The number of the last entry of a stream; none if it has no entry, or if it is missing. Not for the stream of locks.
    pub async fn last_number(&self, topic: EventTopic) -> Result<Option<u64>> {
        let id = self.last_entry(topic).await?;
        Ok(id.split('-').next().and_then(|number| number.parse().ok()).filter(|number| *number > 0))
    }

    /// The id of the last entry of a stream.
    pub async fn last_entry(&self, topic: EventTopic) -> Result<String> {
        let key = topic.key()?.in_layout(self.layout());
        let last = command("XREVRANGE", &key, ("+", "-", "COUNT", 1));
        let replies: Vec<Vec<(String, Vec<String>)>> = self.query_all(vec![last]).await?;
        Ok(replies.into_iter().flatten().next().map_or_else(|| "0-0".to_owned(), |(id, _)| id))
    }

    /// Waits for entries of a stream behind an id, at most so long. Returns them with the id of the last one.
    pub async fn entries(
        &self,
        topic: EventTopic,
        after: &str,
        wait: Duration,
    ) -> Result<(String, Vec<StreamEntry>)> {
        let key = topic.key()?.in_layout(self.layout());
        let mut read = redis::cmd("XREAD");
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).max(1);
        read.arg("COUNT").arg(MAX_ENTRIES).arg("BLOCK").arg(wait_ms);
        read.arg("STREAMS").arg(key.as_str()).arg(after);
        let reply = self.client.query_blocking(&key, read, wait).await?;
        let reply: Option<StreamReadReply> = redis::from_redis_value(reply)?;
        let read = reply.into_iter().flat_map(|reply| reply.keys).flat_map(|stream| stream.ids);
        let (mut last, mut entries) = (after.to_owned(), Vec::new());
        for entry in read {
            let text = |field: &str| entry.get::<String>(field).unwrap_or_default();
            let count = |field: &str| entry.get::<u64>(field);
            let number = match topic {
                EventTopic::Lock => count("number"),
                _ => entry.id.split('-').next().and_then(|number| number.parse().ok()),
            };
            // Others may write to the stream.
            if let Ok(at) = text("timestamp").parse::<Timestamp>() {
                let (event, payload, source) = (text("event"), text("payload"), text("source"));
                let sequence = count("sequence");
                entries.push(StreamEntry { number, event, at: at.into(), payload, source, sequence });
            }
            last = entry.id;
        }
        Ok((last, entries))
    }

    /// Notes that everything up to an entry is handled by a group whose work ADE does itself.
    pub async fn acknowledge(&self, topic: EventTopic, group: &str, id: &str) -> Result<()> {
        let key = topic.key()?.in_layout(self.layout());
        let mut set = redis::cmd("XGROUP");
        set.arg("SETID").arg(key.as_str()).arg(group).arg(id);
        self.client.query(&key, set).await.map(drop)
    }

    /// The groups that a stream lacks; all of them if the stream is missing.
    pub async fn missing_groups(&self, topic: EventTopic) -> Result<Vec<&'static str>> {
        let key = topic.key()?.in_layout(self.layout());
        let mut info = redis::cmd("XINFO");
        info.arg("GROUPS").arg(key.as_str());
        let present = match self.client.query(&key, info).await {
            Ok(reply) => group_names(reply),
            Err(_) => Vec::new(),
        };
        Ok(CONSUMER_GROUPS.into_iter().filter(|group| !present.iter().any(|name| name == group)).collect())
    }
}

fn group_names(reply: Value) -> Vec<String> {
    let reply = redis::from_redis_value::<StreamInfoGroupsReply>(reply);
    reply.map_or_else(|_| Vec::new(), |reply| reply.groups.into_iter().map(|group| group.name).collect())
}
