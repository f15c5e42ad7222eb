//! What followers of events need besides the events: who takes part in their tasks, and which events have been deleted because they are
//! old. Events are deleted in the order of their numbers, so that what is left has no gaps.

use std::collections::{BTreeMap, BTreeSet};

use ade_domain::Moment;
use ade_domain::audience::TaskParticipants;
use ade_domain::event::Event;
use ade_domain::people::UserId;
use uuid::Uuid;

use super::batch::Statement;
use super::sql::{LOCK_ROWS, Select, SqlConnection, uuid};
use super::{Backend, Database, Operation, Result};

/// Events that are deleted in one transaction.
const MAX_DELETED: u32 = 1_000;
const SELECT_DELETED: &str = "SELECT deleted_up_to FROM event_retention";

/// A page of events, and what is known about those before it.
#[derive(Debug, Clone, PartialEq)]
pub struct EventPage {
    /// With their numbers, in order.
    pub events: Vec<(u64, Event)>,
    /// Events up to this number have been deleted.
    pub deleted_up_to: u64,
}

impl Database {
    /// Events after the number `after`. If some after it have been deleted, the page says so.
    pub async fn event_page(&self, after: u64, limit: u32) -> Result<EventPage> {
        let events = self.events(after, limit).await?;
        // Read last: what is deleted meanwhile is noticed.
        Ok(EventPage { events, deleted_up_to: self.deleted_events().await? })
    }

    /// Events up to this number have been deleted.
    pub async fn deleted_events(&self) -> Result<u64> {
        self.fetch_number(SELECT_DELETED, &[]).await
    }

    /// The participants of tasks, by task id. Tasks that do not exist or cannot be read are left out, and so
    /// is what is not the id of a task.
    pub async fn task_participants(
        &self,
        task_ids: &BTreeSet<String>,
    ) -> Result<BTreeMap<String, TaskParticipants>> {
        let mut ids: Vec<&String> = task_ids.iter().filter(|id| Uuid::parse_str(id).is_ok()).collect();
        let Some(last) = ids.last().copied() else { return Ok(BTreeMap::new()) };
        // Few lengths, because each of them is prepared and cached as a statement of its own.
        ids.resize(ids.len().next_power_of_two(), last);
        let mut tasks = Select::new(
            "SELECT task_id::text, (body::jsonb->'author_set')::text, CASE WHEN body::jsonb->'config'->>'executor' = 'agent' \
             THEN body::jsonb->'execution'->>'worker' END FROM tasks",
        );
        tasks.and_in("task_id", ids.iter().map(|id| uuid(id)));
        let mut people = Select::new("SELECT task_id::text, label FROM task_labels");
        people.and("kind = ?", ["person".into()]);
        people.and_in("task_id", ids.iter().map(|id| uuid(id)));
        let read = async |connection: &mut SqlConnection<'_>| {
            let tasks = connection.query(&tasks.sql, &tasks.args).await?;
            Ok((tasks, connection.query(&people.sql, &people.args).await?))
        };
        let (tasks, people) = self.read(read).await?;
        let mut found: BTreeMap<String, TaskParticipants> = BTreeMap::new();
        for row in &tasks {
            let (task_id, applied_by): (String, _) = (row.get(0)?, row.get(2)?);
            match row.json::<BTreeMap<UserId, serde_json::Value>>(1) {
                Ok(authors) => {
                    let authors = authors.into_keys().collect();
                    found.insert(task_id, TaskParticipants { authors, applied_by, ..Default::default() });
                }
                // Without participants, few see its events; all other events go on.
                Err(error) => tracing::error!(task = task_id, %error, "the authors of a task cannot be read"),
            }
        }
        for row in &people {
            if let Some(task) = found.get_mut(&row.get::<String>(0)?) {
                task.reviewers.insert(UserId::new(row.get::<String>(1)?));
            }
        }
        Ok(found)
    }

    /// Deletes the oldest events from before `before` that every consumer has handled, and returns how many. Call it until nothing is
    /// left.
    pub async fn delete_old_events(&self, before: Moment) -> Result<u64> {
        let chain = match self.backend {
            Backend::Sqlite(_) => "audit",
            Backend::Postgres(_) => "audit_chain",
        };
        self.execute(DeleteEvents { before, chain }).await
    }
}

struct DeleteEvents {
    before: Moment,
    /// The table with the numbers.
    chain: &'static str,
}

impl Operation for DeleteEvents {
    type Output = u64;

    async fn apply(&self, connection: &mut SqlConnection<'_>) -> Result<u64> {
        let Self { before, chain } = self;
        let deleted = connection.query_number(&format!("{SELECT_DELETED}{LOCK_ROWS}"), &[]).await?;
        let handled = connection.query_first("SELECT min(position) FROM event_consumers", &[]).await?;
        let handled: Option<u64> = handled.map(|row| row.get(0)).transpose()?.flatten();
        let sql = format!(
            "SELECT number, micros(at) FROM {chain} WHERE number > $1 AND entry_hash IS NOT NULL ORDER BY number LIMIT {MAX_DELETED}"
        );
        let rows = connection.query(&sql, &[deleted.into()]).await?;
        let rows =
            rows.iter().map(|row| Ok((row.get(0)?, row.get(1)?))).collect::<Result<Vec<(u64, Moment)>>>()?;
        let is_due =
            |(number, at): &&(u64, Moment)| at < before && handled.is_none_or(|last| *number <= last);
        let due: Vec<&(u64, Moment)> = rows.iter().take_while(is_due).collect();
        let Some((last, _)) = due.last() else { return Ok(0) };
        let delete = format!(
            "DELETE FROM events WHERE event_id IN (SELECT entry_id FROM {chain} WHERE number > $1 AND number <= $2)"
        );
        let statements = [
            Statement::new(delete, [deleted.into(), (*last).into()]),
            Statement::new("UPDATE event_retention SET deleted_up_to = $1", [(*last).into()]),
        ];
        connection.execute_each(&statements).await?;
        Ok(due.len() as u64)
    }
}
