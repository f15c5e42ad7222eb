//! Projections on a standalone Redis and on a cluster: guarded writes, indexes that follow, removal, and differences.

use std::collections::{BTreeMap, BTreeSet};

use ade_domain::Moment;
use ade_domain::approval::policy::Priority;
use ade_domain::approval::{Approval, ApprovalStatus};
use ade_domain::people::AuthorSet;
use ade_domain::task::{Config, RollbackStrategy, Task, TaskState};
use ade_keyspace::Layout;
use ade_keyspace::ade::{self as keys, ids};
use ade_store::database::StoredTask;
use ade_store::redis::projections::{
    EventTopic, Membership, ObjectId, Overwrite, Projection, RedisProjections, StreamEntry, entry_id,
};
use ade_testkit::{Redis, RedisCluster};
use serde_json::json;

use crate::database::fixture::{at, id, person};

/// A server of either kind, and direct access to it.
enum Backend {
    Standalone(Redis),
    Cluster(RedisCluster),
}

impl Backend {
    fn url(&self) -> String {
        match self {
            Self::Standalone(redis) => redis.url(),
            Self::Cluster(cluster) => cluster.url(),
        }
    }

    fn layout(&self) -> Layout {
        match self {
            Self::Standalone(_) => Layout::Plain,
            Self::Cluster(_) => Layout::Cluster,
        }
    }

    /// A command whose key is its second word.
    fn query<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let server = match self {
            Self::Standalone(redis) => redis,
            Self::Cluster(cluster) => {
                let slot = ade_catalog::slot::slot_of(words[1].as_bytes());
                cluster.slot_owner(slot, &[]).expect("an owner")
            }
        };
        server.query(words).expect("a reply")
    }
}

struct Fixture {
    backend: Backend,
    projections: RedisProjections,
}

impl Fixture {
    async fn new(backend: Backend) -> Self {
        let url = backend.url().parse().expect("a URL");
        let projections = RedisProjections::open(&url).await.expect("connected");
        Self { backend, projections }
    }

    fn project(&self, task: &StoredTask) -> Vec<Projection> {
        Projection::of_task(task, self.backend.layout()).expect("projected")
    }

    async fn write(&self, task: &StoredTask, overwrite: Overwrite) -> Vec<ObjectId> {
        self.projections.write(&self.project(task), overwrite).await.expect("written")
    }

    async fn differences(&self, task: &StoredTask) -> Vec<String> {
        let found = self.projections.compare(&self.project(task)).await.expect("compared");
        found.into_iter().map(|difference| difference.detail).collect()
    }

    async fn members(&self, index: &Membership) -> BTreeSet<String> {
        self.projections.members(index).await.expect("read").into_iter().collect()
    }

    fn metadata_key(&self, task: &StoredTask) -> String {
        let id = ids::TaskId::new(&task.task_id).expect("an id");
        keys::task::metadata(&id).in_layout(self.backend.layout()).as_str().to_owned()
    }
}

fn draft(tag: &str) -> StoredTask {
    let config = Config {
        task_type: "schema".to_owned(),
        version: "1".to_owned(),
        description: "a change".to_owned(),
        executor: "noop".to_owned(),
        parameters: serde_json::Map::from_iter([("a".to_owned(), json!("b"))]),
        resources: Vec::new(),
        rollback_strategy: RollbackStrategy::Automatic,
        timeout_seconds: 60,
        priority: 50,
    };
    let digest = config.digest().expect("canonical");
    let mut task = Task::draft(id(), config, digest, person("ann"), AuthorSet::default(), at(0));
    task.transitions.clear();
    task.metadata.tags = vec![tag.to_owned()];
    task.into()
}

fn request(task: &Task, reviewer: &str) -> Approval {
    Approval {
        approval_id: id(),
        task_id: task.task_id.clone(),
        revision: 1,
        reviewer_id: person(reviewer),
        reviewer_name: reviewer.to_owned(),
        policies: Vec::new(),
        chat_holders: BTreeSet::new(),
        on_behalf_of: BTreeSet::new(),
        delegation_chain: Vec::new(),
        follows: None,
        status: ApprovalStatus::Pending,
        priority: Priority::High,
        score: 850,
        delegated_to: None,
        created_at: at(1),
        due_at: at(100),
        escalation_level: 0,
        raised: 0,
        digest: task.digest,
        scope_digest: None,
        fingerprint: None,
        responded_at: None,
        response_action: None,
        response_reason: None,
        reviewed_by: None,
        reasons: Vec::new(),
    }
}

/// The next revision, in another state.
fn enter(task: &mut StoredTask, state: TaskState) {
    task.revision += 1;
    task.state = state;
    let at = at(task.revision);
    task.entered_at.insert(state, at);
}

async fn on_both(scenario: impl AsyncFn(&Fixture)) {
    scenario(&Fixture::new(Backend::Standalone(Redis::start().expect("starts"))).await).await;
    scenario(&Fixture::new(Backend::Cluster(RedisCluster::start().expect("starts"))).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_and_indexes_follow_the_latest_revision_only() {
    on_both(async |fixture| {
        let mut task = draft("one");
        assert_eq!(fixture.write(&task, Overwrite::Earlier).await, []);
        assert_eq!(fixture.differences(&task).await, [""; 0]);
        let old = task.clone();
        enter(&mut task, TaskState::Reviewing);
        task.metadata.tags = vec!["two".to_owned()];
        task.approvals = vec![request(&task, "bob"), request(&task, "cem")];
        assert_eq!(fixture.write(&task, Overwrite::Earlier).await, []);
        assert_eq!(fixture.differences(&task).await, [""; 0]);
        let own = || BTreeSet::from([task.task_id.clone()]);
        assert_eq!(fixture.members(&Membership::State(TaskState::Reviewing)).await, own());
        assert_eq!(fixture.members(&Membership::Tag("two".to_owned())).await, own());
        for left in [Membership::State(TaskState::Draft), Membership::Tag("one".to_owned())] {
            assert_eq!(fixture.members(&left).await, BTreeSet::new(), "{left:?}");
        }
        let first = task.approvals[0].approval_id.clone();
        let queue = Membership::ReviewerQueue(person("bob"), 0);
        assert_eq!(fixture.members(&queue).await, BTreeSet::from([first.clone()]));

        // A late writer with the old row changes nothing, and learns that it is late.
        assert_eq!(fixture.write(&old, Overwrite::Earlier).await, [ObjectId::Task(old.task_id.clone())]);
        assert_eq!(fixture.differences(&task).await, [""; 0]);

        // A decision leaves the queues; an archived request is removed with its task's next revision.
        enter(&mut task, TaskState::Approved);
        task.approvals[0].status = ApprovalStatus::Approved;
        task.approvals[0].revision += 1;
        assert_eq!(fixture.write(&task, Overwrite::Earlier).await, []);
        assert_eq!(fixture.members(&queue).await, BTreeSet::new());
        assert_eq!(fixture.members(&Membership::DueQueue(0)).await.len(), 1);
        task.approvals.truncate(1);
        enter(&mut task, TaskState::Completed);
        assert_eq!(fixture.write(&task, Overwrite::Earlier).await, []);
        assert_eq!(fixture.members(&Membership::DueQueue(0)).await, BTreeSet::new());
        assert_eq!(fixture.differences(&task).await, [""; 0]);

        fixture.projections.remove(&ObjectId::Task(task.task_id.clone())).await.expect("removed");
        let stored = fixture.projections.stored_objects().await.expect("scanned");
        assert_eq!((stored.objects, stored.indexes), (BTreeSet::new(), BTreeSet::new()));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn indexes_are_completed_after_a_crash() {
    on_both(async |fixture| {
        let mut task = draft("one");
        fixture.write(&task, Overwrite::Earlier).await;
        enter(&mut task, TaskState::Reviewing);
        fixture.write(&task, Overwrite::Earlier).await;
        // As a writer leaves it that dies after the keys: the object is in the old index and not in the new one.
        let before = r#"[{"state":"DRAFT"}]"#;
        let metadata = fixture.metadata_key(&task);
        let _: i64 = fixture.backend.query(&["HSET", &metadata, "pending", &format!("\n{before}")]);
        let index = |state: TaskState| {
            let state = ids::State::new(state.as_str()).expect("a state");
            keys::task::by_state(&state).in_layout(fixture.backend.layout()).as_str().to_owned()
        };
        let _: i64 = fixture.backend.query(&["ZADD", &index(TaskState::Draft), "1", &task.task_id]);
        let _: i64 = fixture.backend.query(&["ZREM", &index(TaskState::Reviewing), &task.task_id]);
        assert_eq!(fixture.differences(&task).await.len(), 2, "pending, and not a member");
        // The next writer has the same revision.
        assert_eq!(fixture.write(&task, Overwrite::Earlier).await, []);
        assert_eq!(fixture.differences(&task).await, [""; 0]);
        assert_eq!(fixture.members(&Membership::State(TaskState::Draft)).await, BTreeSet::new());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn finds_differences_and_overwrites_them() {
    on_both(async |fixture| {
        let mut task = draft("one");
        enter(&mut task, TaskState::Reviewing);
        task.approvals = vec![request(&task, "bob")];
        let layout = fixture.backend.layout();
        let id = ids::TaskId::new(&task.task_id).expect("an id");
        let approval = ids::ApprovalId::new(&task.approvals[0].approval_id).expect("an id");
        let key = |key: ade_keyspace::RedisKey| key.as_str().to_owned();
        let (state, metadata) =
            (key(keys::task::state(&id).in_layout(layout)), key(keys::task::metadata(&id).in_layout(layout)));
        let (config, preview) =
            (key(keys::task::config(&id).in_layout(layout)), key(keys::task::preview(&id).in_layout(layout)));
        let request = key(keys::approval::request(&approval).in_layout(layout));
        let author = ids::UserId::new("ann").expect("an id");
        let by_author = key(keys::task::by_author(&author).in_layout(layout));
        let planted: [(&[&str], &str); 10] = [
            (&["SET", &state, "DRAFT", "KEEPTTL"], "has another value"),
            (&["DEL", &state], "is missing"),
            (&["PERSIST", &config], "has no TTL"),
            (&["HSET", &config, "type", "other"], "has another value in the field type"),
            (&["HDEL", &metadata, "author_id"], "lacks the field author_id"),
            (&["HSET", &metadata, "revision", "999"], "has revision 999 instead of 2"),
            (&["HSET", &request, "extra", "1"], "has the unknown field \"extra\""),
            (&["ZREM", &by_author, &task.task_id], "is not a member of its index"),
            (&["SET", &config, "text"], "is a string instead of a hash"),
            (&["HSET", &preview, "a", "b"], "should not exist"),
        ];
        for (command, expected) in planted {
            fixture.write(&task, Overwrite::Everything).await;
            assert_eq!(fixture.differences(&task).await, [""; 0]);
            let _: redis::Value = fixture.backend.query(command);
            assert_eq!(fixture.differences(&task).await, [expected], "{command:?}");
        }
        fixture.write(&task, Overwrite::Everything).await;
        assert_eq!(fixture.differences(&task).await, [""; 0]);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_have_each_event_once_and_all_groups() {
    on_both(async |fixture| {
        let entry = |number: u64| StreamEntry {
            number: Some(number),
            event: "task:created".to_owned(),
            at: Moment::from_micros(1),
            payload: "{}".to_owned(),
            source: "test".to_owned(),
            sequence: None,
        };
        let projections = &fixture.projections;
        assert_eq!(projections.missing_groups(EventTopic::Task).await.expect("read").len(), 4);
        assert_eq!(projections.last_number(EventTopic::Task).await.expect("read"), None);
        for numbers in [[1, 2], [2, 4], [1, 4]] {
            let entries = numbers.map(entry);
            projections.append(EventTopic::Task, &entries).await.expect("appended");
        }
        assert_eq!(projections.missing_groups(EventTopic::Task).await.expect("read"), [""; 0]);
        assert_eq!(projections.last_number(EventTopic::Task).await.expect("read"), Some(4));
        let key = projections.stream_key(EventTopic::Task).expect("a key");
        let stored: Vec<(String, BTreeMap<String, String>)> =
            fixture.backend.query(&["XRANGE", &key, "-", "+"]);
        let ids: Vec<&str> = stored.iter().map(|(id, _)| id.as_str()).collect();
        assert_eq!(ids, ["1-0", "2-0", "4-0"]);
        let fields: Vec<&str> = stored[0].1.keys().map(String::as_str).collect();
        assert_eq!(fields, ["event", "payload", "source", "timestamp"]);
        assert!(fixture.backend.query::<i64>(&["PTTL", &key]) > 0);
        // The groups of services are theirs; those of ADE's own work follow it.
        projections
            .acknowledge(EventTopic::Task, "webhook-dispatcher", &entry_id(2))
            .await
            .expect("acknowledged");
        let groups: Vec<BTreeMap<String, redis::Value>> = fixture.backend.query(&["XINFO", "GROUPS", &key]);
        let text = |group: &BTreeMap<String, redis::Value>, field: &str| {
            redis::from_redis_value::<String>(group[field].clone()).expect("text")
        };
        let read: BTreeMap<String, String> =
            groups.iter().map(|group| (text(group, "name"), text(group, "last-delivered-id"))).collect();
        assert_eq!((read["webhook-dispatcher"].as_str(), read["audit-logger"].as_str()), ("2-0", "0-0"));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_lost_its_data_has_no_mark() {
    on_both(async |fixture| {
        let projections = &fixture.projections;
        assert!(!projections.has_mark("relay:0").await.expect("read"));
        let runs = projections.server_runs().await.expect("read");
        projections.mark("relay:0", &runs).await.expect("marked");
        assert!(projections.has_mark("relay:0").await.expect("read"));
        assert!(!projections.has_mark("relay:1").await.expect("read"));
        let any = match &fixture.backend {
            Backend::Standalone(redis) => redis,
            Backend::Cluster(cluster) => &cluster.nodes[1],
        };
        let _: String = any.query(&["FLUSHALL"]).expect("emptied");
        assert!(!projections.has_mark("relay:0").await.expect("read"));
    })
    .await;
}

#[test]
fn hidden_parts_of_a_preview_stay_in_the_database() {
    let mut task = draft("one");
    task.preview = serde_json::from_value(json!({
        "status": "ready",
        "changes": [{ "kind": "update", "what": "secret.conf", "diff": "the password", "items": 1, "reviewers_only": true }],
        "warnings": [], "errors": [], "fingerprint": null, "unverifiable": false, "estimated": false,
    }))
    .expect("a preview");
    let projected = format!("{:?}", Projection::of_task(&task, Layout::Plain).expect("projected"));
    assert!(projected.contains("secret.conf") && !projected.contains("the password"), "{projected}");
}
