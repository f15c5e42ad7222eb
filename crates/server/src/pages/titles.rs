//! Titles of the tasks that a page names by their ids, in one bounded read. What the visitor may not see has none.

use std::collections::{BTreeMap, BTreeSet};

use ade_client::wire;
use uuid::Uuid;

use super::visit::{Visit, with_query};

/// Tasks whose titles are read for a page; the others are shown by their ids.
const MAX_TITLES: usize = 50;

pub(super) async fn titles(
    visit: &Visit,
    ids: impl Iterator<Item = &str>,
) -> Result<BTreeMap<String, String>, wire::Problem> {
    let mut chosen: BTreeSet<&str> = BTreeSet::new();
    for id in ids.filter(|id| Uuid::parse_str(id).is_ok()) {
        if chosen.len() < MAX_TITLES {
            chosen.insert(id);
        }
    }
    if chosen.is_empty() {
        return Ok(BTreeMap::new());
    }
    let ids = chosen.into_iter().collect::<Vec<_>>().join(",");
    let path = with_query("/tasks", &[("ids", &ids), ("limit", &MAX_TITLES.to_string())]);
    let tasks: Option<wire::Page<wire::Task>> = visit.get_if_allowed(&path).await?;
    let tasks = tasks.map_or_else(Vec::new, |page| page.items);
    Ok(tasks.into_iter().map(|task| (task.task_id, task.config.description)).collect())
}
