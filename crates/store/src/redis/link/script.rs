//! A script with its fingerprint.
//!
//! The fingerprint is computed once: a call sends forty characters, the text only to a server that does not know it.

use ade_keyspace::RedisKey;
use redis::Cmd;

/// A script.
#[derive(Debug, Clone)]
pub(in crate::redis) struct Script {
    text: String,
    hash: String,
}

impl Script {
    /// A script of that text.
    pub(in crate::redis) fn new(text: impl Into<String>) -> Self {
        let text = text.into();
        let hash = redis::Script::new(&text).get_hash().to_owned();
        Self { text, hash }
    }

    /// The command that runs it by its fingerprint.
    pub(super) fn by_hash(&self, node_id: &str, keys: &[RedisKey], args: &[&[u8]]) -> Cmd {
        command("EVALSHA", &self.hash, node_id, keys, args)
    }

    /// The command that runs it by its text, after which the server knows it.
    pub(super) fn by_text(&self, node_id: &str, keys: &[RedisKey], args: &[&[u8]]) -> Cmd {
        command("EVAL", &self.text, node_id, keys, args)
    }
}

fn command(verb: &str, script: &str, node_id: &str, keys: &[RedisKey], args: &[&[u8]]) -> Cmd {
    let of_keys: usize = keys.iter().map(|key| key.as_str().len()).sum();
    let of_args: usize = args.iter().map(|arg| arg.len()).sum();
    let size = verb.len() + script.len() + node_id.len() + of_keys + of_args + 8;
    let mut command = Cmd::with_capacity(4 + keys.len() + args.len(), size);
    command.arg(verb).arg(script).arg(keys.len());
    for key in keys {
        command.arg(key.as_str());
    }
    command.arg(node_id);
    for arg in args {
        command.arg(*arg);
    }
    command
}
