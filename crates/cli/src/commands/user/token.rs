//! `ade user token`: create, list and revoke the tokens of a user.

use std::time::Duration;

use ade_client::Client;
use ade_client::wire::{Scope, Token, TokenRequest};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args as ClapArgs, Subcommand};
use comfy_table::{Cell, Table};

use crate::commands::login::scope_names;
use crate::failure::{Failure, FailureKind};
use crate::output::list::ListArgs;
use crate::output::{self, OutputFormat, Tone, safe, safe_or_empty, time};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a token; it is shown only once
    Add(AddArgs),
    /// List the tokens of a user
    Ls(LsArgs),
    /// Revoke a token
    Rm(RmArgs),
}

#[derive(Debug, ClapArgs)]
pub(crate) struct AddArgs {
    /// User that the token authenticates
    #[arg(value_name = "USER")]
    user_id: String,
    /// Name of the token
    name: String,
    /// Scopes of the token [default: read, propose, lock]
    #[arg(long = "scope", value_name = "SCOPE", value_delimiter = ',', value_parser = scope_parser())]
    scopes: Vec<Scope>,
    /// Lifetime, such as 8h or 7d [default: 30 days; with the scope decide 8 hours, which is also the maximum]
    #[arg(long, value_name = "DURATION", value_parser = time::parse_duration)]
    ttl: Option<Duration>,
    #[command(flatten)]
    format: OutputFormat,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct LsArgs {
    /// Id of the user
    #[arg(value_name = "USER")]
    user_id: String,
    #[command(flatten)]
    list: ListArgs,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct RmArgs {
    /// Id of the user
    #[arg(value_name = "USER")]
    user_id: String,
    /// Id of the token
    #[arg(value_name = "TOKEN")]
    token_id: String,
}

/// A parser that lists the scopes in the help.
fn scope_parser() -> impl TypedValueParser<Value = Scope> {
    let scope = |word: String| serde_json::from_value::<Scope>(word.into());
    PossibleValuesParser::new(["read", "propose", "lock", "decide", "admin"]).try_map(scope)
}

pub(super) async fn run(client: &Client, command: Command) -> Result<(), Failure> {
    match command {
        Command::Add(args) => add(client, args).await,
        Command::Ls(args) => {
            let fetch = async |query: &[(&str, &str)]| client.tokens(&args.user_id, query).await;
            args.list.show(&[], fetch, "no tokens found", table).await
        }
        Command::Rm(args) => {
            client.revoke_token(&args.user_id, &args.token_id).await?;
            output::line(&format!("token {} is revoked", safe(&args.token_id)))
        }
    }
}

async fn add(client: &Client, args: AddArgs) -> Result<(), Failure> {
    let request = TokenRequest {
        name: args.name,
        scopes: (!args.scopes.is_empty()).then(|| args.scopes.into_iter().collect()),
        ttl_seconds: args.ttl.map(|ttl| ttl.as_secs()),
    };
    let token = client.create_token(&args.user_id, &request).await?;
    if args.format.json {
        return output::json(&token);
    }
    let Some(secret) = &token.token else {
        return Err(Failure::new(
            FailureKind::Unavailable,
            "the server created a token but did not return it",
        ));
    };
    // Only the token goes to standard output, so that it can be piped.
    output::line(&safe(secret))?;
    let lifetime = time::until(token.expires_at, time::now());
    let scopes = scope_names(&token.scopes);
    output::note(&format!(
        "token {} with the scopes {scopes} expires in {lifetime}; it is shown only once",
        token.token_id
    ));
    Ok(())
}

fn table(tokens: &[Token]) -> Table {
    let now = time::now();
    let mut table = output::table(&["TOKEN", "NAME", "SCOPES", "EXPIRES IN", "CREATED BY", "CREATED"]);
    for token in tokens {
        let expires = match token.revoked_at {
            Some(_) => Tone::Bad.cell("revoked"),
            None if token.expires_at.0 <= now => Tone::Dim.cell("expired"),
            None => Cell::new(time::until(token.expires_at, now)),
        };
        table.add_row([
            Cell::new(safe(&token.token_id)),
            Cell::new(safe(&token.name)),
            Cell::new(scope_names(&token.scopes)),
            expires,
            Cell::new(safe_or_empty(&token.created_by)),
            Cell::new(time::timestamp(token.created_at)),
        ]);
    }
    table
}
