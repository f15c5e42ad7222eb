//! What a task would change: as its agent says, found out here, or asked of a worker that can. Nobody's word is asked for what
//! can be found out.

use std::time::Duration;

use ade_domain::Invalid;
use ade_domain::task::{AGENT, Config, NOOP, Preview, PreviewStatus};
use ade_executors::{Executors, Secrets};
use ade_store::database::StoredTask;
use tokio::time::{Instant, sleep};

use super::{About, TaskService};
use crate::Error;
use crate::worker::preview_of;

/// Every executor there is.
pub const EXECUTORS: [&str; 6] = ["agent", "command", "files", "http", "noop", "sql"];
/// How long whoever submits is kept waiting for a preview.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What previews are made with.
#[derive(Debug, Clone, Default)]
pub struct Previews {
    /// What can be found out here.
    pub executors: Executors,
    /// What must never be seen.
    pub secrets: Secrets,
    /// Whether workers elsewhere may find out what cannot be found out here.
    pub elsewhere: bool,
}

impl TaskService {
    /// What a config would change. What its author said counts only where nobody can find out.
    pub(crate) async fn look_ahead(&self, config: &Config, said: Preview) -> Result<Preview, Error> {
        let Previews { executors, secrets, elsewhere } = &self.previews;
        if [AGENT, NOOP].contains(&config.executor.as_str()) {
            return Ok(hidden(said, secrets));
        }
        let place = config.place();
        let Some(executor) = executors.at(&place) else {
            if *elsewhere && EXECUTORS.contains(&config.executor.as_str()) {
                return Ok(Preview::pending());
            }
            return Err(self.not_here(config, &place));
        };
        let below = |fault: Invalid| Invalid::at(format!("/parameters{}", fault.pointer), fault.detail);
        let faults = |faults: Vec<Invalid>| Error::Invalid(faults.into_iter().map(below).collect());
        executor.check(&config.parameters).map_err(faults)?;
        let preview = preview_of(executor, &config.parameters).await;
        Ok(hidden(preview.unwrap_or_else(|failure| Preview::failed(failure.message)), secrets))
    }

    fn not_here(&self, config: &Config, place: &str) -> Error {
        let executor = config.executor.as_str();
        if !EXECUTORS.contains(&executor) {
            return Error::invalid("/executor", format!("must be one of {}", EXECUTORS.join(", ")));
        }
        let there: Vec<&str> =
            self.previews.executors.places().filter(|one| one.starts_with(executor)).collect();
        let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
        Error::invalid(
            "/parameters",
            format!(
                "{place} is not allowed here (allowed for {executor}: {there}); an operator allows it in the \
                 configuration under executors.{executor}"
            ),
        )
    }

    /// A draft with the preview that it is submitted with: made anew where it can be found out here, waited for elsewhere.
    pub(super) async fn with_preview(&self, about: About<'_>) -> Result<StoredTask, Error> {
        let began = Instant::now();
        loop {
            let mut task = self.load(about).await?;
            if task.state != ade_domain::task::State::Draft {
                return Ok(task);
            }
            let before = task.preview.clone();
            let now = self.look_ahead(&task.config, before.clone()).await?;
            if now.status != PreviewStatus::Pending {
                task.preview = now;
                return Ok(task);
            }
            if before.status != PreviewStatus::Pending {
                return Ok(task);
            }
            if began.elapsed() >= PATIENCE {
                return Err(Error::PreviewPending);
            }
            sleep(LOOK_EVERY).await;
        }
    }
}

/// The same without what must never be seen.
pub(crate) fn hidden(mut preview: Preview, secrets: &Secrets) -> Preview {
    let hide = |text: &mut String| *text = secrets.hide(text);
    for change in &mut preview.changes {
        hide(&mut change.what);
        for text in [&mut change.before, &mut change.after, &mut change.diff] {
            text.iter_mut().for_each(hide);
        }
    }
    preview.warnings.iter_mut().for_each(hide);
    preview.errors.iter_mut().for_each(hide);
    preview
}
