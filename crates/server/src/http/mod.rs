//! HTTP mechanics shared by all routes: connections, middleware, extractors, problems, paging, rate limits, OpenAPI.

pub(crate) mod accept;
pub(crate) mod client_address;
pub(crate) mod connections;
pub(crate) mod extract;
pub(crate) mod idempotency;
pub(crate) mod json;
pub(crate) mod middleware;
pub(crate) mod openapi;
pub(crate) mod paging;
mod pending_writes;
pub(crate) mod problem;
pub(crate) mod rate_limit;
mod strict_json;
