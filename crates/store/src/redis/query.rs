//! Commands and script calls whose replies are read into Rust types.

use ade_domain::Moment;
use ade_keyspace::RedisKey;
use redis::{Cmd, FromRedisValue, ParsingError, ToRedisArgs, Value};

use super::connection::Script;
use super::encoding::parse_moment;
use super::{Inner, Result};

/// For commands that have no argument but their key.
pub(super) const NO_ARGS: &[&str] = &[];

/// A command, with the key that is its first argument and decides which server executes it.
pub(super) fn command(name: &str, key: &RedisKey, args: impl ToRedisArgs) -> (RedisKey, Cmd) {
    let mut command = redis::cmd(name);
    command.arg(key.as_str()).arg(args);
    (key.clone(), command)
}

impl Inner {
    pub(super) async fn query<T>(&self, name: &str, key: &RedisKey, args: impl ToRedisArgs) -> Result<T>
    where
        T: FromRedisValue,
    {
        let (key, command) = command(name, key, args);
        Ok(redis::from_redis_value(self.client.query(&key, command).await?)?)
    }

    /// Runs all commands concurrently; returns the first error.
    pub(super) async fn query_all<T: FromRedisValue>(
        &self,
        commands: Vec<(RedisKey, Cmd)>,
    ) -> Result<Vec<T>> {
        let replies = self.client.query_all(commands).await;
        replies.into_iter().map(|reply| Ok(redis::from_redis_value(reply?)?)).collect()
    }

    /// The same for commands whose replies do not matter.
    pub(super) async fn run_all(&self, commands: Vec<(RedisKey, Cmd)>) -> Result<()> {
        if commands.is_empty() {
            return Ok(());
        }
        self.query_all::<()>(commands).await.map(drop)
    }

    /// Runs a script on the server of its first key.
    pub(super) async fn call<T>(&self, script: &Script, keys: &[&RedisKey], args: &[&str]) -> Result<T>
    where
        T: FromRedisValue,
    {
        Ok(redis::from_redis_value(self.client.call(script, keys, args).await?)?)
    }
}

/// A time as the scripts return it: Unix microseconds.
pub(super) struct UnixMicros(pub(super) Moment);

impl FromRedisValue for UnixMicros {
    fn from_redis_value(value: Value) -> std::result::Result<Self, ParsingError> {
        let text: String = redis::from_redis_value(value)?;
        parse_moment(&text).map(Self).ok_or_else(|| format!("{text:?} is not a time in microseconds").into())
    }
}
