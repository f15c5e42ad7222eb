//! `ade user`: manage users, their roles, passwords and tokens.

pub(super) mod token;

use std::collections::{BTreeMap, BTreeSet};

use ade_client::Client;
use ade_client::wire::{AccountAct, InvitationRequest, User, UserPatch, UserRequest};
use clap::{Args as ClapArgs, Subcommand};
use owo_colors::OwoColorize;

use super::login::deciding::PasswordSource;
use crate::failure::{Failure, Result};
use crate::output::list::ListArgs;
use crate::output::page::Page;
use crate::output::{self, OutputFormat, Table, Tone, safe, safe_or_empty, time, yes_or_no};
use crate::prompt;

type Roles = BTreeSet<String>;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List users
    Ls(ListArgs),
    /// Show a user, with statistics
    Show(UserArgs),
    /// Invite a user (admin); prints a code with which the user sets a password: ade join CODE
    Invite(NewUserArgs),
    /// Confirm that another person uses an account, so that it counts as independent of who created it (admin)
    Confirm {
        #[command(flatten)]
        args: UserArgs,
        #[command(flatten)]
        password: PasswordSource,
    },
    /// Create a user (admin); a password given here is temporary
    Add(AddArgs),
    /// Change name, roles, manager, team or e-mail address of a user (admin); your own address too, when signed in
    Set(SetArgs),
    /// Change a password; this ends the other sessions of the user, and revokes tokens that decide or administer
    Passwd {
        /// Id of the user [default: you]
        user: Option<String>,
        /// Read the new password from the first line of standard input; for your own password, the current one from the first line
        /// and the new one from the second
        #[arg(long)]
        password_stdin: bool,
        /// Revoke all other tokens of the user as well
        #[arg(long)]
        revoke_tokens: bool,
    },
    /// Deactivate a user: ends all sessions and reassigns open approval requests (admin)
    Deactivate(UserArgs),
    /// Activate a user again (admin)
    Activate(UserArgs),
    /// Create a code with which you link your account of Slack: enter link CODE after the command of the Slack app
    SlackCode {
        #[command(flatten)]
        format: OutputFormat,
        #[command(flatten)]
        password: PasswordSource,
    },
    /// End the link of a user with Slack: any user (admin), or yourself
    SlackUnlink {
        /// Id of the user [default: you]
        user: Option<String>,
        #[command(flatten)]
        password: PasswordSource,
    },
    /// Manage the tokens of a user
    #[command(subcommand)]
    Token(token::Command),
}

#[derive(Debug, ClapArgs)]
pub(crate) struct UserArgs {
    /// Id of the user
    user: String,
    #[command(flatten)]
    format: OutputFormat,
}

/// What a new user is like.
#[derive(Debug, ClapArgs)]
pub(crate) struct NewUserArgs {
    /// Id of the new user
    user: String,
    /// Display name [default: the id]
    #[arg(long)]
    name: Option<String>,
    /// Roles: author, reviewer, admin, or any other that policies require [default: author]
    #[arg(long = "role", value_name = "ROLE", value_delimiter = ',')]
    roles: Vec<String>,
    /// Manager, who gets the approval requests that nobody else can decide
    #[arg(long, value_name = "USER")]
    manager: Option<String>,
    /// Team
    #[arg(long)]
    team: Option<String>,
    #[command(flatten)]
    format: OutputFormat,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct AddArgs {
    #[command(flatten)]
    new: NewUserArgs,
    /// Read the password from the first line of standard input
    #[arg(long)]
    password_stdin: bool,
    /// Create the user without a password; it cannot sign in
    #[arg(long, conflicts_with = "password_stdin")]
    no_password: bool,
}

#[derive(Debug, ClapArgs)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true))]
pub(crate) struct SetArgs {
    #[command(flatten)]
    which: UserArgs,
    /// Display name
    #[arg(long, group = "what")]
    name: Option<String>,
    /// New roles, replacing the current ones
    #[arg(long = "role", value_name = "ROLE", group = "what", value_delimiter = ',')]
    roles: Vec<String>,
    /// Roles to add
    #[arg(long, value_name = "ROLE", group = "what", value_delimiter = ',', conflicts_with = "roles")]
    add_role: Vec<String>,
    /// Roles to remove
    #[arg(long, value_name = "ROLE", group = "what", value_delimiter = ',', conflicts_with = "roles")]
    remove_role: Vec<String>,
    /// Manager, who gets the approval requests that nobody else can decide
    #[arg(long, value_name = "USER", group = "what")]
    manager: Option<String>,
    /// Remove the manager
    #[arg(long, group = "what", conflicts_with = "manager")]
    no_manager: bool,
    /// Team
    #[arg(long, group = "what")]
    team: Option<String>,
    /// Remove the team
    #[arg(long, group = "what", conflicts_with = "team")]
    no_team: bool,
    /// Address for notifications by e-mail
    #[arg(long, value_name = "ADDRESS", group = "what")]
    email: Option<String>,
    /// Remove the address
    #[arg(long, group = "what", conflicts_with = "email")]
    no_email: bool,
}

pub(crate) async fn run(client: &Client, command: Command) -> Result {
    let (format, user) = match command {
        Command::Ls(args) => return args.show(&[], async |query| client.users(query).await, table).await,
        Command::Show(args) => return show(client, &args).await,
        Command::Passwd { user, password_stdin, revoke_tokens } => {
            return change_password(client, user, password_stdin, revoke_tokens).await;
        }
        Command::Invite(args) => return invite(client, args).await,
        Command::Confirm { args, password } => {
            let confirm = async |client: &Client| Ok(client.confirm_user(&args.user).await?);
            let confirmed = password.decide_or_operate(client, confirm).await?;
            return args.format.print(&confirmed, |user| {
                format!(
                    "{} counts as independent of those who created or changed the account",
                    safe(&user.user_id)
                )
            });
        }
        Command::SlackCode { format, password } => {
            let create = async |client: &Client| Ok(client.create_slack_code("me").await?);
            let created = password.decide(client, create).await?;
            return format.print(&created, |created| {
                format!("link {}\nvalid until {}", safe(&created.code), time::timestamp(created.expires_at))
            });
        }
        Command::SlackUnlink { user: Some(user), .. } => {
            client.unlink_slack(&user).await?;
            return output::line(format_args!("{} is not linked with Slack", safe(&user)));
        }
        Command::SlackUnlink { user: None, password } => {
            password.decide(client, async |client: &Client| Ok(client.unlink_slack("me").await?)).await?;
            return output::line("you are not linked with Slack");
        }
        Command::Token(command) => return token::run(client, command).await,
        Command::Add(args) => (args.new.format, add(client, args).await?),
        Command::Set(args) => (args.which.format, set(client, args).await?),
        Command::Deactivate(args) => (args.format, set_active(client, &args, false).await?),
        Command::Activate(args) => (args.format, set_active(client, &args, true).await?),
    };
    format.print_row(&user, table)
}

async fn show(client: &Client, args: &UserArgs) -> Result {
    let user = client.user(&args.user).await?;
    if args.format.json {
        return output::json(&user);
    }
    let mut page = Page::default();
    page.line(format_args!("{} ({})", safe(&user.name).bold(), safe(&user.user_id)));
    page.field("roles", roles(&user));
    page.field("manager", safe_or_empty(&user.manager_id));
    page.field("team", safe_or_empty(&user.team));
    page.optional("e-mail", user.email.as_deref().map(safe));
    page.field("active", yes_or_no(user.active));
    page.field("account changes", user.acts.iter().map(account_act).collect::<Vec<_>>().join("; "));
    // Statistics are left out if the caller may not see them.
    if let Ok(stats) = client.user_stats(&args.user).await {
        let counts = |counts: &BTreeMap<String, u64>| {
            let counts = counts.iter().map(|(what, count)| format!("{count} {}", safe(what)));
            counts.collect::<Vec<_>>().join(", ")
        };
        page.field("own tasks", counts(&stats.tasks));
        page.field("approvals", counts(&stats.approvals));
        page.optional("median response", stats.median_response_seconds.map(time::duration));
    }
    output::line(page)
}

/// One line about what an administrator did to the account, and whether it still counts.
fn account_act(act: &AccountAct) -> String {
    let (kind, by, at) = (safe(&act.kind).replace('_', " "), safe(&act.by), time::timestamp(act.at));
    let state = match (act.exempt, &act.lifted_at) {
        (true, _) => ", does not count",
        (false, Some(_)) => ", confirmed as another person",
        (false, None) => "",
    };
    format!("{kind} by {by} at {at}{state}")
}

async fn add(client: &Client, args: AddArgs) -> Result<User> {
    let AddArgs { new, password_stdin, no_password } = args;
    let password = match no_password {
        true => None,
        false => Some(prompt::new_password(password_stdin, &new.user).await?),
    };
    let request = UserRequest {
        user_id: new.user,
        name: new.name,
        roles: (!new.roles.is_empty()).then(|| new.roles.into_iter().collect()),
        manager_id: new.manager,
        team: new.team,
        email: None,
        active: None,
        password,
    };
    Ok(client.create_user(&request).await?)
}

async fn set(client: &Client, args: SetArgs) -> Result<User> {
    let mut patch = UserPatch {
        name: args.name,
        roles: (!args.roles.is_empty()).then(|| args.roles.into_iter().collect()),
        manager_id: if args.no_manager { Some(None) } else { args.manager.map(Some) },
        team: if args.no_team { Some(None) } else { args.team.map(Some) },
        email: if args.no_email { Some(None) } else { args.email.map(Some) },
        ..UserPatch::default()
    };
    let (user_id, mut revision) = (args.which.user, None);
    if !args.add_role.is_empty() || !args.remove_role.is_empty() {
        // The revision guards against overwriting a concurrent change of the roles.
        let user = client.user(&user_id).await?;
        revision = Some(user.revision);
        patch.roles = Some(changed_roles(user.roles, args.add_role, &args.remove_role)?);
    }
    Ok(client.update_user(&user_id, revision, &patch).await?)
}

fn changed_roles(mut roles: Roles, add: Vec<String>, remove: &[String]) -> Result<Roles> {
    for role in remove {
        if !roles.remove(role) {
            return Err(Failure::negative(format!("the user does not have the role {role}")));
        }
    }
    roles.extend(add);
    Ok(roles)
}

async fn set_active(client: &Client, args: &UserArgs, active: bool) -> Result<User> {
    let patch = UserPatch { active: Some(active), ..UserPatch::default() };
    Ok(client.update_user(&args.user, None, &patch).await?)
}

async fn change_password(
    client: &Client,
    user_id: Option<String>,
    stdin: bool,
    revoke_tokens: bool,
) -> Result {
    let caller = client.session().await?.user.map(|user| user.user_id);
    let user_id = user_id.or_else(|| caller.clone()).ok_or_else(|| {
        Failure::invalid("this token belongs to no user").hint("name the user: ade user passwd USER")
    })?;
    // Your own password requires the current one: a stolen token must not be enough to take over the account.
    let present = match caller.as_ref() == Some(&user_id) {
        false => None,
        true => {
            let prompt = format!("Present password of {}: ", safe(&user_id));
            Some(prompt::password_from(stdin, &prompt).await?)
        }
    };
    let password = prompt::new_password(stdin, &user_id).await?;
    let patch = UserPatch {
        password: Some(password),
        current_password: present.clone(),
        revoke_tokens: revoke_tokens.then_some(true),
        ..UserPatch::default()
    };
    let user = match present {
        None => client.update_user(&user_id, None, &patch).await?,
        Some(present) => {
            let session = Client::sign_in(client.url(), &user_id, &present).await?;
            let user = session.client().update_user(&user_id, None, &patch).await?;
            if let Err(error) = session.sign_out().await {
                output::note(&format!("cannot end the session, it expires by itself: {error}"));
            }
            user
        }
    };
    let id = safe(&user.user_id);
    let tokens = match revoke_tokens {
        true => "all tokens are revoked".to_owned(),
        false => format!("other tokens stay valid: see ade user token ls {id}"),
    };
    output::line(format_args!(
        "the password of {id} is changed; sessions are ended, and tokens that decide or administer are revoked; {tokens}"
    ))
}

async fn invite(client: &Client, args: NewUserArgs) -> Result {
    let request = InvitationRequest {
        user_id: args.user,
        name: args.name,
        roles: (!args.roles.is_empty()).then(|| args.roles.into_iter().collect()),
        manager_id: args.manager,
        team: args.team,
    };
    let invitation = client.invite_user(&request).await?;
    if args.format.json {
        return output::json(&invitation);
    }
    // Only the code goes to standard output, so that it can be piped.
    let missing = || Failure::unavailable("the server created an invitation but did not return its code");
    output::line(safe(invitation.code.as_deref().ok_or_else(missing)?))?;
    let lifetime = time::until(invitation.expires_at, time::now());
    output::note(&format!(
        "pass the code on to {} for ade join CODE --server {}; it is shown only once, works once and expires in {lifetime}",
        safe(&invitation.user.user_id),
        safe(client.url())
    ));
    Ok(())
}

fn table(users: &[User]) -> Table<'_, User> {
    let active = |user: &User| if user.active { Tone::Plain } else { Tone::Bad };
    output::list(users, "no users found")
        .column("USER", |user| safe(&user.user_id))
        .column("NAME", |user| safe(&user.name))
        .column("ROLES", roles)
        .column("MANAGER", |user| safe_or_empty(&user.manager_id))
        .column("TEAM", |user| safe_or_empty(&user.team))
        .column("ACTIVE", |user| active(user).cell(yes_or_no(user.active)))
}

pub(super) fn roles(user: &User) -> String {
    safe(&user.roles.iter().map(String::as_str).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_and_removes_roles() {
        let set = |roles: &[&str]| roles.iter().map(|role| (*role).to_owned()).collect::<BTreeSet<_>>();
        let roles = changed_roles(set(&["author", "dba"]), vec!["reviewer".to_owned()], &["dba".to_owned()]);
        assert_eq!(roles.expect("changed"), set(&["author", "reviewer"]));
        assert!(changed_roles(set(&["author"]), Vec::new(), &["dba".to_owned()]).is_err());
    }
}
