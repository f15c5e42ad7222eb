//! `ade user token`: what acts as somebody, how long, and for what.

use std::time::Duration;

use ade_client::Client;
use ade_client::wire::{Token, TokenRequest};
use ade_domain::permission::Scope;
use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use comfy_table::{Cell, Table};
use jiff::Timestamp;

use crate::failure::{Failure, Kind};
use crate::lists::{ListArgs, Shape};
use crate::login::words;
use crate::output::{self, Tone, safe};
use crate::times;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Make a token; it is told this once
    Add(AddArgs),
    /// Somebody's tokens
    Ls(ListedArgs),
    /// Take a token back
    Rm(RemoveArgs),
}

#[derive(Debug, ClapArgs)]
pub(super) struct AddArgs {
    /// As whom it acts
    #[arg(value_name = "USER")]
    user_id: String,
    /// A name to know it by
    name: String,
    /// What it is good for [default: read, propose, lock]
    #[arg(long = "scope", value_name = "SCOPE", value_enum, value_delimiter = ',')]
    scopes: Vec<ScopeWord>,
    /// How long, such as 8h or 7d [default: 30 days, with decide 8 hours, which is also the most]
    #[arg(long, value_name = "LENGTH", value_parser = times::length)]
    ttl: Option<Duration>,
    #[command(flatten)]
    shape: Shape,
}

#[derive(Debug, ClapArgs)]
pub(super) struct ListedArgs {
    /// Whose
    #[arg(value_name = "USER")]
    user_id: String,
    #[command(flatten)]
    list: ListArgs,
}

#[derive(Debug, ClapArgs)]
pub(super) struct RemoveArgs {
    /// Whose
    #[arg(value_name = "USER")]
    user_id: String,
    /// Which
    #[arg(value_name = "TOKEN")]
    token_id: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ScopeWord {
    Read,
    Propose,
    Lock,
    Decide,
    Admin,
}

impl From<ScopeWord> for Scope {
    fn from(word: ScopeWord) -> Self {
        match word {
            ScopeWord::Read => Self::Read,
            ScopeWord::Propose => Self::Propose,
            ScopeWord::Lock => Self::Lock,
            ScopeWord::Decide => Self::Decide,
            ScopeWord::Admin => Self::Admin,
        }
    }
}

pub(super) async fn run(client: &Client, command: Command) -> Result<(), Failure> {
    match command {
        Command::Add(args) => add(client, args).await,
        Command::Ls(args) => {
            let ask = async |query: &[(&str, &str)]| client.tokens(&args.user_id, query).await;
            let listed = args.list.fetch(&[], ask).await?;
            args.list.print(&listed, "there is no token", |tokens| table(tokens, times::now()))
        }
        Command::Rm(args) => {
            client.revoke_token(&args.user_id, &args.token_id).await?;
            output::line(&format!("{} is of no use any more", safe(&args.token_id)))
        }
    }
}

async fn add(client: &Client, args: AddArgs) -> Result<(), Failure> {
    let request = TokenRequest {
        name: args.name,
        scopes: (!args.scopes.is_empty()).then(|| args.scopes.into_iter().map(Scope::from).collect()),
        ttl_seconds: args.ttl.map(|ttl| ttl.as_secs()),
    };
    let token = client.make_token(&args.user_id, &request).await?;
    if args.shape.json {
        return output::json(&token);
    }
    let Some(secret) = &token.token else {
        return Err(Failure::new(Kind::Unavailable, "the server made a token but did not tell it"));
    };
    // Alone on standard output, so that it can be piped on.
    output::line(&safe(secret))?;
    let until = times::until(token.expires_at, times::now());
    output::note(&format!(
        "{} is good to {} for {until}; it is told this once",
        token.token_id,
        words(&token.scopes)
    ));
    Ok(())
}

fn table(tokens: &[Token], now: Timestamp) -> Table {
    let mut table = output::table(&["TOKEN", "NAME", "GOOD TO", "FOR", "MADE BY", "MADE"]);
    for token in tokens {
        let left = match token.revoked_at {
            Some(_) => Tone::Bad.cell("taken back"),
            None if token.expires_at.0 <= now => Tone::Dim.cell("expired"),
            None => Cell::new(times::until(token.expires_at, now)),
        };
        table.add_row([
            Cell::new(safe(&token.token_id)),
            Cell::new(safe(&token.name)),
            Cell::new(words(&token.scopes)),
            left,
            Cell::new(token.made_by.as_deref().map(safe).unwrap_or_default()),
            Cell::new(times::short(token.created_at)),
        ]);
    }
    table
}
