//! What almost every file of routes uses.

pub(super) use ade_app::{Outcome, TaskView};
pub(super) use ade_client::wire;
pub(super) use axum::Json;
pub(super) use axum::http::StatusCode;
pub(super) use axum::response::{IntoResponse, Response};
pub(super) use serde::Deserialize;
pub(super) use utoipa::IntoParams;
pub(super) use utoipa_axum::router::OpenApiRouter;
pub(super) use utoipa_axum::routes;

pub(super) use super::convert::{self, Convert};
pub(super) use super::{App, AppState};
pub(super) use crate::auth::Caller;
pub(super) use crate::http::extract::{EmptyBody, JsonBody, Param, Params};
pub(super) use crate::http::idempotency::IdempotentPost;
pub(super) use crate::http::openapi::responses::*;
pub(super) use crate::http::paging::{PageParams, PageResult, single_page};
pub(super) use crate::http::problem::{ApiResult, JsonResult, Problem};
