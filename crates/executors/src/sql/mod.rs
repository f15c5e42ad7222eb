//! SQL: the statements of a task are one transaction on a connection that an operator has configured.
//!
//! The same transaction inserts a marker for the attempt into a table of the same database, so that the marker exists exactly if
//! the changes do. It tells how a COMMIT ended whose response was lost. An attempt whose marker was first inserted as abandoned
//! can never be applied. A preview uses its own role, in a transaction that is never committed.

mod apply;
mod attempt_marker;
mod connection;
mod error_code;
mod preview;
mod sqlite_process;
mod statements;

use ade_domain::task::Preview;
use ade_domain::{InvalidField, Keys};
use async_trait::async_trait;
use percent_encoding::percent_decode_str;
use url::Url;

use self::connection::{Dialect, Target};
pub(crate) use self::sqlite_process::serve_sqlite_preview;
use self::statements::Statements;
use crate::limited_process::LimitedProgram;
use crate::{AttemptOutcome, Executor, Failure, Fencing, Parameters, Result, Run, Validated};

/// How statements on PostgreSQL are previewed. On SQLite they are always executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PreviewMode {
    /// They are planned in a read-only transaction.
    #[default]
    Explain,
    /// They are executed and rolled back. Sequences stay advanced, and functions may have effects that cannot be rolled back.
    Execute,
}

/// Runs statements on one named connection.
#[derive(Clone)]
pub struct SqlExecutor {
    name: String,
    target: Target,
    /// With its URL.
    preview_target: Option<(String, Target)>,
    preview_mode: PreviewMode,
    limited_program: LimitedProgram,
    secrets: Vec<String>,
    /// Authenticate the markers of attempts.
    keys: Keys,
}

impl std::fmt::Debug for SqlExecutor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sql").field("name", &self.name).finish_non_exhaustive()
    }
}

impl SqlExecutor {
    /// A connection to PostgreSQL (`postgres://…`) or SQLite (`sqlite:///path/to/file`). Without `preview_url` there are no
    /// previews. On PostgreSQL it must name another role, because a preview uses statements that nobody has approved yet.
    pub fn new(
        name: impl Into<String>,
        url: &str,
        preview_url: Option<&str>,
        keys: Keys,
    ) -> Result<Self, InvalidField> {
        let target = Target::parse(url, "url")?;
        let parse = |url: &str| Ok((url.to_owned(), Target::parse(url, "preview_url")?));
        let preview_target = preview_url.map(parse).transpose()?;
        if let Some((_, preview_target)) = &preview_target {
            if preview_target.dialect() != target.dialect() {
                return Err(InvalidField::at("preview_url", "must be the same kind of database as url"));
            }
            if target.role().is_some() && target.role() == preview_target.role() {
                let detail = "must name another role than url, with only the rights that a preview needs: \
                              it uses statements that nobody has approved yet";
                return Err(InvalidField::at("preview_url", detail));
            }
        }
        let secrets = [Some(url), preview_url].into_iter().flatten().flat_map(secrets_of).collect();
        let (preview_mode, limited_program) = (PreviewMode::default(), LimitedProgram::current_exe());
        Ok(Self { name: name.into(), target, preview_target, preview_mode, limited_program, secrets, keys })
    }

    /// Sets how statements are previewed. SQLite cannot plan changes without executing them.
    pub fn with_preview_mode(self, preview_mode: PreviewMode) -> Result<Self, InvalidField> {
        if preview_mode == PreviewMode::Explain && self.target.dialect() == Dialect::Sqlite {
            let detail = "must be \"execute\" for SQLite, whose previews run in a process with limits and are rolled back";
            return Err(InvalidField::at("preview", detail));
        }
        Ok(Self { preview_mode, ..self })
    }

    /// Sets the program that runs previews on SQLite; by default the current one.
    #[must_use]
    pub fn with_limited_program(self, limited_program: LimitedProgram) -> Self {
        Self { limited_program, ..self }
    }

    #[must_use]
    pub fn work_queue(&self) -> String {
        format!("sql:{}", self.name)
    }

    /// Texts that must be redacted in all output.
    #[must_use]
    pub fn secrets(&self) -> Vec<String> {
        self.secrets.clone()
    }

    fn parse(&self, parameters: &Parameters) -> Validated<Statements> {
        Statements::parse(parameters, self.target.dialect(), &self.name)
    }
}

/// The password of a URL, decoded and as written, and the URL itself if it contains one.
fn secrets_of(url: &str) -> Vec<String> {
    let Ok(parsed) = Url::parse(url) else { return Vec::new() };
    let mut secrets = Vec::new();
    if let Some(password) = parsed.password() {
        secrets.push(percent_decode_str(password).decode_utf8_lossy().into_owned());
        secrets.push(password.to_owned());
    }
    let in_query = parsed.query_pairs().filter(|(name, _)| name == "password");
    secrets.extend(in_query.map(|(_, password)| password.into_owned()));
    if !secrets.is_empty() {
        secrets.push(url.to_owned());
    }
    secrets
}

#[async_trait]
impl Executor for SqlExecutor {
    fn validate(&self, parameters: &Parameters) -> Validated<()> {
        self.parse(parameters).map(drop)
    }

    async fn preview(&self, parameters: &Parameters) -> Result<Preview> {
        self.run_preview(parameters).await
    }

    async fn prepare_rollback(&self, run: &Run) -> Result<Vec<u8>> {
        let rollback = self.parse(&run.parameters)?.rollback;
        if rollback.is_empty() {
            return Ok(Vec::new());
        }
        serde_json::to_vec(&rollback).map_err(|error| Failure::permanent(error.to_string()))
    }

    async fn apply(&self, run: &Run, _: &[u8]) -> Result<()> {
        self.apply_statements(run).await
    }

    async fn roll_back(&self, run: &Run, rollback_data: &[u8]) -> Result<()> {
        self.run_rollback(run, rollback_data).await
    }

    async fn resolve_outcome(&self, run: &Run, _: &[u8]) -> Result<AttemptOutcome> {
        let outcome = self.abandon_attempt(&run.task_id, run.attempt).await;
        outcome.map_err(|error| {
            let message = format!("cannot determine what was applied: {error}");
            Failure { message, ..error }
        })
    }

    fn fencing(&self) -> Fencing {
        Fencing::Fenced
    }

    fn can_roll_back(&self, parameters: &Parameters) -> bool {
        self.parse(parameters).is_ok_and(|statements| !statements.rollback.is_empty())
    }
}
