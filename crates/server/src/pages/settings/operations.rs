//! Pages of configuration, feature flags and background jobs.

use ade_client::wire;
use ade_dashboard::Section;
use ade_dashboard::settings::{ConfigurationPage, FeaturesPage, JobsPage, Tabs};
use axum::Router;
use axum::http::Method;
use axum::routing::get;
use serde_json::Value;

use super::elsewhere;
use crate::api::AppState;
use crate::pages::form::Form;
use crate::pages::visit::{PageResult, Visit, path};

const CONFIGURATION: &str = "/settings/configuration";
const FEATURES: &str = "/settings/features";
const JOBS: &str = "/settings/jobs";

pub(super) fn routes() -> Router<AppState> {
    Router::new()
        .route(CONFIGURATION, get(configuration).post(set_setting))
        .route(FEATURES, get(features).post(set_feature))
        .route(JOBS, get(jobs))
}

async fn load_configuration(visit: &Visit) -> PageResult<ConfigurationPage> {
    let (shell, settings) = tokio::join!(
        visit.shell(Section::Settings, "Configuration", "config"),
        visit.get::<wire::Page<wire::Setting>>("/config")
    );
    let tabs = Tabs::new(CONFIGURATION, visit.viewer());
    Ok(ConfigurationPage { shell: shell?, tabs, settings: settings?.items, problem: None, typed: None })
}

async fn configuration(visit: Visit) -> PageResult {
    let page = load_configuration(&visit).await?;
    Ok(visit.render(&page, &page.shell))
}

async fn set_setting(visit: Visit, form: Form) -> PageResult {
    let (name, text) = (form.get("name"), form.get("value"));
    // What is not JSON is a text; whether the setting may be one is for the API to say.
    let value = serde_json::from_str(text).unwrap_or_else(|_| Value::from(text));
    let api = path(&["config", name]);
    let body = wire::SettingRequest { value };
    match visit.send::<wire::Setting>(Method::PUT, &api, &form, &body).await {
        Ok(_) => Ok(visit.done(CONFIGURATION, "saved")),
        Err(problem) => match elsewhere(&visit, &problem, CONFIGURATION) {
            Some(response) => Ok(response),
            None => {
                let typed = Some((name.to_owned(), text.to_owned()));
                let page = load_configuration(&visit).await?;
                let page = ConfigurationPage { problem: Some(problem.clone()), typed, ..page };
                Ok(visit.refused(&page, &problem))
            }
        },
    }
}

async fn load_features(visit: &Visit) -> PageResult<FeaturesPage> {
    let (shell, features) = tokio::join!(
        visit.shell(Section::Settings, "Feature flags", "feature"),
        visit.get::<wire::Page<wire::Feature>>("/features")
    );
    let tabs = Tabs::new(FEATURES, visit.viewer());
    Ok(FeaturesPage { shell: shell?, tabs, features: features?.items, problem: None })
}

async fn features(visit: Visit) -> PageResult {
    let page = load_features(&visit).await?;
    Ok(visit.render(&page, &page.shell))
}

async fn set_feature(visit: Visit, form: Form) -> PageResult {
    let api = path(&["features", form.get("flag")]);
    let body = wire::FeatureRequest { enabled: form.is_checked("enabled") };
    match visit.send::<wire::Feature>(Method::PUT, &api, &form, &body).await {
        Ok(_) => Ok(visit.done(FEATURES, "saved")),
        Err(problem) => match elsewhere(&visit, &problem, FEATURES) {
            Some(response) => Ok(response),
            None => {
                let page = FeaturesPage { problem: Some(problem.clone()), ..load_features(&visit).await? };
                Ok(visit.refused(&page, &problem))
            }
        },
    }
}

async fn jobs(visit: Visit) -> PageResult {
    // Jobs write no events of their own; the page follows what they do, and is fetched again now and then anyway.
    let (shell, jobs) = tokio::join!(
        visit.shell(Section::Settings, "Jobs", "archive,approval,task,lock"),
        visit.get::<wire::Page<wire::Job>>("/jobs")
    );
    let page = JobsPage { shell: shell?, tabs: Tabs::new(JOBS, visit.viewer()), jobs: jobs?.items };
    Ok(visit.render(&page, &page.shell))
}
