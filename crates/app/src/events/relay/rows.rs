//! Reads the rows of subjects, and makes projections of them.

use std::collections::{BTreeMap, BTreeSet};

use ade_domain::Moment;
use ade_domain::approval::delegation::Delegation;
use ade_domain::people::UserId;
use ade_store::database::{FeatureFlag, Session, Setting, StoredTask, Versioned};
use ade_store::redis::projections::{Membership, ObjectId, Overwrite, Projection};

use super::subject::Subject;
use super::{Relay, Result, SHARDS, day_of};
use crate::shared_settings::{Settings, feature_names, setting_names};

/// Sessions that are read together.
const MAX_SESSIONS: u32 = 1_000;

/// Subjects as the database has them.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    pub(super) projections: Vec<Projection>,
    /// Objects that the database does not have, or not any more.
    pub(super) missing: Vec<ObjectId>,
    /// People whose statistics may have changed.
    pub(super) reviewers: BTreeSet<UserId>,
}

impl Relay {
    pub(super) async fn load(&self, subjects: &BTreeSet<Subject>) -> Result<Loaded> {
        let mut loaded = Loaded::default();
        let mut task_ids = BTreeSet::new();
        for subject in subjects {
            match subject {
                Subject::Task(id) => {
                    task_ids.insert(id.clone());
                }
                Subject::Archive(id) => task_ids.extend(self.database.tasks_of_archive(id).await?),
                Subject::SessionsOf(user) => self.load_sessions(user, &mut loaded).await?,
                Subject::Delegations => self.load_delegations(&mut loaded).await?,
                Subject::Settings => loaded.projections.push(self.settings().await?),
            }
        }
        self.load_tasks(&task_ids, &mut loaded).await?;
        Ok(loaded)
    }

    async fn load_tasks(&self, ids: &BTreeSet<String>, loaded: &mut Loaded) -> Result<()> {
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        let tasks = self.database.tasks_with_approvals(&ids).await?;
        let found: BTreeSet<&str> = tasks.iter().map(|task| task.task_id.as_str()).collect();
        let missing = ids.iter().filter(|id| !found.contains(*id));
        loaded.missing.extend(missing.map(|id| ObjectId::Task((*id).to_owned())));
        for task in &tasks {
            loaded.projections.extend(self.task(task)?);
            let reviewers = task.approvals.iter();
            loaded.reviewers.extend(reviewers.flat_map(|approval| {
                [Some(approval.reviewer_id.clone()), approval.reviewed_by.clone()].into_iter().flatten()
            }));
        }
        Ok(())
    }

    pub(super) fn task(&self, task: &StoredTask) -> Result<Vec<Projection>> {
        Ok(Projection::of_task(task, self.projections.layout())?)
    }

    /// The sessions of a user, and those in Redis that have ended.
    async fn load_sessions(&self, user_id: &UserId, loaded: &mut Loaded) -> Result<()> {
        let database = &self.database;
        let mut known = BTreeSet::new();
        if let Some(user) = database.user(user_id).await? {
            // Somebody who becomes a reviewer has statistics from then on.
            loaded.reviewers.extend(user.user.is_reviewer().then(|| user_id.clone()));
            for session in database.sessions_of(user_id).await? {
                let projection = Projection::of_session(
                    &session,
                    &user.user,
                    self.clock.now(),
                    self.projections.layout(),
                )?;
                if let Some(projection) = projection {
                    known.insert(session.session_hash);
                    loaded.projections.push(projection);
                }
            }
        }
        for member in self.projections.members(&Membership::SessionOf(user_id.clone())).await? {
            if !known.contains(&member) {
                loaded.missing.push(ObjectId::Session(member));
            }
        }
        Ok(())
    }

    /// All delegations, and those in Redis that have ended.
    async fn load_delegations(&self, loaded: &mut Loaded) -> Result<()> {
        let mut known = BTreeSet::new();
        for projection in self.delegations().await? {
            known.insert(projection.id().clone());
            loaded.projections.push(projection);
        }
        let people = self.database.people().await?;
        let owners: Vec<UserId> = people.iter().map(|user| user.user_id.clone()).collect();
        for (owner, member) in self.projections.delegations_of(&owners).await? {
            let id = ObjectId::Delegation(owner, member);
            if !known.contains(&id) {
                loaded.missing.push(id);
            }
        }
        Ok(())
    }

    pub(super) async fn delegations(&self) -> Result<Vec<Projection>> {
        let (now, layout) = (self.clock.now(), self.projections.layout());
        let stored: Vec<Versioned<Delegation>> = self.database.documents().await?;
        let mut projections = Vec::new();
        for delegation in &stored {
            projections.extend(Projection::of_delegation(delegation, now, layout)?);
        }
        Ok(projections)
    }

    /// The settings and feature flags in force.
    pub(super) async fn settings(&self) -> Result<Projection> {
        let names =
            setting_names().filter_map(|name| Some((name.to_owned(), Settings::default_value(name)?)));
        let mut settings: BTreeMap<_, _> = names.collect();
        let names = feature_names().filter_map(|name| Some((name.to_owned(), Settings::default_flag(name)?)));
        let mut flags: BTreeMap<_, _> = names.collect();
        let stored: Vec<Versioned<Setting>> = self.database.documents().await?;
        for Versioned { id, value: Setting(value), .. } in stored {
            // Others are written by a later version.
            settings.entry(id).and_modify(|known| *known = value);
        }
        let stored: Vec<Versioned<FeatureFlag>> = self.database.documents().await?;
        for Versioned { id, value: FeatureFlag(is_enabled), .. } in stored {
            flags.entry(id).and_modify(|known| *known = is_enabled);
        }
        Ok(Projection::of_settings(&settings, &flags, self.projections.layout())?)
    }

    /// Writes the sessions of some shards that were used since a time.
    pub(super) async fn refresh_sessions(&self, mut since: Moment, shards: &BTreeSet<usize>) -> Result<()> {
        let database = &self.database;
        loop {
            let sessions = database.sessions_used_since(since, MAX_SESSIONS).await?;
            let Some(last) = sessions.last().map(|session| session.last_active) else { return Ok(()) };
            let is_full = sessions.len() >= MAX_SESSIONS as usize;
            let is_own = |session: &Session| {
                shards.contains(&Subject::SessionsOf(session.user_id.clone()).shard(SHARDS))
            };
            let sessions: Vec<Session> = sessions.into_iter().filter(is_own).collect();
            self.projections.write(&self.sessions(&sessions).await?, Overwrite::Earlier).await?;
            if !is_full || last <= since {
                return Ok(());
            }
            since = last;
        }
    }

    pub(super) async fn sessions(&self, sessions: &[Session]) -> Result<Vec<Projection>> {
        let (now, layout) = (self.clock.now(), self.projections.layout());
        let mut projections = Vec::new();
        let people = self.database.people().await?;
        for session in sessions {
            let Some(user) = people.get(&session.user_id) else { continue };
            projections.extend(Projection::of_session(session, user, now, layout)?);
        }
        Ok(projections)
    }

    pub(super) async fn write_statistics(&self, reviewers: &BTreeSet<UserId>) -> Result<()> {
        let projections = self.statistics(reviewers).await?;
        // One that is refused was written from later rows.
        self.projections.write(&projections, Overwrite::Earlier).await?;
        Ok(())
    }

    pub(super) async fn statistics(&self, reviewers: &BTreeSet<UserId>) -> Result<Vec<Projection>> {
        let database = &self.database;
        let today = Moment::from_micros(day_of(self.clock.now()) * 86_400_000_000);
        let mut projections = Vec::new();
        for reviewer in reviewers {
            // Read before the statistics: a later number means a later read.
            let as_of = database.audit_head().await?.number;
            let stats = database.user_stats(reviewer, today).await?;
            projections.push(Projection::of_reviewer(reviewer, &stats, as_of, self.projections.layout())?);
        }
        Ok(projections)
    }
}
