//! Commands that decide: they ask for the password once, and act in a session that ends with the command. Nothing that decides is
//! stored on disk.

use ade_client::Client;
use ade_client::wire::Scope;
use clap::Args as ClapArgs;

use super::sign_in_failure;
use crate::failure::{Failure, Result};
use crate::output::{self, safe};
use crate::prompt;

#[derive(Debug, Clone, Copy, ClapArgs)]
pub(crate) struct PasswordSource {
    /// To decide, read your password from the first line of standard input instead of the terminal
    #[arg(long, global = true)]
    password_stdin: bool,
}

impl PasswordSource {
    /// The same for what the operator may do as well, with the bootstrap token.
    pub(crate) async fn decide_or_operate<T>(
        self,
        client: &Client,
        command: impl AsyncFnOnce(&Client) -> Result<T>,
    ) -> Result<T> {
        if client.session().await?.user.is_some() {
            return self.decide(client, command).await;
        }
        output::note("you act as the operator, with the bootstrap token of this server");
        command(client).await
    }

    /// Runs a command with a client that may decide: the present one if its token does, else a session for this command.
    pub(crate) async fn decide<T>(
        self,
        client: &Client,
        command: impl AsyncFnOnce(&Client) -> Result<T>,
    ) -> Result<T> {
        let caller = client.session().await?;
        if caller.scopes.contains(&Scope::Decide) {
            return command(client).await;
        }
        let user = match (caller.user, caller.agent_id) {
            (_, Some(agent)) => {
                let message = format!("{agent} is an agent, and agents do not decide");
                return Err(Failure::invalid(message).hint("sign in with ade login"));
            }
            (None, None) => {
                return Err(Failure::invalid("the admin token belongs to no user and does not decide")
                    .hint("sign in with ade login"));
            }
            (Some(user), None) => user.user_id,
        };
        let prompt = format!("Password of {}: ", safe(&user));
        let password = prompt::password_from(self.password_stdin, &prompt).await?;
        let session = Client::sign_in(client.url(), &user, &password).await.map_err(sign_in_failure)?;
        let outcome = command(session.client()).await;
        if let Err(error) = session.sign_out().await {
            output::note(&format!("cannot end the session, it expires by itself: {error}"));
        }
        outcome
    }
}
