//! Settings and feature flags that are shared by all servers and changed at runtime.

use ade_domain::lock::LockLimits;
use ade_domain::permission::Scope;

use serde_json::Value;

use super::prelude::*;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(settings))
        .routes(routes!(setting, set_setting))
        .routes(routes!(features))
        .routes(routes!(feature, set_feature))
}

/// A read-only setting: it is shown with the shared ones, but changed in the configuration of each server.
#[derive(Debug, Clone)]
pub(crate) struct ServerSetting {
    name: &'static str,
    /// Its name in the configuration file.
    config_name: &'static str,
    value: Value,
    about: &'static str,
}

impl ServerSetting {
    pub(crate) fn all(limits: &LockLimits, dual_control: bool) -> Vec<Self> {
        vec![
            Self {
                name: "lock:max_queue",
                config_name: "lock.max_queue",
                value: limits.max_queue.into(),
                about: "maximum number of waiters of a lock",
            },
            Self {
                name: "security:dual_control",
                config_name: "security.dual_control",
                value: dual_control.into(),
                about: "whether changes of who decides, and by which rules, wait for a second administrator",
            },
        ]
    }

    fn to_wire(&self) -> wire::Setting {
        wire::Setting {
            name: self.name.to_owned(),
            value: self.value.clone(),
            description: format!(
                "{}; read-only, configured on each server as {}",
                self.about, self.config_name
            ),
            is_default: false,
            read_only: true,
            revision: 0,
        }
    }
}

impl AppState {
    /// Settings of locks apply on this server at once, and on the others within a second.
    async fn apply_lock_settings(&self) {
        if let Err(error) = self.locks.reload_limits(&self.database).await {
            tracing::debug!(%error, "cannot read the settings of locks; retrying");
        }
    }

    fn server_setting(&self, name: &str) -> Option<&ServerSetting> {
        self.server_settings.iter().find(|setting| setting.name == name)
    }
}

/// List the settings.
#[utoipa::path(get, path = "/config", operation_id = "list_settings", tag = "settings", responses(
    (status = 200, description = "All settings, ordered by name", body = wire::Page<wire::Setting>), CommonErrors,
))]
async fn settings(app: App, caller: Caller) -> PageResult<wire::Setting> {
    let shared = app.rules.list(&caller).await?;
    let mut items = shared.iter().map(convert::setting).collect::<Vec<_>>();
    items.extend(app.server_settings.iter().map(ServerSetting::to_wire));
    items.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(single_page(items))
}

/// Get a setting.
#[utoipa::path(get, path = "/config/{name}", operation_id = "show_setting", tag = "settings", params(("name" = String, Path)), responses(
    (status = 200, description = "The setting", body = wire::Setting), ReadErrors, SettingNotFound,
))]
async fn setting(app: App, caller: Caller, Param(name): Param) -> JsonResult<wire::Setting> {
    if let Some(setting) = app.server_setting(&name) {
        caller.require_scope(Scope::Read)?;
        return Ok(Json(setting.to_wire()));
    }
    Ok(Json(convert::setting(&app.rules.get(&name, &caller).await?)))
}

/// Change a setting (admin). It takes effect on all servers with the next request; settings of locks within a second.
#[utoipa::path(put, path = "/config/{name}", operation_id = "put_setting", tag = "settings", params(("name" = String, Path)), request_body = wire::SettingRequest, responses(
    (status = 200, description = "The updated setting", body = wire::Setting), UpdateErrors, SecondAdmin, SettingNotFound,
))]
async fn set_setting(
    app: App,
    caller: Caller,
    Param(name): Param,
    JsonBody(body): JsonBody<wire::SettingRequest>,
) -> JsonResult<wire::Setting> {
    if let Some(setting) = app.server_setting(&name) {
        let detail = format!("is read-only; set {} in the configuration of each server", setting.config_name);
        return Err(Problem::invalid_at("/value", detail));
    }
    let setting = app.rules.set_setting(&name, body.value, &caller).await?;
    app.apply_lock_settings().await;
    Ok(Json(convert::setting(&setting)))
}

/// List the feature flags.
#[utoipa::path(get, path = "/features", operation_id = "list_features", tag = "settings", responses(
    (status = 200, description = "All feature flags, ordered by name", body = wire::Page<wire::Feature>), CommonErrors,
))]
async fn features(app: App, caller: Caller) -> PageResult<wire::Feature> {
    let features = app.rules.list(&caller).await?;
    Ok(single_page(features.iter().map(convert::feature).collect()))
}

/// Get a feature flag.
#[utoipa::path(get, path = "/features/{flag}", operation_id = "show_feature", tag = "settings", params(("flag" = String, Path)), responses(
    (status = 200, description = "The feature flag", body = wire::Feature), ReadErrors, FeatureNotFound,
))]
async fn feature(app: App, caller: Caller, Param(flag): Param) -> JsonResult<wire::Feature> {
    Ok(Json(convert::feature(&app.rules.get(&flag, &caller).await?)))
}

/// Enable or disable a feature (admin).
#[utoipa::path(put, path = "/features/{flag}", operation_id = "put_feature", tag = "settings", params(("flag" = String, Path)), request_body = wire::FeatureRequest, responses(
    (status = 200, description = "The updated feature flag", body = wire::Feature), UpdateErrors, SecondAdmin, FeatureNotFound,
))]
async fn set_feature(
    app: App,
    caller: Caller,
    Param(flag): Param,
    JsonBody(body): JsonBody<wire::FeatureRequest>,
) -> JsonResult<wire::Feature> {
    let feature = app.rules.set_feature(&flag, body.enabled, &caller).await?;
    app.apply_lock_settings().await;
    Ok(Json(convert::feature(&feature)))
}
