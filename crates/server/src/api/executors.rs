//! Executor routes: what operators allow tasks to work on.

use ade_app::bindings::served_bindings;

use super::prelude::*;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list))
}

/// List what operators allow tasks to work on.
#[utoipa::path(get, path = "/executors", operation_id = "list_executors", tag = "rules", params(PageParams), responses(
    (status = 200, description = "A page of roots, connections, templates and hosts, ordered by name", body = wire::Page<wire::ExecutorBinding>),
    ReadErrors,
))]
async fn list(
    app: App,
    caller: Caller,
    Params(page): Params<PageParams>,
) -> PageResult<wire::ExecutorBinding> {
    let after = page.cursor().unwrap_or_default();
    let mut bindings = served_bindings(&app.jobs.context, &caller).await?;
    bindings.retain(|binding| binding.name.as_str() > after);
    page.page(bindings, |binding| binding.name.clone(), convert::executor_binding)
}
