//! `ade login`, `ade logout`, `ade whoami`: exchange a password for a token of this machine, and revoke it.
//!
//! The password is sent to the server once and never stored. The session ends as soon as the token is created.

pub(crate) mod credentials;

use std::collections::BTreeSet;
use std::time::Duration;

use ade_client::wire::{Scope, Session, Token, TokenRequest};
use ade_client::{Client, Error, UserSession};
use clap::Args as ClapArgs;
use owo_colors::OwoColorize;

use super::user::roles;
use crate::connect::{Connection, block_on};
use crate::failure::{Failure, FailureKind};
use crate::output::page::Page;
use crate::output::{self, OutputFormat, safe, time};
use crate::prompt;
use credentials::{Credential, Credentials};

/// Longest lifetime of a token with the scope `decide`.
const MAX_DECIDE_TTL: Duration = Duration::from_hours(8);

#[derive(Debug, ClapArgs)]
pub(crate) struct LoginArgs {
    /// Your user id [default: prompt for it]
    user: Option<String>,
    /// Add the scope decide, to approve and reject; the token is valid for at most 8 hours
    #[arg(long)]
    decide: bool,
    /// Add the scope admin
    #[arg(long)]
    admin: bool,
    /// Read the password from the first line of standard input
    #[arg(long)]
    password_stdin: bool,
    /// Lifetime of the token, such as 8h or 7d [default: 30 days, with --decide 8 hours]
    #[arg(long, value_name = "DURATION", value_parser = time::parse_duration)]
    ttl: Option<Duration>,
    #[command(flatten)]
    format: OutputFormat,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct LogoutArgs {
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct WhoamiArgs {
    #[command(flatten)]
    format: OutputFormat,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) fn login(args: &LoginArgs) -> Result<(), Failure> {
    let url = args.connection.url()?;
    let request = token_request(args)?;
    let credentials = default_credentials()?;
    // An unreadable file must fail before a token is created.
    let previous = credentials.get(&url)?;
    if !is_private(&url) {
        output::note(&format!("{url} is not encrypted: others on the network can read your password"));
    }
    let (credential, token) = block_on(async {
        let user = match &args.user {
            Some(user) => user.clone(),
            None => prompt::line("User: ")?,
        };
        let password = if args.password_stdin {
            prompt::password_from_stdin()?
        } else {
            prompt::password("Password: ").await?
        };
        let session = Client::sign_in(&url, &user, &password).await.map_err(sign_in_failure)?;
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
        format!(
            "signed in at {} as {} with the scopes {}, for {}",
            safe(&url),
            safe(&credential.user_id).bold(),
            scope_names(&credential.scopes),
            time::until(credential.expires_at, time::now()),
        )
    })?;
    if !args.format.json {
        let file = credentials.file();
        output::note(&format!("the token is stored in {}; sign out with ade logout", file.display()));
    }
    Ok(())
}

/// A wrong password needs no hint to sign in.
fn sign_in_failure(error: Error) -> Failure {
    match &error {
        Error::Problem(problem) if problem.status == 401 => {
            Failure::new(FailureKind::Negative, error.to_string())
        }
        _ => error.into(),
    }
}

/// Creates a token and stores it. If it cannot be stored, it is revoked.
async fn create_token(
    session: &UserSession,
    request: &TokenRequest,
    credentials: &Credentials,
    url: &str,
) -> Result<(Credential, Token), Failure> {
    let token = session.create_token(request).await?;
    let user = session.session().user.as_ref().map(|user| user.user_id.clone());
    let (Some(user_id), Some(secret)) = (user, token.token.clone()) else {
        return Err(Failure::new(
            FailureKind::Unavailable,
            "the server created a token but did not return it",
        ));
    };
    let credential = Credential {
        user_id,
        token_id: token.token_id.clone(),
        token: secret,
        scopes: token.scopes.clone(),
        expires_at: token.expires_at,
    };
    if let Err(failure) = credentials.put(url, credential.clone()) {
        drop(session.client().revoke_token(&credential.user_id, &credential.token_id).await);
        return Err(failure);
    }
    Ok((credential, token))
}

fn token_request(args: &LoginArgs) -> Result<TokenRequest, Failure> {
    if args.decide && args.ttl.is_some_and(|ttl| ttl > MAX_DECIDE_TTL) {
        let failure = Failure::new(
            FailureKind::InvalidInput,
            "a token with the scope decide is valid for at most 8 hours",
        );
        return Err(failure.hint("leave out --ttl, or sign in without --decide"));
    }
    let mut scopes = BTreeSet::from([Scope::Read, Scope::Propose, Scope::Lock]);
    scopes.extend(args.decide.then_some(Scope::Decide));
    scopes.extend(args.admin.then_some(Scope::Admin));
    let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
    Ok(TokenRequest {
        name: format!("ade login on {machine}"),
        scopes: Some(scopes),
        ttl_seconds: args.ttl.map(|ttl| ttl.as_secs()),
    })
}

pub(crate) fn logout(args: &LogoutArgs) -> Result<(), Failure> {
    let url = args.connection.url()?;
    let credentials = default_credentials()?;
    let Some(credential) = credentials.get(&url)? else {
        return Err(Failure::new(FailureKind::Negative, format!("you are not signed in at {url}")));
    };
    let revoked = block_on(async {
        let client = Client::new(&url, &credential.token)?;
        Ok(client.revoke_token(&credential.user_id, &credential.token_id).await)
    })?;
    credentials.remove(&url)?;
    match revoked {
        Ok(()) => output::line(&format!("signed out at {}", safe(&url))),
        Err(Error::Problem(problem)) if matches!(problem.status, 401 | 404) => {
            output::line(&format!("signed out at {}; the token was already invalid", safe(&url)))
        }
        Err(error) => {
            let message = format!("the token is removed from this machine but could not be revoked: {error}");
            Err(Failure::new(FailureKind::Unavailable, message).hint(format!(
                "it stays valid until {}; revoke it with ade user token rm {} {}",
                time::timestamp(credential.expires_at),
                credential.user_id,
                credential.token_id
            )))
        }
    }
}

pub(crate) fn whoami(args: &WhoamiArgs) -> Result<(), Failure> {
    let client = args.connection.client()?;
    block_on(async {
        args.format.print(&client.session().await?, |session| {
            let mut page = Page::default();
            page.line(identity(session));
            page.field("server", safe(client.url()));
            page.optional("roles", session.user.as_ref().map(roles));
            page.field("scopes", scope_names(&session.scopes));
            page.optional("expires in", session.expires_at.map(|at| time::until(at, time::now())));
            page
        })
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

fn default_credentials() -> Result<Credentials, Failure> {
    Credentials::default_location().ok_or_else(|| {
        Failure::new(FailureKind::InvalidInput, "there is no folder to store a token in")
            .hint("set HOME or XDG_CONFIG_HOME, or use ADE_TOKEN instead of signing in")
    })
}

/// Whether the connection is encrypted or stays on this machine.
fn is_private(url: &str) -> bool {
    let Some((scheme, rest)) = url.split_once("://") else { return false };
    let host = rest.split('/').next().unwrap_or_default();
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    scheme.eq_ignore_ascii_case("https")
        || name.eq_ignore_ascii_case("localhost")
        || name == "[::1]"
        || name.parse::<std::net::Ipv4Addr>().is_ok_and(|address| address.is_loopback())
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
