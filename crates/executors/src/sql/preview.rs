//! What statements would do: tried as a restricted role, and never committed. Dropped at any point, it leaves nothing.

use std::time::Duration;

use ade_domain::task::{Preview, PreviewChange};
use tokio::time::Instant;

use super::Sql;
use super::apply::rows;
use super::link::{Link, Target, Trouble};
use super::statements::{kind, shortened};
use crate::{Failure, Parameters, preview_of};

/// How long all of it may take.
const WITHIN: Duration = Duration::from_secs(12);
/// How long statements may take together: less, so that the database can still say so.
const STATEMENTS: Duration = Duration::from_secs(10);
/// How long one waits for locks of others, who should not wait long for us either.
const LOCKS: Duration = Duration::from_secs(2);

impl Sql {
    pub(super) async fn make_preview(&self, parameters: &Parameters) -> Result<Preview, Failure> {
        let statements = self.read_again(parameters)?.forward;
        let Some(target) = &self.preview else { return Ok(Preview::none()) };
        let made = tokio::time::timeout(WITHIN, attempt(target, &statements)).await;
        let seconds = WITHIN.as_secs();
        made.unwrap_or_else(|_| Err(Failure::not_now(format!("finding out took longer than {seconds} s"))))
    }
}

async fn attempt(target: &Target, statements: &[String]) -> Result<Preview, Failure> {
    let cannot = |trouble: Trouble| Failure { again: trouble.again, ..Failure::refused(trouble.message) };
    let mut link = target.open().await.map_err(cannot)?;
    let tried = try_all(&mut link, target, statements).await;
    link.take_back().await;
    let (changes, errors) = tried.map_err(cannot)?;
    Ok(preview_of(changes, Vec::new(), errors))
}

/// What would change, up to the first statement that fails. It fails itself only where nobody can tell.
async fn try_all(
    link: &mut Link,
    target: &Target,
    statements: &[String],
) -> Result<(Vec<PreviewChange>, Vec<String>), Trouble> {
    let (mut changes, until) = (Vec::with_capacity(statements.len()), Instant::now() + STATEMENTS);
    let begun = link.begin_to_try().await?;
    for (number, sql) in (1..).zip(statements) {
        link.limit(Some(until.saturating_duration_since(Instant::now())), LOCKS).await?;
        let done = match link.run(sql).await {
            Ok(done) => done,
            Err(trouble) if trouble.again => {
                return Err(Trouble {
                    message: format!("statement {number}: {}", trouble.message),
                    ..trouble
                });
            }
            Err(trouble) => return Ok((changes, vec![format!("statement {number}: {}", trouble.message)])),
        };
        if !link.is_inside(begun).await? {
            let message = format!("statement {number} ended the transaction that it was tried in");
            tracing::error!(message, "a preview may have changed something");
            return Ok((changes, vec![message]));
        }
        changes.push(PreviewChange {
            kind: kind(sql, target.dialect()),
            what: format!("statement {number}: {}", shortened(sql)),
            before: None,
            after: Some(rows(done)),
            diff: None,
        });
    }
    Ok((changes, Vec::new()))
}
