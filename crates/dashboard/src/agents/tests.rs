//! Tests of the order of agents, of what an edit sends, of the wizard's steps, and of the commands that are shown with a token.

use std::collections::BTreeMap;

use ade_client::wire::{Agent, AgentHealth, AgentOutcome, FieldError, Page, Scope, TaskState, Time, Token};
use jiff::Timestamp;

use super::wizard::{WizardPage, number, object, step_of, unreadable};
use super::{AgentDraft, AgentFilter, AgentsPage, NewTokenPage, outcome_words, shell_quoted};
use crate::{Section, Shell, Template};

const NOW: Time = Time(Timestamp::UNIX_EPOCH);

fn shell() -> Shell {
    Shell::anonymous("Agents", NOW.0).page(Section::Agents, "Agents", "agent")
}

fn agent(id: &str, status: &str) -> Agent {
    Agent {
        agent_id: id.to_owned(),
        name: id.to_owned(),
        sponsor_id: None,
        model: None,
        version: None,
        parent_agent_id: None,
        capabilities: Vec::new(),
        grants: Vec::new(),
        accepts: Vec::new(),
        max_tasks: 5,
        active_tasks: 0,
        queued_tasks: 0,
        status: status.to_owned(),
        last_heartbeat: NOW,
        config: BTreeMap::new(),
        revision: Some(3),
    }
}

fn health(id: &str, status: &str, states: &[TaskState]) -> AgentHealth {
    let outcome = |state: &TaskState| AgentOutcome {
        task_id: "019a9d1e-3c4f-7a10-8f00-1234567890ab".to_owned(),
        task_type: "<script>".to_owned(),
        state: *state,
        at: NOW,
    };
    AgentHealth { agent: agent(id, status), held_locks: 0, outcomes: states.iter().map(outcome).collect() }
}

#[test]
fn agents_that_need_attention_come_first() {
    let fine = [TaskState::Completed; 3];
    let failing = [TaskState::Failed, TaskState::Completed];
    let mut full = health("full", "active", &fine);
    full.agent.active_tasks = 5;
    let items = vec![
        health("fine", "active", &fine),
        full,
        health("drained", "draining", &fine),
        health("failing", "active", &failing),
        health("gone", "offline", &[]),
    ];
    let agents = Page { items, next_cursor: None };
    for view in ["list", "grid"] {
        let filter = AgentFilter { view: view.to_owned(), ..AgentFilter::default() };
        let page = AgentsPage {
            shell: shell(),
            filter,
            cursor: String::new(),
            agents: agents.clone(),
            problem: None,
        };
        let order: Vec<&str> = page.ordered().iter().map(|health| health.agent.agent_id.as_str()).collect();
        assert_eq!(order, ["gone", "failing", "drained", "full", "fine"]);
        let html = page.render().expect("renders");
        assert!(html.contains("1 completed, 1 failed") && html.contains("full"), "{html}");
        assert!(!html.contains("<script>"), "a type is text: {html}");
    }
}

#[test]
fn outcomes_have_words() {
    let states = [TaskState::Completed, TaskState::Failed, TaskState::Completed, TaskState::Cancelled];
    assert_eq!(outcome_words(&health("a", "active", &states)), "2 completed, 1 failed, 1 cancelled");
    assert_eq!(outcome_words(&health("a", "active", &[])), "no task has ended yet");
}

#[test]
fn an_edit_sends_only_what_differs() {
    let agent = agent("a", "active");
    let same = AgentDraft { name: "a".to_owned(), max_tasks: "5".to_owned(), ..AgentDraft::default() };
    let request = same.request(&agent).expect("valid");
    assert_eq!(request, ade_client::wire::AgentRequest::default());
    let draft = AgentDraft {
        capabilities: "x\n\n y \n".to_owned(),
        parent: "p".to_owned(),
        config: "{\"a\": 1}".to_owned(),
        max_tasks: "7".to_owned(),
        ..same
    };
    let request = draft.request(&agent).expect("valid");
    assert_eq!(request.capabilities, Some(vec!["x".to_owned(), "y".to_owned()]));
    assert_eq!(
        (request.parent_agent_id, request.max_tasks, request.name),
        (Some(Some("p".to_owned())), Some(7), None)
    );
    let refused = AgentDraft { config: "[1]".to_owned(), ..draft }.request(&agent).expect_err("no object");
    assert!(
        refused.pointer == "/config" && refused.detail.starts_with("must be a JSON object"),
        "{refused:?}"
    );
}

#[test]
fn a_problem_leads_to_the_step_of_its_field() {
    for (pointer, step) in
        [("/agent_id", 1), ("/capabilities/3", 2), ("/config", 3), ("/task/resources/0", 4)]
    {
        let error = FieldError { pointer: pointer.to_owned(), detail: "is wrong".to_owned() };
        let problem = unreadable(&error);
        assert_eq!(step_of(&problem), step, "{pointer}");
    }
    assert_eq!(number("/max_tasks", " 7 ").expect("a number"), Some(7));
    assert!(number("/max_tasks", "many").is_err());
    assert_eq!(object("/config", " ").expect("nothing"), None);
}

#[test]
fn every_step_carries_the_values_of_the_others() {
    let value = "\"><script>\u{202e}";
    for step in 1..=5 {
        let page = WizardPage::new(shell(), step, |_| Some(value.to_owned()));
        let html = page.render().expect("renders");
        assert!(!html.contains("<script>\u{202e}"), "step {step}: {html}");
        for field in super::WizardField::ALL {
            // Only administrators name a sponsor, and whose tasks are accepted.
            let is_hidden = ["sponsor", "accepts"].contains(&field.name) && field.step == step;
            assert!(
                is_hidden || html.contains(&format!("name=\"{}\"", field.name)),
                "step {step}: {}",
                field.name
            );
        }
    }
}

#[test]
fn commands_quote_what_people_typed() {
    assert_eq!(shell_quoted("a'b"), "'a'\\''b'");
    let page = WizardPage::new(shell(), 5, |name| {
        let value = match name {
            "type" => "t",
            "description" => "it's $(rm -rf /) `x`",
            "agent_id" => "bot",
            "executor" => "agent",
            _ => return None,
        };
        Some(value.to_owned())
    });
    let token = Token {
        token_id: "1".to_owned(),
        token: Some("ade_secret".to_owned()),
        name: "n".to_owned(),
        scopes: [Scope::Read].into(),
        expires_at: NOW,
        revoked_at: None,
        created_by: None,
        created_at: NOW,
    };
    let task = page.first_task();
    assert_eq!(task.parameters.as_ref().and_then(|all| all.get("agent")), Some(&"bot".into()));
    let page = NewTokenPage {
        shell: shell(),
        agent_id: "bot".to_owned(),
        is_new_agent: true,
        token,
        address: "http://127.0.0.1:1".to_owned(),
        task,
    };
    let snippet = page.snippet();
    assert!(snippet.contains("it'\\''s $(rm -rf /) `x`"), "{snippet}");
    assert!(page.render().expect("renders").contains("ade_secret"));
}
