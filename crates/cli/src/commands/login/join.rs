//! `ade join`: use an invitation, and set the own password.

use ade_client::{Client, Error};
use clap::Args as ClapArgs;
use owo_colors::OwoColorize;

use super::is_private;
use crate::connect::{Connection, block_on};
use crate::failure::{Failure, Result};
use crate::output::{self, OutputFormat, safe};
use crate::prompt;

#[derive(Debug, ClapArgs)]
pub(crate) struct JoinArgs {
    /// The code of your invitation
    code: String,
    /// Read your new password from the first line of standard input
    #[arg(long)]
    password_stdin: bool,
    #[command(flatten)]
    format: OutputFormat,
    #[command(flatten)]
    connection: Connection,
}

/// A code says nothing about its server, so a wrong one may only be at the wrong server.
fn wrong_server(error: Error, url: &str) -> Failure {
    match &error {
        Error::Problem(problem) if problem.code == "INVALID_INVITATION" => {
            Failure::negative(error.to_string())
                .hint(format!("this was {}; name another server with --server", safe(url)))
        }
        _ => error.into(),
    }
}

pub(crate) fn join(args: &JoinArgs) -> Result {
    let url = args.connection.url()?;
    if !is_private(&url) {
        output::note(&format!("{url} is not encrypted: others on the network can read your password"));
    }
    let user = block_on(async {
        let invited = args.code.split(':').next().unwrap_or_default();
        let password = prompt::new_password(args.password_stdin, &safe(invited)).await?;
        Client::join(&url, &args.code, &password).await.map_err(|error| wrong_server(error, &url))
    })?;
    args.format.print(&user, |user| {
        let id = safe(&user.user_id);
        format!("{} has joined; sign in with ade login {id}", id.bold())
    })
}
