//! The mark of an attempt: a row that is written in the same transaction as the change, so that it is there exactly if the change
//! is. There is one for applying and one for undoing, and whoever writes it first decides.

use sqlx::AssertSqlSafe;

use super::link::{Link, Trouble, on};
use super::statements::MARKS;

/// Which change of an attempt a mark is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Apply,
    Undo,
}

/// What a mark says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Applied,
    /// It was not applied, and never will be.
    Abandoned,
    Undone,
}

/// Marks, and where they are: a statement could change where names are looked for.
#[derive(Debug, Clone)]
pub(super) struct Marks {
    table: String,
    pub(super) task_id: String,
    pub(super) attempt: i64,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Apply => "apply",
            Self::Undo => "undo",
        }
    }
}

impl State {
    const ALL: [Self; 3] = [Self::Applied, Self::Abandoned, Self::Undone];

    const fn name(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Abandoned => "abandoned",
            Self::Undone => "undone",
        }
    }
}

impl Link {
    /// Finds the table of marks, or makes it, by itself: before any transaction.
    pub(super) async fn marks(&mut self, task_id: &str, attempt: u64) -> Result<Marks, Trouble> {
        let attempt = i64::try_from(attempt).unwrap_or(i64::MAX);
        let marks = |table| Marks { table, task_id: task_id.to_owned(), attempt };
        if let Some(table) = self.find_marks().await? {
            return Ok(marks(table));
        }
        let columns = "task_id TEXT NOT NULL, attempt BIGINT NOT NULL, kind TEXT NOT NULL, state TEXT NOT NULL, \
                       made_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, PRIMARY KEY (task_id, attempt, kind)";
        let create = format!("CREATE TABLE IF NOT EXISTS {MARKS} ({columns})");
        let made =
            on!(self, connection => sqlx::raw_sql(AssertSqlSafe(create)).execute(connection).await.map(drop));
        // Somebody else may have made it at the same time.
        match (self.find_marks().await?, made) {
            (Some(table), _) => Ok(marks(table)),
            (None, made) => {
                let why = made.map_err(Trouble::from).err();
                let why = why.unwrap_or_else(|| Trouble::passing("it is gone again"));
                let message = format!(
                    "the table {MARKS} cannot be made ({}): let the role make it, or make it yourself: \
                     CREATE TABLE {MARKS} ({columns})",
                    why.message
                );
                Err(Trouble { message, ..why })
            }
        }
    }

    async fn find_marks(&mut self) -> Result<Option<String>, Trouble> {
        let found = match self {
            Self::Postgres(connection) => {
                let sql = "SELECT pg_catalog.format('%I.%I', n.nspname, c.relname) FROM pg_catalog.pg_class c \
                           JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
                           WHERE c.oid = pg_catalog.to_regclass($1)";
                sqlx::query_scalar(sql).bind(MARKS).fetch_optional(&mut **connection).await?
            }
            Self::Sqlite(connection, _) => {
                let sql = "SELECT 'main.' || name FROM main.sqlite_schema WHERE type = 'table' AND name = $1";
                sqlx::query_scalar(sql).bind(MARKS).fetch_optional(&mut **connection).await?
            }
        };
        Ok(found)
    }

    /// Sets a mark; not, if there is one already.
    pub(super) async fn mark(&mut self, marks: &Marks, kind: Kind, state: State) -> Result<bool, Trouble> {
        let sql = AssertSqlSafe(format!(
            "INSERT INTO {} (task_id, attempt, kind, state) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING",
            marks.table
        ));
        let (task_id, attempt) = (marks.task_id.as_str(), marks.attempt);
        Ok(on!(self, connection => {
            let query = sqlx::query(sql).bind(task_id).bind(attempt).bind(kind.name()).bind(state.name());
            query.execute(connection).await?.rows_affected() > 0
        }))
    }

    /// What a mark says.
    pub(super) async fn marked(&mut self, marks: &Marks, kind: Kind) -> Result<Option<State>, Trouble> {
        let sql = AssertSqlSafe(format!(
            "SELECT state FROM {} WHERE task_id = $1 AND attempt = $2 AND kind = $3",
            marks.table
        ));
        let (task_id, attempt) = (marks.task_id.as_str(), marks.attempt);
        let state: Option<String> = on!(self, connection => {
            let query = sqlx::query_scalar(sql).bind(task_id).bind(attempt).bind(kind.name());
            query.fetch_optional(connection).await?
        });
        Ok(state.and_then(|state| State::ALL.into_iter().find(|one| one.name() == state)))
    }
}
