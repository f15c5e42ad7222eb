//! `ade agent`: register agents, grant them capabilities, and create the tokens that they work with.

use std::collections::BTreeSet;
use std::time::Duration;

use ade_client::Client;
use ade_client::wire::{Agent, AgentRequest, CapabilityGrant, GrantRequest, GrantScope, Scope, TokenRequest};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use comfy_table::Cell;
use owo_colors::OwoColorize;

use super::user::token;
use crate::failure::{Failure, Result};
use crate::output::list::ListArgs;
use crate::output::page::Page;
use crate::output::{self, OutputFormat, Table, Tone, safe, safe_or_empty, time};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List agents
    Ls(ListArgs),
    /// Show an agent: who is responsible for it, what it may claim, and whose tasks it accepts
    Show(AgentArgs),
    /// Register an agent; you become its sponsor
    Register {
        #[command(flatten)]
        args: AgentArgs,
        /// User who is responsible for it; another than you needs an administrator [default: you]
        #[arg(long, value_name = "USER")]
        sponsor: Option<String>,
        #[command(flatten)]
        fields: Fields,
    },
    /// Change an agent (its sponsor, or an administrator)
    Set(Box<SetArgs>),
    /// Grant capabilities, by which tasks select the agent
    Grant {
        #[command(flatten)]
        args: CapabilityArgs,
        /// For whose tasks they count [default: the widest that you can grant]
        #[arg(long, value_enum)]
        scope: Option<ScopeName>,
    },
    /// Revoke capabilities
    Revoke(CapabilityArgs),
    /// Create a token that acts as the agent; it is shown only once
    Token(TokenArgs),
    /// Revoke a token of the agent
    RevokeToken {
        /// Id of the agent
        agent: String,
        /// Id of the token
        #[arg(value_name = "TOKEN")]
        token_id: String,
    },
    /// Remove an agent that holds no locks, and revoke its tokens
    Rm {
        /// Id of the agent
        agent: String,
    },
}

#[derive(Debug, ClapArgs)]
pub(crate) struct AgentArgs {
    /// Id of the agent
    agent: String,
    #[command(flatten)]
    format: OutputFormat,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct CapabilityArgs {
    /// Id of the agent
    agent: String,
    /// Capabilities
    #[arg(required = true, value_name = "CAPABILITY")]
    capabilities: Vec<String>,
    #[command(flatten)]
    format: OutputFormat,
}

/// What `register` and `set` have in common.
#[derive(Debug, ClapArgs)]
pub(crate) struct Fields {
    /// Display name [default: the id]
    #[arg(long)]
    name: Option<String>,
    /// Model that it runs on
    #[arg(long)]
    model: Option<String>,
    /// Version of the agent
    #[arg(long = "version", value_name = "VERSION")]
    agent_version: Option<String>,
    /// All its capabilities; ade agent grant and revoke change single ones
    #[arg(long = "capability", value_name = "NAME", value_delimiter = ',')]
    capabilities: Vec<String>,
    /// Whose tasks it accepts besides those of its sponsor and the sponsor's team: user:ID, role:NAME or team:NAME (admin)
    #[arg(long, value_name = "WHO", value_delimiter = ',')]
    accepts: Vec<String>,
    /// Tasks at the same time, from 1 to 1000
    #[arg(long, value_name = "NUMBER")]
    max_tasks: Option<u32>,
    /// Agent that instructs it
    #[arg(long, value_name = "AGENT")]
    parent: Option<String>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct SetArgs {
    #[command(flatten)]
    which: AgentArgs,
    #[command(flatten)]
    fields: Fields,
    /// Accept only tasks of its sponsor and the sponsor's team
    #[arg(long, conflicts_with = "accepts")]
    no_accepts: bool,
    /// Remove the agent that instructs it
    #[arg(long, conflicts_with = "parent")]
    no_parent: bool,
    /// Give it no new tasks
    #[arg(long)]
    drain: bool,
    /// Give it new tasks again
    #[arg(long, conflicts_with = "drain")]
    resume: bool,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct TokenArgs {
    /// Id of the agent
    agent: String,
    /// Name of the token [default: the id of the agent]
    #[arg(long)]
    name: Option<String>,
    /// Scopes of the token [default: read, propose, lock]
    #[arg(long = "scope", value_name = "SCOPE", value_delimiter = ',', value_parser = scope_parser())]
    scopes: Vec<Scope>,
    /// Lifetime, such as 8h or 7d [default: 30 days]
    #[arg(long, value_name = "DURATION", value_parser = time::parse_duration)]
    ttl: Option<Duration>,
    #[command(flatten)]
    format: OutputFormat,
}

/// For whose tasks a capability counts.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum ScopeName {
    /// Tasks of the sponsor and of the sponsor's team
    Sponsor,
    /// These, and tasks of everybody whom the agent accepts (admin)
    Accepted,
}

impl From<ScopeName> for GrantScope {
    fn from(name: ScopeName) -> Self {
        match name {
            ScopeName::Sponsor => Self::Sponsor,
            ScopeName::Accepted => Self::Accepted,
        }
    }
}

/// A parser that lists the scopes of agents in the help.
fn scope_parser() -> impl TypedValueParser<Value = Scope> {
    let scope = |word: String| serde_json::from_value::<Scope>(word.into());
    PossibleValuesParser::new(["read", "propose", "lock"]).try_map(scope)
}

impl Fields {
    fn request(self) -> AgentRequest {
        AgentRequest {
            name: self.name,
            model: self.model,
            version: self.agent_version,
            parent_agent_id: self.parent.map(Some),
            capabilities: given(self.capabilities),
            accepts: given(self.accepts),
            max_tasks: self.max_tasks,
            ..AgentRequest::default()
        }
    }
}

/// A list that was given on the command line.
fn given(list: Vec<String>) -> Option<Vec<String>> {
    (!list.is_empty()).then_some(list)
}

pub(crate) async fn run(client: &Client, command: Command) -> Result {
    let (format, agent) = match command {
        Command::Ls(args) => return args.show(&[], async |query| client.agents(query).await, table).await,
        Command::Show(args) => return args.format.print(&client.agent(&args.agent).await?, page),
        Command::Token(args) => return create_token(client, args).await,
        Command::RevokeToken { agent, token_id } => return revoke_token(client, &agent, &token_id).await,
        Command::Rm { agent } => {
            client.remove_agent(&agent).await?;
            return output::line(format_args!("agent {} is removed", safe(&agent)));
        }
        Command::Register { args, sponsor, fields } => {
            let agent_id = Some(args.agent);
            let request = AgentRequest { agent_id, sponsor_id: sponsor, ..fields.request() };
            (args.format, client.register_agent(&request).await?)
        }
        Command::Set(args) => (args.which.format, set(client, *args).await?),
        Command::Grant { args, scope } => {
            let known = client.agent(&args.agent).await?;
            let grants = granted(&known.grants, args.capabilities, scope.map(GrantScope::from));
            let change = AgentRequest { grants: Some(grants), ..AgentRequest::default() };
            (args.format, client.update_agent(&args.agent, &change).await?)
        }
        Command::Revoke(args) => {
            let known = client.agent(&args.agent).await?;
            let capabilities = Some(remaining(known.capabilities, &args.capabilities)?);
            let change = AgentRequest { capabilities, ..AgentRequest::default() };
            (args.format, client.update_agent(&args.agent, &change).await?)
        }
    };
    format.print(&agent, page)
}

async fn set(client: &Client, args: SetArgs) -> Result<Agent> {
    let mut change = args.fields.request();
    if args.no_accepts {
        change.accepts = Some(Vec::new());
    }
    if args.no_parent {
        change.parent_agent_id = Some(None);
    }
    change.draining = (args.drain || args.resume).then_some(args.drain);
    if change == AgentRequest::default() {
        let agent = safe(&args.which.agent);
        return Err(Failure::invalid("nothing to change was given")
            .hint(format!("see ade agent set --help, or ade agent show {agent}")));
    }
    Ok(client.update_agent(&args.which.agent, &change).await?)
}

/// The grants that an agent has, and new ones. What it has already keeps its scope, unless another is given.
fn granted(known: &[CapabilityGrant], new: Vec<String>, scope: Option<GrantScope>) -> Vec<GrantRequest> {
    let mut new: BTreeSet<String> = new.into_iter().collect();
    let kept = known.iter().map(|grant| {
        let scope = scope.filter(|_| new.contains(&grant.capability)).unwrap_or(grant.scope);
        GrantRequest { capability: grant.capability.clone(), scope: Some(scope) }
    });
    let mut grants: Vec<GrantRequest> = kept.collect();
    for grant in known {
        new.remove(&grant.capability);
    }
    grants.extend(new.into_iter().map(|capability| GrantRequest { capability, scope }));
    grants
}

fn remaining(mut capabilities: Vec<String>, revoked: &[String]) -> Result<Vec<String>> {
    if let Some(missing) = revoked.iter().find(|name| !capabilities.contains(name)) {
        let missing = safe(missing);
        return Err(Failure::negative(format!("the agent does not have the capability {missing}")));
    }
    capabilities.retain(|name| !revoked.contains(name));
    Ok(capabilities)
}

async fn create_token(client: &Client, args: TokenArgs) -> Result {
    let request = TokenRequest {
        name: args.name.unwrap_or_else(|| args.agent.clone()),
        scopes: (!args.scopes.is_empty()).then(|| args.scopes.into_iter().collect()),
        ttl_seconds: args.ttl.map(|ttl| ttl.as_secs()),
    };
    let created = client.create_agent_token(&args.agent, &request).await?;
    token::print_created(&created, args.format)
}

/// Tokens of an agent belong to its sponsor.
async fn revoke_token(client: &Client, agent: &str, token_id: &str) -> Result {
    let Some(sponsor) = client.agent(agent).await?.sponsor_id else {
        return Err(Failure::negative(format!("agent {} has no sponsor, and so no tokens", safe(agent))));
    };
    client.revoke_token(&sponsor, token_id).await?;
    output::line(format_args!("token {} is revoked", safe(token_id)))
}

fn table(agents: &[Agent]) -> Table<'_, Agent> {
    let now = time::now();
    output::list(agents, "no agents found; register one with ade agent register")
        .column("AGENT", |agent| safe(&agent.agent_id))
        .column("SPONSOR", |agent| safe_or_empty(&agent.sponsor_id))
        .column("STATUS", status)
        .column("TASKS", |agent| format!("{} of {}", agent.active_tasks, agent.max_tasks))
        .column("CAPABILITIES", |agent| safe(&agent.capabilities.join(", ")))
        .column("LAST SEEN", move |agent| time::ago(agent.last_heartbeat, now))
}

fn status(agent: &Agent) -> Cell {
    let tone = match agent.status.as_str() {
        "active" => Tone::Good,
        "draining" => Tone::Pending,
        _ => Tone::Dim,
    };
    tone.cell(safe(&agent.status))
}

fn page(agent: &Agent) -> Page {
    let now = time::now();
    let mut page = Page::default();
    page.line(format_args!("{} ({})", safe(&agent.name).bold(), safe(&agent.agent_id)));
    page.field("sponsor", safe_or_empty(&agent.sponsor_id));
    page.field("instructed by", safe_or_empty(&agent.parent_agent_id));
    page.field("model", safe_or_empty(&agent.model));
    page.field("version", safe_or_empty(&agent.version));
    page.field(
        "status",
        format!("{}, last seen {}", safe(&agent.status), time::ago(agent.last_heartbeat, now)),
    );
    let (active, queued, max) = (agent.active_tasks, agent.queued_tasks, agent.max_tasks);
    page.field("tasks", format!("{active} of at most {max}, {queued} waiting"));
    page.field("accepts", safe(&agent.accepts.join(", ")));
    if agent.grants.is_empty() {
        page.field("capabilities", "none: it claims only tasks that name it");
    }
    let grants = output::table(&agent.grants)
        .column("CAPABILITY", |grant| safe(&grant.capability))
        .column("FOR TASKS OF", |grant| match grant.scope {
            GrantScope::Sponsor => "its sponsor and team",
            GrantScope::Accepted => "everybody whom it accepts",
        })
        .column("GRANTED BY", |grant| safe_or_empty(&grant.granted_by))
        .column("GRANTED", |grant| time::timestamp(grant.granted_at));
    page.table_section("Capabilities", &grants);
    page
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn grants_keep_what_the_agent_has() {
        let known: Vec<CapabilityGrant> = serde_json::from_value(json!([
            { "capability": "build", "granted_by": "eve", "scope": "accepted", "granted_at": "2026-01-01T00:00:00Z" },
            { "capability": "test", "granted_by": null, "scope": "sponsor", "granted_at": "2026-01-01T00:00:00Z" },
        ]))
        .expect("grants");
        let grant = |new: &[&str], scope| {
            let grants = granted(&known, names(new), scope);
            grants.into_iter().map(|grant| (grant.capability, grant.scope)).collect::<Vec<_>>()
        };
        let (accepted, sponsor) = (Some(GrantScope::Accepted), Some(GrantScope::Sponsor));
        let expect = |test, deploy| {
            let all = [("build", accepted), ("test", test), ("deploy", deploy)];
            all.map(|(name, scope)| (name.to_owned(), scope)).to_vec()
        };
        assert_eq!(grant(&["deploy", "test", "deploy"], None), expect(sponsor, None));
        assert_eq!(grant(&["deploy", "test"], accepted), expect(accepted, accepted));
    }

    #[test]
    fn revokes_only_what_the_agent_has() {
        let left = remaining(names(&["build", "test"]), &names(&["test"])).expect("revoked");
        assert_eq!(left, ["build"]);
        assert!(remaining(left, &names(&["build", "test"])).is_err());
    }

    #[test]
    fn page_shows_what_agents_wrote_without_control_characters() {
        let agent: Agent = serde_json::from_value(json!({
            "agent_id": "bot", "name": "Bot\u{1b}[2J", "sponsor_id": "ann", "model": null, "version": null,
            "capabilities": ["deploy"], "max_tasks": 5, "active_tasks": 1, "queued_tasks": 0, "status": "active",
            "grants": [{ "capability": "deploy", "granted_by": "ann", "scope": "sponsor", "granted_at": "2026-01-01T00:00:00Z" }],
            "last_heartbeat": "2026-01-01T00:00:00Z", "config": {},
        }))
        .expect("an agent");
        let shown = page(&agent).to_string();
        let shown = anstream::adapter::strip_str(&shown).to_string();
        for part in ["(bot)", "sponsor          ann", "1 of at most 5", "its sponsor and team"] {
            assert!(shown.contains(part), "{part:?} is missing in\n{shown}");
        }
        assert!(!shown.contains('\u{1b}'), "{shown}");
    }
}
