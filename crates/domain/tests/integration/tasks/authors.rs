//! Author sets: who joins and leaves them, and who deletes a task or comments on it.

use std::collections::BTreeMap;

use crate::tasks::fixture::{Fixture, config, id, user};
use ade_domain::people::{ADMIN, AUTHOR, AuthorReason, REVIEWER, UserId};
use ade_domain::task::{Actor, Lineage, Refusal, TaskState};

fn fixture() -> Fixture {
    Fixture::new(vec![
        user("ann", &[AUTHOR], None),
        user("ben", &[AUTHOR], None),
        user("rob", &[REVIEWER], None),
        user("eve", &[ADMIN], None),
    ])
}

fn lineage(sponsor: Option<&str>, agent: Option<&str>) -> Lineage {
    Lineage { agent_id: agent.map(str::to_owned), sponsor_id: sponsor.map(id), ..Lineage::default() }
}

fn sponsors() -> BTreeMap<String, UserId> {
    BTreeMap::from([("bot".to_owned(), id("sam"))])
}

#[test]
fn agent_proposes_for_its_sponsor_and_the_token_issuer() {
    let actor = Actor { is_agent: true, token_issuer: Some(id("eve")), ..fixture().actor("ann") };
    let authors = actor.author_set();
    assert_eq!(authors.reason(&id("ann")), Some(&AuthorReason::SponsorsAgent));
    assert_eq!(authors.reason(&id("eve")), Some(&AuthorReason::TokenIssuer));
}

#[test]
fn sponsors_leave_with_a_replaced_lineage_unless_they_edit() {
    let fixture = fixture();
    let mut task = fixture.draft("ann", config("schema", &[]));
    let (ann, ben) = (fixture.actor("ann"), fixture.actor("ben"));
    let edit = |task: &mut ade_domain::task::Task, lineage: Lineage, actor: &Actor| {
        task.author_set = task.author_set_after_edit(&lineage, &sponsors(), actor).expect("a draft");
        task.metadata.lineage = lineage;
    };
    edit(&mut task, lineage(Some("ben"), Some("bot")), &ann);
    assert_eq!(task.author_set.reason(&id("ben")), Some(&AuthorReason::Lineage { agent: None }));
    let by_agent = AuthorReason::Lineage { agent: Some("bot".to_owned()) };
    assert_eq!(task.author_set.reason(&id("sam")), Some(&by_agent));
    let mut replaced = task.clone();
    edit(&mut replaced, Lineage::default(), &ann);
    assert_eq!(replaced.author_set.iter().collect::<Vec<_>>(), [&id("ann")]);

    edit(&mut task, lineage(Some("ben"), Some("bot")), &ben);
    edit(&mut task, Lineage::default(), &ann);
    assert_eq!(task.author_set.reason(&id("ben")), Some(&AuthorReason::Editor));
    assert_eq!(task.author_set.reason(&id("ann")), Some(&AuthorReason::Author));
}

#[test]
fn lineage_of_a_submitted_task_is_fixed() {
    let mut fixture = fixture();
    let mut task = fixture.draft("ann", config("schema", &[]));
    fixture.submit(&mut task, "ann").expect("enough reviewers");
    let ann = fixture.actor("ann");
    let invalid = task.author_set_after_edit(&lineage(Some("ben"), None), &sponsors(), &ann);
    assert_eq!(invalid.expect_err("submitted").path.to_string(), "lineage");
    assert!(task.author_set_after_edit(&Lineage::default(), &sponsors(), &ann).is_ok());
}

#[test]
fn authors_of_the_predecessor_stay_authors() {
    let fixture = fixture();
    let mut task = fixture.draft("ann", config("schema", &[]));
    task.author_set.add(id("ben"), AuthorReason::Editor);
    task.metadata.lineage = lineage(None, Some("bot"));
    let authors = task.author_set_for_resubmission(&sponsors(), &fixture.actor("ann"));
    let predecessor = AuthorReason::PredecessorAuthor { task_id: "task".to_owned() };
    assert_eq!(authors.reason(&id("ann")), Some(&AuthorReason::Author));
    assert_eq!(authors.reason(&id("ben")), Some(&predecessor));
    assert!(authors.contains(&id("sam")));
}

#[test]
fn authors_delete_drafts_only() {
    let mut fixture = fixture();
    let mut task = fixture.draft("ann", config("schema", &[]));
    assert_eq!(task.delete(&fixture.actor("eve")), Err(Refusal::Forbidden));
    let deleted = task.delete(&fixture.actor("ann")).expect("a draft");
    assert_eq!((deleted.action.as_str(), deleted.actor), ("task.delete", Some(id("ann"))));
    fixture.submit(&mut task, "ann").expect("enough reviewers");
    assert!(matches!(task.delete(&fixture.actor("ann")), Err(Refusal::InvalidTransition(_))));
}

#[test]
fn participants_comment_and_the_others_are_notified() {
    let mut fixture = fixture();
    let mut task = fixture.draft("ann", config("schema", &[]));
    fixture.submit(&mut task, "ann").expect("enough reviewers");
    assert_eq!(task.comment(&fixture.actor("ben")), Err(Refusal::Forbidden));
    assert_eq!(task.comment(&Actor::system()), Err(Refusal::Forbidden));
    for (user, notified) in
        [("ann", vec![id("rob")]), ("rob", vec![id("ann")]), ("eve", vec![id("ann"), id("rob")])]
    {
        let commented = task.comment(&fixture.actor(user)).expect("a participant");
        assert_eq!((commented.action.as_str(), commented.notify), ("task.comment", notified));
    }
    task.state = TaskState::Completed;
    assert!(matches!(task.comment(&fixture.actor("ann")), Err(Refusal::InvalidTransition(_))));
}
