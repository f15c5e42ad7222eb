//! Settings and flags that are changed while servers run.

use ade_client::wire;
use ade_domain::lock::LockLimits as LockRules;
use ade_domain::permission::Scope;
use axum::Json;
use axum::extract::State;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::App;
use super::answers::{Always, Guarded, OfBody, OfChange};
use super::convert::settings as told;
use super::extract::{Body, Segment};
use crate::caller::Caller;
use crate::problem::{Answer, Problem};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(settings))
        .routes(routes!(setting, set))
        .routes(routes!(features))
        .routes(routes!(feature, switch))
}

/// Settings that all servers share
#[utoipa::path(get, path = "/config", operation_id = "list_settings", tag = "settings", responses(
    (status = 200, description = "Every setting, by name", body = wire::Page<wire::Setting>),
    Always,
    Guarded,
))]
async fn settings(State(app): State<App>, caller: Caller) -> Answer<Json<wire::Page<wire::Setting>>> {
    let all = app.rules.settings(&caller).await?;
    let mut items = all.iter().map(told::setting).collect::<Result<Vec<_>, _>>()?;
    items.extend(app.own_settings.iter().map(OwnSetting::told));
    items.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(Json(wire::Page { items, next_cursor: None }))
}

/// What every server has in its own configuration: shown here, and changed there.
#[derive(Debug, Clone)]
pub(crate) struct OwnSetting {
    /// As settings are named here.
    pub(crate) name: &'static str,
    /// As it is named there.
    pub(crate) setting: &'static str,
    /// What it is.
    pub(crate) value: u64,
    /// What it does.
    pub(crate) about: &'static str,
}

impl OwnSetting {
    /// What locks go by.
    pub(crate) fn of_locks(rules: &LockRules) -> Vec<Self> {
        vec![
            Self {
                name: "lock:default_ttl",
                setting: "lock.default_ttl_seconds",
                value: rules.default_ttl_ms / 1_000,
                about: "seconds that a lease lasts that does not say",
            },
            Self {
                name: "lock:max_ttl",
                setting: "lock.max_ttl_seconds",
                value: rules.max_ttl_ms / 1_000,
                about: "seconds that a lease may last",
            },
            Self {
                name: "lock:max_queue",
                setting: "lock.max_queue",
                value: rules.max_queue as u64,
                about: "waiters that one lock may have",
            },
        ]
    }

    fn told(&self) -> wire::Setting {
        wire::Setting {
            name: self.name.to_owned(),
            value: self.value.into(),
            about: format!("{}; each server has it in its own configuration as {}", self.about, self.setting),
            is_default: false,
            revision: 0,
        }
    }
}

/// One setting
#[utoipa::path(get, path = "/config/{name}", operation_id = "show_setting", tag = "settings", params(("name" = String, Path)), responses(
    (status = 200, description = "The setting", body = wire::Setting),
    Always,
    Guarded,
    (status = 404, description = "SETTING_NOT_FOUND", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn setting(
    State(app): State<App>,
    caller: Caller,
    Segment(name): Segment,
) -> Answer<Json<wire::Setting>> {
    if let Some(own) = app.own_settings.iter().find(|own| own.name == name) {
        caller.require(Scope::Read)?;
        return Ok(Json(own.told()));
    }
    Ok(Json(told::setting(&app.rules.setting(&name, &caller).await?)?))
}

/// Change a setting (admin); it counts everywhere from the next request on
#[utoipa::path(put, path = "/config/{name}", operation_id = "put_setting", tag = "settings", params(("name" = String, Path)), request_body = wire::SettingRequest, responses(
    (status = 200, description = "The setting as it is now", body = wire::Setting),
    OfBody,
    Always,
    Guarded,
    OfChange,
    (status = 404, description = "SETTING_NOT_FOUND", body = wire::Problem),
))]
async fn set(
    State(app): State<App>,
    caller: Caller,
    Segment(name): Segment,
    Body(body): Body<wire::SettingRequest>,
) -> Answer<Json<wire::Setting>> {
    if let Some(own) = app.own_settings.iter().find(|own| own.name == name) {
        let detail = format!("is set in the configuration of each server, as {}", own.setting);
        return Err(Problem::invalid_at("/value", detail));
    }
    Ok(Json(told::setting(&app.rules.set(&name, body.value, &caller).await?)?))
}

/// What can be switched on and off
#[utoipa::path(get, path = "/features", operation_id = "list_features", tag = "settings", responses(
    (status = 200, description = "Every flag, by name", body = wire::Page<wire::Feature>),
    Always,
    Guarded,
))]
async fn features(State(app): State<App>, caller: Caller) -> Answer<Json<wire::Page<wire::Feature>>> {
    let all = app.rules.features(&caller).await?;
    let items = all.iter().map(told::feature).collect::<Result<_, _>>()?;
    Ok(Json(wire::Page { items, next_cursor: None }))
}

/// One flag
#[utoipa::path(get, path = "/features/{flag}", operation_id = "show_feature", tag = "settings", params(("flag" = String, Path)), responses(
    (status = 200, description = "The flag", body = wire::Feature),
    Always,
    Guarded,
    (status = 404, description = "FEATURE_NOT_FOUND", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn feature(
    State(app): State<App>,
    caller: Caller,
    Segment(flag): Segment,
) -> Answer<Json<wire::Feature>> {
    Ok(Json(told::feature(&app.rules.feature(&flag, &caller).await?)?))
}

/// Switch something on or off (admin)
#[utoipa::path(put, path = "/features/{flag}", operation_id = "put_feature", tag = "settings", params(("flag" = String, Path)), request_body = wire::FeatureRequest, responses(
    (status = 200, description = "The flag as it is now", body = wire::Feature),
    OfBody,
    Always,
    Guarded,
    OfChange,
    (status = 404, description = "FEATURE_NOT_FOUND", body = wire::Problem),
))]
async fn switch(
    State(app): State<App>,
    caller: Caller,
    Segment(flag): Segment,
    Body(body): Body<wire::FeatureRequest>,
) -> Answer<Json<wire::Feature>> {
    Ok(Json(told::feature(&app.rules.switch(&flag, body.enabled, &caller).await?)?))
}
