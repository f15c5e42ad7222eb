//! Activity: the events, newest first, and statistics over time.

use ade_client::wire;
use ade_dashboard::{ActivityFilters, ActivityPage, ChartsPage, Section};
use axum::Router;
use axum::routing::get;

use super::titles::titles;
use super::visit::{PageResult, Visit, with_query};
use crate::api::AppState;

/// All stored events. Lock events that are not stored are many, and not on this page.
const EVENTS: &str = "agent,approval,archive,audit,change,config,delegation,feature,hook,lock:broken,lock:deadlock,\
     lock:queue_full,policy,resource,session,task,token,user,webhook";
/// Events that change the numbers of the charts.
const COUNTED: &str = "task,approval";

pub(super) fn routes() -> Router<AppState> {
    Router::new().route("/activity", get(show))
}

async fn show(visit: Visit) -> PageResult {
    if visit.param("view") == "charts" { charts(visit).await } else { events(visit).await }
}

async fn events(visit: Visit) -> PageResult {
    let before = visit.param("before");
    let filters = ActivityFilters {
        topics: visit.param("topics").to_owned(),
        events: visit.param("events").trim().to_owned(),
        task_id: visit.param("task").trim().to_owned(),
    };
    let query = [
        ("before", if before.is_empty() { "end" } else { before }),
        ("topics", &*filters.topics),
        ("events", &filters.events),
        ("task_id", &filters.task_id),
    ];
    let found = visit.get::<wire::EventPage>(&with_query("/events", &query)).await;
    let (page, problem) = match found {
        Ok(page) => (page, None),
        // A filter that cannot be read is corrected on the same page.
        Err(problem) if problem.status == 422 => {
            (wire::EventPage { items: Vec::new(), next_cursor: "0".to_owned() }, Some(problem))
        }
        Err(problem) => return Err(problem.into()),
    };
    let is_older = !before.is_empty();
    let ids = page.items.iter().filter_map(|event| event.payload.get("task_id")?.as_str());
    let titles = titles(&visit, ids).await?;
    let page = ActivityPage {
        shell: visit.shell(Section::Activity, "Activity", if is_older { "" } else { EVENTS }).await?,
        filters,
        events: page.items,
        titles,
        older: Some(page.next_cursor).filter(|before| before != "0"),
        is_older,
        problem: problem.clone(),
    };
    Ok(match problem {
        Some(problem) => visit.refused(&page, &problem),
        None => visit.render(&page, &page.shell),
    })
}

async fn charts(visit: Visit) -> PageResult {
    let viewer = visit.viewer();
    let is_reviewer = viewer.has_role("reviewer") || viewer.is_admin();
    let own = async {
        if is_reviewer && !viewer.user_id.is_empty() {
            visit.get_if_allowed::<wire::UserStats>("/stats/users/me").await
        } else {
            Ok(None)
        }
    };
    let (overview, own) = tokio::try_join!(visit.get("/stats/overview"), own)?;
    let shell = visit.shell(Section::Activity, "Activity", COUNTED).await?;
    let page = ChartsPage { shell, overview, own };
    Ok(visit.render(&page, &page.shell))
}
