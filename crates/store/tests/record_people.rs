//! People, sessions, tokens, agents and their inboxes, on SQLite and on PostgreSQL.

#![expect(clippy::expect_used, reason = "helpers of tests fail like tests")]

#[macro_use]
mod opened;

use std::collections::BTreeSet;

use ade_domain::people::User;
use ade_domain::permission::Scope;
use ade_store::record::{RecordError, Session, StoredToken, StoredUser, Write};

use opened::{Opened, at, id, person, write};

on_both!(people_sessions_and_tokens_come_back);

async fn people_sessions_and_tokens_come_back(opened: Opened) {
    let record = &opened.record;
    let user = |name: &str, revision| StoredUser {
        user: User {
            user_id: person(name),
            name: name.to_owned(),
            roles: BTreeSet::from(["dba".to_owned()]),
            manager_id: Some(person("eve")),
            team: None,
            active: true,
        },
        revision,
        password_hash: Some("$argon2id$".to_owned()),
    };
    let write_user = |name: &str| Write::User { user: Box::new(user(name, 1)), expected: None };
    write(record, vec![write_user("ann"), write_user("ben")]).await.expect("new");
    assert_eq!(record.user(&person("ann")).await.expect("read"), Some(user("ann", 1)));
    assert_eq!(record.users(Some("ann"), 10).await.expect("listed"), [user("ben", 1)]);
    assert!(record.people().await.expect("read").get(&person("ben")).is_some());
    let changed = Write::User { user: Box::new(user("ann", 2)), expected: Some(2) };
    assert!(matches!(write(record, vec![changed]).await, Err(RecordError::Conflict { .. })));
    let session = Session {
        session_hash: "s".to_owned(),
        user_id: person("ann"),
        created_at: at(1),
        expires_at: at(2),
    };
    let token = StoredToken {
        token_id: id(),
        token_hash: "t".to_owned(),
        user_id: Some(person("ann")),
        agent_id: None,
        name: "laptop".to_owned(),
        scopes: BTreeSet::from([Scope::Read, Scope::Lock]),
        made_by: Some(person("ben")),
        created_at: at(1),
        expires_at: at(9),
        revoked_at: None,
    };
    write(record, vec![Write::Session(session.clone()), Write::Token(token.clone())]).await.expect("new");
    assert_eq!(record.session("s").await.expect("read"), Some(session));
    assert_eq!(record.token("t").await.expect("read"), Some(token.clone()));
    let revoked = StoredToken { revoked_at: Some(at(3)), ..token };
    let end = Write::EndSessions { session_hash: None, user_id: "ann".to_owned() };
    write(record, vec![Write::Token(revoked.clone()), end]).await.expect("ended");
    assert_eq!(record.tokens_of(&person("ann")).await.expect("listed"), [revoked]);
    assert_eq!(record.session("s").await.expect("read"), None);
}
