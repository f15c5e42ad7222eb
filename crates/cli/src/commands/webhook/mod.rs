//! `ade webhook`: where events are sent, what became of them, and hooks through which others propose tasks.

mod inbound;

use std::path::PathBuf;

use ade_client::Client;
use ade_client::wire::{CircuitState, Delivery, DeliveryStatus, Webhook, WebhookFormat, WebhookRequest};
use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use owo_colors::OwoColorize;

use crate::failure::Result;
use crate::input;
use crate::output::list::{ListArgs, present};
use crate::output::page::Page;
use crate::output::{self, OutputFormat, Table, Tone, safe, safe_or_empty, time, yes_or_no};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List webhooks
    Ls(ListArgs),
    /// Show a webhook
    Show(WebhookArgs),
    /// Create a webhook; its secret is shown only once
    Create(CreateArgs),
    /// Change a webhook
    Update(UpdateArgs),
    /// Delete a webhook
    Delete {
        /// Id of the webhook
        webhook: String,
    },
    /// Replace the secret of a webhook; for 24 hours both secrets sign
    Rotate(WebhookArgs),
    /// List what was sent to a webhook, the newest first
    Deliveries {
        /// Id of the webhook
        webhook: String,
        /// Only deliveries with this status
        #[arg(long, value_name = "STATUS", value_parser = ["pending", "delivered", "failed"])]
        status: Option<String>,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Send a delivery again, with the same id
    Redeliver {
        /// Id of the webhook
        webhook: String,
        /// Id of the delivery
        delivery: String,
        #[command(flatten)]
        format: OutputFormat,
    },
    /// Send a test message
    Test(WebhookArgs),
    /// Manage hooks through which signed messages propose tasks
    #[command(subcommand)]
    Inbound(inbound::Command),
}

#[derive(Debug, ClapArgs)]
pub(crate) struct WebhookArgs {
    /// Id of the webhook
    webhook: String,
    #[command(flatten)]
    format: OutputFormat,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    /// JSON with the signature of the Standard Webhooks specification
    Standard,
    /// A message for Slack: the URL of an incoming webhook, or a bot token and a channel
    Slack,
    /// An event for PagerDuty; needs the routing key
    Pagerduty,
    /// A record for ServiceNow: the URL of a table; needs the header Authorization
    Servicenow,
    /// Messages to the people whom an event concerns
    Email,
}

impl From<Format> for WebhookFormat {
    fn from(format: Format) -> Self {
        match format {
            Format::Standard => Self::Standard,
            Format::Slack => Self::Slack,
            Format::Pagerduty => Self::Pagerduty,
            Format::Servicenow => Self::Servicenow,
            Format::Email => Self::Email,
        }
    }
}

#[derive(Debug, ClapArgs)]
pub(crate) struct CreateArgs {
    /// Display name
    name: String,
    /// Where to send: HTTPS and a public address, unless the operator allows the host
    #[arg(long)]
    url: Option<String>,
    /// What the receiver understands
    #[arg(long = "as", value_name = "FORMAT", value_enum, default_value = "standard")]
    kind: Format,
    /// Patterns of events, such as approval:*
    #[arg(long = "event", value_name = "PATTERN", value_delimiter = ',', required = true)]
    events: Vec<String>,
    /// Patterns of task types; without any, all events that match are sent
    #[arg(long = "type", value_name = "PATTERN", value_delimiter = ',')]
    task_types: Vec<String>,
    #[command(flatten)]
    receiver: ReceiverArgs,
    #[command(flatten)]
    format: OutputFormat,
}

/// What receivers of other formats than standard ask for.
#[derive(Debug, ClapArgs)]
struct ReceiverArgs {
    /// File with what the receiver asks for: a routing key, a header Authorization, a bot token; - reads standard input
    #[arg(long, value_name = "FILE")]
    credential_file: Option<PathBuf>,
    /// Channel of Slack that a bot token posts to
    #[arg(long)]
    channel: Option<String>,
    /// Address that gets every event by e-mail, besides the people whom it concerns
    #[arg(long = "address", value_name = "ADDRESS", value_delimiter = ',')]
    addresses: Option<Vec<String>>,
    /// Send one e-mail for each recipient and so many minutes; 0: one for each event
    #[arg(long, value_name = "MINUTES")]
    digest_minutes: Option<u32>,
    /// File with the signing secret of a Slack app: lets linked users decide in Slack about tasks of level LOW
    #[arg(long, value_name = "FILE")]
    signing_secret_file: Option<PathBuf>,
}

impl ReceiverArgs {
    /// The credential is read from a file, so that it does not stay in the history of a shell.
    fn credential(&self) -> Result<Option<String>> {
        self.credential_file.as_deref().map(input::read_secret).transpose()
    }

    fn signing_secret(&self) -> Result<Option<String>> {
        self.signing_secret_file.as_deref().map(input::read_secret).transpose()
    }
}

#[derive(Debug, ClapArgs)]
pub(crate) struct UpdateArgs {
    /// Id of the webhook
    webhook: String,
    /// Display name
    #[arg(long)]
    name: Option<String>,
    /// Where to send
    #[arg(long)]
    url: Option<String>,
    /// All patterns of events
    #[arg(long = "event", value_name = "PATTERN", value_delimiter = ',')]
    events: Option<Vec<String>>,
    /// All patterns of task types
    #[arg(long = "type", value_name = "PATTERN", value_delimiter = ',')]
    task_types: Option<Vec<String>>,
    /// Send everything from now on
    #[arg(long)]
    activate: bool,
    /// Send nothing until it is activated again
    #[arg(long, conflicts_with = "activate")]
    deactivate: bool,
    /// Remove the signing secret of the Slack app: nobody decides in Slack any more
    #[arg(long, conflicts_with = "signing_secret_file")]
    no_decisions: bool,
    #[command(flatten)]
    receiver: ReceiverArgs,
    #[command(flatten)]
    format: OutputFormat,
}

pub(crate) async fn run(client: &Client, command: Command) -> Result {
    match command {
        Command::Ls(args) => args.show(&[], async |query| client.webhooks(query).await, table).await,
        Command::Show(args) => args.format.print(&client.webhook(&args.webhook).await?, page),
        Command::Create(args) => {
            let request = WebhookRequest {
                credential: args.receiver.credential()?,
                signing_secret: args.receiver.signing_secret()?,
                channel: args.receiver.channel,
                addresses: args.receiver.addresses,
                digest_minutes: args.receiver.digest_minutes,
                name: Some(args.name),
                url: args.url,
                format: Some(args.kind.into()),
                events: Some(args.events),
                task_types: Some(args.task_types),
                active: None,
            };
            let created = client.create_webhook(&request).await?;
            print_secret(&created, created.secret.as_deref(), &created.webhook_id, args.format)
        }
        Command::Update(args) => {
            let active = args.activate.then_some(true).or(args.deactivate.then_some(false));
            let credential = args.receiver.credential()?;
            let signing_secret = match args.no_decisions {
                true => Some(String::new()),
                false => args.receiver.signing_secret()?,
            };
            let UpdateArgs { webhook, name, url, events, task_types, format, receiver, .. } = args;
            let ReceiverArgs { channel, addresses, digest_minutes, .. } = receiver;
            let request = WebhookRequest {
                name,
                url,
                format: None,
                events,
                task_types,
                active,
                credential,
                channel,
                addresses,
                digest_minutes,
                signing_secret,
            };
            format.print(&client.update_webhook(&webhook, None, &request).await?, page)
        }
        Command::Delete { webhook } => {
            client.delete_webhook(&webhook).await?;
            output::line(format_args!("webhook {} is deleted", safe(&webhook)))
        }
        Command::Rotate(args) => {
            let rotated = client.rotate_webhook(&args.webhook).await?;
            print_secret(&rotated, rotated.secret.as_deref(), &rotated.webhook_id, args.format)
        }
        Command::Deliveries { webhook, status, list } => {
            let filters = present(&[("status", &status)]);
            let fetch = async |query: &[(&str, &str)]| client.deliveries(&webhook, query).await;
            list.show(&filters, fetch, delivery_table).await
        }
        Command::Redeliver { webhook, delivery, format } => {
            format.print_row(&client.redeliver(&webhook, &delivery).await?, delivery_table)
        }
        Command::Test(args) => {
            args.format.print_row(&client.test_webhook(&args.webhook).await?, delivery_table)
        }
        Command::Inbound(command) => inbound::run(client, command).await,
    }
}

/// Prints a secret that was just made. Only the secret goes to standard output, so that it can be piped.
fn print_secret<T: serde::Serialize>(
    object: &T,
    secret: Option<&str>,
    id: &str,
    format: OutputFormat,
) -> Result {
    if format.json {
        return output::json(object);
    }
    match secret {
        Some(secret) => {
            output::line(safe(secret))?;
            output::note(&format!("{id}: this is its secret, which is shown only once"));
        }
        None => output::line(safe(id))?,
    }
    Ok(())
}

fn state(webhook: &Webhook) -> (Tone, &'static str) {
    match (webhook.active, webhook.circuit) {
        (false, _) if webhook.disabled_reason.is_some() => (Tone::Bad, "disabled"),
        (false, _) => (Tone::Dim, "inactive"),
        (true, CircuitState::Closed) => (Tone::Good, "active"),
        (true, CircuitState::Open) => (Tone::Bad, "failing, pausing"),
        (true, CircuitState::HalfOpen) => (Tone::Pending, "failing, trying again"),
    }
}

fn table(webhooks: &[Webhook]) -> Table<'_, Webhook> {
    output::list(webhooks, "no webhooks found: create one with ade webhook create")
        .column("WEBHOOK", |webhook| safe(&webhook.webhook_id))
        .column("NAME", |webhook| safe(&webhook.name))
        .column("STATE", |webhook| {
            let (tone, text) = state(webhook);
            tone.cell(text)
        })
        .column("EVENTS", |webhook| safe(&webhook.events.join(", ")))
        .column("URL", |webhook| safe(&webhook.url))
}

fn page(webhook: &Webhook) -> Page {
    let mut page = Page::default();
    page.line(safe(&webhook.name).bold());
    page.field("webhook", format!("{}, revision {}", safe(&webhook.webhook_id), webhook.revision));
    let (tone, text) = state(webhook);
    page.field("state", tone.paint(text));
    page.optional("reason", webhook.disabled_reason.as_deref().map(safe));
    page.field("url", safe(&webhook.url));
    page.optional("channel", webhook.channel.as_deref().map(safe));
    if !webhook.addresses.is_empty() {
        page.field("addresses", safe(&webhook.addresses.join(", ")));
    }
    page.optional("digest", webhook.digest_minutes.map(|minutes| format!("every {minutes} minutes")));
    page.optional("decisions", webhook.decisions.then_some("by linked users, about tasks of level LOW"));
    page.field("events", safe(&webhook.events.join(", ")));
    if !webhook.task_types.is_empty() {
        page.field("task types", safe(&webhook.task_types.join(", ")));
    }
    page.field("created by", safe_or_empty(&webhook.owner_id));
    page.field("created", time::timestamp(webhook.created_at));
    page.optional("old secret until", webhook.previous_secret_until.map(time::timestamp));
    page
}

fn delivery_table(deliveries: &[Delivery]) -> Table<'_, Delivery> {
    let now = time::now();
    output::list(deliveries, "no deliveries found")
        .column("DELIVERY", |delivery| safe(&delivery.delivery_id))
        .column("EVENT", |delivery| safe(&delivery.event))
        .column("TO", |delivery| safe_or_empty(&delivery.recipient))
        .column("STATUS", |delivery| match delivery.status {
            DeliveryStatus::Pending => Tone::Pending.cell("pending"),
            DeliveryStatus::Delivered => Tone::Good.cell("delivered"),
            DeliveryStatus::Failed => Tone::Bad.cell("failed"),
        })
        .column("ATTEMPTS", |delivery| delivery.attempts)
        .column("ANSWER", |delivery| {
            delivery.response_status.map(|status| status.to_string()).unwrap_or_default()
        })
        .column("NEXT IN", |delivery| {
            delivery.next_attempt_at.map(|at| time::until(at, now)).unwrap_or_default()
        })
        .column("ERROR", |delivery| safe_or_empty(&delivery.error))
}

/// Whether something is on, for the tables of this command.
fn on_or_off(active: bool) -> comfy_table::Cell {
    if active { Tone::Good.cell(yes_or_no(true)) } else { Tone::Dim.cell(yes_or_no(false)) }
}
