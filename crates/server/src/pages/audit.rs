//! The page of the audit log: search, verification, and the export, which is passed on as it is read.

use ade_client::wire;
use ade_dashboard::{AuditFilters, AuditPage, Section, linked_task};
use axum::Router;
use axum::routing::get;

use super::titles::titles;
use super::visit::{PageResult, Visit, with_query};
use crate::api::AppState;

const PAGE_LIMIT: &str = "50";
/// What changes the log, as far as the visitor may see it.
const TOPICS: &str =
    "agent,approval,change,config,delegation,feature,hook,lock,policy,resource,task,token,user,webhook";

pub(super) fn routes() -> Router<AppState> {
    Router::new().route("/audit", get(show)).route("/audit/export", get(export))
}

fn filters(visit: &Visit) -> AuditFilters {
    let param = |name| visit.param(name).trim().to_owned();
    AuditFilters {
        task: param("task"),
        actor: param("actor"),
        action: param("action"),
        object: param("object"),
        from: local_time(visit.param("from")),
        to: local_time(visit.param("to")),
    }
}

/// A time as the fields of browsers take it, to the minute. What is no time is left for the API to refuse.
fn local_time(text: &str) -> String {
    match text.trim().parse::<jiff::Timestamp>() {
        Ok(time) => time.strftime("%Y-%m-%dT%H:%M").to_string(),
        Err(_) => text.trim().to_owned(),
    }
}

/// The same as RFC 3339.
fn utc(text: &str) -> String {
    let seconds = if text.len() == "2026-11-18T10:00".len() { ":00Z" } else { "Z" };
    if text.is_empty() { String::new() } else { format!("{text}{seconds}") }
}

/// A path with the filters, as the API or as pages take them.
fn url(base: &str, filters: &AuditFilters, for_api: bool, more: &[(&str, &str)]) -> String {
    let AuditFilters { task, actor, action, object, from, to } = filters;
    let time = |text: &str| if for_api { utc(text) } else { text.to_owned() };
    let (from, to) = (time(from), time(to));
    let shown = [
        ("task", task.as_str()),
        ("actor", actor),
        ("action", action),
        ("object", object),
        ("from", &from),
        ("to", &to),
    ];
    with_query(base, &[&shown, more].concat())
}

async fn show(visit: Visit) -> PageResult {
    let filters = filters(&visit);
    let cursor = visit.param("cursor");
    let api =
        url("/audit", &filters, true, &[("order", "newest"), ("cursor", cursor), ("limit", PAGE_LIMIT)]);
    let is_verifying = !visit.param("verify").is_empty();
    // Older pages do not change, and a verification is not repeated for every event.
    let topics = if cursor.is_empty() && !is_verifying { TOPICS } else { "" };
    let verify = async {
        if is_verifying {
            visit.get::<wire::AuditVerification>("/audit/verify").await.map(Some)
        } else {
            Ok(None)
        }
    };
    let (shell, found, verified) = tokio::join!(
        visit.shell(Section::Audit, "Audit log", topics),
        visit.get::<wire::Page<wire::AuditEntry>>(&api),
        verify
    );
    let (page, problem) = match found {
        Ok(page) => (page, None),
        // A filter in a wrong form, a task that does not exist, or entries that the visitor may not see: said above the list.
        Err(problem) if matches!(problem.status, 403 | 404 | 422) => {
            (wire::Page { items: Vec::new(), next_cursor: None }, Some(problem))
        }
        Err(problem) => return Err(problem.into()),
    };
    let (verification, problem) = match verified {
        Ok(verification) => (verification, problem),
        Err(refused) => (None, Some(refused)),
    };
    let titles = titles(&visit, page.items.iter().filter_map(linked_task)).await?;
    let page = AuditPage {
        titles,
        shell: shell?,
        next: page.next_cursor.map(|cursor| url("/audit", &filters, false, &[("cursor", &cursor)])),
        export_lines: url("/audit/export", &filters, false, &[("format", "ndjson")]),
        export_csv: url("/audit/export", &filters, false, &[("format", "csv")]),
        verify: url("/audit", &filters, false, &[("verify", "yes")]),
        entries: page.items,
        filters,
        verification,
        problem,
    };
    Ok(visit.render(&page, &page.shell))
}

/// The export as a download. Its body is passed on in the chunks in which the API reads the log.
async fn export(visit: Visit) -> PageResult {
    let format = visit.param("format");
    let extension = if format == "csv" { "csv" } else { "ndjson" };
    let name = format!("audit-{}.{extension}", visit.now().strftime("%Y-%m-%d"));
    visit.download(&url("/audit/export", &filters(&visit), true, &[("format", format)]), &name).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_typed_in_utc() {
        let filters = AuditFilters {
            from: local_time("2026-11-18T10:00:00Z"),
            to: local_time("2026-11-19T10:30"),
            ..AuditFilters::default()
        };
        let api = url("/audit", &filters, true, &[]);
        assert_eq!(api, "/audit?from=2026-11-18T10%3A00%3A00Z&to=2026-11-19T10%3A30%3A00Z");
        assert_eq!(
            url("/audit", &filters, false, &[]),
            "/audit?from=2026-11-18T10%3A00&to=2026-11-19T10%3A30"
        );
        assert_eq!(utc("yesterday"), "yesterdayZ", "refused by the API");
    }
}
