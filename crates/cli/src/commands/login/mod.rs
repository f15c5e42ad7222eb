//! `ade login`, `ade logout`, `ade whoami`: exchange a password for a token of this machine, and revoke it.
//!
//! The password is sent to the server once and never stored. The session ends as soon as the token is created.

pub(crate) mod credentials;
pub(crate) mod deciding;
mod join;

use std::collections::BTreeSet;
use std::time::Duration;

use ade_client::wire::{Scope, Session, Token, TokenRequest, UserPatch};
use ade_client::{Client, Error, UserSession};
use clap::Args as ClapArgs;
use owo_colors::OwoColorize;
use url::{Host, Url};

use super::user::roles;
use super::user::token::secret;
use crate::connect::{Connection, block_on};
use crate::failure::{Failure, Result};
use crate::output::page::Page;
use crate::output::{self, OutputFormat, safe, time};
use crate::prompt;
use credentials::{Credential, Credentials};
pub(crate) use join::{JoinArgs, join};

#[derive(Debug, ClapArgs)]
pub(crate) struct LoginArgs {
    /// Your user id [default: prompt for it]
    user: Option<String>,
    /// Add the scope admin
    #[arg(long)]
    admin: bool,
    /// Read the password from the first line of standard input; if somebody else set it, your own from the second
    #[arg(long)]
    password_stdin: bool,
    /// Lifetime of the token, such as 8h or 7d [default: 30 days]
    #[arg(long, value_name = "DURATION", value_parser = time::parse_duration)]
    ttl: Option<Duration>,
    #[command(flatten)]
    format: OutputFormat,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) fn login(args: &LoginArgs) -> Result {
    let url = args.connection.url()?;
    let request = token_request(args);
    let credentials = default_credentials()?;
    // An unreadable file must fail before a token is created.
    let previous = credentials.get(&url)?;
    if !is_private(&url) {
        output::note(&format!("{url} is not encrypted: others on the network can read your password"));
    }
    let (credential, token) = block_on(async {
        let user = match &args.user {
            Some(user) => user.clone(),
            None => prompt::line(
                "User: ",
                "name the user as an argument, and pass the password with --password-stdin",
            )?,
        };
        let prompt = format!("Password of {} at {}: ", safe(&user), safe(&url));
        let password = prompt::password_from(args.password_stdin, &prompt).await?;
        let device = credentials.device(&url, &user)?;
        let session = Client::sign_in_on_device(&url, &user, &password, device.as_deref()).await;
        let session = session.map_err(sign_in_failure)?;
        if let Some(device) = session.device() {
            credentials.put_device(&url, &user, device)?;
        }
        if session.session().password_change_required {
            output::note("somebody else set your password: choose your own");
            set_own_password(&session, &user, password, args.password_stdin).await?;
        }
        let is_admin = session.session().user.as_ref().is_some_and(|user| user.roles.contains("admin"));
        if args.admin && !is_admin {
            output::note("you are no administrator: the scope admin permits nothing until you are");
        }
        let created = create_token(&session, &request, &credentials, &url).await;
        if let (Ok((credential, _)), Some(previous)) = (&created, &previous)
            && credential.user_id == previous.user_id
        {
            // The replaced token is no longer needed. If this fails, it expires.
            drop(session.client().revoke_token(&previous.user_id, &previous.token_id).await);
        }
        if let Err(error) = session.sign_out().await {
            output::note(&format!("cannot end the session, it expires by itself: {error}"));
        }
        created
    })?;
    // The secret itself stays in the file.
    args.format.print(&Token { token: None, ..token }, |_| {
        let (url, user, scopes) = (safe(&url), safe(&credential.user_id), scope_names(&credential.scopes));
        let lifetime = time::until(credential.expires_at, time::now());
        format!("signed in at {url} as {} with the scopes {scopes}, for {lifetime}", user.bold())
    })?;
    if !args.format.json {
        let file = credentials.file();
        output::note(&format!("the token is stored in {}; sign out with ade logout", file.display()));
    }
    if args.connection.has_token() {
        output::note("ADE_TOKEN or --token takes precedence over this sign-in: unset ADE_TOKEN to use it");
    }
    Ok(())
}

/// Replaces the password that somebody else set.
async fn set_own_password(session: &UserSession, user: &str, present: String, stdin: bool) -> Result {
    let password = prompt::new_password(stdin, user).await?;
    let patch =
        UserPatch { password: Some(password), current_password: Some(present), ..UserPatch::default() };
    session.client().update_user(user, None, &patch).await?;
    Ok(())
}

/// A wrong password needs no hint to sign in.
fn sign_in_failure(error: Error) -> Failure {
    match &error {
        Error::Problem(problem) if problem.status == 401 => Failure::negative(error.to_string()),
        _ => error.into(),
    }
}

/// Creates a token and stores it. If it cannot be stored, it is revoked.
async fn create_token(
    session: &UserSession,
    request: &TokenRequest,
    credentials: &Credentials,
    url: &str,
) -> Result<(Credential, Token)> {
    let token = session.create_token(request).await?;
    let user = session.session().user.as_ref();
    let user = user.ok_or_else(|| Failure::unavailable("the server did not name the user of the session"))?;
    let credential = Credential {
        user_id: user.user_id.clone(),
        token_id: token.token_id.clone(),
        token: secret(&token)?.to_owned(),
        scopes: token.scopes.clone(),
        expires_at: token.expires_at,
    };
    if let Err(failure) = credentials.put(url, credential.clone()) {
        drop(session.client().revoke_token(&credential.user_id, &credential.token_id).await);
        return Err(failure);
    }
    Ok((credential, token))
}

/// The token never decides: it is stored on this machine.
fn token_request(args: &LoginArgs) -> TokenRequest {
    let mut scopes = BTreeSet::from([Scope::Read, Scope::Propose, Scope::Lock]);
    scopes.extend(args.admin.then_some(Scope::Admin));
    let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
    TokenRequest {
        name: format!("ade login on {machine}"),
        scopes: Some(scopes),
        ttl_seconds: args.ttl.map(|ttl| ttl.as_secs()),
    }
}

pub(crate) fn logout(connection: &Connection) -> Result {
    let url = connection.url()?;
    let credentials = default_credentials()?;
    let Some(credential) = credentials.get(&url)? else {
        return Err(Failure::negative(format!("you are not signed in at {url}")));
    };
    let revoked = block_on(async {
        let client = Client::new(&url, &credential.token)?;
        Ok(client.revoke_token(&credential.user_id, &credential.token_id).await)
    })?;
    credentials.remove(&url)?;
    match revoked {
        Ok(()) => output::line(format_args!("signed out at {}", safe(&url))),
        Err(Error::Problem(problem)) if matches!(problem.status, 401 | 404) => {
            output::line(format_args!("signed out at {}; the token was already invalid", safe(&url)))
        }
        Err(error) => {
            let message = format!("the token is removed from this machine but could not be revoked: {error}");
            let (user, token, end) = (credential.user_id, credential.token_id, credential.expires_at);
            let end = time::timestamp(end);
            let hint = format!("it stays valid until {end}; revoke it with ade user token rm {user} {token}");
            Err(Failure::unavailable(message).hint(hint))
        }
    }
}

pub(crate) async fn whoami(client: &Client, format: OutputFormat) -> Result {
    format.print(&client.session().await?, |session| {
        let mut page = Page::default();
        page.line(identity(session));
        page.field("server", safe(client.url()));
        page.optional("roles", session.user.as_ref().map(roles));
        page.field("scopes", scope_names(&session.scopes));
        page.optional("expires in", session.expires_at.map(|at| time::until(at, time::now())));
        page
    })
}

fn identity(session: &Session) -> String {
    match (&session.user, &session.agent_id) {
        (Some(user), Some(agent)) => {
            format!("{}, an agent of {} ({})", safe(agent).bold(), safe(&user.name), safe(&user.user_id))
        }
        (None, Some(agent)) => format!("{}, an agent", safe(agent).bold()),
        (Some(user), None) => format!("{} ({})", safe(&user.name).bold(), safe(&user.user_id)),
        (None, None) => format!("{}: the admin token of the server", "no user".bold()),
    }
}

pub(crate) fn scope_names(scopes: &BTreeSet<Scope>) -> String {
    scopes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn default_credentials() -> Result<Credentials> {
    Credentials::default_location().ok_or_else(|| {
        Failure::invalid("there is no folder to store a token in")
            .hint("set HOME or XDG_CONFIG_HOME, or use ADE_TOKEN instead of signing in")
    })
}

/// Whether the connection is encrypted or stays on this machine.
fn is_private(url: &str) -> bool {
    let Ok(url) = Url::parse(url) else { return false };
    let is_local = match url.host() {
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        Some(Host::Domain(name)) => name == "localhost",
        None => false,
    };
    is_local || url.scheme() == "https"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_unencrypted_connections() {
        for private in
            ["http://127.0.0.1:8300", "http://localhost", "http://[::1]:8300/", "https://ade.example.com"]
        {
            assert!(is_private(private), "{private}");
        }
        for public in [
            "http://ade.example.com",
            "http://127.0.0.1@example.com:80",
            "http://127.0.0.1.example.com",
            "127.0.0.1",
        ] {
            assert!(!is_private(public), "{public}");
        }
    }
}
