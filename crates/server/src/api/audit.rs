//! Audit routes: search, verify and export the audit log.

use std::collections::BTreeSet;

use ade_app::audit::{AuditLogError, VerifiedLog};
use ade_client::wire::AuditStatus;
use ade_domain::audit::ChainHead;
use ade_store::database::{AuditFilter, AuditRow};
use axum::body::Body;
use axum::http::header;
use futures_util::stream;

use super::prelude::*;
use crate::http::paging::parse_word;

/// Entries without a number that follow the numbered ones.
const MAX_UNNUMBERED: u32 = 200;
/// Entries that an export reads at once.
const EXPORT_BATCH: u32 = 500;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(verify))
        .routes(routes!(export))
        .routes(routes!(list_of_task))
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    /// Task id.
    task: Option<String>,
    /// User id of the actor; `me` for the caller.
    actor: Option<String>,
    /// Action, such as `task.submit`.
    action: Option<String>,
    /// Id of an object that belongs to no task, such as a user, a policy or a lock; use `task` for tasks and what belongs to them.
    object: Option<String>,
    /// Entries at or after this time.
    from: Option<wire::Time>,
    /// Entries before this time.
    to: Option<wire::Time>,
    /// `oldest` (default) or `newest` first.
    #[param(inline, value_type = Option<Order>)]
    order: Option<String>,
    /// Page size; 50 by default, at most 200.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<usize>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(rename_all = "snake_case")]
enum Order {
    Oldest,
    Newest,
}

fn audit_filter(params: &ListParams, caller: &Caller) -> AuditFilter {
    let actor = match params.actor.as_deref() {
        Some("me") => caller.user.as_ref().map(|user| user.user_id.to_string()),
        _ => params.actor.clone(),
    };
    AuditFilter {
        task: params.task.clone(),
        actor,
        action: params.action.clone(),
        object: params.object.clone(),
        from: params.from.convert(),
        to: params.to.convert(),
        newest_first: false,
    }
}

async fn entries(
    app: &AppState,
    filter: AuditFilter,
    page: &PageParams,
    caller: &Caller,
) -> PageResult<wire::AuditEntry> {
    let after = page.parse_cursor(|cursor| cursor.parse().ok())?.unwrap_or(0);
    let entries = app.audits.entries(filter, after, page.fetch_limit_u32()?, caller).await?;
    page.try_page(entries, |entry| entry.number.to_string(), convert::audit_entry)
}

/// List the audit log, the oldest or the newest entries first.
///
/// Administrators and auditors see all entries. Others see the entries of tasks that they may see, and their own.
#[utoipa::path(get, path = "/audit", operation_id = "list_audit", tag = "audit", params(ListParams), responses(
    (status = 200, description = "A page of numbered entries", body = wire::Page<wire::AuditEntry>), ReadErrors, TaskNotFound,
))]
async fn list(app: App, caller: Caller, Params(params): Params<ListParams>) -> PageResult<wire::AuditEntry> {
    let page = PageParams::new(params.limit, params.cursor.clone());
    let order: Option<Order> = parse_word("?order", params.order.clone(), "oldest or newest")?;
    let filter = AuditFilter { newest_first: order == Some(Order::Newest), ..audit_filter(&params, &caller) };
    entries(&app, filter, &page, &caller).await
}

/// List the audit entries of a task.
///
/// The last page ends with the entries of the last moments, which have no number and no hash yet.
#[utoipa::path(get, path = "/tasks/{id}/audit", operation_id = "task_audit", tag = "audit", params(("id" = String, Path), PageParams), responses(
    (status = 200, description = "A page of entries", body = wire::Page<wire::AuditEntry>), ReadErrors, TaskNotFound,
))]
async fn list_of_task(
    app: App,
    caller: Caller,
    Param(id): Param,
    Params(page): Params<PageParams>,
) -> PageResult<wire::AuditEntry> {
    app.tasks.task(&id, &caller).await?;
    // Before the numbered ones: an entry that is numbered meanwhile is in both, and none is missing.
    let unnumbered = app.audits.unnumbered_entries(&id, MAX_UNNUMBERED, &caller).await?;
    let filter = AuditFilter { task: Some(id), ..AuditFilter::default() };
    let Json(mut listed) = entries(&app, filter, &page, &caller).await?;
    if listed.next_cursor.is_none() {
        let numbered: BTreeSet<String> = listed.items.iter().map(|entry| entry.entry_id.clone()).collect();
        let new = unnumbered.into_iter().filter(|body| !numbered.contains(&body.entry_id));
        listed.items.extend(new.map(convert::unnumbered_audit_entry));
    }
    Ok(Json(listed))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct VerifyParams {
    /// Number of a trusted entry, for example of a signed checkpoint. Requires `entry_hash`.
    number: Option<u64>,
    /// Hash of the trusted entry. The log must contain this entry with this hash. Requires `number`.
    #[param(pattern = "^[0-9a-fA-F]{64}$")]
    entry_hash: Option<String>,
}

/// Verify the hash chain of the audit log (admin or auditor).
///
/// The log must contain the checkpoints that servers have signed. Without any, the result is `unverified`: the log is consistent in
/// itself, but may have been truncated.
#[utoipa::path(get, path = "/audit/verify", operation_id = "verify_audit", tag = "audit", params(VerifyParams), responses(
    (status = 200, description = "The result; `first_bad` is the first entry that was edited, removed, reordered or truncated", body = wire::AuditVerification),
    ReadErrors,
))]
async fn verify(
    app: App,
    caller: Caller,
    Params(params): Params<VerifyParams>,
) -> JsonResult<wire::AuditVerification> {
    let trusted = match (params.number, params.entry_hash) {
        (None, None) => None,
        (Some(number), Some(hash)) => {
            let invalid = |_| Problem::invalid_at("?entry_hash", "must be 64 hexadecimal digits");
            Some(ChainHead { number, entry_hash: hash.parse().map_err(invalid)? })
        }
        _ => return Err(Problem::invalid_at("?number", "and entry_hash must be given together")),
    };
    let verified = app.unless_stopping(async { Ok(app.audits.verify(trusted, &caller).await) }).await?;
    match verified {
        Ok((VerifiedLog { head, checkpoint }, quarantined)) => Ok(Json(wire::AuditVerification {
            valid: checkpoint.is_some(),
            status: if checkpoint.is_some() { AuditStatus::Valid } else { AuditStatus::Unverified },
            entries: head.number,
            head: Some(head.entry_hash.to_string()),
            checkpoint: checkpoint.map(|checkpoint| checkpoint.number),
            quarantined,
            first_bad: None,
        })),
        Err(AuditLogError::Broken(broken)) => Ok(Json(invalid(
            broken.number.saturating_sub(1),
            wire::InvalidAuditEntry { number: broken.number, reason: broken.reason },
        ))),
        Err(error @ AuditLogError::InvalidSignature) => {
            Ok(Json(invalid(0, wire::InvalidAuditEntry { number: 0, reason: error.to_string() })))
        }
        Err(AuditLogError::Refused(error)) => Err((*error).into()),
        Err(AuditLogError::Database(error)) => Err(error.into()),
        Err(error @ (AuditLogError::InvalidKey | AuditLogError::Io(_))) => {
            tracing::error!(%error, "cannot verify the audit log");
            let detail = "the checkpoints of this server cannot be read; see its log";
            Err(Problem::unavailable("UNAVAILABLE", detail))
        }
    }
}

fn invalid(entries: u64, first_bad: wire::InvalidAuditEntry) -> wire::AuditVerification {
    wire::AuditVerification {
        valid: false,
        status: AuditStatus::Invalid,
        entries,
        head: None,
        checkpoint: None,
        quarantined: 0,
        first_bad: Some(first_bad),
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ExportParams {
    /// `ndjson` (default) or `csv`.
    #[param(inline, value_type = Option<ExportFormat>)]
    format: Option<String>,
    /// Task id.
    task: Option<String>,
    /// User id of the actor; `me` for the caller.
    actor: Option<String>,
    /// Action, such as `task.submit`.
    action: Option<String>,
    /// Id of an object that belongs to no task, such as a user, a policy or a lock; use `task` for tasks and what belongs to them.
    object: Option<String>,
    /// Entries at or after this time.
    from: Option<wire::Time>,
    /// Entries before this time.
    to: Option<wire::Time>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, utoipa::ToSchema)]
#[schema(rename_all = "snake_case")]
enum ExportFormat {
    /// One JSON object per line.
    Ndjson,
    /// With a header line.
    Csv,
}

/// Export the audit log: all entries that match the filters, in order.
#[utoipa::path(get, path = "/audit/export", operation_id = "export_audit", tag = "audit", params(ExportParams), responses(
    (status = 200, description = "One JSON object per line, or CSV with a header line", content((String = "application/x-ndjson"), (String = "text/csv"))),
    ReadErrors, TaskNotFound,
))]
async fn export(app: App, caller: Caller, Params(params): Params<ExportParams>) -> ApiResult {
    let format = match params.format.as_deref() {
        None | Some("ndjson") => ExportFormat::Ndjson,
        Some("csv") => ExportFormat::Csv,
        Some(other) => {
            return Err(Problem::invalid_at("?format", format!("must be ndjson or csv, not {other:?}")));
        }
    };
    let ExportParams { task, actor, action, object, from, to, .. } = params;
    let filter =
        audit_filter(&ListParams { task, actor, action, object, from, to, ..ListParams::default() }, &caller);
    // The first batch is read before the response starts, so that a refusal still has its own status.
    let first = app.audits.entries(filter.clone(), 0, EXPORT_BATCH, &caller).await?;
    let header = if format == ExportFormat::Csv { CSV_HEADER.to_owned() } else { String::new() };
    let chunks = stream::try_unfold((Some(first), header), move |(batch, mut text)| {
        let (app, filter, caller) = (app.clone(), filter.clone(), caller.clone());
        async move {
            let Some(batch) = batch else { return Ok::<_, std::io::Error>(None) };
            for row in &batch {
                write_entry(row, format, &mut text)?;
            }
            let next = match batch.last() {
                Some(last) if batch.len() == EXPORT_BATCH as usize => {
                    let next = app.audits.entries(filter, last.number, EXPORT_BATCH, &caller).await;
                    Some(next.map_err(std::io::Error::other)?)
                }
                _ => None,
            };
            Ok(Some((text, (next, String::new()))))
        }
    });
    let content_type =
        if format == ExportFormat::Csv { "text/csv; charset=utf-8" } else { "application/x-ndjson" };
    Ok(([(header::CONTENT_TYPE, content_type)], Body::from_stream(chunks)).into_response())
}

const CSV_HEADER: &str = "number,at,user_id,agent_id,session_id,token_id,ip,user_agent,service,instance,trigger,action,object_type,object_id,\
                          task_id,from,to,revision,digest,reason,ticket,details,entry_hash\r\n";

/// Appends an entry as one line. An unreadable entry aborts the export, which must not look complete.
fn write_entry(row: &AuditRow, format: ExportFormat, text: &mut String) -> std::io::Result<()> {
    let entry = convert::audit_entry(row).map_err(std::io::Error::other)?;
    if format == ExportFormat::Ndjson {
        text.push_str(&serde_json::to_string(&entry)?);
        text.push('\n');
        return Ok(());
    }
    let state = |state: Option<wire::TaskState>| state.map(|state| state.to_string()).unwrap_or_default();
    let actor = entry.who;
    let fields = [
        entry.number.map(|number| number.to_string()).unwrap_or_default(),
        entry.at.to_string(),
        actor.user_id.unwrap_or_default(),
        actor.agent_id.unwrap_or_default(),
        actor.session_id.unwrap_or_default(),
        actor.token_id.unwrap_or_default(),
        actor.ip.unwrap_or_default(),
        actor.user_agent.unwrap_or_default(),
        actor.service.unwrap_or_default(),
        actor.instance.unwrap_or_default(),
        actor.trigger.unwrap_or_default(),
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
        entry.entry_hash.unwrap_or_default(),
    ];
    let quoted: Vec<String> = fields.iter().map(|field| quote_csv(field)).collect();
    text.push_str(&quoted.join(","));
    text.push_str("\r\n");
    Ok(())
}

/// Quotes a field according to RFC 4180. A leading apostrophe keeps spreadsheets from evaluating it as a formula.
fn quote_csv(field: &str) -> String {
    let prefix = if field.starts_with(['=', '+', '-', '@', '\t', '\r']) { "'" } else { "" };
    if prefix.is_empty() && !field.contains(['"', ',', '\n', '\r']) {
        return field.to_owned();
    }
    format!("\"{prefix}{}\"", field.replace('"', "\"\""))
}
