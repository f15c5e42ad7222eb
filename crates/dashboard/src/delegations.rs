//! Pages of delegations: who gets whose approval requests, as a table and drawn as chains, and the form of one.

use ade_client::wire::{
    Delegation, DelegationConditions, DelegationKind, DelegationRequest, Problem, SimulatedReviewer,
    Simulation, Time, User,
};
use askama::Template;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use crate::chains::{self, Arrow};
use crate::format::{segment, visible};
use crate::policies::{level, outcome, words};
use crate::rule_text;
use crate::{Markup, Shell};

/// The result of asking what would happen to a task.
#[derive(Debug, Clone)]
pub struct DelegationCheck {
    pub simulation: Simulation,
}

impl DelegationCheck {
    pub(crate) fn outcome(&self) -> String {
        outcome(&self.simulation)
    }

    pub(crate) fn level(&self) -> String {
        level(&self.simulation)
    }

    /// `alice → bob → carol`, or the reviewer alone.
    pub(crate) fn path(&self, reviewer: &SimulatedReviewer) -> String {
        let Some(first) = reviewer.delegation_chain.first() else { return visible(&reviewer.reviewer_id) };
        let others = reviewer.delegation_chain.iter().map(|step| &step.to);
        let people: Vec<String> = std::iter::once(&first.from).chain(others).map(visible).collect();
        people.join(" → ")
    }

    fn takes(&self, delegation: &Delegation) -> bool {
        let mut steps = self.simulation.reviewers.iter().flat_map(|reviewer| &reviewer.delegation_chain);
        steps.any(|step| step.delegation_id == delegation.delegation_id)
    }
}

#[derive(Debug, Clone, Template)]
#[template(path = "delegations.html")]
pub struct DelegationsPage {
    pub shell: Shell,
    pub delegations: Vec<Delegation>,
    pub next_cursor: Option<String>,
    /// Whether the viewer sees those of others too.
    pub sees_all: bool,
    pub can_create: bool,
    /// Of the task that is checked, as typed.
    pub task_type: String,
    pub resource: String,
    pub check: Option<DelegationCheck>,
    pub problem: Option<Problem>,
}

impl DelegationsPage {
    fn encoded(&self, text: &str) -> String {
        segment(text)
    }

    fn chains(&self) -> (Markup, usize) {
        let arrow = |delegation: &Delegation| Arrow {
            from: delegation.owner_id.clone(),
            to: delegation.delegate_to.clone(),
            label: rule_text::conditions(&delegation.conditions),
            is_follow: delegation.kind == DelegationKind::Follow,
            is_active: self.state(delegation).1 == "ok",
            is_taken: self.is_taken(delegation),
        };
        chains::draw(&self.delegations.iter().map(arrow).collect::<Vec<_>>())
    }

    fn is_taken(&self, delegation: &Delegation) -> bool {
        self.check.as_ref().is_some_and(|check| check.takes(delegation))
    }

    fn conditions(&self, delegation: &Delegation) -> String {
        rule_text::conditions(&delegation.conditions)
    }

    fn person(&self, id: &str) -> String {
        visible(id)
    }

    fn is_past(&self, time: &Time) -> bool {
        time.0 <= self.shell.now
    }

    fn is_follow(&self, delegation: &Delegation) -> bool {
        delegation.kind == DelegationKind::Follow
    }

    /// A word with its sign, and the class of its chip.
    fn state(&self, delegation: &Delegation) -> (&'static str, &'static str) {
        state(delegation, &self.shell)
    }

    fn may_change(&self, delegation: &Delegation) -> bool {
        let viewer = self.shell.viewer.as_ref();
        viewer.is_some_and(|viewer| viewer.is_admin() || viewer.user_id == delegation.owner_id)
    }
}

fn state(delegation: &Delegation, shell: &Shell) -> (&'static str, &'static str) {
    let now = Time(shell.now);
    if !delegation.active {
        ("– ended", "")
    } else if delegation.valid_until.is_some_and(|until| until <= now) {
        ("– expired", "")
    } else if delegation.valid_from.is_some_and(|from| from > now) {
        ("◷ not yet", "info")
    } else {
        ("✓ active", "ok")
    }
}

/// The fields of the form, as they are typed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DelegationFields {
    /// Empty: the viewer.
    pub owner_id: String,
    pub delegate_to: String,
    pub is_follow: bool,
    pub task_types: String,
    pub resource_patterns: String,
    pub risk_above: String,
    pub cascade: bool,
    pub valid_from: String,
    pub valid_until: String,
    pub active: bool,
}

/// The value of an input of type `datetime-local`, in UTC.
const LOCAL: &str = "%Y-%m-%dT%H:%M";

impl DelegationFields {
    /// Of a new delegation.
    #[must_use]
    pub fn new() -> Self {
        Self { cascade: true, active: true, ..Self::default() }
    }

    #[must_use]
    pub fn of(delegation: &Delegation) -> Self {
        let local =
            |time: Option<Time>| time.map_or_else(String::new, |time| time.0.strftime(LOCAL).to_string());
        let DelegationConditions { task_types, risk_above, resource_patterns } = &delegation.conditions;
        Self {
            owner_id: delegation.owner_id.clone(),
            delegate_to: delegation.delegate_to.clone(),
            is_follow: delegation.kind == DelegationKind::Follow,
            task_types: task_types.join("\n"),
            resource_patterns: resource_patterns.join("\n"),
            risk_above: risk_above.map_or_else(String::new, |above| above.to_string()),
            cascade: delegation.cascade,
            valid_from: local(delegation.valid_from),
            valid_until: local(delegation.valid_until),
            active: delegation.active,
        }
    }

    /// The request that sets all of them. On failure, the pointer of what cannot be read.
    pub fn request(&self) -> Result<DelegationRequest, &'static str> {
        let risk_above = Some(self.risk_above.trim()).filter(|text| !text.is_empty());
        let risk_above = risk_above.map(str::parse).transpose().map_err(|_| "/conditions/risk_above")?;
        let kind = if self.is_follow { DelegationKind::Follow } else { DelegationKind::Delegate };
        Ok(DelegationRequest {
            owner_id: Some(self.owner_id.clone()).filter(|owner| !owner.is_empty()),
            delegate_to: Some(self.delegate_to.clone()),
            kind: Some(kind),
            conditions: Some(DelegationConditions {
                task_types: words(&self.task_types),
                risk_above,
                resource_patterns: words(&self.resource_patterns),
            }),
            cascade: Some(self.cascade),
            active: Some(self.active),
            valid_from: Some(time(&self.valid_from, "/valid_from")?),
            valid_until: Some(time(&self.valid_until, "/valid_until")?),
        })
    }
}

fn time(text: &str, pointer: &'static str) -> Result<Option<Time>, &'static str> {
    if text.is_empty() {
        return Ok(None);
    }
    let local = text.parse::<DateTime>().map_err(|_| pointer)?;
    let zoned = local.to_zoned(TimeZone::UTC).map_err(|_| pointer)?;
    Ok(Some(Time(zoned.timestamp())))
}

/// One delegation, or a new one.
#[derive(Debug, Clone, Template)]
#[template(path = "delegation.html")]
pub struct DelegationPage {
    pub shell: Shell,
    /// Absent for a new one.
    pub delegation: Option<Delegation>,
    pub fields: DelegationFields,
    pub is_admin: bool,
    /// Who may be chosen.
    pub people: Vec<User>,
    pub problem: Option<Problem>,
}

impl DelegationPage {
    fn action(&self) -> String {
        let id = self.delegation.as_ref().map(|delegation| &delegation.delegation_id);
        id.map_or_else(|| "/delegations/new".to_owned(), |id| format!("/delegations/{id}"))
    }

    fn state(&self) -> (&'static str, &'static str) {
        self.delegation.as_ref().map_or(("", ""), |delegation| state(delegation, &self.shell))
    }

    fn may_change(&self) -> bool {
        let viewer = self.shell.viewer.as_ref().map(|viewer| &viewer.user_id);
        self.is_admin
            || self.delegation.as_ref().is_none_or(|delegation| Some(&delegation.owner_id) == viewer)
    }

    fn is_stale(&self) -> bool {
        self.problem.as_ref().is_some_and(|problem| problem.code == "STALE")
    }

    fn person(&self, user: &User) -> String {
        visible(&user.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_become_the_delegation_that_they_show() {
        let fields = DelegationFields {
            delegate_to: "bob".to_owned(),
            is_follow: true,
            task_types: "rollout, migration".to_owned(),
            risk_above: "50".to_owned(),
            valid_until: "2026-12-24T18:00".to_owned(),
            ..DelegationFields::new()
        };
        let request = fields.request().expect("readable");
        assert_eq!(request.kind, Some(DelegationKind::Follow));
        assert_eq!(request.valid_from, Some(None), "no start");
        let until = request.valid_until.flatten().expect("an end");
        assert_eq!(until.to_string(), "2026-12-24T18:00:00.000000Z");
        let conditions = request.conditions.expect("conditions");
        assert_eq!((conditions.task_types.len(), conditions.risk_above), (2, Some(50)));
        let wrong = DelegationFields { valid_from: "tomorrow".to_owned(), ..fields.clone() };
        assert_eq!(wrong.request(), Err("/valid_from"));
        let wrong = DelegationFields { risk_above: "300".to_owned(), ..fields };
        assert_eq!(wrong.request(), Err("/conditions/risk_above"));
    }
}
