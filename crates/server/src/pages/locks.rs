//! The pages of locks: what is wrong, who holds what and who waits, one lock, and breaking it. What a visitor may see and break is
//! answered by the API.

use ade_client::wire;
use ade_dashboard::{LISTED_BLOCKERS, LockPage, LocksFilter, LocksPage, Section, root_blockers};
use axum::Router;
use axum::extract::Path;
use axum::http::Method;
use axum::routing::{get, post};
use futures_util::future::try_join_all;
use jiff::SignedDuration;

use super::form::Form;
use super::visit::{PageResult, Visit, path, with_query};
use crate::api::AppState;

/// How long a resolved deadlock stays on the page.
const RECENT: SignedDuration = SignedDuration::from_hours(1);

pub(super) fn routes() -> Router<AppState> {
    Router::new()
        .route("/locks", get(list))
        .route("/locks/{lock}", get(show))
        .route("/locks/{lock}/break", post(break_lock))
}

async fn list(visit: Visit) -> PageResult {
    let param = |name| visit.param(name).trim().to_owned();
    let filter = LocksFilter {
        kind: param("kind"),
        resource_type: param("resource_type"),
        agent: param("agent"),
        name: param("name"),
    };
    let cursor = param("cursor");
    let since = wire::Time(visit.now() - RECENT).to_string();
    let deadlocks = with_query("/audit", &[("action", "lock.deadlock"), ("from", &since), ("limit", "200")]);
    let locks = async {
        // A filter that the API refuses is explained on the page.
        match visit.get::<wire::Page<wire::Lock>>(&filter.query("/locks", &cursor)).await {
            Ok(locks) => Ok((locks, None)),
            Err(problem) if problem.status == 422 => {
                Ok((wire::Page { items: Vec::new(), next_cursor: None }, Some(problem)))
            }
            Err(problem) => Err(problem),
        }
    };
    let ((locks, problem), graph, deadlocks, detection) = tokio::try_join!(
        locks,
        visit.get::<wire::WaitGraph>("/locks/graph"),
        visit.get_if_allowed::<wire::Page<wire::AuditEntry>>(&deadlocks),
        visit.get_if_allowed::<wire::Feature>("/features/deadlock_detection"),
    )?;
    let roots = root_blockers(&graph).into_iter().take(LISTED_BLOCKERS);
    let blocked: Vec<String> = roots.filter_map(|root| root.locks.into_iter().next()).collect();
    let blocked = blocked.iter().map(|lock| path(&["locks", lock]));
    let blocked: Vec<String> = blocked.collect();
    let blocked = try_join_all(blocked.iter().map(|path| visit.get_if_allowed::<wire::Lock>(path))).await?;
    let deadlocks = deadlocks.map_or_else(Vec::new, |page| page.items.into_iter().rev().collect());
    let page = LocksPage {
        shell: visit.shell(Section::Locks, "Locks", "lock").await?,
        filter,
        cursor,
        locks,
        graph,
        blocked: blocked.into_iter().flatten().collect(),
        deadlocks,
        detection: detection.map(|feature| feature.enabled),
        problem,
    };
    Ok(visit.render(&page, &page.shell))
}

async fn lock_page(visit: &Visit, lock: &str) -> PageResult<LockPage> {
    let shown: wire::Lock = visit.get(&path(&["locks", lock])).await?;
    let shell = visit.shell(Section::Locks, &shown.lock, "lock").await?;
    Ok(LockPage { shell, lock: shown, reason: String::new(), problem: None })
}

async fn show(visit: Visit, Path(lock): Path<String>) -> PageResult {
    let page = lock_page(&visit, &lock).await?;
    Ok(visit.render(&page, &page.shell))
}

async fn break_lock(visit: Visit, Path(lock): Path<String>, form: Form) -> PageResult {
    let target = path(&["locks", &lock]);
    let asked = with_query(&target, &[("reason", form.get("reason"))]);
    match visit.send::<wire::BrokenLock>(Method::DELETE, &asked, &form, &()).await {
        Ok(_) => Ok(visit.done(&target, "broken")),
        Err(problem) => {
            let page = lock_page(&visit, &lock).await?;
            let reason = form.get("reason").to_owned();
            Ok(visit.refused(&LockPage { reason, problem: Some(problem.clone()), ..page }, &problem))
        }
    }
}
