//! What people see, say, and make of tasks that ended badly.

use ade_app::Error;
use ade_app::tasks::{TaskAction, Whose};
use ade_domain::approval::ApprovalStatus;
use ade_domain::approval::policy::default_policy;
use ade_domain::people::{ADMIN, AUDITOR, AUTHOR, REVIEWER, UserId};
use ade_domain::permission::Scope;
use ade_domain::task::Refusal;
use ade_domain::task::State;
use ade_store::database::TaskFilter;

use crate::office::{Office, caller, draft, no, on_both, request_to, submitted, yes};

on_both!(
    everybody_lists_what_it_may_see,
    requests_of_others_are_listed_for_administrators_and_auditors_alone,
    comments_are_said_by_who_sees_the_task_while_it_is_not_too_far,
    a_comment_that_races_a_decision_is_not_about_what_was_decided,
    nobody_of_the_old_authors_decides_about_a_copy,
    whoever_stands_behind_a_change_does_not_decide_about_it,
);

async fn everybody_lists_what_it_may_see(office: Office) {
    office.hire("ann", &[AUTHOR]).await;
    office.hire("rob", &[REVIEWER]).await;
    let mut own = default_policy();
    (own.name, own.task_types) = ("own".to_owned(), vec!["secret".to_owned()]);
    own.reviewers = vec![UserId::new("rob")];
    office.rule(own).await;
    let (desk, ann) = (office.desk(), caller("ann", &[AUTHOR]));
    let mut ids = Vec::new();
    for number in 0..5 {
        let mut draft = draft(&number.to_string());
        draft.config.task_type = "secret".to_owned();
        draft.metadata.tags = vec![format!("t{}", number % 2)];
        let task = desk.create(draft, &ann).await.expect("made");
        if number > 0 {
            desk.submit(&task.task_id, &ann).await.expect("submitted");
        }
        ids.insert(0, task.task.task_id);
    }
    let list = async |filter: TaskFilter, name: &str, role: &str| {
        let tasks = desk.tasks(filter, None, 50, &caller(name, &[role])).await.expect("listed");
        tasks.into_iter().map(|task| task.task.task_id).collect::<Vec<_>>()
    };
    assert_eq!(list(TaskFilter::default(), "ann", AUTHOR).await, ids);
    assert_eq!(list(TaskFilter::default(), "rob", REVIEWER).await, ids[..4]);
    assert_eq!(list(TaskFilter::default(), "eve", REVIEWER).await, [""; 0]);
    for role in [ADMIN, AUDITOR] {
        assert_eq!(list(TaskFilter::default(), "eve", role).await, ids, "{role}");
    }
    // Nobody sees more by saying for whom.
    let for_ann = TaskFilter { visible_to: Some(UserId::new("ann")), ..TaskFilter::default() };
    assert_eq!(list(for_ann, "eve", REVIEWER).await, [""; 0]);
    let drafts = TaskFilter { state: Some(State::Draft), ..TaskFilter::default() };
    assert_eq!(list(drafts, "ann", AUTHOR).await, ids[4..]);
    let tagged = TaskFilter { tag: Some("t1".to_owned()), ..TaskFilter::default() };
    assert_eq!(list(tagged, "rob", REVIEWER).await, [ids[1].clone(), ids[3].clone()]);
    // An agent sees what its sponsor sees who is no administrator.
    let mut agent = caller("eve", &[ADMIN]);
    agent.agent_id = Some("robot".to_owned());
    assert!(desk.tasks(TaskFilter::default(), None, 50, &agent).await.expect("listed").is_empty());
    // Page by page, with their requests.
    let page = desk.tasks(TaskFilter::default(), Some(&ids[1]), 2, &ann).await.expect("listed");
    assert_eq!(page[0].task_id, ids[2]);
    assert_eq!(page[1].task_id, ids[3]);
    assert_eq!(page[0], office.task(&ids[2]).await);
    let wrong = desk.tasks(TaskFilter::default(), Some("x"), 2, &ann).await;
    assert!(matches!(wrong, Err(Error::Invalid(_))));
    let mut blind = caller("ann", &[AUTHOR]);
    blind.scopes.remove(&Scope::Read);
    assert_eq!(desk.tasks(TaskFilter::default(), None, 2, &blind).await, Err(Error::Scope(Scope::Read)));
}

async fn requests_of_others_are_listed_for_administrators_and_auditors_alone(office: Office) {
    office.hire("ann", &[AUTHOR]).await;
    office.hire("rob", &[REVIEWER]).await;
    office.hire("sue", &[REVIEWER]).await;
    let desk = office.desk();
    let task = submitted(&desk, "one").await;
    let rob = caller("rob", &[REVIEWER]);
    let (of_rob, pending) = (Whose::Of(UserId::new("rob")), Some(ApprovalStatus::Pending));
    let own = desk.approvals(&Whose::Own, pending, None, 50, &rob).await.expect("listed");
    assert_eq!(own.len(), 1);
    assert_eq!(own[0].approval_id, request_to(&task, "rob"));
    assert_eq!(desk.approvals(&of_rob, None, None, 50, &rob).await, Ok(own.clone()));
    let forbidden = Err(Error::Refused(Refusal::Forbidden));
    let sue = caller("sue", &[REVIEWER]);
    assert_eq!(desk.approvals(&of_rob, None, None, 50, &sue).await, forbidden);
    assert_eq!(desk.approvals(&Whose::Anybody, None, None, 50, &sue).await, forbidden);
    for role in [ADMIN, AUDITOR] {
        let max = caller("max", &[role]);
        assert_eq!(desk.approvals(&of_rob, None, None, 50, &max).await, Ok(own.clone()));
        let all = desk.approvals(&Whose::Anybody, None, None, 50, &max).await.expect("listed");
        assert_eq!(all.len(), 2);
        let after = Some((all[0].score, all[0].approval_id.clone()));
        assert_eq!(desk.approvals(&Whose::Anybody, None, after, 50, &max).await, Ok(all[1..].to_vec()));
        assert_eq!(desk.approvals(&Whose::Own, None, None, 50, &max).await, Ok(Vec::new()));
    }
    let (seen, request) = desk.approval(&own[0].approval_id, &rob).await.expect("seen");
    assert_eq!((&seen, &request), (&task, &own[0]));
    let eve = caller("eve", &[REVIEWER]);
    for id in [own[0].approval_id.as_str(), "x", "0190163d-8694-739b-aea5-966c26f8ad91"] {
        assert_eq!(desk.approval(id, &eve).await, Err(Error::NotFound("approval")));
    }
}

async fn comments_are_said_by_who_sees_the_task_while_it_is_not_too_far(office: Office) {
    office.hire("ann", &[AUTHOR]).await;
    office.hire("rob", &[REVIEWER]).await;
    let (desk, ann, rob) = (office.desk(), caller("ann", &[AUTHOR]), caller("rob", &[REVIEWER]));
    let task = desk.create(draft("one"), &ann).await.expect("made");
    let id = &task.task_id;
    desk.comment(id, "a draft", &ann).await.expect("said");
    assert_eq!(desk.comment(id, "hm", &rob).await, Err(Error::NotFound("task")));
    let task = desk.submit(id, &ann).await.expect("submitted");
    desk.comment(id, "under review", &rob).await.expect("said");
    for text in ["", " \n", &"x".repeat(16_385)] {
        assert!(matches!(desk.comment(id, text, &rob).await, Err(Error::Invalid(_))));
    }
    let now = office.task(id).await;
    assert_eq!(now.task, task.task, "a comment changes nothing");
    let task = desk.respond(request_to(&task, "rob"), &yes(), &rob).await.expect("approved");
    desk.comment(id, "approved", &rob).await.expect("said");
    assert_eq!(office.task(id).await.approval_ends_at, task.approval_ends_at);
    desk.act(id, &TaskAction::Cancel { reason: None }, &ann).await.expect("cancelled");
    let late = desk.comment(id, "too late", &rob).await;
    assert!(matches!(late, Err(Error::Refused(Refusal::InvalidTransition(_)))), "{late:?}");
    let said = desk.comments(id, &rob).await.expect("seen");
    let said: Vec<(&str, &str)> =
        said.iter().map(|one| (one.author_id.as_str(), one.text.as_str())).collect();
    assert_eq!(said, [("ann", "a draft"), ("rob", "under review"), ("rob", "approved")]);
    let told = office.told(Some(id)).await;
    assert_eq!(told.iter().filter(|action| *action == "task.comment").count(), 3);
    assert_eq!(desk.comments(id, &caller("eve", &[REVIEWER])).await, Err(Error::NotFound("task")));
    // Whoever may only look says nothing.
    let mut looks = rob;
    looks.scopes = [Scope::Read].into();
    assert_eq!(desk.comment(id, "hm", &looks).await, Err(Error::Scope(Scope::Propose)));
}

async fn a_comment_that_races_a_decision_is_not_about_what_was_decided(office: Office) {
    office.hire("ann", &[AUTHOR]).await;
    office.hire("rob", &[REVIEWER]).await;
    let (desk, other) = (office.desk(), office.another_desk().await);
    let (ann, rob) = (caller("ann", &[AUTHOR]), caller("rob", &[REVIEWER]));
    for round in 0..20 {
        let task = submitted(&desk, &round.to_string()).await;
        let id = task.task_id.as_str();
        let against = no();
        let (said, rejected) = tokio::join!(
            other.comment(id, "wait", &ann),
            desk.respond(request_to(&task, "rob"), &against, &rob)
        );
        let rejected = rejected.expect("a comment stops nobody");
        let many = match said {
            Ok(_) => 1,
            Err(Error::Refused(Refusal::InvalidTransition(_))) => 0,
            Err(error) => unreachable!("{error}"),
        };
        // What was written back with the comment undid nothing, and what was refused left nothing.
        assert_eq!(office.task(id).await, rejected);
        assert_eq!(desk.comments(id, &ann).await.expect("seen").len(), many);
        let told = office.told(Some(id)).await;
        assert_eq!(told.iter().filter(|action| *action == "task.comment").count(), many);
        assert!(desk.comment(id, "too late", &ann).await.is_err());
    }
}

async fn nobody_of_the_old_authors_decides_about_a_copy(office: Office) {
    office.hire("ann", &[AUTHOR, REVIEWER]).await;
    office.hire("sam", &[AUTHOR, REVIEWER]).await;
    office.hire("rob", &[REVIEWER]).await;
    let (desk, ann, rob) = (office.desk(), caller("ann", &[AUTHOR]), caller("rob", &[REVIEWER]));
    let mut draft = draft("one");
    draft.metadata.lineage.sponsor_id = Some(UserId::new("sam"));
    draft.metadata.tags = vec!["tag".to_owned()];
    let old = desk.create(draft, &ann).await.expect("made");
    let id = &old.task_id;
    let early = desk.resubmit(id, &ann).await;
    assert!(matches!(early, Err(Error::Refused(Refusal::InvalidTransition(_)))));
    let old = desk.submit(id, &ann).await.expect("submitted");
    let old = desk.respond(request_to(&old, "rob"), &no(), &rob).await.expect("rejected");
    // Neither who rejected it, nor an administrator.
    for (name, roles) in [("rob", &[REVIEWER, AUTHOR][..]), ("max", &[ADMIN])] {
        let refused = desk.resubmit(id, &caller(name, roles)).await;
        assert_eq!(refused, Err(Error::Refused(Refusal::Forbidden)), "{name}");
    }
    let copy = desk.resubmit(id, &caller("sam", &[AUTHOR])).await.expect("one of the authors");
    assert_eq!(copy.predecessor.as_deref(), Some(id.as_str()));
    assert_eq!((copy.state, copy.revision), (State::Draft, 1));
    assert_eq!(copy.author_id, UserId::new("sam"));
    assert_eq!(copy.digest, old.digest);
    assert_eq!((&copy.preview, &copy.metadata.tags), (&old.preview, &old.metadata.tags));
    assert!(copy.author_set.contains(&UserId::new("ann")));
    assert_eq!(office.task(&copy.task_id).await, copy);
    assert_eq!(office.task(id).await.state, State::Rejected);
    let copy = desk.submit(&copy.task_id, &caller("sam", &[AUTHOR])).await.expect("submitted");
    let asked: Vec<&str> = copy.approvals.iter().map(|one| one.reviewer_id.as_str()).collect();
    assert_eq!(asked, ["rob"]);
    let own = desk.respond(request_to(&copy, "rob"), &yes(), &caller("ann", &[REVIEWER, ADMIN])).await;
    assert!(matches!(own, Err(Error::Refused(Refusal::OwnTask { .. }))), "{own:?}");
    assert_eq!(office.told(Some(id)).await.last().map(String::as_str), Some("task.resubmit"));
    assert_eq!(office.told(Some(&copy.task_id)).await[0], "task.create");
}

async fn whoever_stands_behind_a_change_does_not_decide_about_it(office: Office) {
    office.hire("ann", &[AUTHOR]).await;
    office.hire("rob", &[REVIEWER]).await;
    office.hire("sue", &[REVIEWER]).await;
    let (desk, ann) = (office.desk(), caller("ann", &[AUTHOR]));
    let task = submitted(&desk, "one").await;
    let mut by_token = ann;
    by_token.token_made_by = Some(UserId::new("rob"));
    let changed = desk.modify(
        &task.task_id,
        |task| {
            let mut config = task.config.clone();
            config.description = "two".to_owned();
            Ok((config, task.metadata.clone(), task.preview.clone()))
        },
        &by_token,
    );
    let task = changed.await.expect("changed");
    let open: Vec<&str> = task
        .task
        .approvals
        .iter()
        .filter(|one| one.is_answerable())
        .map(|one| one.reviewer_id.as_str())
        .collect();
    assert_eq!(open, ["sue"], "rob made the token that it was changed with");
}
