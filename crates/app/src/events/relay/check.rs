//! Compares Redis with the database: a sample, or everything.
//!
//! The system runs meanwhile, so that Redis may lag behind for a moment: what differs is read again, and only what still differs is
//! reported.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ade_domain::people::UserId;
use ade_store::redis::projections::{Difference, EventTopic, Membership, ObjectId, Overwrite, Projection};
use serde::Serialize;
use tokio::time::sleep;

use super::subject::Subject;
use super::{Relay, RelayState, Result};

/// Tasks of a sample, half of them the newest.
const SAMPLE: u32 = 200;
const PAGE: u32 = 200;
/// How long Redis may lag behind.
const SETTLE: Duration = Duration::from_secs(2);
/// Differences that are reported.
const MAX_DIFFERENCES: usize = 1_000;

/// The result of a comparison.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct CheckedProjections {
    /// Objects that were compared.
    pub objects: u64,
    /// Whether it was everything, or a sample.
    pub is_complete: bool,
    pub differences: Vec<Difference>,
}

impl Relay {
    /// Compares a sample, or everything.
    pub async fn check(&self, is_complete: bool) -> Result<CheckedProjections> {
        let mut checked = CheckedProjections { is_complete, ..CheckedProjections::default() };
        let mut suspects = BTreeSet::new();
        for subjects in self.subjects_to_check(is_complete).await? {
            let loaded = self.load(&subjects).await?;
            checked.objects += loaded.projections.len() as u64;
            let differences = self.projections.compare(&loaded.projections).await?;
            if !differences.is_empty() || !loaded.missing.is_empty() {
                suspects.extend(subjects);
            }
        }
        let is_settling = !suspects.is_empty();
        if is_settling {
            sleep(SETTLE).await;
        }
        for page in chunks(suspects) {
            let loaded = self.load(&page).await?;
            checked.differences.extend(self.projections.compare(&loaded.projections).await?);
            for id in &loaded.missing {
                checked.differences.push(self.projections.unexpected_object(id)?);
            }
        }
        let people = self.database.people().await?;
        let reviewers: BTreeSet<UserId> =
            people.iter().filter(|user| user.is_reviewer()).map(|user| user.user_id.clone()).collect();
        let statistics = self.statistics(&reviewers).await?;
        checked.objects += statistics.len() as u64;
        checked.differences.extend(self.settled(&statistics, &reviewers).await?);
        for topic in EventTopic::ALL {
            checked.differences.extend(self.check_stream(topic).await?);
        }
        if is_complete {
            checked.differences.extend(self.unexpected().await?.into_iter().map(|found| found.difference));
        }
        checked.differences.sort();
        checked.differences.dedup();
        checked.differences.truncate(MAX_DIFFERENCES);
        Ok(checked)
    }

    async fn subjects_to_check(&self, is_complete: bool) -> Result<Vec<BTreeSet<Subject>>> {
        let database = &self.database;
        let people = database.people().await?;
        let others = people.iter().map(|user| Subject::SessionsOf(user.user_id.clone()));
        let mut subjects: BTreeSet<Subject> =
            others.chain([Subject::Delegations, Subject::Settings]).collect();
        let mut after: Option<String> = None;
        loop {
            let page = database.task_ids(after.as_deref(), PAGE).await?;
            let is_last = page.len() < PAGE as usize;
            after = page.last().cloned();
            subjects.extend(page.into_iter().map(Subject::Task));
            if is_last || (!is_complete && subjects.len() >= SAMPLE as usize) {
                break;
            }
        }
        if !is_complete {
            let newest = database.tasks(&Default::default(), None, SAMPLE / 2).await?;
            subjects.extend(newest.into_iter().map(|task| Subject::Task(task.task.task_id)));
        }
        Ok(chunks(subjects))
    }

    /// What differs of the statistics, and still does after a while.
    async fn settled(
        &self,
        statistics: &[Projection],
        reviewers: &BTreeSet<UserId>,
    ) -> Result<Vec<Difference>> {
        if self.projections.compare(statistics).await?.is_empty() {
            return Ok(Vec::new());
        }
        sleep(SETTLE).await;
        Ok(self.projections.compare(&self.statistics(reviewers).await?).await?)
    }

    /// What is wrong with a stream: missing groups, or missing events.
    async fn check_stream(&self, topic: EventTopic) -> Result<Vec<Difference>> {
        let name: &str = topic.into();
        let difference = |detail: String| Difference {
            key: self.projections.stream_key(topic).unwrap_or_default(),
            object: format!("stream of {name} events"),
            detail,
        };
        let mut differences = Vec::new();
        for group in self.projections.missing_groups(topic).await? {
            differences.push(difference(format!("lacks the consumer group {group}")));
        }
        if topic == EventTopic::Lock {
            return Ok(differences);
        }
        let expected = self.expected_last(topic).await?;
        let behind =
            |last: Option<u64>| expected.is_some_and(|expected| last.is_none_or(|last| last < expected));
        if behind(self.projections.last_number(topic).await?) {
            sleep(SETTLE).await;
            let last = self.projections.last_number(topic).await?;
            if behind(last) {
                let last = last.map_or_else(|| "nothing".to_owned(), |last| format!("event {last}"));
                differences.push(difference(format!(
                    "ends with {last} instead of event {}",
                    expected.unwrap_or_default()
                )));
            }
        }
        Ok(differences)
    }

    /// The number of the last event of a topic, among the latest events.
    async fn expected_last(&self, topic: EventTopic) -> Result<Option<u64>> {
        let head = self.database.audit_head().await?.number;
        let events = self.database.events(head.saturating_sub(1_000), 1_000).await?;
        let of_topic = events.iter().filter(|(_, event)| EventTopic::of(&event.event) == Some(topic));
        Ok(of_topic.map(|(number, _)| *number).max())
    }

    /// Everything in Redis that the database does not have.
    async fn unexpected(&self) -> Result<Vec<Unexpected>> {
        let stored = self.projections.stored_objects().await?;
        let mut unexpected = Vec::new();
        let mut expected: BTreeMap<ObjectId, Projection> = BTreeMap::new();
        let tasks: BTreeSet<Subject> = stored.objects.iter().filter_map(subject_of).collect();
        for page in chunks(tasks) {
            for projection in self.load(&page).await?.projections {
                expected.insert(projection.id().clone(), projection);
            }
        }
        let people = self.database.people().await?;
        for subject in people.iter().map(|user| Subject::SessionsOf(user.user_id.clone())) {
            for projection in self.load(&BTreeSet::from([subject])).await?.projections {
                expected.insert(projection.id().clone(), projection);
            }
        }
        for projection in self.delegations().await? {
            expected.insert(projection.id().clone(), projection);
        }
        for id in &stored.objects {
            let is_expected = match id {
                ObjectId::Reviewer(user) => people.get(user).is_some(),
                ObjectId::Settings => true,
                id => expected.contains_key(id),
            };
            if !is_expected {
                let difference = self.projections.unexpected_object(id)?;
                unexpected.push(Unexpected { difference, what: UnexpectedKey::Object(id.clone()) });
            }
        }
        for index in &stored.indexes {
            for member in self.projections.members(index).await? {
                let id = index.object(&member);
                let of = id.as_ref().and_then(|id| expected.get(id));
                if of.is_some_and(|of| of.is_member_of(index))
                    || self.is_member_now(index, id.as_ref()).await?
                {
                    continue;
                }
                if let Some(difference) = self.projections.unexpected_member(index, &member)? {
                    unexpected
                        .push(Unexpected { difference, what: UnexpectedKey::Member(index.clone(), member) });
                }
            }
        }
        Ok(unexpected)
    }

    /// Whether an object belongs to an index as the database is now: it may have changed since it was read.
    async fn is_member_now(&self, index: &Membership, id: Option<&ObjectId>) -> Result<bool> {
        let Some(subject) = self.subject_of_member(index, id).await? else { return Ok(false) };
        let loaded = self.load(&BTreeSet::from([subject])).await?;
        let mut found = loaded.projections.iter().filter(|projection| Some(projection.id()) == id);
        Ok(found.any(|projection| projection.is_member_of(index)))
    }

    async fn subject_of_member(&self, index: &Membership, id: Option<&ObjectId>) -> Result<Option<Subject>> {
        Ok(match (id, index) {
            (Some(ObjectId::Approval(approval_id)), _) => {
                self.database.task_id_by_approval(approval_id).await?.map(Subject::Task)
            }
            (Some(ObjectId::Session(_)), Membership::SessionOf(user)) => {
                Some(Subject::SessionsOf(user.clone()))
            }
            (Some(ObjectId::Delegation(..)), _) => Some(Subject::Delegations),
            (Some(id), _) => subject_of(id),
            (None, _) => None,
        })
    }

    /// Removes everything from Redis that the database does not have. Returns how much that was.
    pub(super) async fn remove_unexpected(&self) -> Result<u64> {
        let unexpected = self.unexpected().await?;
        // What became a member in the moment of its removal is added again.
        let mut removed = BTreeSet::new();
        for found in &unexpected {
            match &found.what {
                UnexpectedKey::Object(id) => self.projections.remove(id).await?,
                UnexpectedKey::Member(index, member) => {
                    self.projections.remove_member(index, member).await?;
                    removed.extend(self.subject_of_member(index, index.object(member).as_ref()).await?);
                }
            }
        }
        for page in chunks(removed) {
            self.rewrite(page, Overwrite::Everything, &mut RelayState::default()).await?;
        }
        Ok(unexpected.len() as u64)
    }
}

struct Unexpected {
    difference: Difference,
    what: UnexpectedKey,
}

enum UnexpectedKey {
    Object(ObjectId),
    Member(Membership, String),
}

/// The task of a stored object, if it is one.
fn subject_of(id: &ObjectId) -> Option<Subject> {
    match id {
        ObjectId::Task(task_id) => Some(Subject::Task(task_id.clone())),
        _ => None,
    }
}

fn chunks(subjects: BTreeSet<Subject>) -> Vec<BTreeSet<Subject>> {
    let subjects: Vec<Subject> = subjects.into_iter().collect();
    subjects.chunks(PAGE as usize).map(|chunk| chunk.iter().cloned().collect()).collect()
}
