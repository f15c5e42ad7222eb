//! Generates the tasks of the past year: decided by `domain` like real ones, with their audit entries and events, in order of
//! time. The result depends only on the number of tasks and the current time.
//!
//! Most tasks are completed. Open tasks are recent, and not more of a million tasks than of a thousand are open.

use std::collections::BTreeMap;

use ade_domain::Moment;
use ade_domain::approval::DecisionKind;
use ade_domain::approval::assignment::{Assignment, AssignmentInput, assign};
use ade_domain::approval::policy::{AutoApprove, Policy, default_policy};
use ade_domain::audit::{AuditActor, AuditBody, Principal, ServiceActor, Trigger};
use ade_domain::event::Event;
use ade_domain::independence::AccountHistory;
use ade_domain::lock::LockMode;
use ade_domain::people::{AUTHOR, AuthorSet, People, REVIEWER, User, UserId};
use ade_domain::permission::ActorRole;
use ade_domain::risk::{FailureHistory, RegisteredResource, RiskInputs, RiskThresholds, assess};
use ade_domain::task::{Actor, Answer, Decision, ReviewPlan, ReviewSubject, Task, TaskScope, Transition};
use ade_domain::task::{
    ChangeKind, Config, Digest, LockPreview, Metadata, Preview, PreviewChange, Resource, RollbackStrategy,
    TaskState,
};
use ade_store::database::StoredTask;
use serde_json::json;
use uuid::Builder;

use super::organisation::{self, TASK_TYPES};
use crate::error::{BenchError, ErrorKind};

const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;
pub(super) const HISTORY_MS: u64 = 365 * DAY_MS;
/// Open tasks are younger than this.
const MAX_OPEN_AGE_MS: u64 = 40 * HOUR_MS;
const MAX_OPEN_TASKS: usize = 300;
/// With few tasks, one of so many is open.
const OPEN_TASK_RATIO: usize = 4;
/// Deadline of reviewers and validity of approvals, as in the default configuration.
const REVIEW_DEADLINE_MS: u64 = 48 * HOUR_MS;
const APPROVAL_TTL_MS: u64 = 7 * DAY_MS;
const RESOURCES: usize = 400;
const TAGS: usize = 40;
const SEED: u64 = 2_026;

pub(super) fn resource(number: usize) -> Resource {
    let kinds = ["service", "database", "cluster", "bucket", "zone"];
    let kind = kinds.get(number % kinds.len()).copied().unwrap_or_default();
    Resource { resource_type: kind.to_owned(), id: format!("prod-{number:03}"), mode: LockMode::Exclusive }
}

pub(super) fn tag(number: usize) -> String {
    format!("team-{number:02}")
}

/// A deterministic generator of random numbers.
#[derive(Debug)]
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }
}

/// A Zipf distribution: item k has the weight 1/k.
#[derive(Debug)]
struct Zipf(Vec<u64>);

impl Zipf {
    fn new(items: usize) -> Self {
        let mut sum = 0;
        Self(
            (1..=items as u64)
                .map(|rank| {
                    sum += 1_000_000 / rank;
                    sum
                })
                .collect(),
        )
    }

    fn pick(&self, rng: &mut SplitMix64) -> usize {
        let at = rng.below(self.0.last().copied().unwrap_or(1));
        self.0.partition_point(|sum| *sum <= at)
    }
}

/// Generates tasks, oldest first.
#[derive(Debug)]
pub(super) struct HistoryGenerator {
    now: Moment,
    total: usize,
    generated: usize,
    rng: SplitMix64,
    people: People,
    /// One per task type.
    assignments: Vec<Assignment>,
    authors: Zipf,
    task_types: Zipf,
    resources: Zipf,
    tags: Zipf,
    /// Entries and events that are not part of a batch yet, in order of time.
    pending: BTreeMap<(Moment, u64), (AuditBody, Event)>,
    sequence: u64,
    pub(super) middle_task: Option<String>,
}

#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) tasks: Vec<StoredTask>,
    pub(super) entries: Vec<AuditBody>,
    pub(super) events: Vec<Event>,
}

fn failed(error: &dyn std::fmt::Display) -> BenchError {
    BenchError::new(ErrorKind::Unavailable, format!("cannot generate tasks: {error}"))
}

/// The reviewers of all task types, and an author.
fn people() -> People {
    let user = |id: String, role: &str| User {
        name: id.clone(),
        user_id: UserId::new(id),
        roles: [role.to_owned()].into(),
        manager_id: None,
        team: None,
        email: None,
        active: true,
        history: AccountHistory::default(),
    };
    let reviewers = (0..TASK_TYPES.len()).flat_map(organisation::reviewers_of).map(|id| user(id, REVIEWER));
    reviewers.chain([user(organisation::author(0), AUTHOR)]).collect()
}

fn assignments(people: &People, now: Moment) -> Result<Vec<Assignment>, BenchError> {
    let default = default_policy();
    let policies: Vec<Policy> = TASK_TYPES
        .iter()
        .enumerate()
        .map(|(task_type, name)| Policy {
            name: organisation::policy_name(name),
            task_types: vec![(*name).to_owned()],
            reviewers: organisation::reviewers_of(task_type).into_iter().map(UserId::new).collect(),
            auto_approve_if: Some(AutoApprove {
                risk_below: Some(organisation::AUTO_APPROVE_BELOW),
                ..AutoApprove::default()
            }),
            ..default.clone()
        })
        .collect();
    let mut assignments = Vec::new();
    for task_type in TASK_TYPES {
        let (config, scope) = (config(task_type, String::new(), Vec::new(), 0), TaskScope::default());
        let question = AssignmentInput {
            subject: &ReviewSubject::new(&config, &scope),
            preview: &Preview::none(),
            risk: organisation::AUTO_APPROVE_BELOW,
            author_set: &AuthorSet::default(),
            people,
            policies: &policies,
            default_policy: &default,
            delegations: &[],
            by_agent: false,
            rule_changes: &[],
            requires_human: false,
            now,
        };
        assignments.push(assign(&question).map_err(|error| failed(&error))?);
    }
    Ok(assignments)
}

fn config(task_type: &str, description: String, resources: Vec<Resource>, version: u64) -> Config {
    let parameters =
        json!({ "version": format!("1.{}.{}", version / 100, version % 100), "replicas": version % 9 });
    Config {
        task_type: task_type.to_owned(),
        version: "1".to_owned(),
        description,
        executor: "agent".to_owned(),
        parameters: parameters.as_object().cloned().unwrap_or_default(),
        resources,
        rollback_strategy: RollbackStrategy::Automatic,
        timeout_seconds: 600,
        priority: 50,
    }
}

impl HistoryGenerator {
    pub(super) fn new(total: usize, now: Moment) -> Result<Self, BenchError> {
        let people = people();
        Ok(Self {
            now,
            total,
            generated: 0,
            rng: SplitMix64(SEED),
            assignments: assignments(&people, now)?,
            people,
            authors: Zipf::new(organisation::AUTHORS),
            task_types: Zipf::new(TASK_TYPES.len()),
            resources: Zipf::new(RESOURCES),
            tags: Zipf::new(TAGS),
            pending: BTreeMap::new(),
            sequence: 0,
            middle_task: None,
        })
    }

    pub(super) fn start(&self) -> Moment {
        before(self.now, HISTORY_MS)
    }

    /// None at the end.
    pub(super) fn next_batch(&mut self, size: usize) -> Result<Option<Batch>, BenchError> {
        if self.generated == self.total {
            return Ok(None);
        }
        let mut batch = Batch::default();
        let open = MAX_OPEN_TASKS.min(self.total / OPEN_TASK_RATIO);
        let closed = self.total - open;
        for _ in 0..size.min(self.total - self.generated) {
            let offset = |number: usize, count: usize, ms: u64| ms * number as u64 / count.max(1) as u64;
            let created = if self.generated < closed {
                let span = HISTORY_MS - MAX_OPEN_AGE_MS - 12 * HOUR_MS;
                before(self.now, HISTORY_MS).plus_ms(offset(self.generated, closed, span))
            } else {
                let span = MAX_OPEN_AGE_MS - 30 * MINUTE_MS;
                before(self.now, MAX_OPEN_AGE_MS).plus_ms(offset(self.generated - closed, open, span))
            };
            let task = self.task(created, self.generated >= closed)?;
            if self.generated == self.total / 2 {
                self.middle_task = Some(task.task_id.clone());
            }
            batch.tasks.push(task);
            self.generated += 1;
            let is_last = self.generated == self.total;
            let later = if is_last { BTreeMap::new() } else { self.pending.split_off(&(created, 0)) };
            for (body, event) in std::mem::replace(&mut self.pending, later).into_values() {
                batch.entries.push(body);
                batch.events.push(event);
            }
        }
        Ok(Some(batch))
    }

    fn id(&mut self, at: Moment) -> String {
        let (high, low) = (self.rng.next().to_le_bytes(), self.rng.next().to_le_bytes());
        let mut random = [0; 10];
        random.iter_mut().zip(high.iter().chain(&low)).for_each(|(byte, from)| *byte = *from);
        Builder::from_unix_timestamp_millis(at.micros() / 1_000, &random).into_uuid().to_string()
    }

    fn task(&mut self, created: Moment, is_open: bool) -> Result<StoredTask, BenchError> {
        let task_type = self.task_types.pick(&mut self.rng);
        let author = UserId::new(organisation::author(self.authors.pick(&mut self.rng)));
        let mut resources = vec![resource(self.resources.pick(&mut self.rng))];
        let second = resource(self.resources.pick(&mut self.rng));
        if self.rng.below(3) == 0 && !resources.contains(&second) {
            resources.push(second);
        }
        let mut tags = vec![tag(self.tags.pick(&mut self.rng))];
        if self.rng.below(2) == 0 {
            tags.push("routine".to_owned());
        }
        let (name, version) =
            (TASK_TYPES.get(task_type).copied().unwrap_or_default(), self.rng.below(10_000));
        let description = format!(
            "{name} of {} to 1.{version}",
            resources.first().map_or_else(String::new, Resource::name)
        );
        let config = config(name, description, resources, version);
        let digest = config.digest().map_err(|_| failed(&"the configuration has no digest"))?;
        let task_id = self.id(created);
        let preview = preview(&config, self.rng.below(4));
        let risk = assess(
            &RiskInputs {
                scope: config.resources.iter().map(registered).collect(),
                resources: config.resources.iter().map(registered).collect(),
                changes: preview.change_counts(),
                history: FailureHistory { finished: 50, failed: 2 },
            },
            RiskThresholds::default(),
        );
        let lock = |lock: String| LockPreview {
            unavailable: false,
            ..LockPreview::unavailable(lock, LockMode::Exclusive)
        };
        let locks = config.resources.iter().map(|resource| lock(format!("resource:{}", resource.name())));
        let lock_preview = [lock(format!("task:{task_id}"))].into_iter().chain(locks).collect();
        let mut draft = Task::draft(&task_id, config, digest, author.clone(), AuthorSet::default(), created);
        draft.risk = Some(risk.clone());
        self.record_transitions(&mut draft, created);
        let metadata = Metadata {
            author_name: author.to_string(),
            team: tags.first().cloned(),
            ticket_ref: Some(format!("OPS-{version}")),
            tags,
            lineage: ade_domain::task::Lineage::default(),
        };
        let mut task: StoredTask = Task { metadata, preview, lock_preview, ..draft }.into();
        if is_open && self.rng.below(10) == 0 {
            return Ok(task);
        }
        let mut assignment =
            self.assignments.get(task_type).cloned().ok_or_else(|| failed(&"no assignment"))?;
        // Three of four tasks are approved automatically.
        if !is_open && self.rng.below(4) != 0 {
            assignment.auto_approved =
                Some(format!("its risk is below {}", organisation::AUTO_APPROVE_BELOW));
            assignment.requirements.clear();
            assignment.assignees.clear();
        }
        let submitted = created.plus_ms(1 + self.rng.below(MINUTE_MS));
        let fingerprint = task.preview.fingerprint.map(|fingerprint| fingerprint.to_string());
        let mut ids: Vec<String> = (0..assignment.assignees.len()).map(|_| self.id(submitted)).collect();
        let plan = ReviewPlan {
            scope: TaskScope::default(),
            risk,
            fingerprint,
            assignment: Ok(assignment),
            due_after_ms: REVIEW_DEADLINE_MS,
            ids: &mut || ids.pop().unwrap_or_default(),
        };
        let actor = actor(&author, ActorRole::Author);
        task.submit(plan, &actor, submitted).map_err(|error| failed(&error))?;
        self.record_transitions(&mut task.task, submitted);
        self.decide(&mut task, submitted, is_open)?;
        Ok(task)
    }

    /// Decides a submitted task and finishes it, unless it stays open.
    fn decide(
        &mut self,
        stored: &mut StoredTask,
        submitted: Moment,
        is_open: bool,
    ) -> Result<(), BenchError> {
        let task = &mut stored.task;
        let mut now = submitted;
        let chance = self.rng.below(100);
        if task.state == TaskState::Reviewing {
            if is_open && chance < 85 {
                return Ok(());
            }
            now = now.plus_ms(1 + self.rng.below(if is_open { 10 * MINUTE_MS } else { 8 * HOUR_MS }));
            if !is_open && chance < 10 {
                let author = actor(&task.author_id, ActorRole::Author);
                task.cancel(Some("no longer needed"), &author, now).map_err(|error| failed(&error))?;
                self.record_transitions(task, now);
                return Ok(());
            }
            let approval = task.approvals.get(usize::from(chance % 2 == 1)).or(task.approvals.first());
            let (approval_id, reviewer) = approval
                .map(|approval| (approval.approval_id.clone(), approval.reviewer_id.clone()))
                .unwrap_or_else(|| (String::new(), UserId::new("")));
            let is_rejected = !is_open && chance < 30;
            let (kind, reason) = if is_rejected {
                (DecisionKind::Reject, "not during the sale")
            } else {
                (DecisionKind::Approve, "looks right")
            };
            let answer = &Answer {
                reason: Some(reason.to_owned()),
                digest: Some(task.digest),
                scope_digest: task.scope_digest,
                confirm: task.confirmations().into_iter().next(),
                revision: None,
            };
            let decision = Decision { approval_id: &approval_id, kind, answer, is_batch: false };
            let actor = Actor { password_at: Some(now), ..actor(&reviewer, ActorRole::Reviewer) };
            task.decide(&decision, &actor, &self.people, now).map_err(|error| failed(&error))?;
            self.record_transitions(task, now);
        }
        if is_open && task.state == TaskState::Approved {
            stored.approval_ends_at = Some(now.plus_ms(APPROVAL_TTL_MS));
            return Ok(());
        }
        if task.state != TaskState::Approved {
            return Ok(());
        }
        now = now.plus_ms(1 + self.rng.below(MINUTE_MS));
        self.transition(task, "task.begin_apply", TaskState::Applying, now);
        now = now.plus_ms(1 + self.rng.below(10 * MINUTE_MS));
        if self.rng.below(100) < 4 {
            self.transition(task, "task.fail", TaskState::Failed, now);
        } else {
            self.transition(task, "task.complete", TaskState::Completed, now);
        }
        Ok(())
    }

    /// A transition by a worker: it has no actor.
    fn transition(&mut self, task: &mut Task, action: &str, to: TaskState, now: Moment) {
        let from = std::mem::replace(&mut task.state, to);
        task.entered_at.insert(to, now);
        task.revision += 1;
        task.transitions.push(Transition {
            action: action.to_owned(),
            actor: None,
            trigger: None,
            from: Some(from),
            to,
            approval_id: None,
            reason: None,
            ticket: None,
            notify: Vec::new(),
            chat_holders: std::collections::BTreeSet::new(),
        });
        self.record_transitions(task, now);
    }

    /// Adds an audit entry and an event for each transition, as the server does.
    fn record_transitions(&mut self, task: &mut Task, now: Moment) {
        for transition in std::mem::take(&mut task.transitions) {
            let who = match &transition.actor {
                None => Principal::Service(ServiceActor {
                    service: "worker".to_owned(),
                    instance: "worker-0199f0c4000070008000000000000001".to_owned(),
                    trigger: transition.trigger.clone().unwrap_or(Trigger::Attempt(1)),
                }),
                Some(user) => Principal::Caller(AuditActor {
                    user_id: Some(user.clone()),
                    token_id: Some("0199f0c4-0000-7000-8000-000000000001".to_owned()),
                    ip: Some("10.0.0.17".to_owned()),
                    user_agent: Some("ade/0.1.0".to_owned()),
                    service: Some("ade 0.1.0 at 127.0.0.1:8300".to_owned()),
                    ..AuditActor::default()
                }),
            };
            let approval = transition.approval_id.clone();
            let is_about_approval = approval.is_some() || transition.to == TaskState::Approved;
            let body = AuditBody {
                entry_id: self.id(now),
                at: now,
                who,
                action: transition.action.clone(),
                object_type: if approval.is_some() { "approval" } else { "task" }.to_owned(),
                object_id: approval.unwrap_or_else(|| task.task_id.clone()),
                task_id: Some(task.task_id.clone()),
                from: transition.from,
                to: Some(transition.to),
                revision: Some(task.revision),
                digest: Some(task.digest),
                reviewed: is_about_approval.then(|| task.reviewed_content()),
                reason: transition.reason.clone(),
                ticket: transition.ticket.clone(),
                details: serde_json::Map::new(),
            };
            let event = Event::of(&body, transition.notify);
            self.sequence += 1;
            self.pending.insert((now, self.sequence), (body, event));
        }
    }
}

pub(super) fn before(now: Moment, ms: u64) -> Moment {
    Moment::from_micros(now.micros().saturating_sub(ms * 1_000))
}

fn actor(user: &UserId, role: ActorRole) -> Actor {
    Actor {
        user: Some(user.clone()),
        roles: vec![role],
        token_issuer: None,
        agent_id: None,
        has_admin_scope: true,
        password_at: None,
    }
}

fn registered(resource: &Resource) -> RegisteredResource {
    RegisteredResource { resource: resource.name(), criticality: None, dependents: Vec::new() }
}

fn preview(config: &Config, extra_changes: u64) -> Preview {
    let change = |number| PreviewChange {
        kind: ChangeKind::Update,
        what: format!("{}/{number}", config.resources.first().map_or_else(String::new, Resource::name)),
        before: None,
        after: None,
        diff: None,
        items: Some(1),
        reviewers_only: false,
    };
    let changes: Vec<PreviewChange> = (0..=extra_changes).map(change).collect();
    let fingerprint = Digest::of(&changes);
    Preview { changes, fingerprint, ..Preview::ready() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_is_ordered_and_has_every_state() {
        let now = Moment::from_micros(1_794_744_000_000_000);
        let mut history = HistoryGenerator::new(4_000, now).expect("assignments");
        let (mut states, mut last, mut last_id, mut entries) = (BTreeMap::new(), now, String::new(), 0);
        last = before(last, 2 * HISTORY_MS);
        while let Some(batch) = history.next_batch(700).expect("a batch") {
            for task in &batch.tasks {
                assert!(task.task_id > last_id, "ids are ordered by time");
                last_id.clone_from(&task.task_id);
                *states.entry(task.state).or_insert(0) += 1;
            }
            for body in &batch.entries {
                assert!(body.at >= last && body.at < now, "{body:?}");
                last = body.at;
            }
            entries += batch.entries.len();
            assert_eq!(batch.entries.len(), batch.events.len());
        }
        assert!(history.pending.is_empty() && history.middle_task.is_some());
        assert!((4_000 * 4..4_000 * 8).contains(&entries), "{entries}");
        let expected = [
            TaskState::Draft,
            TaskState::Reviewing,
            TaskState::Approved,
            TaskState::Completed,
            TaskState::Failed,
            TaskState::Rejected,
            TaskState::Cancelled,
        ];
        assert!(expected.iter().all(|state| states.contains_key(state)), "{states:?}");
        assert!(
            states[&TaskState::Completed] > 3_000 && states[&TaskState::Reviewing] < MAX_OPEN_TASKS,
            "{states:?}"
        );
    }
}
