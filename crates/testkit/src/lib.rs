//! Dev only: what tests stand on. Real Redis, Redis with Sentinel, Redis Cluster and PostgreSQL, started from the
//! installed binaries, and ADE's own server, started from its binary, on free ports in temporary folders; an injected clock; committed references that must be fresh; one
//! suite that every backend of a port must pass.
//!
//! Invariants: a server that is found running is never used; a server that was started is always stopped and its folder
//! removed, also when the test that started it is killed ([`guard`]); nothing here reaches the shipped binary.

mod error;
mod process;

pub mod ade;
pub mod api;
pub mod clock;
pub mod conformance;
pub mod effort;
pub mod folder;
pub mod golden;
pub mod guard;
pub mod people;
pub mod ports;
pub mod postgres;
pub mod proxy;
pub mod redis_servers;
pub mod shell;
pub mod wait;
pub mod worker;

pub use ade::Ade;
pub use api::Api;
pub use clock::ManualClock;
pub use effort::{SeededRng, SeededRng as Dice};
pub use error::StartError;
pub use people::{House, Office, Person};
pub use postgres::Postgres;
pub use process::wait_for_exit;
pub use proxy::Proxy;
pub use redis_servers::{Redis, RedisCluster, RedisSentinel};
pub use shell::Shell;
pub use worker::Worker;
