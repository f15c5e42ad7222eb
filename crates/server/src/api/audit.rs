//! What was recorded: searched, verified, taken along; and numbers about how everything stands.

#![expect(unused_qualifications, reason = "the macro that describes parameters qualifies them")]

use ade_app::audit::LedgerError;
use ade_client::wire;
use ade_domain::Moment;
use ade_domain::audit::Head;
use ade_store::database::{AuditFilter, Day, Numbered};
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::App;
use super::answers::{Always, Guarded};
use super::convert::reviews as told;
use super::extract::{PageParams, Params, Segment};
use crate::caller::Caller;
use crate::problem::{Answer, Problem};

/// Entries of an export that are read at once.
const PAGE: u32 = 500;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(verify))
        .routes(routes!(export))
        .routes(routes!(of_task))
        .routes(routes!(overview))
        .routes(routes!(of_user))
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    /// About this task.
    task: Option<String>,
    /// By this person; `me` for oneself.
    actor: Option<String>,
    /// Of this kind, such as `task.submit`.
    action: Option<String>,
    /// Not before this time.
    from: Option<wire::Time>,
    /// Before this time.
    to: Option<wire::Time>,
    /// At most 200; 50 unless said.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<usize>,
    /// Where the last page ended.
    cursor: Option<String>,
}

fn filter(params: &ListParams, caller: &Caller) -> AuditFilter {
    let moment = |time: wire::Time| Moment::from(time.0);
    let own = || caller.user.as_ref().map(|user| user.user_id.to_string());
    let actor = match params.actor.as_deref() {
        Some("me") => own(),
        _ => params.actor.clone(),
    };
    AuditFilter {
        task: params.task.clone(),
        actor,
        action: params.action.clone(),
        from: params.from.map(moment),
        to: params.to.map(moment),
    }
}

async fn page(
    app: &App,
    filter: AuditFilter,
    page: &PageParams,
    caller: &Caller,
) -> Answer<wire::Page<wire::AuditEntry>> {
    let wrong = || Problem::invalid_at("?cursor", "is not a cursor of this list");
    let after = match page.cursor.as_deref().filter(|cursor| !cursor.is_empty()) {
        None => 0,
        Some(cursor) => cursor.parse().map_err(|_| wrong())?,
    };
    let limit = page.limit()?;
    let mut found = app.audits.entries(filter, after, page.one_more()?, caller).await?;
    let more = found.len() > limit;
    found.truncate(limit);
    let next_cursor = found.last().filter(|_| more).map(|last| last.number.to_string());
    let items = found.iter().map(told::audit).collect::<Result<_, _>>()?;
    Ok(wire::Page { items, next_cursor })
}

/// The audit log, in order
///
/// Administrators and auditors see all of it, others that of a task that they see, or what they did themselves.
#[utoipa::path(get, path = "/audit", operation_id = "list_audit", tag = "audit", params(ListParams), responses(
    (status = 200, description = "A page of entries that have their number", body = wire::Page<wire::AuditEntry>),
    Always,
    Guarded,
    (status = 404, description = "TASK_NOT_FOUND", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn list(
    State(app): State<App>,
    caller: Caller,
    Params(params): Params<ListParams>,
) -> Answer<Json<wire::Page<wire::AuditEntry>>> {
    let at = PageParams::of(params.limit, params.cursor.clone());
    Ok(Json(page(&app, filter(&params, &caller), &at, &caller).await?))
}

/// What was done to a task, and by whom
#[utoipa::path(get, path = "/tasks/{id}/audit", operation_id = "task_audit", tag = "audit", params(("id" = String, Path), PageParams), responses(
    (status = 200, description = "A page of entries", body = wire::Page<wire::AuditEntry>),
    Always,
    Guarded,
    (status = 404, description = "TASK_NOT_FOUND", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn of_task(
    State(app): State<App>,
    caller: Caller,
    Segment(id): Segment,
    Params(params): Params<PageParams>,
) -> Answer<Json<wire::Page<wire::AuditEntry>>> {
    app.reviews.task(&id, &caller).await?;
    let filter = AuditFilter { task: Some(id), ..AuditFilter::default() };
    Ok(Json(page(&app, filter, &params, &caller).await?))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct VerifyParams {
    /// A place that the caller trusts, such as that of a signed checkpoint: the number of an entry,
    number: Option<u64>,
    /// and its hash. The log must lead through it.
    #[param(pattern = "^[0-9a-fA-F]{64}$")]
    entry_hash: Option<String>,
}

/// Whether the audit log is as it was written (admin or auditor)
#[utoipa::path(get, path = "/audit/verify", operation_id = "verify_audit", tag = "audit", params(VerifyParams), responses(
    (status = 200, description = "The verdict: the first entry that was edited, removed, reordered or cut off is named", body = wire::AuditVerdict),
    Always,
    Guarded,
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn verify(
    State(app): State<App>,
    caller: Caller,
    Params(params): Params<VerifyParams>,
) -> Answer<Json<wire::AuditVerdict>> {
    let trusted = match (params.number, params.entry_hash) {
        (None, None) => None,
        (Some(number), Some(hash)) => {
            let wrong = |_| Problem::invalid_at("?entry_hash", "must be 64 hexadecimal digits");
            Some(Head { number, entry_hash: hash.parse().map_err(wrong)? })
        }
        _ => return Err(Problem::invalid_at("?number", "and entry_hash belong together")),
    };
    let verdict = app.unless_stopping(async { Ok(app.audits.verify(trusted, &caller).await) }).await?;
    match verdict {
        Ok(head) => Ok(Json(wire::AuditVerdict {
            valid: true,
            entries: head.number,
            head: Some(head.entry_hash.to_string()),
            first_bad: None,
        })),
        Err(LedgerError::Broken(broken)) => Ok(Json(wire::AuditVerdict {
            valid: false,
            entries: broken.number.saturating_sub(1),
            head: None,
            first_bad: Some(wire::BadEntry { number: broken.number, why: broken.reason }),
        })),
        Err(LedgerError::Refused(error)) => Err((*error).into()),
        Err(LedgerError::Record(error)) => Err(error.into()),
        Err(other) => Err(Problem::invalid_at("?number", other.to_string())),
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ExportParams {
    /// `ndjson`, unless said, or `csv`.
    #[param(inline, value_type = Option<Format>)]
    format: Option<String>,
    /// About this task.
    task: Option<String>,
    /// By this person; `me` for oneself.
    actor: Option<String>,
    /// Of this kind, such as `task.submit`.
    action: Option<String>,
    /// Not before this time.
    from: Option<wire::Time>,
    /// Before this time.
    to: Option<wire::Time>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, utoipa::ToSchema)]
#[schema(as = ExportFormat, rename_all = "snake_case")]
enum Format {
    /// One JSON object a line.
    Ndjson,
    /// With a line of titles.
    Csv,
}

/// The audit log to take along: every entry that the filters let through, in order
#[utoipa::path(get, path = "/audit/export", operation_id = "export_audit", tag = "audit", params(ExportParams), responses(
    (status = 200, description = "One JSON object a line, or CSV with a line of titles", content((String = "application/x-ndjson"), (String = "text/csv"))),
    Always,
    Guarded,
    (status = 404, description = "TASK_NOT_FOUND", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn export(
    State(app): State<App>,
    caller: Caller,
    Params(params): Params<ExportParams>,
) -> Answer<Response> {
    let format = match params.format.as_deref() {
        None | Some("ndjson") => Format::Ndjson,
        Some("csv") => Format::Csv,
        Some(_) => return Err(Problem::invalid_at("?format", "must be ndjson or csv")),
    };
    let ExportParams { task, actor, action, from, to, .. } = params;
    let filter = filter(&ListParams { task, actor, action, from, to, ..ListParams::default() }, &caller);
    // The first page is read before anything is answered, so that what is refused is refused with a status.
    let first = app.audits.entries(filter.clone(), 0, PAGE, &caller).await?;
    let titles = if format == Format::Csv { CSV_TITLES.to_owned() } else { String::new() };
    let rest = stream::try_unfold((Some(first), titles), move |(page, mut text)| {
        let (app, filter, caller) = (app.clone(), filter.clone(), caller.clone());
        async move {
            let Some(page) = page else { return Ok::<_, std::io::Error>(None) };
            for row in &page {
                lines(row, format, &mut text)?;
            }
            let next = match page.last() {
                Some(last) if page.len() == PAGE as usize => {
                    let next = app.audits.entries(filter, last.number, PAGE, &caller).await;
                    Some(next.map_err(std::io::Error::other)?)
                }
                _ => None,
            };
            Ok(Some((text, (next, String::new()))))
        }
    });
    let kind = if format == Format::Csv { "text/csv; charset=utf-8" } else { "application/x-ndjson" };
    Ok(([(header::CONTENT_TYPE, kind)], Body::from_stream(rest)).into_response())
}

const CSV_TITLES: &str = "number,at,user_id,agent_id,session_id,token_id,ip,user_agent,service,action,object_type,object_id,\
                          task_id,from,to,revision,digest,reason,ticket,details,entry_hash\r\n";

/// An entry as one line. One that cannot be read ends the export: it must not look whole.
fn lines(row: &Numbered, format: Format, text: &mut String) -> std::io::Result<()> {
    let entry = told::audit(row).map_err(std::io::Error::other)?;
    if format == Format::Ndjson {
        text.push_str(&serde_json::to_string(&entry)?);
        text.push('\n');
        return Ok(());
    }
    let state =
        |state: Option<ade_domain::task::State>| state.map(|state| state.to_string()).unwrap_or_default();
    let who = entry.who;
    let fields = [
        entry.number.to_string(),
        entry.at.to_string(),
        who.user_id.map(|user| user.to_string()).unwrap_or_default(),
        who.agent_id.unwrap_or_default(),
        who.session_id.unwrap_or_default(),
        who.token_id.unwrap_or_default(),
        who.ip.unwrap_or_default(),
        who.user_agent.unwrap_or_default(),
        who.service.unwrap_or_default(),
        entry.action,
        entry.object_type,
        entry.object_id,
        entry.task_id.unwrap_or_default(),
        state(entry.from),
        state(entry.to),
        entry.revision.map(|revision| revision.to_string()).unwrap_or_default(),
        entry.digest.unwrap_or_default(),
        entry.reason.unwrap_or_default(),
        entry.ticket.unwrap_or_default(),
        serde_json::to_string(&entry.details)?,
        entry.entry_hash,
    ];
    let quoted: Vec<String> = fields.iter().map(|field| quoted(field)).collect();
    text.push_str(&quoted.join(","));
    text.push_str("\r\n");
    Ok(())
}

/// A field as RFC 4180 has it. What a spreadsheet would take for a formula is kept from being one.
fn quoted(field: &str) -> String {
    let guard = if field.starts_with(['=', '+', '-', '@', '\t', '\r']) { "'" } else { "" };
    if guard.is_empty() && !field.contains(['"', ',', '\n', '\r']) {
        return field.to_owned();
    }
    format!("\"{guard}{}\"", field.replace('"', "\"\""))
}

/// How everything stands
#[utoipa::path(get, path = "/stats/overview", operation_id = "overview", tag = "audit", responses(
    (status = 200, description = "Counts", body = wire::Overview),
    Always,
    Guarded,
))]
async fn overview(State(app): State<App>, caller: Caller) -> Answer<Json<wire::Overview>> {
    let (counts, audit_entries, days) = app.audits.overview(&caller).await?;
    let locks = app.locks.coordination().counts().await.ok();
    Ok(Json(wire::Overview {
        tasks: counts.tasks.iter().map(|(state, count)| (state.to_string(), *count)).collect(),
        tasks_archived: counts.archived,
        pending: counts.pending,
        oldest_pending: counts.oldest_pending.map(Into::into),
        locks_held: locks.map(|locks| locks.held),
        locks_waiting: locks.map(|locks| locks.waiting),
        agents: locks.map(|locks| locks.agents),
        audit_entries,
        days: days.into_iter().map(day).collect(),
    }))
}

fn day(day: Day) -> wire::Day {
    let Day { day, completed, failed, rejected, cancelled } = day;
    wire::Day { day, completed, failed, rejected, cancelled }
}

/// How somebody works
#[utoipa::path(get, path = "/stats/users/{id}", operation_id = "user_stats", tag = "audit", params(("id" = String, Path)), responses(
    (status = 200, description = "Its tasks and its answers", body = wire::UserStats),
    Always,
    Guarded,
    (status = 404, description = "USER_NOT_FOUND", body = wire::Problem),
    (status = 422, description = "INVALID_REQUEST", body = wire::Problem),
))]
async fn of_user(
    State(app): State<App>,
    caller: Caller,
    Segment(id): Segment,
) -> Answer<Json<wire::UserStats>> {
    let id = match &caller.user {
        Some(user) if id == "me" => user.user_id.to_string(),
        _ => id,
    };
    let stats = app.audits.of_user(&id, &caller).await?;
    Ok(Json(wire::UserStats {
        user_id: id,
        tasks: stats.tasks.iter().map(|(state, count)| (state.to_string(), *count)).collect(),
        approvals: stats.requests.iter().map(|(status, count)| (status.word().to_owned(), *count)).collect(),
        mean_response_seconds: stats.mean_seconds,
        median_response_seconds: stats.median_seconds,
    }))
}
