//! Agents: the list and the cards, one agent with its configuration, and the wizard that makes one. How an agent is follows from the
//! answer of the API alone; what a visitor may change is decided there.

#[cfg(test)]
mod tests;
mod wizard;

use ade_client::wire::{
    Agent, AgentHealth, AgentOutcome, AgentRequest, FieldError, InboxMessage, Lock, LockMode, Page, Problem,
    Task, TaskState, Time, Token,
};
use askama::Template;
use serde::Serialize;

use crate::drawing::meter;
use crate::format::{chosen, link, segment, visible};
use crate::review::StateChip;
use crate::{Markup, Shell};
pub use wizard::{WizardField, WizardPage, step_of, unreadable};

/// Failures that a card names.
const LISTED_FAILURES: usize = 2;

/// Which agents are listed, and how, as in the URL.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AgentFilter {
    /// `grid`, or anything else for a list.
    pub view: String,
    pub status: String,
    pub sponsor: String,
    pub text: String,
}

impl AgentFilter {
    fn is_grid(&self) -> bool {
        self.view == "grid"
    }

    fn chosen(&self) -> usize {
        chosen(&[&self.status, &self.sponsor, &self.text])
    }

    fn is_set(&self) -> bool {
        self.chosen() > 0
    }

    /// The query of the page, and of the API.
    #[must_use]
    pub fn query(&self, path: &str, view: &str, cursor: &str) -> String {
        let Self { status, sponsor, text, .. } = self;
        link(
            path,
            &[("view", view), ("status", status), ("sponsor", sponsor), ("text", text), ("cursor", cursor)],
        )
    }
}

#[derive(Debug, Clone, Template)]
#[template(path = "agents.html")]
pub struct AgentsPage {
    pub shell: Shell,
    pub filter: AgentFilter,
    /// Where this page of the list begins; empty for the first.
    pub cursor: String,
    pub agents: Page<AgentHealth>,
    pub problem: Option<Problem>,
}

impl AgentsPage {
    /// The next page, in the same view.
    fn next_link(&self) -> Option<String> {
        Some(self.filter.query("/agents", &self.filter.view, self.agents.next_cursor.as_deref()?))
    }

    /// Those of this page that need attention first.
    fn ordered(&self) -> Vec<&AgentHealth> {
        let mut agents: Vec<&AgentHealth> = self.agents.items.iter().collect();
        agents.sort_by_key(|health| (rank(health), health.agent.agent_id.clone()));
        agents
    }
}

fn failures(health: &AgentHealth) -> impl Iterator<Item = &AgentOutcome> {
    health.outcomes.iter().filter(|outcome| outcome.state == TaskState::Failed)
}

/// Whether more than a quarter of the last tasks failed.
fn is_failing(health: &AgentHealth) -> bool {
    failures(health).count() * 4 > health.outcomes.len()
}

fn is_full(agent: &Agent) -> bool {
    agent.active_tasks >= u64::from(agent.max_tasks)
}

/// Lower needs attention sooner.
fn rank(health: &AgentHealth) -> u8 {
    match health.agent.status.as_str() {
        "offline" => 0,
        _ if is_failing(health) => 1,
        "draining" => 2,
        _ if is_full(&health.agent) => 3,
        _ => 4,
    }
}

/// The class and the sign of a status.
fn status_look(status: &str) -> (&'static str, &'static str) {
    match status {
        "active" => ("ok", "●"),
        "draining" => ("warn", "◐"),
        _ => ("danger", "○"),
    }
}

/// Last outcomes, the newest on the right. The words beside them say the same.
fn dots(health: &AgentHealth) -> Markup {
    if health.outcomes.is_empty() {
        return Markup::default();
    }
    let mut markup = Markup::new("<span class=\"dots\" aria-hidden=\"true\">");
    for outcome in health.outcomes.iter().rev() {
        markup.raw("<i class=\"").raw(look(outcome.state)).raw("\" title=\"");
        markup.text(&outcome.task_type).raw(": ").text(outcome_word(outcome.state)).raw("\"></i>");
    }
    markup.raw("</span>");
    markup
}

const fn look(state: TaskState) -> &'static str {
    match state {
        TaskState::Completed => "ok",
        TaskState::Failed => "danger",
        TaskState::Rejected => "warn",
        _ => "",
    }
}

const fn outcome_word(state: TaskState) -> &'static str {
    match state {
        TaskState::Completed => "completed",
        TaskState::Failed => "failed",
        TaskState::Rejected => "rejected",
        _ => "cancelled",
    }
}

/// `17 completed, 2 failed`.
fn outcome_words(health: &AgentHealth) -> String {
    let states = [TaskState::Completed, TaskState::Failed, TaskState::Rejected, TaskState::Cancelled];
    let counts =
        states.map(|state| (health.outcomes.iter().filter(|outcome| outcome.state == state).count(), state));
    let words = counts.into_iter().filter(|(number, _)| *number > 0);
    let words: Vec<String> =
        words.map(|(number, state)| format!("{number} {}", outcome_word(state))).collect();
    if words.is_empty() { "no task has ended yet".to_owned() } else { words.join(", ") }
}

/// How many of the tasks that it may have it has.
fn capacity(agent: &Agent) -> Markup {
    let (active, max) = (u32::try_from(agent.active_tasks).unwrap_or(u32::MAX), agent.max_tasks.max(1));
    meter(f64::from(active) * 100.0 / f64::from(max), if is_full(agent) { "HIGH" } else { "" })
}

fn agent_link(agent: &str) -> String {
    format!("/agents/{}", segment(agent))
}

fn pretty(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

/// One agent.
#[derive(Debug, Clone, Template)]
#[template(path = "agent.html")]
pub struct AgentPage {
    pub shell: Shell,
    pub health: AgentHealth,
    /// Parents, the nearest first.
    pub parents: Vec<Agent>,
    /// Its valid tokens; absent for those who may not see them.
    pub tokens: Option<Vec<Token>>,
    pub locks: Vec<Lock>,
    pub tasks: Page<Task>,
    /// Absent for those who may not read them.
    pub messages: Option<Vec<InboxMessage>>,
    /// What was typed into the configuration panel, if it was refused.
    pub draft: Option<AgentDraft>,
    /// Why the last change was refused.
    pub problem: Option<Problem>,
}

/// A lock that the agent holds or waits for.
struct LockRow<'a> {
    lock: &'a str,
    role: &'static str,
    mode: &'static str,
    activity: &'a str,
    purpose: &'a str,
    ends: Time,
}

/// The configuration as typed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AgentDraft {
    pub name: String,
    pub model: String,
    pub version: String,
    pub parent: String,
    pub max_tasks: String,
    pub capabilities: String,
    pub accepts: String,
    pub config: String,
    /// The revision that was edited.
    pub revision: String,
}

impl AgentPage {
    fn agent(&self) -> &Agent {
        &self.health.agent
    }

    /// The sponsor and administrators may change it. The API decides; this only leaves out what would be refused.
    fn may_change(&self) -> bool {
        let sponsor = self.agent().sponsor_id.as_deref();
        let is_sponsor = |viewer: &crate::Viewer| sponsor == Some(viewer.user_id.as_str());
        self.shell.viewer.as_ref().is_some_and(|viewer| viewer.is_admin() || is_sponsor(viewer))
    }

    fn is_admin(&self) -> bool {
        self.shell.viewer.as_ref().is_some_and(crate::Viewer::is_admin)
    }

    /// What the panel shows: the typed values, or those of the agent.
    fn draft(&self) -> AgentDraft {
        let agent = self.agent();
        self.draft.clone().unwrap_or_else(|| AgentDraft {
            name: agent.name.clone(),
            model: agent.model.clone().unwrap_or_default(),
            version: agent.version.clone().unwrap_or_default(),
            parent: agent.parent_agent_id.clone().unwrap_or_default(),
            max_tasks: agent.max_tasks.to_string(),
            capabilities: agent.capabilities.join("\n"),
            accepts: agent.accepts.join("\n"),
            config: if agent.config.is_empty() { String::new() } else { pretty(&agent.config) },
            revision: agent.revision.map_or_else(String::new, |revision| revision.to_string()),
        })
    }

    /// Whether somebody else changed the agent while it was edited.
    fn is_stale(&self) -> bool {
        self.problem.as_ref().is_some_and(|problem| problem.code == "STALE")
    }

    /// The chain of responsibility: who instructs the agent, the agent, and the person who is responsible for it.
    fn chain(&self) -> Markup {
        let mut links: Vec<(String, String, &'static str)> = Vec::new();
        for parent in self.parents.iter().rev() {
            links.push((agent_link(&parent.agent_id), visible(&parent.agent_id), "instructs the next"));
        }
        let agent = self.agent();
        links.push((String::new(), visible(&agent.agent_id), "this agent"));
        let sponsor = agent.sponsor_id.as_deref().map(visible);
        links.push((String::new(), sponsor.unwrap_or_else(|| "nobody".to_owned()), "sponsor"));
        draw_chain(&links)
    }

    fn lock_rows(&self) -> Vec<LockRow<'_>> {
        let (own, mut rows) = (&self.agent().agent_id, Vec::new());
        for lock in &self.locks {
            let name = lock.lock.as_str();
            let mode = |mode| if mode == Some(LockMode::Shared) { "shared" } else { "exclusive" };
            rows.extend(lock.holders.iter().filter(|by| by.agent_id == *own).map(|by| LockRow {
                lock: name,
                role: "holds",
                mode: mode(lock.mode),
                activity: &by.holder_id,
                purpose: &by.purpose,
                ends: by.expires_at,
            }));
            rows.extend(lock.queue.iter().filter(|by| by.agent_id == *own).map(|by| LockRow {
                lock: name,
                role: "waits",
                mode: mode(Some(by.mode)),
                activity: &by.holder_id,
                purpose: &by.purpose,
                ends: by.deadline,
            }));
        }
        rows
    }

    fn state_of(&self, task: &Task) -> StateChip {
        StateChip::of(task.state)
    }

    fn tasks_link(&self) -> String {
        link("/tasks", &[("agent", &self.agent().agent_id)])
    }

    fn locks_link(&self) -> String {
        link("/locks", &[("agent", &self.agent().agent_id)])
    }
}

/// Boxes in a row, with an arrow from each to the next.
fn draw_chain(links: &[(String, String, &'static str)]) -> Markup {
    const WIDTH: usize = 170;
    const STEP: usize = 206;
    let total = links.len() * STEP - (STEP - WIDTH) + 2;
    let mut svg = Markup::new(
        "<svg class=\"graph\" role=\"group\" aria-label=\"Who instructs the agent, and who is responsible for it\" width=\"",
    );
    svg.value(total).raw("\" height=\"48\" viewBox=\"0 0 ").value(total).raw(" 48\">");
    for (at, (href, name, role)) in links.iter().enumerate() {
        let x = at * STEP + 1;
        if at > 0 {
            svg.raw("<path class=\"arrow\" d=\"M")
                .value(x - (STEP - WIDTH))
                .raw(" 24H")
                .value(x - 8)
                .raw("\"/><path class=\"tip\" d=\"M");
            svg.value(x).raw(" 24l-8 -4v8z\"/>");
        }
        if !href.is_empty() {
            svg.raw("<a href=\"").text(href).raw("\">");
        }
        svg.raw("<title>")
            .text(name)
            .raw("</title><rect class=\"box\" x=\"")
            .value(x)
            .raw("\" y=\"2\" rx=\"6\" width=\"")
            .value(WIDTH);
        svg.raw("\" height=\"44\"/><text x=\"").value(x + 10).raw("\" y=\"21\">");
        let shown: String = name.chars().take(22).collect();
        svg.text(&shown).raw(if name.chars().count() > 22 { "…" } else { "" });
        svg.raw("</text><text class=\"sub\" x=\"").value(x + 10).raw("\" y=\"37\">").raw(role).raw("</text>");
        if !href.is_empty() {
            svg.raw("</a>");
        }
    }
    svg.raw("</svg>");
    svg
}

/// A new token, shown once, with what can be done with it.
#[derive(Debug, Clone, Template)]
#[template(path = "agent_token.html")]
pub struct NewTokenPage {
    pub shell: Shell,
    pub agent_id: String,
    /// Whether the agent was created with it.
    pub is_new_agent: bool,
    pub token: Token,
    /// The address that the visitor used, such as `http://127.0.0.1:8080`.
    pub address: String,
    /// The task that the snippet proposes.
    pub task: ade_client::wire::TaskRequest,
}

impl NewTokenPage {
    fn secret(&self) -> &str {
        self.token.token.as_deref().unwrap_or_default()
    }

    /// Commands of a shell that propose a task and submit it.
    fn snippet(&self) -> String {
        let task = shell_quoted(&pretty(&self.task));
        let (token, address) = (shell_quoted(self.secret()), shell_quoted(&self.address));
        format!(
            "export ADE_TOKEN={token} ADE_SERVER={address}\n\
             created=$(curl -sS --fail-with-body \"$ADE_SERVER/api/v1/tasks\" \\\n  \
             -H \"authorization: Bearer $ADE_TOKEN\" -H 'content-type: application/json' \\\n  \
             -d {task}) &&\n\
             task=$(echo \"$created\" | grep -o '\"task_id\":\"[^\"]*\"' | head -n 1 | cut -d '\"' -f 4) &&\n\
             submitted=$(curl -sS --fail-with-body -X POST \"$ADE_SERVER/api/v1/tasks/$task/submit\" \\\n  \
             -H \"authorization: Bearer $ADE_TOKEN\") &&\n\
             echo \"proposed $ADE_SERVER/tasks/$task\" || {{ echo \"$created $submitted\" >&2; false; }}\n"
        )
    }
}

/// Text as one word of a POSIX shell.
fn shell_quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// The request that sets what the panel shows, as far as it differs from the agent; an invalid number or JSON is left to the API.
impl AgentDraft {
    /// # Errors
    /// The fault of a field that is no number or JSON.
    pub fn request(&self, agent: &Agent) -> Result<AgentRequest, FieldError> {
        let lines = |text: &str| -> Vec<String> {
            text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect()
        };
        let differs = |typed: &str, present: &Option<String>| typed != present.as_deref().unwrap_or_default();
        let (capabilities, accepts) = (lines(&self.capabilities), lines(&self.accepts));
        let max_tasks = wizard::number("/max_tasks", &self.max_tasks)?;
        let config = wizard::object("/config", &self.config)?.unwrap_or_default();
        Ok(AgentRequest {
            name: Some(self.name.clone()).filter(|name| *name != agent.name),
            model: Some(self.model.clone()).filter(|model| differs(model, &agent.model)),
            version: Some(self.version.clone()).filter(|version| differs(version, &agent.version)),
            parent_agent_id: differs(&self.parent, &agent.parent_agent_id)
                .then(|| Some(self.parent.clone()).filter(|parent| !parent.is_empty())),
            capabilities: Some(capabilities).filter(|list| *list != agent.capabilities),
            accepts: Some(accepts).filter(|list| *list != agent.accepts),
            max_tasks: max_tasks.filter(|max| *max != agent.max_tasks),
            config: Some(config).filter(|config| *config != agent.config),
            ..AgentRequest::default()
        })
    }
}
