//! SQL: the statements of a task are one transaction on a connection that an operator named.
//!
//! In the same transaction a mark is set for the attempt, in a table of the same database: so the mark is there exactly if the
//! change is. It settles a COMMIT whose answer was lost, and whoever sets it first as given up keeps that attempt out for good.
//! A preview runs as a role of its own in a transaction that is never committed.

mod apply;
mod link;
mod marks;
mod preview;
mod statements;

use ade_domain::Invalid;
use ade_domain::task::Preview;
use percent_encoding::percent_decode_str;
use url::Url;

use self::link::Target;
use self::statements::Statements;
use crate::{Executor, Failure, Fence, Parameters, Run, Settled, Work};

/// One named connection.
#[derive(Clone)]
pub struct Sql {
    name: String,
    target: Target,
    preview: Option<Target>,
    secrets: Vec<String>,
}

impl std::fmt::Debug for Sql {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sql").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Sql {
    /// A connection to PostgreSQL (`postgres://…`) or SQLite (`sqlite:///path/to/file`). Without a URL for previews there are
    /// none; on PostgreSQL it must name another role, as what is previewed nobody has looked at yet.
    pub fn new(name: impl Into<String>, url: &str, preview_url: Option<&str>) -> Result<Self, Invalid> {
        let target = Target::read(url, "/url")?;
        let preview = preview_url.map(|url| Target::read(url, "/preview_url")).transpose()?;
        if let Some(preview) = &preview {
            if preview.dialect() != target.dialect() {
                return Err(Invalid::at("/preview_url", "must be the same kind of database as url"));
            }
            if target.role().is_some() && target.role() == preview.role() {
                let detail = "must name another role than url, one that may only do what a preview needs: \
                              what it runs nobody has approved yet";
                return Err(Invalid::at("/preview_url", detail));
            }
        }
        let secrets = [Some(url), preview_url].into_iter().flatten().flat_map(secrets_of).collect();
        Ok(Self { name: name.into(), target, preview, secrets })
    }

    /// Where tasks for it are carried out.
    #[must_use]
    pub fn place(&self) -> String {
        format!("sql:{}", self.name)
    }

    /// What must never be seen.
    #[must_use]
    pub fn secrets(&self) -> Vec<String> {
        self.secrets.clone()
    }

    fn read(&self, parameters: &Parameters) -> Result<Statements, Vec<Invalid>> {
        Statements::read(parameters, self.target.dialect(), &self.name)
    }

    /// The same where they were checked long ago.
    fn read_again(&self, parameters: &Parameters) -> Result<Statements, Failure> {
        self.read(parameters).map_err(|faults| {
            let each = faults.iter().map(|fault| format!("{} {}", fault.pointer, fault.detail));
            Failure::refused(each.collect::<Vec<_>>().join("; "))
        })
    }
}

/// The password of a URL as it is written there and as it is, and the URL if it has one.
fn secrets_of(url: &str) -> Vec<String> {
    let Ok(parsed) = Url::parse(url) else { return Vec::new() };
    let mut secrets = Vec::new();
    if let Some(password) = parsed.password() {
        secrets.push(percent_decode_str(password).decode_utf8_lossy().into_owned());
        secrets.push(password.to_owned());
    }
    let asked = parsed.query_pairs().filter(|(name, _)| name == "password");
    secrets.extend(asked.map(|(_, password)| password.into_owned()));
    if !secrets.is_empty() {
        secrets.push(url.to_owned());
    }
    secrets
}

impl Executor for Sql {
    fn check(&self, parameters: &Parameters) -> Result<(), Vec<Invalid>> {
        self.read(parameters).map(drop)
    }

    fn preview<'a>(&'a self, parameters: &'a Parameters) -> Work<'a, Result<Preview, Failure>> {
        Box::pin(self.make_preview(parameters))
    }

    fn stash<'a>(&'a self, run: &'a Run) -> Work<'a, Result<Vec<u8>, Failure>> {
        Box::pin(async move {
            let back = self.read_again(&run.parameters)?.back;
            if back.is_empty() {
                return Ok(Vec::new());
            }
            serde_json::to_vec(&back).map_err(|error| Failure::refused(error.to_string()))
        })
    }

    fn apply<'a>(&'a self, run: &'a Run, _: &'a [u8]) -> Work<'a, Result<(), Failure>> {
        Box::pin(self.carry_out(run))
    }

    fn roll_back<'a>(&'a self, run: &'a Run, stash: &'a [u8]) -> Work<'a, Result<(), Failure>> {
        Box::pin(self.undo(run, stash))
    }

    fn settle<'a>(&'a self, run: &'a Run, _: &'a [u8]) -> Work<'a, Result<Settled, Failure>> {
        Box::pin(async move {
            let settled = self.shut_out(&run.task_id, run.attempt).await;
            settled.map_err(|trouble| Failure {
                again: trouble.again,
                ..Failure::refused(format!("cannot find out what was applied: {}", trouble.message))
            })
        })
    }

    fn fence(&self) -> Fence {
        Fence::Fenced
    }

    fn can_roll_back(&self, parameters: &Parameters) -> bool {
        self.read(parameters).is_ok_and(|statements| !statements.back.is_empty())
    }
}
