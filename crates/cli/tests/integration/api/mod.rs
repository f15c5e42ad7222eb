//! The HTTP API of locks and agents, and what all routes have in common: accepted requests, responses and refusals.

mod agents;
mod connections;
mod email;
mod idempotency;
mod lock_names;
mod lock_settings;
mod locks;
mod problems;
mod routes;
mod schemathesis;
mod shutdown;
mod sign_in;
mod tickets;
mod webhooks;

use ade_testkit::{AdeServer, ApiClient};

async fn start_server() -> (AdeServer, ApiClient) {
    start_server_with("").await
}

async fn start_server_with(config: &str) -> (AdeServer, ApiClient) {
    let ade = AdeServer::start_with(env!("CARGO_BIN_EXE_ade"), config).expect("starts");
    let api = ApiClient::connect(&ade).await;
    (ade, api)
}
