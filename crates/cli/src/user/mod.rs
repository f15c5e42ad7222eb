//! `ade user`: people, their roles, their passwords and their tokens.

mod token;

use std::collections::BTreeSet;

use ade_client::Client;
use ade_client::wire::{User, UserPatch, UserRequest};
use clap::{Args as ClapArgs, Subcommand};
use comfy_table::{Cell, Table};
use owo_colors::OwoColorize;

use crate::connect::{Connection, block_on};
use crate::failure::{Failure, Kind};
use crate::lists::{ListArgs, Shape};
use crate::login::password;
use crate::output::{self, Tone, safe};

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Everybody
    Ls(ListArgs),
    /// One person, and how they work
    Show(Named),
    /// Make somebody known (admin)
    Add(AddArgs),
    /// Change somebody's name, roles, manager or team (admin)
    Set(SetArgs),
    /// Change a password; all sessions of whoever has it end, and tokens go on until they are revoked
    Passwd(PasswdArgs),
    /// Somebody leaves: they are signed out, and others are asked in their place (admin)
    Deactivate(Named),
    /// Somebody is back (admin)
    Activate(Named),
    /// Tokens that act as somebody
    #[command(subcommand)]
    Token(token::Command),
}

#[derive(Debug, ClapArgs)]
struct Named {
    /// Who
    #[arg(value_name = "USER")]
    user_id: String,
    #[command(flatten)]
    shape: Shape,
}

#[derive(Debug, ClapArgs)]
struct AddArgs {
    /// What they are known by
    #[arg(value_name = "USER")]
    user_id: String,
    /// A name for people [default: the id]
    #[arg(long)]
    name: Option<String>,
    /// author, reviewer, admin, or any other that policies ask for [default: author]
    #[arg(long = "role", value_name = "ROLE", value_delimiter = ',')]
    roles: Vec<String>,
    /// To whom their requests go when nobody else is left
    #[arg(long, value_name = "USER")]
    manager: Option<String>,
    /// Whom they work with
    #[arg(long)]
    team: Option<String>,
    /// Read a password from the first line of standard input
    #[arg(long)]
    password_stdin: bool,
    /// Without a password; they cannot sign in
    #[arg(long, conflicts_with = "password_stdin")]
    no_password: bool,
    #[command(flatten)]
    shape: Shape,
}

#[derive(Debug, ClapArgs)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true))]
struct SetArgs {
    /// Who
    #[arg(value_name = "USER")]
    user_id: String,
    /// A name for people
    #[arg(long, group = "what")]
    name: Option<String>,
    /// All of their roles
    #[arg(long = "role", value_name = "ROLE", group = "what", value_delimiter = ',')]
    roles: Vec<String>,
    /// Roles besides those they have
    #[arg(long, value_name = "ROLE", group = "what", value_delimiter = ',', conflicts_with = "roles")]
    add_role: Vec<String>,
    /// Roles they have no more
    #[arg(long, value_name = "ROLE", group = "what", value_delimiter = ',', conflicts_with = "roles")]
    remove_role: Vec<String>,
    /// To whom their requests go when nobody else is left
    #[arg(long, value_name = "USER", group = "what")]
    manager: Option<String>,
    /// Nobody is their manager
    #[arg(long, group = "what", conflicts_with = "manager")]
    no_manager: bool,
    /// Whom they work with
    #[arg(long, group = "what")]
    team: Option<String>,
    /// They are in no team
    #[arg(long, group = "what", conflicts_with = "team")]
    no_team: bool,
    #[command(flatten)]
    shape: Shape,
}

#[derive(Debug, ClapArgs)]
struct PasswdArgs {
    /// Whose [default: yours]
    #[arg(value_name = "USER")]
    user_id: Option<String>,
    /// Read the password from the first line of standard input; for your own, the present one and then the new one
    #[arg(long)]
    password_stdin: bool,
}

pub(crate) fn run(args: Args) -> Result<(), Failure> {
    let client = args.connection.client()?;
    // What is asked for on the terminal is asked for before anything else begins.
    match args.command {
        Command::Add(args) => {
            let request = new_user(args.user_id, args.name, args.roles, args.manager, args.team);
            let password = match (args.no_password, args.password_stdin) {
                (true, _) => None,
                (false, true) => Some(password::from_stdin()?),
                (false, false) => Some(password::ask_twice(&request.user_id)?),
            };
            let request = UserRequest { password, ..request };
            let user = block_on(async { Ok(client.make_user(&request).await?) })?;
            told(args.shape, &user)
        }
        Command::Passwd(args) => passwd(&client, args),
        command => block_on(other(&client, command)),
    }
}

async fn other(client: &Client, command: Command) -> Result<(), Failure> {
    match command {
        Command::Ls(args) => {
            let listed = args.fetch(&[], async |query: &[(&str, &str)]| client.users(query).await).await?;
            args.print(&listed, "there is nobody", table)
        }
        Command::Show(args) => show(client, &args).await,
        Command::Set(args) => set(client, args).await,
        Command::Deactivate(args) => switch(client, &args, false).await,
        Command::Activate(args) => switch(client, &args, true).await,
        Command::Token(command) => token::run(client, command).await,
        Command::Add(_) | Command::Passwd(_) => Ok(()),
    }
}

fn new_user(
    user_id: String,
    name: Option<String>,
    roles: Vec<String>,
    manager_id: Option<String>,
    team: Option<String>,
) -> UserRequest {
    let roles = (!roles.is_empty()).then(|| roles.into_iter().collect());
    UserRequest { user_id, name, roles, manager_id, team, active: None, password: None }
}

async fn show(client: &Client, args: &Named) -> Result<(), Failure> {
    let user = client.user(&args.user_id).await?;
    if args.shape.json {
        return output::json(&user);
    }
    output::line(&format!("{} ({})", safe(&user.name).bold(), safe(&user.user_id)))?;
    output::fact("roles", &roles(&user))?;
    output::fact("manager", &user.manager_id.as_deref().map(safe).unwrap_or_default())?;
    output::fact("team", &user.team.as_deref().map(safe).unwrap_or_default())?;
    output::fact("works here", if user.active { "yes" } else { "no" })?;
    // Not everybody may see how others work.
    let Ok(stats) = client.user_stats(&args.user_id).await else { return Ok(()) };
    let counts = |counts: &std::collections::BTreeMap<String, u64>| {
        counts.iter().map(|(what, many)| format!("{many} {}", safe(what))).collect::<Vec<_>>().join(", ")
    };
    output::fact("own tasks", &counts(&stats.tasks))?;
    output::fact("requests", &counts(&stats.approvals))?;
    match stats.median_response_seconds {
        Some(seconds) => output::fact("answers within", &format!("{} mostly", crate::times::span(seconds))),
        None => Ok(()),
    }
}

async fn set(client: &Client, args: SetArgs) -> Result<(), Failure> {
    let mut patch = UserPatch {
        name: args.name,
        roles: (!args.roles.is_empty()).then(|| args.roles.into_iter().collect()),
        manager_id: if args.no_manager { Some(None) } else { args.manager.map(Some) },
        team: if args.no_team { Some(None) } else { args.team.map(Some) },
        ..UserPatch::default()
    };
    let mut revision = None;
    if !args.add_role.is_empty() || !args.remove_role.is_empty() {
        // What is added to is what was seen: a change in between is refused, not undone.
        let user = client.user(&args.user_id).await?;
        revision = Some(user.revision);
        patch.roles = Some(changed(user.roles, args.add_role, &args.remove_role)?);
    }
    told(args.shape, &client.change_user(&args.user_id, revision, &patch).await?)
}

fn changed(
    mut roles: BTreeSet<String>,
    add: Vec<String>,
    remove: &[String],
) -> Result<BTreeSet<String>, Failure> {
    for role in remove {
        if !roles.remove(role) {
            return Err(Failure::new(Kind::No, format!("they do not have the role {role}")));
        }
    }
    roles.extend(add);
    Ok(roles)
}

fn passwd(client: &Client, args: PasswdArgs) -> Result<(), Failure> {
    let own = block_on(async { Ok(client.session().await?) })?.user.map(|user| user.user_id);
    let user_id = args.user_id.or_else(|| own.clone()).ok_or_else(|| {
        Failure::new(Kind::Input, "this token is nobody's, so it has no password").hint("name the user")
    })?;
    // A token does not change a password: whoever found one would be its owner from then on.
    let present = match (own.as_ref() == Some(&user_id), args.password_stdin) {
        (false, _) => None,
        (true, true) => Some(password::from_stdin()?),
        (true, false) => Some(password::ask(&format!("present password of {}: ", safe(&user_id)))?),
    };
    let password = if args.password_stdin { password::from_stdin()? } else { password::ask_twice(&user_id)? };
    let patch = UserPatch { password: Some(password), ..UserPatch::default() };
    let user = block_on(async {
        Ok(match present {
            None => client.change_user(&user_id, None, &patch).await?,
            Some(present) => {
                let signed_in = Client::sign_in(client.url(), &user_id, &present).await?;
                signed_in.client().change_user(&user_id, None, &patch).await?
            }
        })
    })?;
    let id = safe(&user.user_id);
    output::line(&format!(
        "{id} has a new password, and all its sessions ended; its tokens go on: ade user token ls {id} shows them"
    ))
}

async fn switch(client: &Client, args: &Named, active: bool) -> Result<(), Failure> {
    let patch = UserPatch { active: Some(active), ..UserPatch::default() };
    told(args.shape, &client.change_user(&args.user_id, None, &patch).await?)
}

fn told(shape: Shape, user: &User) -> Result<(), Failure> {
    if shape.json {
        return output::json(user);
    }
    output::line(&table(std::slice::from_ref(user)).to_string())
}

fn table(users: &[User]) -> Table {
    let mut table = output::table(&["USER", "NAME", "ROLES", "MANAGER", "TEAM", "WORKS HERE"]);
    for user in users {
        table.add_row([
            Cell::new(safe(&user.user_id)),
            Cell::new(safe(&user.name)),
            Cell::new(roles(user)),
            Cell::new(user.manager_id.as_deref().map(safe).unwrap_or_default()),
            Cell::new(user.team.as_deref().map(safe).unwrap_or_default()),
            if user.active { Cell::new("yes") } else { Tone::Bad.cell("no") },
        ]);
    }
    table
}

fn roles(user: &User) -> String {
    safe(&user.roles.iter().map(String::as_str).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_added_to_and_taken_from_those_that_are_there() {
        let set = |roles: &[&str]| roles.iter().map(|role| (*role).to_owned()).collect::<BTreeSet<_>>();
        let roles = changed(set(&["author", "dba"]), vec!["reviewer".to_owned()], &["dba".to_owned()]);
        assert_eq!(roles.expect("changed"), set(&["author", "reviewer"]));
        assert!(changed(set(&["author"]), Vec::new(), &["dba".to_owned()]).is_err());
    }
}
