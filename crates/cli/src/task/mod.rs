//! `ade task`: what is to be done, from its draft to its end.

mod act;
mod list;
mod missing;
pub(crate) mod page;
pub(crate) mod parts;
mod wait;

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};

use crate::connect::{Connection, block_on};
use crate::failure::Failure;
use crate::lists::{ListArgs, Shape};

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Tasks, the newest first
    Ls(list::Args),
    /// One task: what it would do, how dangerous it is, who must agree
    Show(Named),
    /// Make a draft
    Create(CreateArgs),
    /// Make a draft and want it decided; with --wait until it has ended
    Propose(ProposeArgs),
    /// Change a task; whoever agreed before is asked again
    Edit(EditArgs),
    /// Want a draft decided
    Submit(Named),
    /// Give a task up
    Cancel(Explained),
    /// Take an approval back before anything was done
    Revoke(NeedsReason),
    /// Make a new draft of a task that was rejected or failed
    Resubmit(Named),
    /// Delete a draft
    Rm(OnlyNamed),
    /// Say something about a task
    Comment(CommentArgs),
    /// What was said about a task
    Comments(ListedArgs),
    /// What was done about a task, by whom
    Audit(ListedArgs),
    /// Ask for a decision past the policies (admin); a second admin must confirm it
    Override(OverrideArgs),
    /// Confirm the override that another admin asked for (admin)
    Confirm(Named),
    /// Put an approved task before all others (admin)
    Force(NeedsReason),
    /// What is said while a task is carried out
    Logs(LogArgs),
    /// Stop a task that is carried out (admin)
    Stop(NeedsReason),
    /// Undo what a failed task left behind (admin)
    Rollback(NeedsReason),
}

#[derive(Debug, ClapArgs)]
struct Named {
    /// The task
    #[arg(value_name = "TASK")]
    task_id: String,
    #[command(flatten)]
    shape: Shape,
}

#[derive(Debug, ClapArgs)]
struct OnlyNamed {
    /// The task
    #[arg(value_name = "TASK")]
    task_id: String,
}

#[derive(Debug, ClapArgs)]
struct ListedArgs {
    /// The task
    #[arg(value_name = "TASK")]
    task_id: String,
    #[command(flatten)]
    list: ListArgs,
}

#[derive(Debug, ClapArgs)]
struct CreateArgs {
    /// The task as YAML or JSON; - is standard input
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Submit it at once
    #[arg(long)]
    submit: bool,
    #[command(flatten)]
    shape: Shape,
}

#[derive(Debug, ClapArgs)]
struct ProposeArgs {
    /// The task as YAML or JSON; - is standard input
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Until it has ended, also across restarts of the server: the exit code is 0 if it is done, 3 if it was rejected, 4 if it
    /// failed, 1 if it was given up
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    shape: Shape,
}

#[derive(Debug, ClapArgs)]
struct LogArgs {
    /// The task
    #[arg(value_name = "TASK")]
    task_id: String,
    /// Until it has ended, and nobody changes back what it left, also across restarts of the server
    #[arg(short, long)]
    follow: bool,
}

#[derive(Debug, ClapArgs)]
struct EditArgs {
    /// The task
    #[arg(value_name = "TASK")]
    task_id: String,
    /// The fields that change, as YAML or JSON; - is standard input
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Only if it still has this revision
    #[arg(long, value_name = "NUMBER")]
    revision: Option<u64>,
    #[command(flatten)]
    shape: Shape,
}

#[derive(Debug, ClapArgs)]
struct Explained {
    /// The task
    #[arg(value_name = "TASK")]
    task_id: String,
    /// Why; it is kept in the audit log
    #[arg(long)]
    reason: Option<String>,
    #[command(flatten)]
    shape: Shape,
}

#[derive(Debug, ClapArgs)]
struct NeedsReason {
    /// The task
    #[arg(value_name = "TASK")]
    task_id: String,
    /// Why; it is kept in the audit log
    #[arg(long)]
    reason: String,
    #[command(flatten)]
    shape: Shape,
}

#[derive(Debug, ClapArgs)]
struct CommentArgs {
    /// The task
    #[arg(value_name = "TASK")]
    task_id: String,
    /// What to say
    #[arg(required = true, value_name = "TEXT")]
    text: Vec<String>,
    #[command(flatten)]
    shape: Shape,
}

#[derive(Debug, ClapArgs)]
struct OverrideArgs {
    /// The task
    #[arg(value_name = "TASK")]
    task_id: String,
    /// Why; it is kept in the audit log
    #[arg(long)]
    reason: String,
    /// The incident for which it is needed
    #[arg(long)]
    ticket: String,
    #[command(flatten)]
    shape: Shape,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let client = args.connection.client()?;
    block_on(async {
        match args.command {
            Command::Ls(args) => list::tasks(&client, &args).await,
            Command::Show(args) => page::show(&client, &args.task_id, args.shape).await,
            Command::Comments(args) => list::comments(&client, &args).await,
            Command::Audit(args) => list::audit(&client, &args).await,
            Command::Create(args) => act::create(&client, &args).await,
            Command::Propose(args) => wait::propose(&client, &args).await,
            Command::Logs(args) => wait::logs(&client, &args).await,
            Command::Stop(args) => act::stop(&client, args).await,
            Command::Rollback(args) => act::roll_back(&client, args).await,
            Command::Edit(args) => act::edit(&client, &args).await,
            Command::Rm(args) => act::rm(&client, &args.task_id).await,
            Command::Comment(args) => act::comment(&client, &args).await,
            Command::Submit(args) => act::submit(&client, &args).await,
            Command::Cancel(args) => act::cancel(&client, args).await,
            Command::Revoke(args) => act::revoke(&client, args).await,
            Command::Force(args) => act::force(&client, args).await,
            Command::Resubmit(args) => act::told(args.shape, &client.resubmit_task(&args.task_id).await?),
            Command::Override(args) => act::overrule(&client, args).await,
            Command::Confirm(args) => act::told(args.shape, &client.confirm_override(&args.task_id).await?),
        }
    })
}
