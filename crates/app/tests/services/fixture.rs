//! The fixture of all tests: a database with users and rules, a clock, and any number of processes.

use std::collections::BTreeSet;
use std::sync::Arc;

use ade_app::tasks::{
    BatchItem, DecisionBatch, DecisionInput, PreviewConfig, TaskAction, TaskDraft, TaskService,
};
use ade_app::{Alerts, Caller, Context, EventTail, IdempotentRequest, RuleService};
use ade_domain::Moment;
use ade_domain::approval::policy::{Policy, PolicyVersions};
use ade_domain::approval::{Approval, DecisionKind};
use ade_domain::audit::{AuditActor, AuditBody, ChainVerifier};
use ade_domain::independence::AccountHistory;
use ade_domain::people::{AUTHOR, User, UserId};
use ade_domain::permission::Scope;
use ade_domain::task::{Answer, Config, Metadata, Preview, RollbackStrategy, Task};
use ade_store::database::{AuditFilter, Commit, StoredTask, StoredUser, Versioned, Write};
use ade_store::embedded::EmbeddedOptions;
use ade_store::{Blobs, Coordination, Database, EmbeddedCoordination};
use ade_testkit::{ManualClock, Postgres, test_keys};
use tempfile::TempDir;
use tokio::sync::OnceCell;
use uuid::Uuid;

static SERVER: OnceCell<Postgres> = OnceCell::const_new();

pub(crate) struct Fixture {
    pub(crate) database: Database,
    pub(crate) clock: ManualClock,
    pub(crate) coordination: Arc<dyn Coordination>,
    pub(crate) url: Option<String>,
    pub(crate) folder: TempDir,
}

impl Fixture {
    pub(crate) async fn on_sqlite() -> Self {
        let folder = tempfile::tempdir().expect("temporary folder");
        let database = Database::open_sqlite(folder.path(), test_keys()).await.expect("opens");
        Self::with(database, None, folder)
    }

    pub(crate) async fn on_postgres() -> Self {
        let server = SERVER.get_or_init(|| async { Postgres::start().expect("starts") }).await;
        let name = format!("t{}", Uuid::now_v7().simple());
        server.create_database(&name).expect("created");
        let url = server.url(&name);
        let database = Database::open_postgres(&url, test_keys()).await.expect("opens");
        Self::with(database, Some(url), tempfile::tempdir().expect("temporary folder"))
    }

    pub(crate) fn with(database: Database, url: Option<String>, folder: TempDir) -> Self {
        let (clock, locks) = (clock(), folder.path().join("locks"));
        let embedded =
            EmbeddedCoordination::open(&locks, EmbeddedOptions::default(), Arc::new(clock.clone()));
        Self { database, clock, coordination: Arc::new(embedded.expect("opens")), url, folder }
    }

    pub(crate) fn context(&self) -> Context {
        Context {
            database: self.database.clone(),
            coordination: self.coordination.clone(),
            blobs: Blobs::open_folder(self.folder.path().join("blobs")).expect("opens"),
            clock: Arc::new(self.clock.clone()),
            instance: "test".into(),
            alerts: Alerts::default(),
            tail: EventTail::default(),
            dual_control: false,
        }
    }

    /// The context of another process.
    pub(crate) async fn other_context(&self) -> Context {
        let database = match &self.url {
            Some(url) => Database::open_postgres(url, test_keys()).await.expect("opens"),
            None => self.database.clone(),
        };
        Context { database, ..self.context() }
    }

    pub(crate) fn service(&self) -> TaskService {
        TaskService::new(self.context(), PreviewConfig::default())
    }

    pub(crate) fn rules(&self) -> RuleService {
        RuleService::new(self.context())
    }

    pub(crate) async fn task(&self, task_id: &str) -> StoredTask {
        self.database.task(task_id).await.expect("read").expect("exists")
    }

    /// The task service of another process.
    pub(crate) async fn other_process(&self) -> TaskService {
        TaskService::new(self.other_context().await, PreviewConfig::default())
    }

    pub(crate) async fn add_user(&self, name: &str, roles: &[&str]) {
        let user = user(name, roles);
        let user = StoredUser { user, revision: 1, password: None, invitation: None };
        self.write_user(Box::new(user), None).await;
    }

    /// Writes a user in place of the revision `expected`.
    pub(crate) async fn write_user(&self, user: Box<StoredUser>, expected: Option<u64>) {
        let writes = vec![Write::User { user, expected }];
        self.database.commit(Commit { writes, ..Commit::default() }).await.expect("stored");
    }

    pub(crate) async fn add_policy(&self, policy: Policy) {
        let document =
            Versioned { id: policy.name.clone(), revision: 1, value: PolicyVersions::new(policy, true) };
        let writes = vec![Write::document(&document, None)];
        self.database.commit(Commit { writes, ..Commit::default() }).await.expect("stored");
    }

    /// Makes a submitted task one of `count`, by storing copies at once: submitting hundreds takes long. Returns their ids.
    pub(crate) async fn store_copies(&self, task: &StoredTask, count: usize) -> Vec<String> {
        let mut ids = vec![task.task_id.clone()];
        let mut writes = Vec::new();
        for _ in 1..count {
            let mut copy = task.task.clone();
            copy.task_id = Uuid::now_v7().to_string();
            for approval in &mut copy.approvals {
                approval.approval_id = Uuid::now_v7().to_string();
                approval.task_id.clone_from(&copy.task_id);
            }
            ids.push(copy.task_id.clone());
            let at = self.clock.now().into();
            writes.push(Write::Task { task: Box::new(copy.into()), expected: None, at });
        }
        self.database.commit(Commit { writes, ..Commit::default() }).await.expect("stored");
        ids
    }

    /// The actions in the audit log, of one task or of all, in order. Fails if the log is broken.
    pub(crate) async fn audit_actions(&self, task_id: Option<&str>) -> Vec<String> {
        let is_selected = |body: &AuditBody| task_id.is_none() || body.task_id.as_deref() == task_id;
        self.entries().await.into_iter().filter(is_selected).map(|body| body.action).collect()
    }

    /// The entries of the audit log. Fails if the log is broken.
    pub(crate) async fn entries(&self) -> Vec<AuditBody> {
        while self.database.number_entries(self.clock.now().into(), 100).await.expect("numbered").numbered > 0
        {
        }
        let (mut walk, mut entries, mut after) = (ChainVerifier::new(None), Vec::new(), 0);
        loop {
            let page = self.database.audit_rows(&AuditFilter::default(), after, 1_000).await.expect("read");
            let Some(last) = page.last() else { return entries };
            after = last.number;
            for row in &page {
                let entry = row.entry().expect("valid entry");
                walk.verify(&entry).expect("unbroken chain");
                entries.push(entry.body);
            }
        }
    }
}

pub(crate) fn clock() -> ManualClock {
    ManualClock::new(Moment::from_micros(1_794_744_000_000_000).timestamp())
}

pub(crate) fn user(name: &str, roles: &[&str]) -> User {
    User {
        user_id: UserId::new(name),
        name: name.to_owned(),
        roles: roles.iter().map(|role| (*role).to_owned()).collect(),
        manager_id: None,
        team: None,
        email: None,
        active: true,
        history: AccountHistory::default(),
    }
}

pub(crate) fn caller(name: &str, roles: &[&str]) -> Caller {
    let who = AuditActor { user_id: Some(UserId::new(name)), ..AuditActor::default() };
    let scopes = BTreeSet::from([Scope::Read, Scope::Propose, Scope::Decide, Scope::Admin]);
    let password_at = Some(clock().now().into());
    Caller { password_at, ..Caller::new(Some(user(name, roles)), scopes, who) }
}

/// The same caller with an idempotency key.
pub(crate) fn with_key(caller: &Caller, key: &str) -> Caller {
    let request = IdempotentRequest {
        owner: "test".to_owned(),
        key: key.to_owned(),
        request_digest: String::new(),
        received_at: clock().now().into(),
    };
    Caller { idempotent_request: Some(request), ..caller.clone() }
}

/// The same caller with an `If-Match` revision.
pub(crate) fn with_if_match(caller: &Caller, revision: u64) -> Caller {
    Caller { if_match: Some(revision), ..caller.clone() }
}

pub(crate) fn draft(description: &str) -> TaskDraft {
    let config = Config {
        task_type: "schema".to_owned(),
        version: "1".to_owned(),
        description: description.to_owned(),
        executor: "noop".to_owned(),
        parameters: serde_json::Map::new(),
        resources: Vec::new(),
        rollback_strategy: RollbackStrategy::Automatic,
        timeout_seconds: 60,
        priority: 0,
    };
    TaskDraft { config, metadata: Metadata::default(), preview: Preview::none() }
}

/// Everything that an approval of a task may have to carry.
pub(crate) fn full_answer(task: &Task) -> Answer {
    Answer {
        reason: Some("looks right".to_owned()),
        digest: Some(task.digest),
        scope_digest: task.scope_digest,
        confirm: task.confirmations().into_iter().next(),
        revision: None,
    }
}

pub(crate) fn approve(task: &Task) -> DecisionInput {
    DecisionInput { action: DecisionKind::Approve, answer: full_answer(task) }
}

pub(crate) fn confirm_override(task: &Task) -> TaskAction {
    TaskAction::ConfirmOverride(full_answer(task))
}

pub(crate) fn reject() -> DecisionInput {
    let answer = Answer { reason: Some("not like this".to_owned()), ..Answer::default() };
    DecisionInput { action: DecisionKind::Reject, answer }
}

pub(crate) async fn submitted(service: &TaskService, description: &str) -> StoredTask {
    let author = caller("ann", &[AUTHOR]);
    let task = service.create(draft(description), &author).await.expect("created");
    service.submit(&task.task_id, &author).await.expect("submitted")
}

pub(crate) fn approval_of<'a>(task: &'a StoredTask, reviewer: &str) -> &'a str {
    let is_open = |approval: &&Approval| approval.reviewer_id.as_str() == reviewer && approval.is_decidable();
    &task.approvals.iter().find(is_open).expect("requested").approval_id
}

/// The approval of all these tasks by a reviewer, each with its digest.
pub(crate) fn approve_all<'a>(
    tasks: impl IntoIterator<Item = &'a StoredTask>,
    reviewer: &str,
) -> DecisionBatch {
    let item = |task: &StoredTask| BatchItem {
        approval_id: approval_of(task, reviewer).to_owned(),
        digest: Some(task.digest),
        scope_digest: task.scope_digest,
    };
    DecisionBatch {
        items: tasks.into_iter().map(item).collect(),
        action: DecisionKind::Approve,
        reason: None,
        skip_validation: false,
        apply_immediately: false,
    }
}

/// Runs each test on SQLite and on PostgreSQL.
macro_rules! on_both_databases {
    ($($scenario:ident),+ $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $scenario() {
                super::$scenario(crate::fixture::Fixture::on_sqlite().await).await;
            })+
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $scenario() {
                super::$scenario(crate::fixture::Fixture::on_postgres().await).await;
            })+
        }
    };
}

pub(crate) use on_both_databases;
