//! Attempt markers: rows that are written in the same transaction as the changes, so that a marker exists exactly if the changes do.
//! An attempt has one for applying and one for rolling back. The first one that is inserted counts. Each has a MAC: a marker that
//! somebody else wrote into the target database says nothing about the outcome.

use ade_domain::Keys;
use ade_domain::keys::{KeyPurpose, MacCheck};
use sqlx::AssertSqlSafe;

use super::connection::{SqlConnection, Target, on_connection};
use super::statements::MARKER_TABLE;
use crate::{Failure, Result};

#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::AsRefStr)]
#[strum(serialize_all = "snake_case")]
pub(super) enum MarkerKind {
    Apply,
    Rollback,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::AsRefStr, strum::EnumString)]
#[strum(serialize_all = "snake_case")]
pub(super) enum MarkerState {
    Applied,
    /// It was not applied, and never will be.
    Abandoned,
    RolledBack,
}

impl MarkerState {
    const fn kind(self) -> MarkerKind {
        match self {
            Self::Applied | Self::Abandoned => MarkerKind::Apply,
            Self::RolledBack => MarkerKind::Rollback,
        }
    }
}

/// A transaction that contains the markers of one attempt.
#[derive(Debug)]
pub(super) struct AttemptTransaction {
    pub(super) connection: SqlConnection,
    /// Qualified, because a statement could change the search path.
    table: String,
    task_id: String,
    attempt: i64,
    keys: Keys,
}

impl AttemptTransaction {
    pub(super) async fn begin(target: &Target, keys: &Keys, task_id: &str, attempt: u64) -> Result<Self> {
        let mut connection = target.connect().await?;
        let table = connection.marker_table().await?;
        connection.begin(true).await?;
        let attempt = i64::try_from(attempt).unwrap_or(i64::MAX);
        Ok(Self { connection, table, task_id: task_id.to_owned(), attempt, keys: keys.clone() })
    }

    /// What the MAC of a marker covers.
    fn content(&self, kind: MarkerKind, state: &str) -> String {
        format!("{} {} {} {state}", self.task_id, self.attempt, kind.as_ref())
    }

    /// Returns false if there is already a marker of this kind, which is kept.
    pub(super) async fn insert_marker(&mut self, state: MarkerState) -> Result<bool> {
        let (kind, state) = (state.kind(), state.as_ref());
        let mac = self.keys.mac(KeyPurpose::SqlMarker, self.content(kind, state).as_bytes());
        let Self { connection, table, task_id, attempt, .. } = self;
        let sql = AssertSqlSafe(format!(
            "INSERT INTO {table} (task_id, attempt, kind, state, mac) VALUES ($1, $2, $3, $4, $5) \
             ON CONFLICT DO NOTHING"
        ));
        Ok(on_connection!(connection, connection => {
            let query = sqlx::query(sql).bind(&*task_id).bind(*attempt).bind(kind.as_ref()).bind(state);
            query.bind(mac).execute(connection).await?.rows_affected() > 0
        }))
    }

    /// The marker of this attempt. Fails if somebody else wrote it.
    pub(super) async fn marker(&mut self, kind: MarkerKind) -> Result<Option<MarkerState>> {
        let Self { connection, table, task_id, attempt, .. } = self;
        let sql = format!("SELECT state, mac FROM {table} WHERE task_id = $1 AND attempt = $2 AND kind = $3");
        let marker: Option<(String, Option<String>)> = on_connection!(connection, connection => {
            let query = sqlx::query_as(AssertSqlSafe(sql)).bind(&*task_id).bind(*attempt);
            query.bind(kind.as_ref()).fetch_optional(connection).await?
        });
        let Some((state, mac)) = marker else { return Ok(None) };
        let content = self.content(kind, &state);
        let check =
            self.keys.verify(KeyPurpose::SqlMarker, content.as_bytes(), mac.as_deref().unwrap_or_default());
        if check != MacCheck::Valid {
            let message = format!(
                "the marker of attempt {} of task {} in {MARKER_TABLE} was not written by ade, or with another secret: its \
                 outcome is unknown. Find out who changed the database",
                self.attempt, self.task_id
            );
            return Err(Failure::permanent(message));
        }
        Ok(state.parse().ok())
    }

    /// Checks that the statements have not changed the marker of their own attempt.
    pub(super) async fn check_marker(&mut self, state: MarkerState) -> Result<()> {
        if self.marker(state.kind()).await? == Some(state) {
            return Ok(());
        }
        let message = "the statements removed the marker of their own attempt; nothing was committed";
        Err(Failure::permanent(message))
    }
}

impl SqlConnection {
    /// Finds or creates the marker table. Must be called outside of transactions.
    async fn marker_table(&mut self) -> Result<String> {
        if let Some(table) = self.find_marker_table().await? {
            return Ok(table);
        }
        let columns = "task_id TEXT NOT NULL, attempt BIGINT NOT NULL, kind TEXT NOT NULL, state TEXT NOT NULL, mac TEXT, \
                       made_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, PRIMARY KEY (task_id, attempt, kind)";
        let create = format!("CREATE TABLE IF NOT EXISTS {MARKER_TABLE} ({columns})");
        let created = on_connection!(self, connection => {
            sqlx::raw_sql(AssertSqlSafe(create)).execute(connection).await.map(drop)
        });
        // After an error the table may exist nevertheless, created by another worker at the same time.
        if let Some(table) = self.find_marker_table().await? {
            return Ok(table);
        }
        let error = created.map_or_else(Failure::from, |()| Failure::retryable("it was dropped again"));
        let message = format!(
            "cannot create the table {MARKER_TABLE} ({error}): grant the role the right to create it, or create it yourself: \
             CREATE TABLE {MARKER_TABLE} ({columns})"
        );
        Err(Failure { message, ..error })
    }

    async fn find_marker_table(&mut self) -> Result<Option<String>> {
        let sql = match self {
            Self::Postgres(..) => {
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
}
