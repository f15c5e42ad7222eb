//! Changing tasks: each command is one call, and says in one line how the task stands then.

use ade_client::Client;
use ade_client::wire::{OverrideRequest, Reason, Task, TaskRequest};
use ade_domain::task::State;
use owo_colors::OwoColorize;

use super::parts::state;
use super::{CommentArgs, CreateArgs, EditArgs, Explained, Named, NeedsReason, OverrideArgs};
use crate::documents;
use crate::failure::Failure;
use crate::lists::Shape;
use crate::output::{self, safe};

/// Errors of a preview that are told; its page has all of them.
const MOST_ERRORS: usize = 10;

pub(super) async fn create(client: &Client, args: &CreateArgs) -> Result<(), Failure> {
    let request: TaskRequest = documents::read(&args.file)?;
    let draft = client.make_task(&request).await?;
    let task = if args.submit { submit_new(client, &draft).await? } else { draft };
    warn(&task);
    told(args.shape, &task)
}

pub(super) async fn submit(client: &Client, args: &Named) -> Result<(), Failure> {
    let task = client.submit_task(&args.task_id).await?;
    warn(&task);
    told(args.shape, &task)
}

/// What went wrong when it was found out what a task would change. Who proposes it would otherwise wonder why people are asked.
pub(super) fn warn(task: &Task) {
    warnings(task).iter().for_each(|text| output::warning(text));
}

fn warnings(task: &Task) -> Vec<String> {
    if !task.preview.went_wrong() {
        return Vec::new();
    }
    let told = "finding out what would change went wrong: the task counts as if anything might change, and is never \
                approved without somebody who looks at it";
    let errors = task.preview.errors.iter().take(MOST_ERRORS).cloned();
    let more = task.preview.errors.len().saturating_sub(MOST_ERRORS);
    let more = (more > 0).then(|| format!("and {more} more: ade task show {}", task.task_id));
    std::iter::once(told.to_owned()).chain(errors).chain(more).collect()
}

/// Wants a draft decided that was just made. Where that fails the draft is there all the same: without its id it would be lost.
pub(super) async fn submit_new(client: &Client, draft: &Task) -> Result<Task, Failure> {
    let id = &draft.task_id;
    client.submit_task(id).await.map_err(|error| {
        Failure::from(error).also(format!(
            "{id} was made and is a draft: ade task submit {id} tries again, ade task rm {id} deletes it"
        ))
    })
}

pub(super) async fn edit(client: &Client, args: &EditArgs) -> Result<(), Failure> {
    let patch: TaskRequest = documents::read(&args.file)?;
    let task = client.change_task(&args.task_id, args.revision, &patch).await?;
    warn(&task);
    told(args.shape, &task)
}

pub(super) async fn rm(client: &Client, task_id: &str) -> Result<(), Failure> {
    client.delete_task(task_id).await?;
    output::line(&format!("{} is deleted", safe(task_id)))
}

pub(super) async fn comment(client: &Client, args: &CommentArgs) -> Result<(), Failure> {
    let comment = client.comment(&args.task_id, &args.text.join(" ")).await?;
    if args.shape.json {
        return output::json(&comment);
    }
    output::line(&format!("said about {}", safe(&comment.task_id)))
}

pub(super) async fn cancel(client: &Client, args: Explained) -> Result<(), Failure> {
    told(args.shape, &client.cancel_task(&args.task_id, &Reason { reason: args.reason }).await?)
}

pub(super) async fn revoke(client: &Client, args: NeedsReason) -> Result<(), Failure> {
    told(args.shape, &client.revoke_task(&args.task_id, &Reason { reason: Some(args.reason) }).await?)
}

pub(super) async fn force(client: &Client, args: NeedsReason) -> Result<(), Failure> {
    told(args.shape, &client.force_task(&args.task_id, &Reason { reason: Some(args.reason) }).await?)
}

pub(super) async fn stop(client: &Client, args: NeedsReason) -> Result<(), Failure> {
    told(args.shape, &client.stop_task(&args.task_id, &Reason { reason: Some(args.reason) }).await?)
}

pub(super) async fn roll_back(client: &Client, args: NeedsReason) -> Result<(), Failure> {
    told(args.shape, &client.roll_back_task(&args.task_id, &Reason { reason: Some(args.reason) }).await?)
}

pub(super) async fn overrule(client: &Client, args: OverrideArgs) -> Result<(), Failure> {
    let request = OverrideRequest { reason: Some(args.reason), incident_ticket: Some(args.ticket) };
    told(args.shape, &client.override_task(&args.task_id, &request).await?)
}

/// How a task stands, in one line.
pub(super) fn told(shape: Shape, task: &Task) -> Result<(), Failure> {
    if shape.json { output::json(task) } else { output::line(&standing(task)) }
}

fn standing(task: &Task) -> String {
    let next = match task.state {
        State::Draft => "; ade task submit wants it decided".to_owned(),
        State::Reviewing if task.override_asked.is_some() => {
            "; a second administrator has an hour: ade task confirm".to_owned()
        }
        State::Reviewing => waiting(task),
        State::Approved => {
            task.auto_approved.as_deref().map(|why| format!(": {}", safe(why))).unwrap_or_default()
        }
        _ => String::new(),
    };
    let from = task.predecessor.as_deref().filter(|_| task.state == State::Draft);
    let from = from.map(|before| format!(", made of {}", safe(before))).unwrap_or_default();
    format!("{} is {}{from}{next}", safe(&task.task_id).bold(), state(task.state))
}

fn waiting(task: &Task) -> String {
    let needed: u32 = task.requirements.iter().map(|requirement| requirement.needed).max().unwrap_or(0);
    match needed {
        0 => "; ade task show tells whom it waits for".to_owned(),
        1 => "; at least one more must agree".to_owned(),
        more => format!("; at least {more} more must agree"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::page::fixture;
    use super::*;

    #[test]
    fn a_line_says_how_it_stands_and_what_comes_next() {
        let mut task = fixture::task();
        let plain = |task: &Task| anstream::adapter::strip_str(&standing(task)).to_string();
        assert_eq!(plain(&task), "t-1 is REVIEWING; at least one more must agree");
        task.state = State::Draft;
        assert_eq!(plain(&task), "t-1 is DRAFT, made of t-0; ade task submit wants it decided");
        task.state = State::Approved;
        assert_eq!(plain(&task), "t-1 is APPROVED");
    }

    #[test]
    fn errors_of_a_preview_are_told_as_far_as_anybody_reads() {
        let mut task = fixture::task();
        assert_eq!(warnings(&task), Vec::<String>::new());
        task.preview.errors = (0..12).map(|number| format!("no {number}")).collect();
        let told = warnings(&task);
        assert!(told[0].contains("never approved without somebody who looks at it"), "{told:?}");
        assert_eq!((told[1].as_str(), told[10].as_str()), ("no 0", "no 9"));
        assert_eq!(told[11..], ["and 2 more: ade task show t-1"]);
    }
}
