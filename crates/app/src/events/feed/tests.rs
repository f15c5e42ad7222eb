//! What the events of other processes say about lost rights.

use ade_domain::Moment;
use ade_domain::capability::ClaimRights;
use ade_domain::independence::AccountHistory;
use ade_domain::people::User;
use ade_store::database::{Commit, RememberedRights, StoredAgent, StoredUser, Write};
use ade_testkit::test_keys;
use serde_json::{Map, Value, json};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection as _, SqliteConnection};
use tempfile::TempDir;

use super::*;

async fn open_database() -> (Database, TempDir) {
    let folder = tempfile::tempdir().expect("folder");
    (Database::open_sqlite(folder.path(), test_keys()).await.expect("opens"), folder)
}

async fn note(database: &Database, name: &str, payload: Value) {
    let Value::Object(payload) = payload else { unreachable!("an object") };
    let event = Event {
        event_id: "e".to_owned(),
        event: name.to_owned(),
        at: Moment::default(),
        task_id: None,
        notify: Vec::new(),
        payload,
        source: "test".to_owned(),
    };
    note_revocation(database, &event).await.expect("noted");
}

/// Creates the agent `a` and its sponsor.
async fn create_agent(database: &Database, sponsor: &UserId) {
    let user = User {
        user_id: sponsor.clone(),
        name: sponsor.to_string(),
        roles: BTreeSet::new(),
        manager_id: None,
        team: None,
        email: None,
        active: true,
        history: AccountHistory::default(),
    };
    let user = Box::new(StoredUser { user, revision: 1, password: None, invitation: None });
    let agent = StoredAgent {
        agent_id: "a".to_owned(),
        sponsor_id: Some(sponsor.clone()),
        name: "a".to_owned(),
        model: None,
        version: None,
        parent_agent_id: None,
        rights: ClaimRights::default(),
        max_tasks: None,
        draining: false,
        config: Map::new(),
        is_auto_registered: false,
        last_seen_at: Moment::default(),
        revision: 1,
    };
    let agent = Write::Agent { agent: Box::new(agent), expected: None };
    let writes = vec![Write::User { user, expected: None }, agent];
    database.commit(Commit { writes, ..Commit::default() }).await.expect("created");
}

#[tokio::test]
async fn what_another_process_revoked_is_noted_for_those_who_are_concerned() {
    let (database, _folder) = open_database().await;
    let ann = UserId::new("ann");
    let rights = RememberedRights { user: Some(&ann), agent: Some("a"), token: Some("t") };
    for (name, payload, is_revoked) in [
        ("token:revoked", json!({ "token_id": "t" }), true),
        ("token:revoked", json!({ "token_id": "u" }), false),
        ("token:created", json!({ "token_id": "t" }), false),
        ("user:updated", json!({ "user_id": "ann" }), true),
        ("user:updated", json!({ "user_id": "ben" }), false),
        ("agent:deleted", json!({ "agent_id": "a" }), true),
        ("agent:deleted", json!({ "agent_id": "b" }), false),
        ("task:created", json!({ "user_id": "ann" }), false),
    ] {
        let since = database.revocations();
        note(&database, name, payload.clone()).await;
        assert_eq!(database.is_revoked(rights, since), is_revoked, "{name} {payload}");
    }
}

#[tokio::test]
async fn a_deleted_agent_stays_revoked_when_its_sponsor_creates_it_again() {
    let (database, _folder) = open_database().await;
    let (ann, agent) = (UserId::new("ann"), json!({ "agent_id": "a" }));
    let rights = RememberedRights { user: Some(&ann), agent: Some("a"), token: Some("t") };
    let since = database.revocations();
    // Both happened before this process read the first event.
    create_agent(&database, &ann).await;
    for name in ["agent:deleted", "agent:created", "agent:updated"] {
        note(&database, name, agent.clone()).await;
        assert!(database.is_revoked(rights, since), "{name}");
    }
    let since = database.revocations();
    note(&database, "agent:updated", agent).await;
    assert!(!database.is_revoked(rights, since), "of the new agent");
}

#[tokio::test]
async fn an_agent_whose_document_is_corrupt_does_not_stop_the_feed() {
    let (database, folder) = open_database().await;
    let (ann, ben) = (UserId::new("ann"), UserId::new("ben"));
    create_agent(&database, &ann).await;
    let options = SqliteConnectOptions::new().filename(folder.path().join("ade.sqlite3"));
    let mut connection = SqliteConnection::connect_with(&options).await.expect("connects");
    sqlx::query("UPDATE agents SET body = '{}'").execute(&mut connection).await.expect("damaged");
    let since = database.revocations();
    note(&database, "agent:updated", json!({ "agent_id": "a" })).await;
    let rights = |user| RememberedRights { user: Some(user), agent: Some("a"), token: None };
    assert!(!database.is_revoked(rights(&ann), since), "its sponsor");
    assert!(database.is_revoked(rights(&ben), since));
}
