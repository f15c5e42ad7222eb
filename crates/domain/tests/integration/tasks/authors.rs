//! Author sets: who joins and leaves them, and who deletes a task or comments on it.

use std::collections::BTreeMap;

use crate::tasks::fixture::{Fixture, config, id, user};
use ade_domain::approval::DecisionKind;
use ade_domain::approval::quorum::RequirementStatus;
use ade_domain::people::{ADMIN, AUTHOR, AuthorReason, REVIEWER, UserId};
use ade_domain::task::{Actor, Lineage, Refusal, RegisteredAgent, RegisteredAgents, TaskState};

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
    let actor =
        Actor { agent_id: Some("bot".to_owned()), token_issuer: Some(id("eve")), ..fixture().actor("ann") };
    let authors = actor.author_set();
    assert_eq!(authors.reason(&id("ann")), Some(&AuthorReason::SponsorsAgent));
    assert_eq!(authors.reason(&id("eve")), Some(&AuthorReason::TokenIssuer));
}

/// Every combination of caller, agent, parent and sponsor: only the caller and agents of the caller are named.
#[test]
fn lineage_names_only_agents_of_the_caller() {
    let registered = |sponsor: &str, parent: Option<&str>| RegisteredAgent {
        sponsor: Some(id(sponsor)),
        parent: parent.map(str::to_owned),
    };
    let agents = RegisteredAgents::from([
        ("bot".to_owned(), registered("ann", Some("boss"))),
        ("own".to_owned(), registered("ann", None)),
        ("boss".to_owned(), registered("ben", None)),
    ]);
    let fixture = fixture();
    let callers = [
        (fixture.actor("ann"), vec!["bot", "own"]),
        (Actor { agent_id: Some("bot".to_owned()), ..fixture.actor("ann") }, vec!["bot"]),
        (fixture.actor("eve"), vec![]),
    ];
    let names = [None, Some("bot"), Some("own"), Some("boss"), Some("ghost")];
    let sponsors = [None, Some("ann"), Some("ben"), Some("rob"), Some("eve")];
    let mut resolved = 0;
    for (caller, allowed) in &callers {
        for (agent, parent) in names.iter().flat_map(|agent| names.map(|parent| (*agent, parent))) {
            for sponsor in sponsors {
                let asked = Lineage { parent_agent_id: parent.map(str::to_owned), ..lineage(sponsor, agent) };
                let Ok(lineage) = asked.resolve(caller, &agents) else { continue };
                let agent = agent.or(caller.agent_id.as_deref());
                assert!(agent.is_none_or(|agent| allowed.contains(&agent)), "{asked:?}");
                assert!(lineage.sponsor_id.is_none() || lineage.sponsor_id == caller.user, "{asked:?}");
                assert_eq!(
                    lineage.parent_agent_id.as_deref(),
                    agent.filter(|agent| *agent == "bot").map(|_| "boss")
                );
                assert!(parent.is_none() || parent == lineage.parent_agent_id.as_deref(), "{asked:?}");
                resolved += 1;
            }
        }
    }
    assert_eq!(
        resolved, 18,
        "nothing, an own agent, with and without its parent; each with and without the caller as sponsor"
    );
}

#[test]
fn agent_and_administrator_who_submit_a_draft_are_on_record() {
    let mut fixture = fixture();
    let mut task = fixture.draft("ann", config("schema", &[]));
    let bot = Actor { agent_id: Some("bot".to_owned()), ..fixture.actor("ann") };
    let mut by_agent = task.clone();
    assert!(!by_agent.is_by_agent());
    by_agent.prepare_submission(&bot).expect("its sponsor's draft");
    assert_eq!(by_agent.by_agent.iter().collect::<Vec<_>>(), ["bot"]);
    assert_eq!(task.clone().prepare_submission(&fixture.actor("ben")), Err(Refusal::Forbidden));
    fixture.submit(&mut task, "eve").expect("an administrator");
    assert_eq!(task.author_set.reason(&id("eve")), Some(&AuthorReason::Submitter));
    let own = fixture.decide(&mut task, "rob", DecisionKind::Approve, "eve");
    assert!(matches!(own, Err(Refusal::OwnTask { .. })), "{own:?}");
}

#[test]
fn agents_of_reviewers_take_no_part() {
    let mut fixture = fixture();
    let mut task = fixture.draft("ann", config("schema", &[]));
    fixture.submit(&mut task, "ann").expect("enough reviewers");
    let agent_of =
        |user: &str| Actor { agent_id: Some("bot".to_owned()), roles: Vec::new(), ..fixture.actor(user) };
    assert!(task.is_participant(&agent_of("ann")) && task.is_participant(&fixture.actor("rob")));
    assert!(!task.is_participant(&agent_of("rob")));
}

#[test]
fn requirement_is_not_satisfied_while_changes_are_requested() {
    let mut fixture = Fixture::new(vec![
        user("ann", &[AUTHOR], None),
        user("rob", &[REVIEWER], None),
        user("sue", &[REVIEWER], None),
    ]);
    let mut task = fixture.draft("ann", config("schema", &[]));
    fixture.submit(&mut task, "ann").expect("enough reviewers");
    fixture.decide(&mut task, "rob", DecisionKind::RequestChanges, "rob").expect("asked");
    fixture.decide(&mut task, "sue", DecisionKind::Approve, "sue").expect("asked");
    let progress = task.progress().remove(0);
    assert_eq!((task.state, progress.status), (TaskState::Reviewing, RequirementStatus::Unsatisfied));
    assert!(progress.needed == 1 && progress.why.starts_with("changes requested by rob"), "{progress:?}");
    fixture.decide(&mut task, "rob", DecisionKind::Approve, "rob").expect("decides otherwise");
    assert_eq!((task.state, task.progress()[0].status), (TaskState::Approved, RequirementStatus::Satisfied));
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
