//! `ade approval`: your queue, and your answers.
//!
//! What was looked at is what is approved: an approval names the digest of the task as it was fetched.

mod act;
mod see;

use ade_domain::approval::RequestStatus;
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
pub(crate) const fn status(status: RequestStatus) -> (&'static str, Tone) {
    match status {
        RequestStatus::Pending => ("PENDING", Tone::Open),
        RequestStatus::Approved => ("APPROVED", Tone::Good),
        RequestStatus::Rejected => ("REJECTED", Tone::Bad),
        RequestStatus::Delegated => ("DELEGATED", Tone::Busy),
        RequestStatus::ChangesRequested => ("CHANGES_REQUESTED", Tone::Odd),
        RequestStatus::Invalidated => ("INVALIDATED", Tone::Dim),
        RequestStatus::Closed => ("CLOSED", Tone::Dim),
    }
}
