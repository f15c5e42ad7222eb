//! Test support, dev only: real servers (Redis standalone, with Sentinel and as a cluster, PostgreSQL, ADE itself) on free
//! ports in temporary folders, a manual clock, checks of generated files, and the conformance suite of coordination backends.
//!
//! Invariants: a server that happens to run is never used; a started server is always stopped and its folder removed, also
//! when its test is killed ([`guard`]); nothing here reaches the shipped binary.

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
