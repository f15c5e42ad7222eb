//! `ade approval`: your queue, and your answers.
//!
//! What was looked at is what is approved: an approval names the digest of the task as it was fetched.

mod act;
mod see;

use ade_domain::approval::ApprovalStatus;
use clap::{Args as ClapArgs, Subcommand};

use crate::connect::{Connection, block_on};
use crate::failure::Failure;
use crate::output::Tone;

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// What waits for your answer, the most urgent first
    Ls(see::ListedArgs),
    /// One request, with its task as a page
    Show(see::ShowArgs),
    /// Say yes; several at once are all answered, or none
    Approve(act::ApproveArgs),
    /// Say no; several at once are all answered, or none
    Reject(act::RejectArgs),
    /// Say: not like this; the author must change something first
    RequestChanges(act::ChangesArgs),
    /// Hand a request on
    Delegate(act::DelegateArgs),
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let client = args.connection.client()?;
    block_on(async {
        match args.command {
            Command::Ls(args) => see::list(&client, &args).await,
            Command::Show(args) => see::show(&client, &args).await,
            Command::Approve(args) => act::approve(&client, args).await,
            Command::Reject(args) => act::reject(&client, args).await,
            Command::RequestChanges(args) => act::request_changes(&client, args).await,
            Command::Delegate(args) => act::delegate(&client, &args).await,
        }
    })
}

/// What became of a request, with its colour.
pub(crate) const fn status(status: ApprovalStatus) -> (&'static str, Tone) {
    match status {
        ApprovalStatus::Pending => ("PENDING", Tone::Open),
        ApprovalStatus::Approved => ("APPROVED", Tone::Good),
        ApprovalStatus::Rejected => ("REJECTED", Tone::Bad),
        ApprovalStatus::Delegated => ("DELEGATED", Tone::Busy),
        ApprovalStatus::ChangesRequested => ("CHANGES_REQUESTED", Tone::Odd),
        ApprovalStatus::Invalidated => ("INVALIDATED", Tone::Dim),
        ApprovalStatus::Closed => ("CLOSED", Tone::Dim),
    }
}
