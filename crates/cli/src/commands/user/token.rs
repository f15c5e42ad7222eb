//! `ade user token`: create, list and revoke the tokens of a user.

use std::time::Duration;

use ade_client::Client;
use ade_client::wire::{Scope, Token, TokenRequest};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args as ClapArgs, Subcommand};

use crate::commands::login::scope_names;
use crate::failure::{Failure, Result};
use crate::output::list::ListArgs;
use crate::output::{self, OutputFormat, Table, Tone, safe, safe_or_empty, time};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a token; it is shown only once
    Add(AddArgs),
    /// List the tokens of a user
    Ls {
        /// Id of the user
        user: String,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Revoke a token
    Rm {
        /// Id of the user
        user: String,
        /// Id of the token
        #[arg(value_name = "TOKEN")]
        token_id: String,
    },
}

#[derive(Debug, ClapArgs)]
pub(crate) struct AddArgs {
    /// User that the token authenticates
    user: String,
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

/// A parser that lists the scopes in the help.
fn scope_parser() -> impl TypedValueParser<Value = Scope> {
    let scope = |word: String| serde_json::from_value::<Scope>(word.into());
    PossibleValuesParser::new(["read", "propose", "lock", "decide", "admin"]).try_map(scope)
}

pub(super) async fn run(client: &Client, command: Command) -> Result {
    match command {
        Command::Add(args) => add(client, args).await,
        Command::Ls { user, list } => {
            list.show(&[], async |query| client.tokens(&user, query).await, table).await
        }
        Command::Rm { user, token_id } => {
            client.revoke_token(&user, &token_id).await?;
            output::line(format_args!("token {} is revoked", safe(&token_id)))
        }
    }
}

async fn add(client: &Client, args: AddArgs) -> Result {
    let request = TokenRequest {
        name: args.name,
        scopes: (!args.scopes.is_empty()).then(|| args.scopes.into_iter().collect()),
        ttl_seconds: args.ttl.map(|ttl| ttl.as_secs()),
    };
    let token = client.create_token(&args.user, &request).await?;
    print_created(&token, args.format)
}

/// Prints a token that was just created. Only its secret goes to standard output, so that it can be piped.
pub(crate) fn print_created(token: &Token, format: OutputFormat) -> Result {
    if format.json {
        return output::json(token);
    }
    output::line(safe(secret(token)?))?;
    let lifetime = time::until(token.expires_at, time::now());
    let (id, scopes) = (&token.token_id, scope_names(&token.scopes));
    output::note(&format!(
        "token {id} with the scopes {scopes} expires in {lifetime}; it is shown only once"
    ));
    Ok(())
}

/// The secret of a token that was just created.
pub(crate) fn secret(token: &Token) -> Result<&str> {
    let missing = || Failure::unavailable("the server created a token but did not return it");
    token.token.as_deref().ok_or_else(missing)
}

fn table(tokens: &[Token]) -> Table<'_, Token> {
    let now = time::now();
    output::list(tokens, "no tokens found")
        .column("TOKEN", |token| safe(&token.token_id))
        .column("NAME", |token| safe(&token.name))
        .column("SCOPES", |token| scope_names(&token.scopes))
        .column("EXPIRES IN", |token| match token.revoked_at {
            Some(_) => Tone::Bad.cell("revoked"),
            None if token.expires_at.0 <= now => Tone::Dim.cell("expired"),
            None => Tone::Plain.cell(time::until(token.expires_at, now)),
        })
        .column("CREATED BY", |token| safe_or_empty(&token.created_by))
        .column("CREATED", |token| time::timestamp(token.created_at))
}
