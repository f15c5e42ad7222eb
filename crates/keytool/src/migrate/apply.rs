//! Makes one step of a migration, so that a kill at any moment loses nothing and a repetition completes it.

use std::collections::BTreeMap;

use ade_catalog::model::ValueType;
use ade_catalog::slot::slot_of;
use redis::{Value, cmd};

use super::plan::{Step, is_positive};
use crate::server::{Deployment, DeploymentKind, Node, ServerError};

/// Sets a field if it still has the old text. The TTL of the key stays.
const SET_FIELD: &str = "if redis.call('HGET', KEYS[1], ARGV[1]) == ARGV[2] then redis.call('HSET', KEYS[1], ARGV[1], ARGV[3]) end";
/// Replaces a member of a sorted set with the same score, or of a set.
const REPLACE_IN_ZSET: &str = "local score = redis.call('ZSCORE', KEYS[1], ARGV[1]) \
    if score then redis.call('ZADD', KEYS[1], 'NX', score, ARGV[2]) redis.call('ZREM', KEYS[1], ARGV[1]) end";
const REPLACE_IN_SET: &str = "if redis.call('SISMEMBER', KEYS[1], ARGV[1]) == 1 then \
    redis.call('SADD', KEYS[1], ARGV[2]) redis.call('SREM', KEYS[1], ARGV[1]) end";

/// Renames a key that still exists, unless the new one does.
const RENAME: &str =
    "if redis.call('EXISTS', KEYS[1]) == 0 then return 1 end return redis.call('RENAMENX', KEYS[1], KEYS[2])";

pub(super) struct Writer<'a> {
    nodes: &'a [Node],
    /// The first slot of each range with the position of its node; empty outside a cluster.
    owners: BTreeMap<u16, usize>,
}

/// A step was made, or why it was not.
type Outcome = Result<(), String>;

impl<'a> Writer<'a> {
    pub(super) async fn new(deployment: &'a Deployment) -> Result<Self, ServerError> {
        let mut owners = BTreeMap::new();
        if deployment.kind == DeploymentKind::Cluster {
            for (position, node) in deployment.nodes.iter().enumerate() {
                for first in node.clone().first_slots().await? {
                    owners.insert(first, position);
                }
            }
        }
        Ok(Self { nodes: &deployment.nodes, owners })
    }

    pub(super) async fn apply(&self, node: &Node, step: &Step) -> Result<Outcome, ServerError> {
        match step {
            Step::Rename { from, to, .. } => self.rename(node, from, to).await,
            Step::Field { key, field, from, to, .. } => {
                let mut command = cmd("EVAL");
                command.arg(SET_FIELD).arg(1).arg(key).arg(field).arg(from).arg(to);
                node.clone().query::<Value>("EVAL", &command).await?;
                Ok(Ok(()))
            }
            Step::Member { key, kind, from, to, .. } => {
                let script = if *kind == ValueType::Zset { REPLACE_IN_ZSET } else { REPLACE_IN_SET };
                let mut command = cmd("EVAL");
                command.arg(script).arg(1).arg(key).arg(from).arg(to);
                node.clone().query::<Value>("EVAL", &command).await?;
                Ok(Ok(()))
            }
            Step::Problem { reason, .. } => Ok(Err(reason.clone())),
        }
    }

    /// The node that has the slot of a key.
    fn owner<'b>(&'b self, node: &'b Node, key: &str) -> &'b Node {
        let range = self.owners.range(..=slot_of(key.as_bytes())).next_back();
        range.and_then(|(_, position)| self.nodes.get(*position)).unwrap_or(node)
    }

    async fn rename(&self, node: &Node, from: &[u8], to: &str) -> Result<Outcome, ServerError> {
        let target = self.owner(node, to);
        let mut source = node.clone();
        if self.owners.is_empty() || slot_of(from) == slot_of(to.as_bytes()) {
            let mut command = cmd("EVAL");
            command.arg(RENAME).arg(2).arg(from).arg(to);
            if is_positive(&source.query("EVAL", &command).await?) {
                return Ok(Ok(()));
            }
        } else {
            let mut dump = cmd("DUMP");
            dump.arg(from);
            let Some(content) = source.query::<Option<Vec<u8>>>("DUMP", &dump).await? else {
                return Ok(Ok(()));
            };
            let mut expiry = cmd("PEXPIRETIME");
            expiry.arg(from);
            let expires_at: i64 = source.query("PEXPIRETIME", &expiry).await?;
            let mut exists = cmd("EXISTS");
            exists.arg(to);
            if !is_positive(&target.clone().query("EXISTS", &exists).await?) {
                let mut restore = cmd("RESTORE");
                restore.arg(to).arg(expires_at.max(0)).arg(&content);
                if expires_at > 0 {
                    restore.arg("ABSTTL");
                }
                target.clone().query::<Value>("RESTORE", &restore).await?;
            }
        }
        // The new key exists: it is a copy, made now or before an interruption, or something else.
        let copy = content(target, to.as_bytes()).await?;
        let original = content(node, from).await?;
        if original.is_empty() {
            // It expired meanwhile.
            return Ok(Ok(()));
        }
        if copy != original {
            return Ok(Err(format!("{to} exists already with other content: compare both, and delete one")));
        }
        let mut remove = cmd("DEL");
        remove.arg(from);
        source.query::<Value>("DEL", &remove).await?;
        Ok(Ok(()))
    }
}

/// The content of a key, independent of how the server stores it.
async fn content(node: &Node, key: &[u8]) -> Result<Vec<Vec<u8>>, ServerError> {
    let mut node = node.clone();
    let mut type_of = cmd("TYPE");
    type_of.arg(key);
    let kind: String = node.query("TYPE", &type_of).await?;
    let words: &[&str] = match kind.as_str() {
        "none" => return Ok(Vec::new()),
        "hash" => &["HGETALL"],
        "set" => &["SMEMBERS"],
        "zset" => &["ZRANGE", "0", "-1", "WITHSCORES"],
        "list" => &["LRANGE", "0", "-1"],
        _ => &["DUMP"],
    };
    let mut command = redis::Cmd::new();
    let (name, arguments) = words.split_first().unwrap_or((&"DUMP", &[]));
    command.arg(name).arg(key).arg(arguments);
    let reply: Value = node.query("DUMP", &command).await?;
    let mut items: Vec<Vec<u8>> = match reply {
        Value::BulkString(bytes) => vec![bytes],
        other => redis::from_redis_value(other).unwrap_or_default(),
    };
    match kind.as_str() {
        "set" => items.sort(),
        "hash" => {
            let mut pairs: Vec<Vec<Vec<u8>>> = items.chunks(2).map(<[Vec<u8>]>::to_vec).collect();
            pairs.sort();
            items = pairs.into_iter().flatten().collect();
        }
        _ => {}
    }
    items.push(kind.into_bytes());
    Ok(items)
}
