//! Code that runs on the server: a function of a library, or a single script.
//!
//! Calls send only a name; the source goes to servers that do not have it. The name is a hash of the source, so that
//! sources of other versions or limits never replace it.

use std::sync::Arc;

use ade_keyspace::RedisKey;
use redis::Cmd;

#[derive(Debug)]
struct Library {
    name: String,
    source: String,
}

#[derive(Debug, Clone)]
enum Kind {
    /// Called by the hash of its source.
    Standalone {
        source: String,
        hash: String,
    },
    Function {
        library: Arc<Library>,
        name: String,
    },
}

#[derive(Debug, Clone)]
pub struct Script(Kind);

impl Script {
    pub fn new(source: impl Into<String>) -> Self {
        let source = source.into();
        let hash = redis::Script::new(&source).get_hash().to_owned();
        Self(Kind::Standalone { source, hash })
    }

    /// The functions of a library. Its source can use the constant `LIBRARY`, the prefix of all function names.
    pub(in crate::redis) fn library<const N: usize>(source: &str, functions: [&str; N]) -> [Self; N] {
        let hash = redis::Script::new(source).get_hash().to_owned();
        let name = format!("ade_{}", hash.get(..16).unwrap_or(&hash));
        let source = format!("#!lua name={name}\nlocal LIBRARY = '{name}'\n{source}");
        let library = Arc::new(Library { name, source });
        functions.map(|function| {
            let name = format!("{}_{function}", library.name);
            Self(Kind::Function { library: Arc::clone(&library), name })
        })
    }

    /// The command that calls it.
    pub(super) fn call(&self, node_id: &str, keys: &[RedisKey], args: &[&[u8]]) -> Cmd {
        match &self.0 {
            Kind::Standalone { hash, .. } => command("EVALSHA", hash, node_id, keys, args),
            Kind::Function { name, .. } => command("FCALL", name, node_id, keys, args),
        }
    }

    /// The command that loads it; it has no other effect.
    pub(super) fn load(&self) -> Cmd {
        let mut load;
        match &self.0 {
            Kind::Standalone { source, .. } => {
                load = redis::cmd("SCRIPT");
                load.arg("LOAD").arg(source);
            }
            Kind::Function { library, .. } => {
                load = redis::cmd("FUNCTION");
                load.arg("LOAD").arg(&library.source);
            }
        }
        load
    }
}

fn command(name: &str, script: &str, node_id: &str, keys: &[RedisKey], args: &[&[u8]]) -> Cmd {
    let keys_size: usize = keys.iter().map(|key| key.as_str().len()).sum();
    let args_size: usize = args.iter().map(|arg| arg.len()).sum();
    let size = name.len() + script.len() + node_id.len() + keys_size + args_size + 8;
    let mut command = Cmd::with_capacity(4 + keys.len() + args.len(), size);
    command.arg(name).arg(script).arg(keys.len());
    for key in keys {
        command.arg(key.as_str());
    }
    command.arg(node_id);
    for arg in args {
        command.arg(*arg);
    }
    command
}
