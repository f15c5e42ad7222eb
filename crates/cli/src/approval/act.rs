//! Answering requests. One answer names the digest of what was looked at; several go as one batch, all or none.

use ade_client::Client;
use ade_client::wire::{Approval, BatchOptions, BatchRequest, ResponseRequest};
use ade_domain::approval::DecisionKind;
use clap::Args as ClapArgs;
use owo_colors::OwoColorize;

use super::status;
use crate::failure::{Failure, Kind};
use crate::lists::Shape;
use crate::output::{self, safe, safe_lines};

#[derive(Debug, ClapArgs)]
pub(super) struct ApproveArgs {
    /// The requests
    #[arg(required = true, value_name = "APPROVAL")]
    approval_ids: Vec<String>,
    /// Why; it is kept in the audit log
    #[arg(long)]
    reason: Option<String>,
    /// What you looked at: refused if the task is not that any more [default: the task as it is now]
    #[arg(long)]
    digest: Option<String>,
    /// Put what is approved at the head of the apply queue
    #[arg(long)]
    apply_immediately: bool,
    /// Past warnings about freshness (admin)
    #[arg(long)]
    skip_validation: bool,
    #[command(flatten)]
    shape: Shape,
}

#[derive(Debug, ClapArgs)]
pub(super) struct RejectArgs {
    /// The requests
    #[arg(required = true, value_name = "APPROVAL")]
    approval_ids: Vec<String>,
    /// Why; the author reads it
    #[arg(long)]
    reason: String,
    #[command(flatten)]
    shape: Shape,
}

#[derive(Debug, ClapArgs)]
pub(super) struct ChangesArgs {
    /// The request
    #[arg(value_name = "APPROVAL")]
    approval_id: String,
    /// What must change; the author reads it
    #[arg(long)]
    reason: String,
    #[command(flatten)]
    shape: Shape,
}

#[derive(Debug, ClapArgs)]
pub(super) struct DelegateArgs {
    /// The request
    #[arg(value_name = "APPROVAL")]
    approval_id: String,
    /// Who is asked instead
    #[arg(long, value_name = "USER")]
    to: String,
    #[command(flatten)]
    shape: Shape,
}

pub(super) async fn approve(client: &Client, args: ApproveArgs) -> Result<(), Failure> {
    let options =
        BatchOptions { skip_validation: args.skip_validation, apply_immediately: args.apply_immediately };
    // Options are known to the batch alone, and a digest to a single answer alone.
    let batch = args.approval_ids.len() > 1 || options != BatchOptions::default();
    let single = match args.approval_ids.as_slice() {
        [one] if !batch => one,
        _ if args.digest.is_some() => {
            let told = "--digest is about one request, without --apply-immediately or --skip-validation";
            return Err(Failure::new(Kind::Input, told).hint("approve them one by one"));
        }
        _ => {
            return all(client, args.approval_ids, DecisionKind::Approve, args.reason, options, args.shape)
                .await;
        }
    };
    let digest = match args.digest {
        Some(digest) => digest,
        None => {
            let request = client.approval(single).await?;
            let task = client.task(&request.task_id).await?;
            let what = safe_lines(&task.config.description).next().unwrap_or_default();
            output::note(&format!("approving {}: {what} (digest {})", task.task_id, task.digest));
            task.digest
        }
    };
    let answer = ResponseRequest { reason: args.reason, digest: Some(digest) };
    told(args.shape, &client.approve(single, &answer).await?)
}

pub(super) async fn reject(client: &Client, args: RejectArgs) -> Result<(), Failure> {
    let reason = Some(args.reason);
    match args.approval_ids.as_slice() {
        [one] => told(args.shape, &client.reject(one, &ResponseRequest { reason, digest: None }).await?),
        _ => {
            let options = BatchOptions::default();
            all(client, args.approval_ids, DecisionKind::Reject, reason, options, args.shape).await
        }
    }
}

pub(super) async fn request_changes(client: &Client, args: ChangesArgs) -> Result<(), Failure> {
    let answer = ResponseRequest { reason: Some(args.reason), digest: None };
    told(args.shape, &client.request_changes(&args.approval_id, &answer).await?)
}

pub(super) async fn delegate(client: &Client, args: &DelegateArgs) -> Result<(), Failure> {
    let request = client.delegate(&args.approval_id, &args.to).await?;
    if args.shape.json {
        return output::json(&request);
    }
    output::line(&format!("{} is asked now instead of {}", safe(&args.to), safe(&request.reviewer_id)))
}

async fn all(
    client: &Client,
    approval_ids: Vec<String>,
    action: DecisionKind,
    reason: Option<String>,
    options: BatchOptions,
    shape: Shape,
) -> Result<(), Failure> {
    let answer = client.answer_all(&BatchRequest { approval_ids, action, reason, options }).await?;
    if shape.json {
        return output::json(&answer.items);
    }
    answer.items.iter().try_for_each(|request| told(shape, request))
}

/// How a request stands, in one line.
fn told(shape: Shape, request: &Approval) -> Result<(), Failure> {
    if shape.json {
        return output::json(request);
    }
    let (word, tone) = status(request.status);
    let task = request.task_state.map(|state| format!(" is {}", crate::task::parts::state(state)));
    output::line(&format!(
        "{} is {}; its task {}{}",
        safe(&request.approval_id).bold(),
        tone.paint(word),
        safe(&request.task_id),
        task.unwrap_or_else(|| " is told by ade task show".to_owned())
    ))
}
