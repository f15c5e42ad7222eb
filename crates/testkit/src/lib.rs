//! Test support, dev only: real servers (Redis standalone, with Sentinel and as a cluster, PostgreSQL, ADE itself) on free
//! ports in temporary folders, a browser, a manual clock, checks of generated files, and the conformance suite of coordination backends.
//!
//! Invariants: a server that happens to run is never used; a started server is always stopped and its folder removed, also
//! when its test is killed ([`guard`]); nothing here reaches the shipped binary.

mod error;
mod process;

pub mod api;
pub mod browser;
pub mod cli;
pub mod clock;
pub mod conformance;
pub mod deployment;
pub mod effort;
pub mod folder_snapshot;
pub mod formats;
pub mod golden;
pub mod guard;
pub mod lock_history;
pub mod mail_receiver;
pub mod ports;
pub mod postgres;
pub mod postgres_proxy;
pub mod redis_servers;
pub mod server;
pub mod session;
pub mod wait;
pub mod webhook_receiver;
pub mod worker;

pub use api::ApiClient;
pub use browser::{Browser, Page, WindowOptions};
pub use cli::Cli;
pub use clock::ManualClock;
pub use deployment::{AdminClient, Deployment, TestUser};
pub use effort::SeededRng;
pub use error::StartError;
pub use postgres::Postgres;
pub use postgres_proxy::PostgresProxy;
pub use process::wait_for_exit;
pub use redis_servers::{Redis, RedisCluster, RedisSentinel};
pub use server::{AdeServer, test_keys};
pub use webhook_receiver::WebhookReceiver;
pub use worker::WorkerProcess;
