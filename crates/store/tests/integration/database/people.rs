//! Users, sessions, tokens, agents and their inboxes.

use std::collections::BTreeSet;

use ade_domain::capability::{CapabilityGrant, ClaimRights, GrantScope};
use ade_domain::independence::AccountHistory;
use ade_domain::people::User;
use ade_domain::permission::Scope;
use ade_store::database::{
    CapableAgent, Database, DatabaseError, InboxMessage, Invitation, MAX_INBOX_MESSAGES, Password, Session,
    StoredAgent, StoredToken, StoredUser, Write,
};
use serde_json::json;

use crate::database::fixture::{TestDatabase, at, id, on_both_databases, person, write};

on_both_databases!(
    users_round_trip_and_detect_conflicts,
    sessions_are_extended_and_expire,
    revoked_tokens_stay_revoked,
    agents_round_trip_and_detect_conflicts,
    inbox_keeps_the_latest_messages,
);

fn user(name: &str, revision: u64) -> StoredUser {
    StoredUser {
        user: User {
            user_id: person(name),
            name: name.to_owned(),
            roles: BTreeSet::from(["dba".to_owned()]),
            manager_id: Some(person("eve")),
            team: None,
            email: None,
            active: true,
            history: AccountHistory::default(),
        },
        revision,
        password: Some(Password { hash: "$argon2id$".to_owned(), is_temporary: true }),
        invitation: Some(Invitation { code_hash: "c0de".to_owned(), expires_at: at(9) }),
    }
}

async fn write_users(database: &Database, names: &[&str]) {
    let user = |name: &&str| Write::User { user: Box::new(user(name, 1)), expected: None };
    write(database, names.iter().map(user).collect()).await.expect("inserted");
}

async fn users_round_trip_and_detect_conflicts(fixture: TestDatabase) {
    let database = &fixture.database;
    write_users(database, &["ann", "ben"]).await;
    assert_eq!(fixture.reopen().await.user(&person("ann")).await.expect("read"), Some(user("ann", 1)));
    assert_eq!(database.users(Some("ann"), 10).await.expect("listed"), [user("ben", 1)]);
    assert!(database.people().await.expect("read").get(&person("ben")).is_some());
    let changed = Write::User { user: Box::new(user("ann", 2)), expected: Some(2) };
    assert!(matches!(write(database, vec![changed]).await, Err(DatabaseError::Conflict { .. })));
}

fn session(hash: &str, user: &str) -> Session {
    Session {
        session_hash: hash.to_owned(),
        session_id: id(),
        user_id: person(user),
        created_at: at(1),
        last_active: at(1),
        expires_at: at(100),
        password_at: at(1),
        ip: Some("::1".to_owned()),
        user_agent: None,
    }
}

async fn sessions_are_extended_and_expire(fixture: TestDatabase) {
    let database = &fixture.database;
    write_users(database, &["ann", "ben"]).await;
    let (first, second, other) = (session("1", "ann"), session("2", "ann"), session("3", "ben"));
    let all = [&first, &second, &other];
    write(database, all.map(|session| Write::Session(session.clone())).to_vec()).await.expect("inserted");
    let found =
        async |hash: &str| database.session_with_user(hash).await.expect("read").map(|(session, _)| session);
    assert_eq!(found("1").await, Some(first.clone()));
    let touch = |hash: &str, second| Write::TouchSession {
        session_hash: hash.to_owned(),
        last_active: at(second),
        expires_at: at(second + 100),
    };
    write(database, vec![touch("1", 50)]).await.expect("extended");
    write(database, vec![touch("1", 40)]).await.expect("an older use is ignored");
    let used = Session { last_active: at(50), expires_at: at(150), ..first };
    assert_eq!(found("1").await, Some(used.clone()));
    let authority = database.session_with_user("1").await.expect("read");
    assert_eq!(authority, Some((used.clone(), user("ann", 1))));
    assert_eq!(database.session_with_user("4").await.expect("read"), None);

    assert_eq!(database.delete_expired_sessions(at(99)).await, Ok(0));
    assert_eq!(database.delete_expired_sessions(at(100)).await, Ok(2), "the extended session stays");
    assert_eq!(found("2").await, None);
    write(database, vec![touch("2", 101)]).await.expect("ignored");
    assert_eq!(found("2").await, None);
    let end = |session_hash: Option<&str>, user: &str| Write::DeleteSessions {
        session_hash: session_hash.map(str::to_owned),
        user_id: user.to_owned(),
    };
    write(database, vec![Write::Session(second), end(Some("2"), "ben"), end(None, "ben")])
        .await
        .expect("written");
    assert!(found("2").await.is_some(), "only sessions of the same user");
    write(database, vec![end(Some("2"), "ann")]).await.expect("written");
    assert_eq!(found("2").await, None);
    let again =
        |second| Write::ReauthenticateSession { session_hash: "1".to_owned(), password_at: at(second) };
    write(database, vec![again(60), again(55)]).await.expect("the later time counts");
    assert_eq!(found("1").await, Some(Session { password_at: at(60), ..used }));
    let keep = Write::DeleteOtherSessions { user_id: "ann".to_owned(), kept_hash: "1".to_owned() };
    write(database, vec![Write::Session(session("5", "ann")), keep]).await.expect("written");
    assert!(found("5").await.is_none() && found("1").await.is_some());
    write(database, vec![end(None, "ann")]).await.expect("written");
    assert_eq!(found("1").await, None);
    let many = (0..1_001).map(|number| Write::Session(session(&format!("many {number}"), "ann"))).collect();
    write(database, many).await.expect("inserted");
    assert_eq!(database.delete_expired_sessions(at(100)).await, Ok(1_000), "bounded per call");
    assert_eq!(database.delete_expired_sessions(at(100)).await, Ok(1));
}

fn token(hash: &str, user: Option<&str>, agent: Option<&str>) -> StoredToken {
    StoredToken {
        token_id: id(),
        token_hash: hash.to_owned(),
        user_id: user.map(person),
        agent_id: agent.map(str::to_owned),
        name: "laptop".to_owned(),
        scopes: BTreeSet::from([Scope::Read, Scope::Lock]),
        created_by: Some(person("ben")),
        created_at: at(1),
        password_at: Some(at(1)),
        expires_at: at(9),
        revoked_at: None,
    }
}

async fn revoked_tokens_stay_revoked(fixture: TestDatabase) {
    let database = &fixture.database;
    write_users(database, &["ann", "ben"]).await;
    let (first, second) = (token("1", Some("ann"), None), token("2", Some("ann"), Some("builder")));
    let (other, bootstrap) = (token("3", Some("ben"), None), token("4", None, None));
    let all = [&first, &second, &other, &bootstrap];
    write(database, all.map(|token| Write::Token(token.clone())).to_vec()).await.expect("inserted");
    let found =
        async |hash: &str| database.token_with_user(hash).await.expect("read").map(|(token, _)| token);
    assert_eq!(found("1").await, Some(first.clone()));
    assert_eq!(database.agent_tokens("builder").await.expect("listed"), std::slice::from_ref(&second));
    assert!(database.agent_tokens("other").await.expect("listed").is_empty());
    let authority = database.token_with_user("1").await.expect("read");
    assert_eq!(authority, Some((first.clone(), Some(user("ann", 1)))));
    let authority = database.token_with_user("4").await.expect("read");
    assert_eq!(authority, Some((bootstrap, None)), "the bootstrap token has no user");
    assert_eq!(database.token_with_user("5").await.expect("read"), None);

    let revoked = |token: &StoredToken, second| StoredToken { revoked_at: Some(at(second)), ..token.clone() };
    write(database, vec![Write::Token(revoked(&first, 3))]).await.expect("revoked");
    write(database, vec![Write::RevokeTokens { user_id: person("ann"), at: at(5) }]).await.expect("revoked");
    assert_eq!(
        database.user_tokens(&person("ann")).await.expect("listed"),
        [revoked(&first, 3), revoked(&second, 5)]
    );
    assert_eq!(database.user_tokens(&person("ben")).await.expect("listed"), [other]);
    // Writing a stale copy does not undo the revocation.
    write(database, vec![Write::Token(second.clone())]).await.expect("written");
    assert_eq!(found("2").await, Some(revoked(&second, 5)));
    let authority = database.token_with_user("2").await.expect("read").expect("exists");
    assert_eq!(authority.0.revoked_at, Some(at(5)));
}

fn agent(name: &str, sponsor: Option<&str>, by_name: bool, seen: u64) -> StoredAgent {
    StoredAgent {
        agent_id: name.to_owned(),
        sponsor_id: sponsor.map(person),
        name: "ünï".to_owned(),
        model: Some("large".to_owned()),
        version: None,
        parent_agent_id: Some("parent".to_owned()),
        rights: ClaimRights {
            grants: vec![CapabilityGrant {
                capability: "build".to_owned(),
                granted_by: None,
                scope: GrantScope::Accepted,
                granted_at: at(1),
            }],
            accepts: vec!["role:author".parse().expect("valid")],
        },
        max_tasks: Some(3),
        draining: false,
        config: json!({ "depth": [1, 2.5] }).as_object().cloned().expect("an object"),
        is_auto_registered: by_name,
        last_seen_at: at(seen),
        revision: 1,
    }
}

fn put(agent: &StoredAgent, expected: Option<u64>) -> Write {
    Write::Agent { agent: Box::new(agent.clone()), expected }
}

async fn agents_round_trip_and_detect_conflicts(fixture: TestDatabase) {
    let database = &fixture.database;
    write_users(database, &["ann", "ben"]).await;
    let all = [
        agent("A", None, true, 5),
        agent("Z", Some("ann"), true, 1),
        agent("b", Some("ann"), false, 1),
        agent("ü", Some("ben"), true, 9),
    ];
    write(database, all.iter().map(|agent| put(agent, None)).collect()).await.expect("inserted");
    assert!(matches!(
        write(database, vec![put(&all[0], None)]).await,
        Err(DatabaseError::AlreadyExists { .. })
    ));
    assert_eq!(fixture.reopen().await.agent("b").await.expect("read").as_ref(), Some(&all[2]));
    assert_eq!(database.agent("c").await.expect("read"), None);
    assert_eq!(database.agents(None, 10).await.expect("listed"), all);
    assert_eq!(database.agents(Some("A"), 2).await.expect("listed"), all[1..3]);
    finds_agents_by_capability(database, &all).await;
    assert_eq!(database.count_sponsored_agents(&person("ann")).await, Ok(2));
    assert_eq!(database.count_sponsored_agents(&person("eve")).await, Ok(0));
    let idle = async |second, limit| database.idle_agents(at(second), limit).await.expect("listed");
    assert_eq!(idle(9, 10).await, [all[1].clone(), all[0].clone()]);
    assert_eq!(idle(9, 1).await, all[1..2]);
    assert!(idle(1, 10).await.is_empty());

    let seen = StoredAgent { last_seen_at: at(20), is_auto_registered: false, revision: 2, ..all[1].clone() };
    write(database, vec![put(&seen, Some(1))]).await.expect("updated");
    let late = write(database, vec![put(&seen, Some(1))]).await;
    assert_eq!(late, Err(DatabaseError::Conflict { what: "agent Z".to_owned() }));
    assert_eq!(database.agent("Z").await.expect("read"), Some(seen));
    assert_eq!(idle(9, 10).await, all[..1]);
    let delete = |expected| Write::DeleteAgent { agent_id: "Z".to_owned(), expected };
    write(database, vec![Write::InboxMessage(message("Z", 1)), Write::InboxMessage(message("b", 1))])
        .await
        .expect("written");
    assert!(matches!(write(database, vec![delete(1)]).await, Err(DatabaseError::Conflict { .. })));
    assert_eq!(database.inbox("Z", None, 10).await.expect("read").len(), 1);
    write(database, vec![delete(2)]).await.expect("updated");
    assert_eq!(database.agent("Z").await.expect("read"), None);
    assert!(database.inbox("Z", None, 10).await.expect("read").is_empty());
    assert_eq!(database.inbox("b", None, 10).await.expect("read").len(), 1, "the inbox of another agent");
}

async fn finds_agents_by_capability(database: &Database, all: &[StoredAgent]) {
    let with = async |capability: &str, limit| {
        let found = database.agents_with_capability(capability, limit).await.expect("read");
        let of_stored = |agent: &CapableAgent| {
            all.iter().any(|one| {
                (&one.agent_id, &one.sponsor_id, &one.rights)
                    == (&agent.agent_id, &agent.sponsor_id, &agent.rights)
            })
        };
        assert!(found.agents.iter().all(of_stored), "{found:?}");
        (found.agents.iter().map(|agent| agent.agent_id.clone()).collect::<Vec<_>>(), found.is_complete)
    };
    assert_eq!(with("build", 10).await, (["A", "Z", "b", "ü"].map(str::to_owned).to_vec(), true));
    assert!(with("build", 4).await.1);
    assert_eq!(with("build", 3).await, (["A", "Z", "b"].map(str::to_owned).to_vec(), false));
    for other in ["buil", "BUILD", "b_ild", "%", "capability", "", "\\", "\"", "!", "a\0b"] {
        assert_eq!(with(other, 10).await.0, [""; 0], "{other:?}");
    }
}

fn message(agent: &str, second: u64) -> InboxMessage {
    InboxMessage {
        message_id: id(),
        agent_id: agent.to_owned(),
        kind: "lock:granted".to_owned(),
        at: at(second),
        data: json!({ "second": second }),
    }
}

async fn inbox_keeps_the_latest_messages(fixture: TestDatabase) {
    let database = &fixture.database;
    let messages: Vec<_> =
        (0..u64::from(MAX_INBOX_MESSAGES) + 5).map(|second| message("ann", second)).collect();
    let other = message("ben", 1);
    write(database, vec![Write::InboxMessage(other.clone())]).await.expect("written");
    write(database, messages.iter().cloned().map(Write::InboxMessage).collect()).await.expect("written");
    assert_eq!(database.inbox("ann", None, 10_000).await.expect("read"), messages[5..]);
    assert_eq!(database.inbox("ben", None, 10).await.expect("read"), [other]);
    let (mut paged, mut after) = (Vec::new(), None::<String>);
    loop {
        let page = database.inbox("ann", after.as_deref(), 300).await.expect("read");
        let Some(last) = page.last() else { break };
        after = Some(last.message_id.clone());
        paged.extend(page);
    }
    assert_eq!(paged, messages[5..]);
    let again = write(database, vec![Write::InboxMessage(messages[9].clone())]).await;
    assert!(matches!(again, Err(DatabaseError::AlreadyExists { .. })), "{again:?}");
}
