//! The HTTP API, the pages of the dashboard, and the processes that serve them and apply tasks.
//!
//! Handlers translate between HTTP and the use cases of `app`; they make no decisions. Every handler under `/api/v1` but
//! sign-in takes an authenticated caller.

mod api;
mod auth;
mod http;
mod pages;
mod process;

pub use ade_app::RebuildProgress;
pub use ade_app::demo::PASSWORD as DEMO_PASSWORD;
pub use auth::{disable_bootstrap_token, rotate_bootstrap_token};
pub use http::openapi::openapi;
pub use process::{Server, StartError, WorkerProcess, rebuild_projections, recover_admin, start_logging};
