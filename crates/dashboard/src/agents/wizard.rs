//! The wizard that makes an agent: five steps whose values travel in the URL, so that going back and reloading keep them. Each step is
//! checked by the API, whose words are shown; this module only knows which field belongs to which step.

use std::collections::BTreeMap;
use std::fmt::Display;

use ade_client::wire::{
    AgentRequest, FieldError, LockMode, Problem, Resource, Simulation, TaskRequest, TokenRequest,
};
use askama::Template;
use serde_json::{Map, Value, json};

use crate::Shell;
use crate::drawing::level_name;
use crate::format::{link, visible};

/// The steps, by number.
const STEPS: [&str; 5] = ["Identity", "Capabilities", "Limits", "Resources and policies", "Review"];
/// Seconds of a day.
const DAY: u64 = 86_400;

/// A field of the wizard: its name in the URL, the step that it is on, and where the API finds fault with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WizardField {
    pub name: &'static str,
    pub step: usize,
    pointer: &'static str,
    default: &'static str,
}

const fn field(name: &'static str, step: usize, pointer: &'static str, default: &'static str) -> WizardField {
    WizardField { name, step, pointer, default }
}

impl WizardField {
    /// All fields, in the order of the pages.
    pub const ALL: [Self; 16] = [
        field("agent_id", 1, "/agent_id", ""),
        field("name", 1, "/name", ""),
        field("model", 1, "/model", ""),
        field("version", 1, "/version", ""),
        field("parent", 1, "/parent_agent_id", ""),
        field("sponsor", 1, "/sponsor_id", ""),
        field("capabilities", 2, "/capabilities", ""),
        field("accepts", 2, "/accepts", ""),
        field("max_tasks", 3, "/max_tasks", "5"),
        field("token_days", 3, "/ttl_seconds", "30"),
        field("config", 3, "/config", ""),
        field("type", 4, "/task/type", ""),
        field("description", 4, "/task/description", ""),
        field("executor", 4, "/task/executor", "agent"),
        field("resources", 4, "/task/resources", ""),
        field("parameters", 4, "/task/parameters", ""),
    ];
}

#[derive(Debug, Clone, Template)]
#[template(path = "agent_new.html")]
pub struct WizardPage {
    pub shell: Shell,
    /// From 1 to 5.
    pub step: usize,
    /// The values that are known, by the names of fields.
    pub values: BTreeMap<&'static str, String>,
    /// What a task on the chosen resources would meet.
    pub simulation: Option<Simulation>,
    /// Why a step is not finished.
    pub problem: Option<Problem>,
}

/// The problem of a field that cannot be sent, in the form in which the API would answer it.
#[must_use]
pub fn unreadable(error: &FieldError) -> Problem {
    Problem {
        kind: "about:blank".to_owned(),
        title: String::new(),
        status: 422,
        detail: format!("{} {}", error.pointer, error.detail),
        code: "INVALID_REQUEST".to_owned(),
        extensions: BTreeMap::from([("errors".to_owned(), json!([error]))]),
    }
}

fn fault(pointer: &str, detail: impl Into<String>) -> FieldError {
    FieldError { pointer: pointer.to_owned(), detail: detail.into() }
}

/// A number as typed; none if nothing is.
pub(super) fn number(pointer: &str, text: &str) -> Result<Option<u32>, FieldError> {
    if text.trim().is_empty() {
        return Ok(None);
    }
    text.trim().parse().map(Some).map_err(|_| fault(pointer, format!("must be a whole number, not {text:?}")))
}

/// A JSON object as typed; none if nothing is.
pub(super) fn object(pointer: &str, text: &str) -> Result<Option<BTreeMap<String, Value>>, FieldError> {
    if text.trim().is_empty() {
        return Ok(None);
    }
    let invalid =
        |error| fault(pointer, format!("must be a JSON object, such as {{\"region\": \"eu\"}}: {error}"));
    serde_json::from_str(text).map(Some).map_err(invalid)
}

/// The step to show for a problem: the one that it belongs to.
#[must_use]
pub fn step_of(problem: &Problem) -> usize {
    let errors: Vec<FieldError> = problem.extension("errors").unwrap_or_default();
    let first = errors.first().map_or(problem.detail.as_str(), |error| error.pointer.as_str());
    let has_pointer = |field: &&WizardField| first.starts_with(field.pointer);
    // What the API refuses for other reasons is about the name or the parent, unless it says which capability.
    let fallback =
        if problem.detail.contains("capabilit") || problem.detail.contains("accepts") { 2 } else { 1 };
    WizardField::ALL.iter().find(has_pointer).map_or(fallback, |field| field.step)
}

impl WizardPage {
    /// A page with the values that `known` finds for the fields.
    #[must_use]
    pub fn new(shell: Shell, step: usize, known: impl Fn(&str) -> Option<String>) -> Self {
        let value =
            |field: &WizardField| (field.name, known(field.name).unwrap_or_else(|| field.default.to_owned()));
        let values = WizardField::ALL.iter().map(value).collect();
        Self { shell, step: step.clamp(1, STEPS.len()), values, simulation: None, problem: None }
    }

    /// The value of a field as typed.
    #[must_use]
    pub fn value(&self, name: &str) -> &str {
        self.values.get(name).map_or("", String::as_str)
    }

    fn optional(&self, name: &str) -> Option<String> {
        Some(self.value(name).trim().to_owned()).filter(|value| !value.is_empty())
    }

    fn lines(&self, name: &str) -> Vec<String> {
        let lines = self.value(name).lines().map(str::trim).filter(|line| !line.is_empty());
        lines.map(str::to_owned).collect()
    }

    /// The agent of the steps before `step`.
    ///
    /// # Errors
    /// The fault of a field that is no number or JSON.
    pub fn agent(&self, step: usize) -> Result<AgentRequest, FieldError> {
        let mut agent = AgentRequest {
            agent_id: self.optional("agent_id"),
            name: self.optional("name"),
            model: self.optional("model"),
            version: self.optional("version"),
            sponsor_id: self.optional("sponsor"),
            parent_agent_id: self.optional("parent").map(Some),
            ..AgentRequest::default()
        };
        if step > 2 {
            agent.capabilities = Some(self.lines("capabilities")).filter(|list| !list.is_empty());
            agent.accepts = Some(self.lines("accepts")).filter(|list| !list.is_empty());
        }
        if step > 3 {
            agent.max_tasks = number("/max_tasks", self.value("max_tasks"))?;
            agent.config = object("/config", self.value("config"))?;
            self.token()?;
        }
        Ok(agent)
    }

    /// Its first token.
    ///
    /// # Errors
    /// The fault of a validity that is no number of days.
    pub fn token(&self) -> Result<TokenRequest, FieldError> {
        let days = number("/ttl_seconds", self.value("token_days"))?;
        if days.is_some_and(|days| !(1..=365).contains(&days)) {
            return Err(fault("/ttl_seconds", "must be between 1 and 365 days"));
        }
        let ttl_seconds = days.map(|days| u64::from(days) * DAY);
        Ok(TokenRequest { name: "made with the agent".to_owned(), scopes: None, ttl_seconds })
    }

    /// A task that the agent would propose; none unless a type is given.
    ///
    /// # Errors
    /// The fault of parameters that are no JSON object, or of a resource without type.
    pub fn task(&self) -> Result<Option<TaskRequest>, FieldError> {
        if self.optional("type").is_none() {
            return Ok(None);
        }
        let mut resources = Vec::new();
        for line in self.lines("resources") {
            let Some((resource_type, id)) = line.split_once(':') else {
                return Err(fault(
                    "/task/resources",
                    format!("must be TYPE:ID, such as database:orders, not {line:?}"),
                ));
            };
            resources.push(Resource {
                resource_type: resource_type.to_owned(),
                id: id.to_owned(),
                mode: LockMode::Exclusive,
            });
        }
        let executor = self.optional("executor");
        let mut parameters: Map<String, Value> =
            object("/task/parameters", self.value("parameters"))?.unwrap_or_default().into_iter().collect();
        // Unless it says otherwise, the agent applies it itself.
        if executor.as_deref() == Some("agent") && parameters.is_empty() {
            parameters.insert("agent".to_owned(), self.value("agent_id").into());
        }
        Ok(Some(TaskRequest {
            task_type: self.optional("type"),
            description: Some(self.optional("description").unwrap_or_else(|| "A first task".to_owned())),
            executor,
            parameters: Some(parameters),
            resources: Some(resources),
            ..TaskRequest::default()
        }))
    }

    /// The task of the snippet: the simulated one, or one that changes nothing.
    #[must_use]
    pub fn first_task(&self) -> TaskRequest {
        let simulated = self.task().ok().flatten();
        simulated.unwrap_or_else(|| TaskRequest {
            task_type: Some("first.task".to_owned()),
            description: Some("A first task, which changes nothing".to_owned()),
            executor: Some("noop".to_owned()),
            ..TaskRequest::default()
        })
    }

    fn steps(&self) -> impl Iterator<Item = (usize, &'static str)> {
        (1..).zip(STEPS)
    }

    fn title(&self) -> &'static str {
        STEPS.get(self.step - 1).copied().unwrap_or_default()
    }

    /// The fields of other steps, which the form carries along.
    fn carried(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let others = WizardField::ALL.iter().filter(|field| field.step != self.step);
        others.map(|field| (field.name, self.value(field.name))).filter(|(_, value)| !value.is_empty())
    }

    fn all(&self) -> impl Iterator<Item = (&'static str, &str)> {
        WizardField::ALL.iter().map(|field| (field.name, self.value(field.name)))
    }

    /// The page of another step with the same values.
    #[must_use]
    pub fn link_to(&self, step: impl Display) -> String {
        let step = step.to_string();
        let mut params = vec![("step", step.as_str())];
        params.extend(self.all());
        link("/agents/new", &params)
    }

    fn level(&self, simulation: &Simulation) -> &'static str {
        level_name(simulation.risk.level)
    }

    fn is_admin(&self) -> bool {
        self.shell.viewer.as_ref().is_some_and(crate::Viewer::is_admin)
    }

    fn own_id(&self) -> &str {
        self.shell.viewer.as_ref().map_or("", |viewer| viewer.user_id.as_str())
    }

    /// What the API finds wrong with a field.
    fn fault(&self, name: &str) -> String {
        let Some(field) = WizardField::ALL.iter().find(|field| field.name == name) else {
            return String::new();
        };
        let errors: Vec<FieldError> =
            self.problem.as_ref().and_then(|problem| problem.extension("errors")).unwrap_or_default();
        let of_field = errors.into_iter().filter(|error| error.pointer.starts_with(field.pointer));
        of_field.map(|error| visible(&error.detail)).collect::<Vec<_>>().join("; ")
    }
}
