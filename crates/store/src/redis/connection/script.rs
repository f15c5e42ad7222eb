//! Functions that run on the server.
//!
//! Calls send only a name; the source of the library goes to servers that do not have it. The name is a hash of the
//! source, so that sources of other versions or limits never replace it.

use std::sync::Arc;

use ade_keyspace::RedisKey;
use redis::Cmd;

/// A function of a library.
#[derive(Debug, Clone)]
pub struct Script {
    name: String,
    library_source: Arc<str>,
}

impl Script {
    /// The functions of a library. Its source can use the constant `LIBRARY`, the prefix of all function names, and `register`.
    pub fn library<const N: usize>(source: &str, functions: [&str; N]) -> [Self; N] {
        let source = format!("{}{source}", include_str!("../scripts/register.lua"));
        let hash = redis::Script::new(&source).get_hash().to_owned();
        let library = format!("ade_{}", hash.get(..16).unwrap_or(&hash));
        let source: Arc<str> = format!("#!lua name={library}\nlocal LIBRARY = '{library}'\n{source}").into();
        functions.map(|function| Self {
            name: format!("{library}_{function}"),
            library_source: Arc::clone(&source),
        })
    }

    /// The command that calls it.
    pub(super) fn call(&self, node_id: &str, keys: &[&RedisKey], args: &[&str]) -> Cmd {
        let keys_size: usize = keys.iter().map(|key| key.as_str().len()).sum();
        let args_size: usize = args.iter().map(|arg| arg.len()).sum();
        let size = "FCALL".len() + self.name.len() + node_id.len() + keys_size + args_size + 8;
        let mut call = Cmd::with_capacity(4 + keys.len() + args.len(), size);
        call.arg("FCALL").arg(&self.name).arg(keys.len());
        for key in keys {
            call.arg(key.as_str());
        }
        call.arg(node_id).arg(args);
        call
    }

    /// The command that loads its library; it has no other effect.
    pub(super) fn load(&self) -> Cmd {
        let mut load = redis::cmd("FUNCTION");
        load.arg("LOAD").arg(&*self.library_source);
        load
    }
}
