//! `ade login`, `ade logout`, `ade whoami`: from a password to a token of this machine, and back.
//!
//! The password goes to the server once and is kept nowhere. The session lasts as long as it takes to make the token.

pub(crate) mod credentials;
pub(crate) mod password;

use std::collections::BTreeSet;
use std::time::Duration;

use ade_client::wire::{Session, Token, TokenRequest};
use ade_client::{Client, Error, SignedIn};
use ade_domain::permission::Scope;
use clap::Args as ClapArgs;
use owo_colors::OwoColorize;

use crate::connect::{Connection, block_on};
use crate::failure::{Failure, Kind};
use crate::lists::Shape;
use crate::output::{self, safe};
use crate::times;
use credentials::{Credential, Credentials};

/// How long somebody may decide with one token.
const DECIDE_AT_MOST: Duration = Duration::from_hours(8);

#[derive(Debug, ClapArgs)]
pub(crate) struct LoginArgs {
    /// Who you are [default: asked for]
    user: Option<String>,
    /// Approve and reject with this token too; for at most 8 hours
    #[arg(long)]
    decide: bool,
    /// Administer with this token too
    #[arg(long)]
    admin: bool,
    /// Read the password from the first line of standard input
    #[arg(long)]
    password_stdin: bool,
    /// How long the token is good for, such as 8h or 7d [default: 30 days, with --decide 8 hours]
    #[arg(long, value_name = "LENGTH", value_parser = times::length)]
    ttl: Option<Duration>,
    #[command(flatten)]
    shape: Shape,
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
    shape: Shape,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) fn login(args: &LoginArgs) -> Result<(), Failure> {
    let url = args.connection.url()?;
    let request = request(args)?;
    let kept = usual()?;
    // Whether the token could be kept is better known before it is made.
    let before = kept.get(&url)?;
    if !is_private(&url) {
        output::note(&format!("{url} is not encrypted: others on the way can read your password"));
    }
    let user = match &args.user {
        Some(user) => user.clone(),
        None => password::line("User: ")?,
    };
    let password = if args.password_stdin { password::from_stdin()? } else { password::ask("Password: ")? };
    let (credential, token) = block_on(async {
        let signed_in = Client::sign_in(&url, &user, &password).await.map_err(refused)?;
        let made = make(&signed_in, &request, &kept, &url).await;
        if let (Ok((credential, _)), Some(before)) = (&made, &before)
            && credential.user_id == before.user_id
        {
            // The token that was kept here until now is of no use to anybody; it ends by itself if this fails.
            drop(signed_in.client().revoke_token(&before.user_id, &before.token_id).await);
        }
        if let Err(error) = signed_in.sign_out().await {
            output::note(&format!("the session was not ended and ends by itself: {error}"));
        }
        made
    })?;
    if args.shape.json {
        // The token itself stays in the file.
        return output::json(&Token { token: None, ..token });
    }
    output::line(&format!(
        "signed in at {} as {} to {}, for {}",
        safe(&url),
        safe(&credential.user_id).bold(),
        words(&credential.scopes),
        times::until(credential.expires_at, times::now()),
    ))?;
    output::note(&format!("the token is in {}; ade logout takes it back", kept.file().display()));
    Ok(())
}

/// Whoever signs in needs no advice to sign in.
fn refused(error: Error) -> Failure {
    match &error {
        Error::Problem(problem) if problem.status == 401 => Failure::new(Kind::No, error.to_string()),
        _ => error.into(),
    }
}

/// Makes a token and keeps it; one that cannot be kept is taken back.
async fn make(
    signed_in: &SignedIn,
    request: &TokenRequest,
    kept: &Credentials,
    url: &str,
) -> Result<(Credential, Token), Failure> {
    let token = signed_in.make_token(request).await?;
    let user = signed_in.session().user.as_ref().map(|user| user.user_id.clone());
    let (Some(user_id), Some(secret)) = (user, token.token.clone()) else {
        return Err(Failure::new(Kind::Unavailable, "the server made a token but did not tell it"));
    };
    let credential = Credential {
        user_id,
        token_id: token.token_id.clone(),
        token: secret,
        scopes: token.scopes.clone(),
        expires_at: token.expires_at,
    };
    if let Err(failure) = kept.put(url, credential.clone()) {
        drop(signed_in.client().revoke_token(&credential.user_id, &credential.token_id).await);
        return Err(failure);
    }
    Ok((credential, token))
}

fn request(args: &LoginArgs) -> Result<TokenRequest, Failure> {
    if args.decide && args.ttl.is_some_and(|ttl| ttl > DECIDE_AT_MOST) {
        let failure = Failure::new(Kind::Input, "a token that decides is good for at most 8 hours");
        return Err(failure.hint("leave --ttl out, or sign in without --decide"));
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
    let kept = usual()?;
    let Some(credential) = kept.get(&url)? else {
        return Err(Failure::new(Kind::No, format!("you are not signed in at {url}")));
    };
    let revoked = block_on(async {
        let client = Client::new(&url, &credential.token)?;
        Ok(client.revoke_token(&credential.user_id, &credential.token_id).await)
    })?;
    kept.forget(&url)?;
    match revoked {
        Ok(()) => output::line(&format!("signed out at {}", safe(&url))),
        // It ended before, in whichever way.
        Err(error) if matches!(&error, Error::Problem(problem) if matches!(problem.status, 401 | 404)) => {
            output::line(&format!("signed out at {}; the token was not valid any more", safe(&url)))
        }
        Err(error) => {
            let told = format!("the token is forgotten here but was not taken back: {error}");
            Err(Failure::new(Kind::Unavailable, told).hint(format!(
                "it stays valid until {}; ade user token rm {} {} takes it back",
                times::short(credential.expires_at),
                credential.user_id,
                credential.token_id
            )))
        }
    }
}

pub(crate) fn whoami(args: &WhoamiArgs) -> Result<(), Failure> {
    let client = args.connection.client()?;
    let session = block_on(async { Ok(client.session().await?) })?;
    if args.shape.json {
        return output::json(&session);
    }
    output::line(&told(&session))?;
    output::fact("server", &safe(client.url()))?;
    if let Some(user) = &session.user {
        let roles: Vec<&str> = user.roles.iter().map(String::as_str).collect();
        output::fact("roles", &safe(&roles.join(", ")))?;
    }
    output::fact("may", &words(&session.scopes))?;
    if let Some(expires_at) = session.expires_at {
        output::fact("for", &times::until(expires_at, times::now()))?;
    }
    Ok(())
}

fn told(session: &Session) -> String {
    match (&session.user, &session.agent_id) {
        (Some(user), Some(agent)) => {
            format!("{}, an agent of {} ({})", safe(agent).bold(), safe(&user.name), safe(&user.user_id))
        }
        (None, Some(agent)) => format!("{}, an agent", safe(agent).bold()),
        (Some(user), None) => format!("{} ({})", safe(&user.name).bold(), safe(&user.user_id)),
        (None, None) => format!("{}: the token of the server itself", "nobody".bold()),
    }
}

/// Scopes, for people.
pub(crate) fn words(scopes: &BTreeSet<Scope>) -> String {
    scopes.iter().map(|scope| word(*scope)).collect::<Vec<_>>().join(", ")
}

/// As it is written everywhere.
pub(crate) const fn word(scope: Scope) -> &'static str {
    match scope {
        Scope::Read => "read",
        Scope::Propose => "propose",
        Scope::Lock => "lock",
        Scope::Decide => "decide",
        Scope::Admin => "admin",
    }
}

fn usual() -> Result<Credentials, Failure> {
    Credentials::usual().ok_or_else(|| {
        Failure::new(Kind::Input, "there is no folder to keep a token in")
            .hint("set HOME or XDG_CONFIG_HOME; or set ADE_TOKEN and do not sign in at all")
    })
}

/// Whether nobody else hears what is said to a server: it is encrypted, or on this machine.
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
    fn a_password_is_not_sent_in_the_clear_without_a_word() {
        for private in
            ["http://127.0.0.1:8300", "http://localhost", "http://[::1]:8300/", "https://ade.example.com"]
        {
            assert!(is_private(private), "{private}");
        }
        for open in [
            "http://ade.example.com",
            "http://127.0.0.1@example.com:80",
            "http://127.0.0.1.example.com",
            "127.0.0.1",
        ] {
            assert!(!is_private(open), "{open}");
        }
    }
}
