//! People, sessions, tokens, agents and their inboxes, on SQLite and on PostgreSQL.

use std::collections::BTreeSet;

use ade_domain::people::User;
use ade_domain::permission::Scope;
use ade_store::database::{
    Database, DatabaseError, InboxMessage, MOST_MESSAGES, Password, Session, StoredAgent, StoredToken,
    StoredUser, Write,
};
use serde_json::json;

use crate::opened::{Opened, at, id, on_both, person, write};

on_both!(
    people_come_back_and_are_guarded_by_their_revisions,
    sessions_are_used_and_end,
    tokens_are_revoked_for_good,
    agents_come_back_and_are_guarded_by_their_revisions,
    an_inbox_keeps_the_last_messages,
);

fn user(name: &str, revision: u64) -> StoredUser {
    StoredUser {
        user: User {
            user_id: person(name),
            name: name.to_owned(),
            roles: BTreeSet::from(["dba".to_owned()]),
            manager_id: Some(person("eve")),
            team: None,
            active: true,
        },
        revision,
        password: Some(Password { hash: "$argon2id$".to_owned(), set_by: None, watched_until: None }),
    }
}

async fn write_users(record: &Database, names: &[&str]) {
    let user = |name: &&str| Write::User { user: Box::new(user(name, 1)), expected: None };
    write(record, names.iter().map(user).collect()).await.expect("new");
}

async fn people_come_back_and_are_guarded_by_their_revisions(opened: Opened) {
    let record = &opened.record;
    write_users(record, &["ann", "ben"]).await;
    assert_eq!(opened.again().await.user(&person("ann")).await.expect("read"), Some(user("ann", 1)));
    assert_eq!(record.users(Some("ann"), 10).await.expect("listed"), [user("ben", 1)]);
    assert!(record.people().await.expect("read").get(&person("ben")).is_some());
    let changed = Write::User { user: Box::new(user("ann", 2)), expected: Some(2) };
    assert!(matches!(write(record, vec![changed]).await, Err(DatabaseError::Conflict { .. })));
}

fn session(hash: &str, who: &str) -> Session {
    Session {
        session_hash: hash.to_owned(),
        session_id: id(),
        csrf_hash: format!("csrf of {hash}"),
        user_id: person(who),
        created_at: at(1),
        last_active: at(1),
        expires_at: at(100),
        ip: Some("::1".to_owned()),
        user_agent: None,
    }
}

async fn sessions_are_used_and_end(opened: Opened) {
    let record = &opened.record;
    write_users(record, &["ann", "ben"]).await;
    let (one, two, other) = (session("1", "ann"), session("2", "ann"), session("3", "ben"));
    let all = [&one, &two, &other];
    write(record, all.map(|one| Write::Session(one.clone())).to_vec()).await.expect("new");
    assert_eq!(record.session("1").await.expect("read"), Some(one.clone()));
    let touch = |hash: &str, second| Write::TouchSession {
        session_hash: hash.to_owned(),
        last_active: at(second),
        expires_at: at(second + 100),
    };
    write(record, vec![touch("1", 50)]).await.expect("used");
    write(record, vec![touch("1", 40)]).await.expect("used before, and told later");
    let used = Session { last_active: at(50), expires_at: at(150), ..one };
    assert_eq!(record.session("1").await.expect("read"), Some(used.clone()));
    let authority = record.authority_of_session("1").await.expect("read");
    assert_eq!(authority, Some((used.clone(), user("ann", 1))));
    assert_eq!(record.authority_of_session("4").await.expect("read"), None);

    assert_eq!(record.end_old_sessions(at(99)).await, Ok(0));
    assert_eq!(record.end_old_sessions(at(100)).await, Ok(2), "the one that was used stays");
    assert_eq!(record.session("2").await.expect("read"), None);
    write(record, vec![touch("2", 101)]).await.expect("too late, and no harm");
    assert_eq!(record.session("2").await.expect("read"), None);
    let end = |session_hash: Option<&str>, who: &str| Write::EndSessions {
        session_hash: session_hash.map(str::to_owned),
        user_id: who.to_owned(),
    };
    write(record, vec![Write::Session(two), end(Some("2"), "ben"), end(None, "ben")]).await.expect("ended");
    assert!(record.session("2").await.expect("read").is_some(), "only one's own");
    write(record, vec![end(Some("2"), "ann")]).await.expect("ended");
    assert_eq!(record.session("2").await.expect("read"), None);
    assert_eq!(record.session("1").await.expect("read"), Some(used));
    write(record, vec![end(None, "ann")]).await.expect("ended");
    assert_eq!(record.session("1").await.expect("read"), None);
    let many = (0..1_001).map(|number| Write::Session(session(&format!("many {number}"), "ann"))).collect();
    write(record, many).await.expect("new");
    assert_eq!(record.end_old_sessions(at(100)).await, Ok(1_000), "not too many at once");
    assert_eq!(record.end_old_sessions(at(100)).await, Ok(1));
}

fn token(hash: &str, who: Option<&str>, agent: Option<&str>) -> StoredToken {
    StoredToken {
        token_id: id(),
        token_hash: hash.to_owned(),
        user_id: who.map(person),
        agent_id: agent.map(str::to_owned),
        name: "laptop".to_owned(),
        scopes: BTreeSet::from([Scope::Read, Scope::Lock]),
        made_by: Some(person("ben")),
        created_at: at(1),
        expires_at: at(9),
        revoked_at: None,
    }
}

async fn tokens_are_revoked_for_good(opened: Opened) {
    let record = &opened.record;
    write_users(record, &["ann", "ben"]).await;
    let (one, two) = (token("1", Some("ann"), None), token("2", Some("ann"), Some("builder")));
    let (other, first) = (token("3", Some("ben"), None), token("4", None, None));
    let all = [&one, &two, &other, &first];
    write(record, all.map(|one| Write::Token(one.clone())).to_vec()).await.expect("new");
    assert_eq!(record.token("1").await.expect("read"), Some(one.clone()));
    assert_eq!(record.tokens_of_agent("builder").await.expect("listed"), std::slice::from_ref(&two));
    assert!(record.tokens_of_agent("other").await.expect("listed").is_empty());
    let authority = record.authority_of_token("1").await.expect("read");
    assert_eq!(authority, Some((one.clone(), Some(user("ann", 1)))));
    let authority = record.authority_of_token("4").await.expect("read");
    assert_eq!(authority, Some((first, None)), "the bootstrap token is nobody's");
    assert_eq!(record.authority_of_token("5").await.expect("read"), None);

    let revoked = |token: &StoredToken, second| StoredToken { revoked_at: Some(at(second)), ..token.clone() };
    write(record, vec![Write::Token(revoked(&one, 3))]).await.expect("revoked");
    write(record, vec![Write::EndTokens { user_id: person("ann"), at: at(5) }]).await.expect("revoked");
    assert_eq!(record.tokens_of(&person("ann")).await.expect("listed"), [revoked(&one, 3), revoked(&two, 5)]);
    assert_eq!(record.tokens_of(&person("ben")).await.expect("listed"), [other]);
    // Whoever had seen it before and writes it again does not bring it back.
    write(record, vec![Write::Token(two.clone())]).await.expect("written");
    assert_eq!(record.token("2").await.expect("read"), Some(revoked(&two, 5)));
    let authority = record.authority_of_token("2").await.expect("read").expect("known");
    assert_eq!(authority.0.revoked_at, Some(at(5)));
}

fn agent(name: &str, sponsor: Option<&str>, by_name: bool, seen: u64) -> StoredAgent {
    StoredAgent {
        agent_id: name.to_owned(),
        sponsor_id: sponsor.map(person),
        name: "ünï".to_owned(),
        model: Some("large".to_owned()),
        version: None,
        capabilities: vec!["build".to_owned()],
        max_tasks: Some(3),
        draining: false,
        config: json!({ "depth": [1, 2.5] }).as_object().cloned().expect("an object"),
        by_name,
        seen_at: at(seen),
        revision: 1,
    }
}

fn put(agent: &StoredAgent, expected: Option<u64>) -> Write {
    Write::Agent { agent: Box::new(agent.clone()), expected }
}

async fn agents_come_back_and_are_guarded_by_their_revisions(opened: Opened) {
    let record = &opened.record;
    write_users(record, &["ann", "ben"]).await;
    let all = [
        agent("A", None, true, 5),
        agent("Z", Some("ann"), true, 1),
        agent("b", Some("ann"), false, 1),
        agent("ü", Some("ben"), true, 9),
    ];
    write(record, all.iter().map(|one| put(one, None)).collect()).await.expect("new");
    assert!(matches!(write(record, vec![put(&all[0], None)]).await, Err(DatabaseError::Exists { .. })));
    assert_eq!(opened.again().await.agent("b").await.expect("read").as_ref(), Some(&all[2]));
    assert_eq!(record.agent("c").await.expect("read"), None);
    assert_eq!(record.agents(None, 10).await.expect("listed"), all);
    assert_eq!(record.agents(Some("A"), 2).await.expect("listed"), all[1..3]);
    assert_eq!(record.agents_of(&person("ann")).await, Ok(2));
    assert_eq!(record.agents_of(&person("eve")).await, Ok(0));
    let idle = async |second, limit| record.idle_agents(at(second), limit).await.expect("listed");
    assert_eq!(idle(9, 10).await, [all[1].clone(), all[0].clone()]);
    assert_eq!(idle(9, 1).await, all[1..2]);
    assert!(idle(1, 10).await.is_empty());

    let seen = StoredAgent { seen_at: at(20), by_name: false, revision: 2, ..all[1].clone() };
    write(record, vec![put(&seen, Some(1))]).await.expect("as seen");
    let late = write(record, vec![put(&seen, Some(1))]).await;
    assert_eq!(late, Err(DatabaseError::Conflict { what: "agent Z".to_owned() }));
    assert_eq!(record.agent("Z").await.expect("read"), Some(seen));
    assert_eq!(idle(9, 10).await, all[..1]);
    let delete = |expected| Write::DeleteAgent { agent_id: "Z".to_owned(), expected };
    write(record, vec![Write::Inbox(message("Z", 1)), Write::Inbox(message("b", 1))]).await.expect("told");
    assert!(matches!(write(record, vec![delete(1)]).await, Err(DatabaseError::Conflict { .. })));
    assert_eq!(record.inbox("Z", None, 10).await.expect("read").len(), 1);
    write(record, vec![delete(2)]).await.expect("as seen");
    assert_eq!(record.agent("Z").await.expect("read"), None);
    assert!(record.inbox("Z", None, 10).await.expect("read").is_empty());
    assert_eq!(record.inbox("b", None, 10).await.expect("read").len(), 1, "of another one");
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

async fn an_inbox_keeps_the_last_messages(opened: Opened) {
    let record = &opened.record;
    let told: Vec<_> = (0..u64::from(MOST_MESSAGES) + 5).map(|second| message("ann", second)).collect();
    let other = message("ben", 1);
    write(record, vec![Write::Inbox(other.clone())]).await.expect("told");
    write(record, told.iter().cloned().map(Write::Inbox).collect()).await.expect("told");
    assert_eq!(record.inbox("ann", None, 10_000).await.expect("read"), told[5..]);
    assert_eq!(record.inbox("ben", None, 10).await.expect("read"), [other]);
    let (mut paged, mut after) = (Vec::new(), None::<String>);
    loop {
        let page = record.inbox("ann", after.as_deref(), 300).await.expect("read");
        let Some(last) = page.last() else { break };
        after = Some(last.message_id.clone());
        paged.extend(page);
    }
    assert_eq!(paged, told[5..]);
    let again = write(record, vec![Write::Inbox(told[9].clone())]).await;
    assert!(matches!(again, Err(DatabaseError::Exists { .. })), "{again:?}");
}
