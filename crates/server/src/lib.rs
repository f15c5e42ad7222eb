//! The HTTP API: routes, who may call them, and how failures are told.
//!
//! A handler translates: a request into a call of `app`, its result into an answer. It decides nothing. Every route under
//! `/api/v1` has a caller in its signature.

mod accept;
mod api;
mod auth;
mod caller;
pub mod config;
mod docs;
mod edge;
mod limits;
mod logging;
mod metrics;
mod posted;
mod problem;
mod run;
mod workers;

pub use ade_app::demo::PASSWORD as DEMO_PASSWORD;
pub use api::openapi;
pub use config::{Config, ConfigError, Layers};
pub use logging::start as start_logging;
pub use run::{Server, StartError};
pub use workers::{WorkerProcess, unusable_roots};
