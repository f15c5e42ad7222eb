//! Tasks of the past year as the organisation would have made them: decided by `domain` like real ones, with everything that
//! was recorded and told, in the order of time. The same for the same number of tasks, except for when it is.
//!
//! Most are completed; what is open is recent, and as much with a million tasks as with a thousand, because people answer.

use std::collections::BTreeMap;

use ade_domain::Moment;
use ade_domain::approval::DecisionKind;
use ade_domain::approval::assignment::{Assignment, Question, assign};
use ade_domain::approval::policy::{AutoApprove, Policy, default_policy};
use ade_domain::audit::{AuditActor, AuditBody};
use ade_domain::people::{AUTHOR, AuthorSet, People, REVIEWER, User, UserId};
use ade_domain::permission::ActorRole;
use ade_domain::risk::{Facts, History as Ended, Registered, Thresholds, assess};
use ade_domain::task::{Actor, Decision, Plan, Task, Transition as Happened};
use ade_domain::task::{
    ChangeKind, Config, Digest, LockPreview, Metadata, Preview, PreviewChange, Resource, ResourceMode,
    RollbackStrategy, State,
};
use ade_store::database::{Event, StoredTask};
use serde_json::json;
use uuid::Builder;

use super::people::{self, TYPES};
use crate::error::{BenchError, ErrorKind};

const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;
/// How far back it goes.
pub(super) const LONG_MS: u64 = 365 * DAY_MS;
/// What is open was made since then.
const OPEN_MS: u64 = 40 * HOUR_MS;
/// Open tasks, at most, and their share of a small number.
const MOST_OPEN: usize = 300;
const OPEN_SHARE: usize = 4;
/// How long people have, and how long an approval is good, as shipped.
const DUE_MS: u64 = 48 * HOUR_MS;
const VALID_MS: u64 = 7 * DAY_MS;
const RESOURCES: usize = 400;
const TAGS: usize = 40;
const SEED: u64 = 2_026;

pub(super) fn resource(number: usize) -> Resource {
    let kinds = ["service", "database", "cluster", "bucket", "zone"];
    let kind = kinds.get(number % kinds.len()).copied().unwrap_or_default();
    Resource {
        resource_type: kind.to_owned(),
        id: format!("prod-{number:03}"),
        mode: ResourceMode::Exclusive,
    }
}

pub(super) fn tag(number: usize) -> String {
    format!("team-{number:02}")
}

/// Numbers that look random and are the same every time (SplitMix64).
#[derive(Debug)]
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.roll() % end.max(1)
    }
}

/// Few are frequent and many are rare: the k-th comes with a weight of 1/k.
#[derive(Debug)]
struct Zipf(Vec<u64>);

impl Zipf {
    fn new(many: usize) -> Self {
        let mut sum = 0;
        Self(
            (1..=many as u64)
                .map(|rank| {
                    sum += 1_000_000 / rank;
                    sum
                })
                .collect(),
        )
    }

    fn pick(&self, dice: &mut Dice) -> usize {
        let at = dice.below(self.0.last().copied().unwrap_or(1));
        self.0.partition_point(|sum| *sum <= at)
    }
}

/// Tasks one by one, the oldest first.
#[derive(Debug)]
pub(super) struct History {
    now: Moment,
    many: usize,
    made: usize,
    dice: Dice,
    /// How each type is assigned.
    assignments: Vec<Assignment>,
    authors: Zipf,
    kinds: Zipf,
    resources: Zipf,
    tags: Zipf,
    /// What happened and is not handed out yet, by time.
    told: BTreeMap<(Moment, u64), (AuditBody, Event)>,
    number: u64,
    /// The task in the middle.
    pub(super) middle: Option<String>,
}

/// A part of it.
#[derive(Debug, Default)]
pub(super) struct Piece {
    pub(super) tasks: Vec<StoredTask>,
    pub(super) entries: Vec<AuditBody>,
    pub(super) events: Vec<Event>,
}

fn wrong(error: &dyn std::fmt::Display) -> BenchError {
    BenchError::new(ErrorKind::Unavailable, format!("cannot imagine tasks: {error}"))
}

fn assignments(now: Moment) -> Result<Vec<Assignment>, BenchError> {
    let user = |id: String, role: &str| User {
        name: id.clone(),
        user_id: UserId::new(id),
        roles: [role.to_owned()].into(),
        manager_id: None,
        team: None,
        active: true,
    };
    let reviewers = (0..TYPES.len()).flat_map(people::reviewers_of).map(|id| user(id, REVIEWER));
    let everybody: People = reviewers.chain([user(people::author(0), AUTHOR)]).collect();
    let default = default_policy();
    let policies: Vec<Policy> = TYPES
        .iter()
        .enumerate()
        .map(|(kind, name)| Policy {
            name: people::policy(name),
            task_types: vec![(*name).to_owned()],
            reviewers: people::reviewers_of(kind).into_iter().map(UserId::new).collect(),
            auto_approve_if: Some(AutoApprove {
                risk_below: Some(people::NO_RISK),
                ..AutoApprove::default()
            }),
            ..default.clone()
        })
        .collect();
    let mut found = Vec::new();
    for kind in TYPES {
        let question = Question {
            config: &config(kind, String::new(), Vec::new(), 0),
            risk: people::NO_RISK,
            author: None,
            author_set: &AuthorSet::default(),
            people: &everybody,
            policies: &policies,
            default_policy: &default,
            delegations: &[],
            low_risk_passes: false,
            must_be_seen: false,
            now,
        };
        found.push(assign(&question).map_err(|error| wrong(&error))?);
    }
    Ok(found)
}

fn config(kind: &str, description: String, resources: Vec<Resource>, version: u64) -> Config {
    let parameters =
        json!({ "version": format!("1.{}.{}", version / 100, version % 100), "replicas": version % 9 });
    Config {
        task_type: kind.to_owned(),
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

impl History {
    pub(super) fn new(many: usize, now: Moment) -> Result<Self, BenchError> {
        Ok(Self {
            now,
            many,
            made: 0,
            dice: Dice(SEED),
            assignments: assignments(now)?,
            authors: Zipf::new(people::AUTHORS),
            kinds: Zipf::new(TYPES.len()),
            resources: Zipf::new(RESOURCES),
            tags: Zipf::new(TAGS),
            told: BTreeMap::new(),
            number: 0,
            middle: None,
        })
    }

    pub(super) fn begin(&self) -> Moment {
        before(self.now, LONG_MS)
    }

    /// The next ones; nothing if that was all.
    pub(super) fn next(&mut self, most: usize) -> Result<Option<Piece>, BenchError> {
        if self.made == self.many {
            return Ok(None);
        }
        let mut part = Piece::default();
        let open = MOST_OPEN.min(self.many / OPEN_SHARE);
        let past = self.many - open;
        for _ in 0..most.min(self.many - self.made) {
            let at = |number: usize, of: usize, long: u64| long * number as u64 / of.max(1) as u64;
            let created = if self.made < past {
                before(self.now, LONG_MS).plus_ms(at(self.made, past, LONG_MS - OPEN_MS - 12 * HOUR_MS))
            } else {
                before(self.now, OPEN_MS).plus_ms(at(self.made - past, open, OPEN_MS - 30 * MINUTE_MS))
            };
            let task = self.task(created, self.made >= past)?;
            if self.made == self.many / 2 {
                self.middle = Some(task.task_id.clone());
            }
            part.tasks.push(task);
            self.made += 1;
            let later =
                if self.made == self.many { BTreeMap::new() } else { self.told.split_off(&(created, 0)) };
            for (body, event) in std::mem::replace(&mut self.told, later).into_values() {
                part.entries.push(body);
                part.events.push(event);
            }
        }
        Ok(Some(part))
    }

    fn id(&mut self, at: Moment) -> String {
        let (high, low) = (self.dice.roll().to_le_bytes(), self.dice.roll().to_le_bytes());
        let mut random = [0; 10];
        random.iter_mut().zip(high.iter().chain(&low)).for_each(|(byte, from)| *byte = *from);
        Builder::from_unix_timestamp_millis(at.micros() / 1_000, &random).into_uuid().to_string()
    }

    fn task(&mut self, created: Moment, open: bool) -> Result<StoredTask, BenchError> {
        let kind = self.kinds.pick(&mut self.dice);
        let author = UserId::new(people::author(self.authors.pick(&mut self.dice)));
        let mut resources = vec![resource(self.resources.pick(&mut self.dice))];
        let second = resource(self.resources.pick(&mut self.dice));
        if self.dice.below(3) == 0 && !resources.contains(&second) {
            resources.push(second);
        }
        let mut tags = vec![tag(self.tags.pick(&mut self.dice))];
        if self.dice.below(2) == 0 {
            tags.push("routine".to_owned());
        }
        let (name, version) = (TYPES.get(kind).copied().unwrap_or_default(), self.dice.below(10_000));
        let description = format!(
            "{name} of {} to 1.{version}",
            resources.first().map_or_else(String::new, Resource::name)
        );
        let config = config(name, description, resources, version);
        let digest = config.digest().map_err(|_| wrong(&"no digest"))?;
        let task_id = self.id(created);
        let preview = preview(&config, self.dice.below(4));
        let risk = assess(
            &Facts {
                resources: config.resources.iter().map(registered).collect(),
                changes: preview.magnitude(),
                history: Ended { finished: 50, failed: 2 },
            },
            Thresholds::default(),
        );
        let lock = |lock: String| LockPreview {
            unavailable: false,
            ..LockPreview::unavailable(lock, ResourceMode::Exclusive)
        };
        let locks = config.resources.iter().map(|one| lock(format!("resource:{}", one.name())));
        let lock_preview = [lock(format!("task:{task_id}"))].into_iter().chain(locks).collect();
        let mut review = Task::draft(&task_id, config, digest, author.clone(), AuthorSet::default(), created);
        review.risk = Some(risk.clone());
        self.tell(&mut review, created);
        let metadata = Metadata {
            author_name: author.to_string(),
            team: tags.first().cloned(),
            ticket_ref: Some(format!("OPS-{version}")),
            tags,
            lineage: ade_domain::task::Lineage::default(),
        };
        let mut task: StoredTask = Task { metadata, preview, lock_preview, ..review }.into();
        if open && self.dice.below(10) == 0 {
            return Ok(task);
        }
        let mut assignment = self.assignments.get(kind).cloned().ok_or_else(|| wrong(&"no assignment"))?;
        // Three of four are harmless.
        if !open && self.dice.below(4) != 0 {
            assignment.auto_approved = Some(format!("its risk is below {}", people::NO_RISK));
            assignment.requirements.clear();
            assignment.wanted.clear();
        }
        let submitted = created.plus_ms(1 + self.dice.below(MINUTE_MS));
        let fingerprint = task.preview.fingerprint.map(|fingerprint| fingerprint.to_string());
        let mut ids: Vec<String> = (0..assignment.wanted.len()).map(|_| self.id(submitted)).collect();
        let plan = Plan {
            risk,
            fingerprint,
            assignment: Ok(assignment),
            due_after_ms: DUE_MS,
            ids: &mut || ids.pop().unwrap_or_default(),
        };
        let acts = actor(&author, ActorRole::Author);
        task.submit(plan, &acts, submitted).map_err(|error| wrong(&error))?;
        self.tell(&mut task.task, submitted);
        self.decide(&mut task, submitted, open)?;
        Ok(task)
    }

    /// What became of it after it was submitted.
    fn decide(&mut self, task: &mut StoredTask, submitted: Moment, open: bool) -> Result<(), BenchError> {
        let review = &mut task.task;
        let mut now = submitted;
        let chance = self.dice.below(100);
        if review.state == State::Reviewing {
            if open && chance < 85 {
                return Ok(());
            }
            now = now.plus_ms(1 + self.dice.below(if open { 10 * MINUTE_MS } else { 8 * HOUR_MS }));
            if !open && chance < 10 {
                let author = actor(&review.author_id, ActorRole::Author);
                review.cancel(Some("not needed any more"), &author, now).map_err(|error| wrong(&error))?;
                self.tell(review, now);
                return Ok(());
            }
            let asked = review.approvals.get(usize::from(chance % 2 == 1)).or(review.approvals.first());
            let (id, who) = asked
                .map(|one| (one.approval_id.clone(), one.reviewer_id.clone()))
                .unwrap_or_else(|| (String::new(), UserId::new("")));
            let no = !open && chance < 30;
            let (action, reason) = if no {
                (DecisionKind::Reject, Some("not during the sale"))
            } else {
                (DecisionKind::Approve, None)
            };
            let answer = Decision { approval_id: &id, action, reason, digest: None };
            review.respond(&answer, &actor(&who, ActorRole::Reviewer), now).map_err(|error| wrong(&error))?;
            self.tell(review, now);
        }
        if open && review.state == State::Approved {
            task.approval_ends_at = Some(now.plus_ms(VALID_MS));
            return Ok(());
        }
        if review.state != State::Approved {
            return Ok(());
        }
        now = now.plus_ms(1 + self.dice.below(MINUTE_MS));
        self.go(review, "task.begin_apply", State::Applying, now);
        now = now.plus_ms(1 + self.dice.below(10 * MINUTE_MS));
        if self.dice.below(100) < 4 {
            self.go(review, "task.fail", State::Failed, now);
        } else {
            self.go(review, "task.complete", State::Completed, now);
        }
        Ok(())
    }

    /// What a worker does is nobody's act.
    fn go(&mut self, review: &mut Task, action: &str, to: State, now: Moment) {
        let from = std::mem::replace(&mut review.state, to);
        review.since.insert(to, now);
        review.revision += 1;
        review.transitions.push(Happened {
            action: action.to_owned(),
            actor: None,
            from,
            to,
            approval_id: None,
            reason: None,
            ticket: None,
            tell: Vec::new(),
        });
        self.tell(review, now);
    }

    /// An entry and an event for all that happened, as the server makes them.
    fn tell(&mut self, review: &mut Task, now: Moment) {
        for happened in std::mem::take(&mut review.transitions) {
            let who = match &happened.actor {
                None => AuditActor::default(),
                Some(user) => AuditActor {
                    user_id: Some(user.clone()),
                    token_id: Some("0199f0c4-0000-7000-8000-000000000001".to_owned()),
                    ip: Some("10.0.0.17".to_owned()),
                    user_agent: Some("ade/0.1.0".to_owned()),
                    service: Some("ade 0.1.0 at 127.0.0.1:8300".to_owned()),
                    ..AuditActor::default()
                },
            };
            let approval = happened.approval_id.clone();
            let body = AuditBody {
                entry_id: self.id(now),
                at: now,
                who,
                action: happened.action.clone(),
                object_type: if approval.is_some() { "approval" } else { "task" }.to_owned(),
                object_id: approval.unwrap_or_else(|| review.task_id.clone()),
                task_id: Some(review.task_id.clone()),
                from: Some(happened.from),
                to: Some(happened.to),
                revision: Some(review.revision),
                digest: Some(review.digest),
                reason: happened.reason.clone(),
                ticket: happened.ticket.clone(),
                details: serde_json::Map::new(),
            };
            let event = Event {
                event_id: self.id(now),
                kind: happened.action.replacen('.', ":", 1),
                at: now,
                task_id: Some(review.task_id.clone()),
                tell: happened.tell.iter().map(ToString::to_string).collect(),
                data: json!({
                    "task_id": review.task_id, "state": happened.to, "revision": review.revision,
                    "approval_id": happened.approval_id,
                }),
            };
            self.number += 1;
            self.told.insert((now, self.number), (body, event));
        }
    }
}

pub(super) fn before(now: Moment, ms: u64) -> Moment {
    Moment::from_micros(now.micros().saturating_sub(ms * 1_000))
}

fn actor(who: &UserId, part: ActorRole) -> Actor {
    Actor {
        user: Some(who.clone()),
        parts: vec![part],
        token_made_by: None,
        by_agent: false,
        administers: true,
    }
}

fn registered(resource: &Resource) -> Registered {
    Registered { resource: resource.name(), criticality: None, dependents: Vec::new() }
}

fn preview(config: &Config, more: u64) -> Preview {
    let change = |number| PreviewChange {
        kind: ChangeKind::Update,
        what: format!("{}/{number}", config.resources.first().map_or_else(String::new, Resource::name)),
        before: None,
        after: None,
        diff: None,
    };
    let changes: Vec<PreviewChange> = (0..=more).map(change).collect();
    let fingerprint = Digest::of(&changes);
    Preview { changes, fingerprint, ..Preview::ready() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_imagined_is_in_order_and_of_every_kind() {
        let now = Moment::from_micros(1_794_744_000_000_000);
        let mut history = History::new(4_000, now).expect("assigned");
        let (mut states, mut last, mut ids, mut entries) = (BTreeMap::new(), now, String::new(), 0);
        last = before(last, 2 * LONG_MS);
        while let Some(part) = history.next(700).expect("imagined") {
            for task in &part.tasks {
                assert!(task.task_id > ids, "ids go by time");
                ids.clone_from(&task.task_id);
                *states.entry(task.state).or_insert(0) += 1;
            }
            for body in &part.entries {
                assert!(body.at >= last && body.at < now, "{body:?}");
                last = body.at;
            }
            entries += part.entries.len();
            assert_eq!(part.entries.len(), part.events.len());
        }
        assert!(history.told.is_empty() && history.middle.is_some());
        assert!((4_000 * 4..4_000 * 8).contains(&entries), "{entries}");
        let expected = [
            State::Draft,
            State::Reviewing,
            State::Approved,
            State::Completed,
            State::Failed,
            State::Rejected,
            State::Cancelled,
        ];
        assert!(expected.iter().all(|state| states.contains_key(state)), "{states:?}");
        assert!(states[&State::Completed] > 3_000 && states[&State::Reviewing] < MOST_OPEN, "{states:?}");
    }
}
