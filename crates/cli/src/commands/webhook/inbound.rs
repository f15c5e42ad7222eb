//! `ade webhook inbound`: hooks through which signed messages propose tasks.

use std::path::PathBuf;

use ade_client::Client;
use ade_client::wire::{Hook, HookInput, HookRequest};
use clap::{Args as ClapArgs, Subcommand};
use owo_colors::OwoColorize;

use super::{on_or_off, print_secret};
use crate::failure::Result;
use crate::input;
use crate::output::list::ListArgs;
use crate::output::page::Page;
use crate::output::{self, OutputFormat, Table, safe, safe_or_empty, time, yes_or_no};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List inbound hooks
    Ls(ListArgs),
    /// Show an inbound hook
    Show(HookArgs),
    /// Register an inbound hook; its secret is shown only once
    Create {
        /// Name, owner_id, template and submit, as YAML or JSON; - reads standard input
        #[arg(short, long, value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        format: OutputFormat,
    },
    /// Change an inbound hook
    Update {
        #[command(flatten)]
        args: HookArgs,
        /// The fields to change, as YAML or JSON; - reads standard input
        #[arg(short, long, value_name = "FILE")]
        file: PathBuf,
    },
    /// Delete an inbound hook
    Delete {
        /// Id of the hook
        hook: String,
    },
    /// Replace the secret of an inbound hook; for 24 hours both are accepted
    Rotate(HookArgs),
}

#[derive(Debug, ClapArgs)]
pub(crate) struct HookArgs {
    /// Id of the hook
    hook: String,
    #[command(flatten)]
    format: OutputFormat,
}

pub(super) async fn run(client: &Client, command: Command) -> Result {
    match command {
        Command::Ls(args) => args.show(&[], async |query| client.hooks(query).await, table).await,
        Command::Show(args) => args.format.print(&client.hook(&args.hook).await?, page),
        Command::Create { file, format } => {
            let created = client.create_hook(&input::read::<HookRequest>(&file)?).await?;
            print_secret(&created, created.secret.as_deref(), &created.hook_id, format)?;
            if !format.json {
                let (url, id) = (safe(client.url()), safe(&created.hook_id));
                output::note(&format!(
                    "send messages to {url}/api/v1/hooks/{id}; {id} is the id of the hook"
                ));
            }
            Ok(())
        }
        Command::Update { args: HookArgs { hook, format }, file } => {
            format.print(&client.update_hook(&hook, None, &input::read(&file)?).await?, page)
        }
        Command::Delete { hook } => {
            client.delete_hook(&hook).await?;
            output::line(format_args!("hook {} is deleted", safe(&hook)))
        }
        Command::Rotate(args) => {
            let rotated = client.rotate_hook(&args.hook).await?;
            print_secret(&rotated, rotated.secret.as_deref(), &rotated.hook_id, args.format)
        }
    }
}

fn table(hooks: &[Hook]) -> Table<'_, Hook> {
    output::list(hooks, "no inbound hooks found: register one with ade webhook inbound create")
        .column("HOOK", |hook| safe(&hook.hook_id))
        .column("NAME", |hook| safe(&hook.name))
        .column("OWNER", |hook| safe(&hook.owner_id))
        .column("ACTIVE", |hook| on_or_off(hook.active))
        .column("TASK TYPE", |hook| safe(&hook.template.task_type))
        .column("SUBMITS", |hook| yes_or_no(hook.submit))
}

fn page(hook: &Hook) -> Page {
    let (mut page, template) = (Page::default(), &hook.template);
    page.line(safe(&hook.name).bold());
    page.field("hook", format!("{}, revision {}", safe(&hook.hook_id), hook.revision));
    page.field("receives", format!("POST /api/v1/hooks/{}", safe(&hook.hook_id)));
    page.field("active", yes_or_no(hook.active));
    page.field("owner", safe(&hook.owner_id));
    page.field("secret made by", safe_or_empty(&hook.created_by));
    page.field("created", time::timestamp(hook.created_at));
    page.optional("old secret until", hook.previous_secret_until.map(time::timestamp));
    page.field("task type", safe(&template.task_type));
    page.field("description", safe(&template.description));
    page.optional("executor", template.executor.as_deref().map(safe));
    page.field("submits", yes_or_no(hook.submit));
    if !template.inputs.is_empty() {
        page.heading("Inputs");
        for (name, input) in &template.inputs {
            page.field(&safe(name), describe(input));
        }
    }
    page
}

fn describe(input: &HookInput) -> String {
    let (rule, default) = match input {
        HookInput::String { max_length, default } => {
            let length = max_length.map_or_else(String::new, |max| format!(" of at most {max} characters"));
            (format!("text{length}"), default.clone())
        }
        HookInput::Integer { minimum, maximum, default } => {
            (format!("integer from {minimum} to {maximum}"), default.map(|number| number.to_string()))
        }
        HookInput::Boolean { default } => ("true or false".to_owned(), default.map(|flag| flag.to_string())),
        HookInput::Enum { values, default } => (format!("one of {}", values.join(", ")), default.clone()),
    };
    safe(&match default {
        Some(default) => format!("{rule}; {default} by default"),
        None => format!("{rule}; required"),
    })
}
