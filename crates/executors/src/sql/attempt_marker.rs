//! Attempt markers: rows that are written in the same transaction as the changes, so that a marker exists exactly if the changes do.
//! An attempt has one for applying and one for rolling back. The first one that is inserted counts.

use sqlx::AssertSqlSafe;

use super::connection::{SqlConnection, SqlError, on_connection};
use super::statements::MARKER_TABLE;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MarkerKind {
    Apply,
    Rollback,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MarkerState {
    Applied,
    /// It was not applied, and never will be.
    Abandoned,
    RolledBack,
}

/// Identifies the markers of an attempt. The table name is qualified, because a statement could change the search path.
#[derive(Debug, Clone)]
pub(super) struct MarkerKey {
    table: String,
    task_id: String,
    attempt: i64,
}

impl MarkerKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Apply => "apply",
            Self::Rollback => "rollback",
        }
    }
}

impl MarkerState {
    const ALL: [Self; 3] = [Self::Applied, Self::Abandoned, Self::RolledBack];

    const fn name(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Abandoned => "abandoned",
            Self::RolledBack => "rolled_back",
        }
    }
}

impl SqlConnection {
    /// Finds or creates the marker table. Must be called outside of transactions.
    pub(super) async fn marker_key(&mut self, task_id: &str, attempt: u64) -> Result<MarkerKey, SqlError> {
        let attempt = i64::try_from(attempt).unwrap_or(i64::MAX);
        let key = |table| MarkerKey { table, task_id: task_id.to_owned(), attempt };
        if let Some(table) = self.find_marker_table().await? {
            return Ok(key(table));
        }
        let columns = "task_id TEXT NOT NULL, attempt BIGINT NOT NULL, kind TEXT NOT NULL, state TEXT NOT NULL, \
                       made_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, PRIMARY KEY (task_id, attempt, kind)";
        let create = format!("CREATE TABLE IF NOT EXISTS {MARKER_TABLE} ({columns})");
        let created = on_connection!(self, connection => {
            sqlx::raw_sql(AssertSqlSafe(create)).execute(connection).await.map(drop)
        });
        // After an error the table may exist nevertheless, created by another worker at the same time.
        match (self.find_marker_table().await?, created) {
            (Some(table), _) => Ok(key(table)),
            (None, created) => {
                let error = created.map_err(SqlError::from).err();
                let error = error.unwrap_or_else(|| SqlError::retryable("it was dropped again"));
                let message = format!(
                    "cannot create the table {MARKER_TABLE} ({}): grant the role the right to create it, or create it yourself: \
                     CREATE TABLE {MARKER_TABLE} ({columns})",
                    error.message
                );
                Err(SqlError { message, ..error })
            }
        }
    }

    async fn find_marker_table(&mut self) -> Result<Option<String>, SqlError> {
        let sql = match self {
            Self::Postgres(_) => {
                "SELECT pg_catalog.format('%I.%I', n.nspname, c.relname) FROM pg_catalog.pg_class c \
                 JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
                 WHERE c.oid = pg_catalog.to_regclass($1)"
            }
            Self::Sqlite(..) => {
                "SELECT 'main.' || name FROM main.sqlite_schema WHERE type = 'table' AND name = $1"
            }
        };
        Ok(on_connection!(self, connection => {
            sqlx::query_scalar(sql).bind(MARKER_TABLE).fetch_optional(connection).await?
        }))
    }

    /// Returns false if there is already a marker of this kind, which is kept.
    pub(super) async fn insert_marker(
        &mut self,
        key: &MarkerKey,
        kind: MarkerKind,
        state: MarkerState,
    ) -> Result<bool, SqlError> {
        let sql = AssertSqlSafe(format!(
            "INSERT INTO {} (task_id, attempt, kind, state) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING",
            key.table
        ));
        let (task_id, attempt) = (key.task_id.as_str(), key.attempt);
        Ok(on_connection!(self, connection => {
            let query = sqlx::query(sql).bind(task_id).bind(attempt).bind(kind.name()).bind(state.name());
            query.execute(connection).await?.rows_affected() > 0
        }))
    }

    pub(super) async fn marker(
        &mut self,
        key: &MarkerKey,
        kind: MarkerKind,
    ) -> Result<Option<MarkerState>, SqlError> {
        let sql = AssertSqlSafe(format!(
            "SELECT state FROM {} WHERE task_id = $1 AND attempt = $2 AND kind = $3",
            key.table
        ));
        let (task_id, attempt) = (key.task_id.as_str(), key.attempt);
        let name: Option<String> = on_connection!(self, connection => {
            let query = sqlx::query_scalar(sql).bind(task_id).bind(attempt).bind(kind.name());
            query.fetch_optional(connection).await?
        });
        Ok(name.and_then(|name| MarkerState::ALL.into_iter().find(|state| state.name() == name)))
    }
}
