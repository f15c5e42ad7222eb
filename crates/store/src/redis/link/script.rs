//! What runs on the server: a function of a library, or a script of its own.
//!
//! A call sends a name, the text only to a server that does not know it. The name is made of the text: another text, of
//! another version or other rules, never takes its place.

use std::sync::Arc;

use ade_keyspace::RedisKey;
use redis::Cmd;

/// A text with functions.
#[derive(Debug)]
struct Library {
    name: String,
    text: String,
}

#[derive(Debug, Clone)]
enum Kind {
    /// A script that is sent by its fingerprint.
    Own { text: String, hash: String },
    /// One of the functions of a library.
    Function { library: Arc<Library>, name: String },
}

/// A script or a function.
#[derive(Debug, Clone)]
pub(in crate::redis) struct Script(Kind);

impl Script {
    /// A script of that text.
    pub(in crate::redis) fn new(text: impl Into<String>) -> Self {
        let text = text.into();
        let hash = redis::Script::new(&text).get_hash().to_owned();
        Self(Kind::Own { text, hash })
    }

    /// The functions of a library. Its text finds the library's name in `LIBRARY`, with which their names begin.
    pub(in crate::redis) fn library<const N: usize>(text: &str, functions: [&str; N]) -> [Self; N] {
        let hash = redis::Script::new(text).get_hash().to_owned();
        let name = format!("ade_{}", hash.get(..16).unwrap_or(&hash));
        let text = format!("#!lua name={name}\nlocal LIBRARY = '{name}'\n{text}");
        let library = Arc::new(Library { name, text });
        functions.map(|function| {
            let name = format!("{}_{function}", library.name);
            Self(Kind::Function { library: Arc::clone(&library), name })
        })
    }

    /// The command that runs it by its name.
    pub(super) fn by_name(&self, node_id: &str, keys: &[RedisKey], args: &[&[u8]]) -> Cmd {
        match &self.0 {
            Kind::Own { hash, .. } => command("EVALSHA", hash, node_id, keys, args),
            Kind::Function { name, .. } => command("FCALL", name, node_id, keys, args),
        }
    }

    /// The command after which the server knows it; it does nothing else.
    pub(super) fn load(&self) -> Cmd {
        let mut load;
        match &self.0 {
            Kind::Own { text, .. } => {
                load = redis::cmd("SCRIPT");
                load.arg("LOAD").arg(text);
            }
            Kind::Function { library, .. } => {
                load = redis::cmd("FUNCTION");
                load.arg("LOAD").arg(&library.text);
            }
        }
        load
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
