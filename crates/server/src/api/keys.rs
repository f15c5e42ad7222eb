//! Routes of the key catalogs. They read what is compiled into the binary, and never a server of Redis.

use std::iter;

use ade_catalog::Catalog;
use ade_catalog::find::{find_in, nearest};
use ade_domain::permission::Scope;

use super::prelude::*;
use crate::http::extract::PathParams;

/// Longer than any key of the catalogs.
const MAX_KEY_BYTES: usize = 1_024;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(explain)).routes(routes!(show))
}

/// List the key catalogs with all their entries.
#[utoipa::path(get, path = "/keys", operation_id = "list_keys", tag = "keyspace", responses(
    (status = 200, description = "All catalogs, ordered by name", body = wire::Page<wire::KeyCatalog>), CommonErrors,
))]
async fn list(caller: Caller) -> PageResult<wire::KeyCatalog> {
    caller.require_scope(Scope::Read)?;
    Ok(single_page(ade_keyspace::catalogs().iter().map(convert::key_catalog).collect()))
}

/// Get an entry of a key catalog: its value, identifiers, and example keys with their slots.
#[utoipa::path(get, path = "/keys/{catalog}/{name}", operation_id = "show_key", tag = "keyspace", params(
    ("catalog" = String, Path, description = "Name of the catalog, such as `ade`"),
    ("name" = String, Path, description = "Name of the entry, such as `lock.task`"),
), responses(
    (status = 200, description = "The entry", body = wire::KeyDetails), ReadErrors,
    (status = 404, description = "KEY_NOT_FOUND", body = wire::Problem),
))]
async fn show(caller: Caller, PathParams(params): PathParams<2>) -> JsonResult<wire::KeyDetails> {
    caller.require_scope(Scope::Read)?;
    let [catalog, name] = params;
    let found = ade_keyspace::catalogs().iter().find(|known| known.name == catalog);
    let details = found.and_then(|known| {
        let family = || known.family(&name).map(|family| convert::key_family_details(known, family));
        known.entry(&name).map(|entry| convert::key_details(&known.details(entry))).or_else(family)
    });
    let missing = || {
        let detail = format!("no entry is named {name:?} in a catalog {catalog:?}; list them with GET /keys");
        Problem::not_found("KEY_NOT_FOUND", detail)
    };
    Ok(Json(details.ok_or_else(missing)?))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ExplainParams {
    /// The key as it is stored in Redis.
    #[param(min_length = 1, max_length = 1_024)]
    key: String,
}

/// Explain a concrete key: its entry, and the identifiers in it.
#[utoipa::path(get, path = "/keys/explain", operation_id = "explain_key", tag = "keyspace", params(ExplainParams), responses(
    (status = 200, description = "The entry that the key belongs to", body = wire::KeyExplanation), ReadErrors,
    (status = 404, description = "KEY_NOT_FOUND: it belongs to no entry", body = wire::Problem),
))]
async fn explain(caller: Caller, Params(params): Params<ExplainParams>) -> JsonResult<wire::KeyExplanation> {
    caller.require_scope(Scope::Read)?;
    let key = params.key;
    if key.is_empty() || key.len() > MAX_KEY_BYTES {
        return Err(Problem::invalid_at(
            "?key",
            format!("must have 1 to {MAX_KEY_BYTES} bytes, not {}", key.len()),
        ));
    }
    let catalogs = ade_keyspace::catalogs();
    match find_in(catalogs, &key) {
        Some((catalog, found)) => Ok(Json(convert::key_explanation(catalog, &found, &key))),
        None => Err(Problem::not_found("KEY_NOT_FOUND", unknown_key(catalogs, &key))),
    }
}

fn unknown_key(catalogs: &[Catalog], key: &str) -> String {
    let names: Vec<&str> = catalogs.iter().map(|catalog| catalog.name.as_str()).collect();
    let near =
        nearest(catalogs, key).map(|(name, pattern)| format!("; the nearest entry is {name}: {pattern}"));
    let family = catalogs.iter().find_map(|catalog| catalog.families_of(key).last());
    let family = family.map(|family| format!("; it is in the family {} ({})", family.name, family.purpose));
    let text = format!("no entry of {} matches {key:?}", names.join(", "));
    iter::once(text).chain(near).chain(family).collect()
}
