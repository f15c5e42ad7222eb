//! Lists, comments, and resubmission of rejected tasks.

use ade_app::tasks::{ApprovalOwner, TaskAction, TaskDraft};
use ade_app::{Caller, Error, ObjectKind};
use ade_domain::approval::ApprovalStatus;
use ade_domain::approval::policy::default_policy;
use ade_domain::people::{ADMIN, AUDITOR, AUTHOR, REVIEWER, UserId};
use ade_domain::permission::Scope;
use ade_domain::task::Refusal;
use ade_domain::task::TaskState;
use ade_store::database::TaskFilter;

use crate::fixture::{Fixture, approval_of, approve, caller, draft, on_both_databases, reject, submitted};

on_both_databases!(
    lists_only_visible_tasks,
    only_admins_and_auditors_list_approvals_of_others,
    participants_comment_until_the_task_ends,
    comment_racing_a_decision_is_stored_before_it_or_refused,
    authors_of_the_original_cannot_decide_on_a_resubmission,
    token_creator_cannot_decide_on_a_change,
);

async fn lists_only_visible_tasks(fixture: Fixture) {
    fixture.add_user("ann", &[AUTHOR]).await;
    fixture.add_user("rob", &[REVIEWER]).await;
    let mut own = default_policy();
    (own.name, own.task_types) = ("own".to_owned(), vec!["secret".to_owned()]);
    own.reviewers = vec![UserId::new("rob")];
    fixture.add_policy(own).await;
    let (service, ann) = (fixture.service(), caller("ann", &[AUTHOR]));
    let mut ids = Vec::new();
    for number in 0..5 {
        let mut draft = draft(&number.to_string());
        draft.config.task_type = "secret".to_owned();
        draft.metadata.tags = vec![format!("t{}", number % 2)];
        let task = service.create(draft, &ann).await.expect("created");
        if number > 0 {
            service.submit(&task.task_id, &ann).await.expect("submitted");
        }
        ids.insert(0, task.task.task_id);
    }
    let list = async |filter: TaskFilter, name: &str, role: &str| {
        let tasks = service.tasks(filter, None, 50, &caller(name, &[role])).await.expect("listed");
        tasks.into_iter().map(|task| task.task.task_id).collect::<Vec<_>>()
    };
    assert_eq!(list(TaskFilter::default(), "ann", AUTHOR).await, ids);
    assert_eq!(list(TaskFilter::default(), "rob", REVIEWER).await, ids[..4]);
    assert_eq!(list(TaskFilter::default(), "eve", REVIEWER).await, [""; 0]);
    for role in [ADMIN, AUDITOR] {
        assert_eq!(list(TaskFilter::default(), "eve", role).await, ids, "{role}");
    }
    // The filter cannot widen what a caller sees.
    let for_ann = TaskFilter { visible_to: Some(UserId::new("ann")), ..TaskFilter::default() };
    assert_eq!(list(for_ann, "eve", REVIEWER).await, [""; 0]);
    let drafts = TaskFilter { state: Some(TaskState::Draft), ..TaskFilter::default() };
    assert_eq!(list(drafts, "ann", AUTHOR).await, ids[4..]);
    let tagged = TaskFilter { tag: Some("t1".to_owned()), ..TaskFilter::default() };
    assert_eq!(list(tagged, "rob", REVIEWER).await, [ids[1].clone(), ids[3].clone()]);
    // An agent does not have the administrator role of its sponsor.
    let mut agent = caller("eve", &[ADMIN]);
    agent.agent_id = Some("robot".to_owned());
    assert!(service.tasks(TaskFilter::default(), None, 50, &agent).await.expect("listed").is_empty());
    // Pages contain tasks with their approval requests.
    let page = service.tasks(TaskFilter::default(), Some(&ids[1]), 2, &ann).await.expect("listed");
    assert_eq!(page[0].task_id, ids[2]);
    assert_eq!(page[1].task_id, ids[3]);
    assert_eq!(page[0], fixture.task(&ids[2]).await);
    let wrong = service.tasks(TaskFilter::default(), Some("x"), 2, &ann).await;
    assert!(matches!(wrong, Err(Error::Invalid(_))));
    let mut blind = caller("ann", &[AUTHOR]);
    blind.scopes.remove(&Scope::Read);
    assert_eq!(service.tasks(TaskFilter::default(), None, 2, &blind).await, Err(Error::Scope(Scope::Read)));
}

async fn only_admins_and_auditors_list_approvals_of_others(fixture: Fixture) {
    fixture.add_user("ann", &[AUTHOR]).await;
    fixture.add_user("rob", &[REVIEWER]).await;
    fixture.add_user("sue", &[REVIEWER]).await;
    let service = fixture.service();
    let task = submitted(&service, "one").await;
    let rob = caller("rob", &[REVIEWER]);
    let (of_rob, pending) = (ApprovalOwner::User(UserId::new("rob")), Some(ApprovalStatus::Pending));
    let own = service.approvals(&ApprovalOwner::Caller, pending, None, 50, &rob).await.expect("listed");
    assert_eq!(own.len(), 1);
    assert_eq!(own[0].approval_id, approval_of(&task, "rob"));
    assert_eq!(service.approvals(&of_rob, None, None, 50, &rob).await, Ok(own.clone()));
    let forbidden = Err(Error::Refused(Refusal::Forbidden));
    let sue = caller("sue", &[REVIEWER]);
    assert_eq!(service.approvals(&of_rob, None, None, 50, &sue).await, forbidden);
    assert_eq!(service.approvals(&ApprovalOwner::Anyone, None, None, 50, &sue).await, forbidden);
    for role in [ADMIN, AUDITOR] {
        let max = caller("max", &[role]);
        assert_eq!(service.approvals(&of_rob, None, None, 50, &max).await, Ok(own.clone()));
        let all = service.approvals(&ApprovalOwner::Anyone, None, None, 50, &max).await.expect("listed");
        assert_eq!(all.len(), 2);
        let after = Some((all[0].score, all[0].approval_id.clone()));
        assert_eq!(
            service.approvals(&ApprovalOwner::Anyone, None, after, 50, &max).await,
            Ok(all[1..].to_vec())
        );
        assert_eq!(service.approvals(&ApprovalOwner::Caller, None, None, 50, &max).await, Ok(Vec::new()));
    }
    let (seen, request) = service.approval(&own[0].approval_id, &rob).await.expect("visible");
    assert_eq!((&seen, &request), (&task, &own[0]));
    let eve = caller("eve", &[REVIEWER]);
    for id in [own[0].approval_id.as_str(), "x", "0190163d-8694-739b-aea5-966c26f8ad91"] {
        assert_eq!(service.approval(id, &eve).await, Err(Error::NotFound(ObjectKind::Approval)));
    }
}

async fn participants_comment_until_the_task_ends(fixture: Fixture) {
    fixture.add_user("ann", &[AUTHOR]).await;
    fixture.add_user("rob", &[REVIEWER]).await;
    let (service, ann, rob) = (fixture.service(), caller("ann", &[AUTHOR]), caller("rob", &[REVIEWER]));
    let task = service.create(draft("one"), &ann).await.expect("created");
    let id = &task.task_id;
    service.comment(id, "a draft", &ann).await.expect("commented");
    assert_eq!(service.comment(id, "hm", &rob).await, Err(Error::NotFound(ObjectKind::Task)));
    let task = service.submit(id, &ann).await.expect("submitted");
    service.comment(id, "under review", &rob).await.expect("commented");
    for text in ["", " \n", &"x".repeat(16_385)] {
        assert!(matches!(service.comment(id, text, &rob).await, Err(Error::Invalid(_))));
    }
    let now = fixture.task(id).await;
    assert_eq!(now.task, task.task, "a comment changes nothing");
    let task = service.decide(approval_of(&task, "rob"), &approve(&task), &rob).await.expect("approved");
    service.comment(id, "approved", &rob).await.expect("commented");
    assert_eq!(fixture.task(id).await.approval_ends_at, task.approval_ends_at);
    service.perform(id, &TaskAction::Cancel { reason: None }, &ann).await.expect("cancelled");
    let late = service.comment(id, "too late", &rob).await;
    assert!(matches!(late, Err(Error::Refused(Refusal::InvalidTransition(_)))), "{late:?}");
    let comments = service.comments(id, &rob).await.expect("visible");
    let comments: Vec<(&str, &str)> =
        comments.iter().map(|comment| (comment.author_id.as_str(), comment.text.as_str())).collect();
    assert_eq!(comments, [("ann", "a draft"), ("rob", "under review"), ("rob", "approved")]);
    let actions = fixture.audit_actions(Some(id)).await;
    assert_eq!(actions.iter().filter(|action| *action == "task.comment").count(), 3);
    assert_eq!(
        service.comments(id, &caller("eve", &[REVIEWER])).await,
        Err(Error::NotFound(ObjectKind::Task))
    );
    // A read-only token cannot comment.
    let mut reader = rob;
    reader.scopes = [Scope::Read].into();
    assert_eq!(service.comment(id, "hm", &reader).await, Err(Error::Scope(Scope::Propose)));
}

async fn comment_racing_a_decision_is_stored_before_it_or_refused(fixture: Fixture) {
    fixture.add_user("ann", &[AUTHOR]).await;
    fixture.add_user("rob", &[REVIEWER]).await;
    let (service, other) = (fixture.service(), fixture.other_process().await);
    let (ann, rob) = (caller("ann", &[AUTHOR]), caller("rob", &[REVIEWER]));
    for round in 0..20 {
        let task = submitted(&service, &round.to_string()).await;
        let id = task.task_id.as_str();
        let against = reject();
        let (commented, rejected) = tokio::join!(
            other.comment(id, "wait", &ann),
            service.decide(approval_of(&task, "rob"), &against, &rob)
        );
        let rejected = rejected.expect("a comment does not block a decision");
        let comments = match commented {
            Ok(_) => 1,
            Err(Error::Refused(Refusal::InvalidTransition(_))) => 0,
            Err(error) => unreachable!("{error}"),
        };
        // A stored comment does not revert the decision, and a refused one leaves nothing.
        assert_eq!(fixture.task(id).await, rejected);
        assert_eq!(service.comments(id, &ann).await.expect("visible").len(), comments);
        let actions = fixture.audit_actions(Some(id)).await;
        assert_eq!(actions.iter().filter(|action| *action == "task.comment").count(), comments);
        assert!(service.comment(id, "too late", &ann).await.is_err());
    }
}

async fn authors_of_the_original_cannot_decide_on_a_resubmission(fixture: Fixture) {
    fixture.add_user("ann", &[AUTHOR, REVIEWER]).await;
    fixture.add_user("sam", &[AUTHOR, REVIEWER]).await;
    fixture.add_user("rob", &[REVIEWER]).await;
    let (service, ann, rob) = (fixture.service(), caller("ann", &[AUTHOR]), caller("rob", &[REVIEWER]));
    let mut draft = draft("one");
    draft.metadata.tags = vec!["tag".to_owned()];
    // Proposed with a token that sam issued.
    let with_token = Caller { token_created_by: Some(UserId::new("sam")), ..ann.clone() };
    let old = service.create(draft, &with_token).await.expect("created");
    let id = &old.task_id;
    let early = service.resubmit(id, &ann).await;
    assert!(matches!(early, Err(Error::Refused(Refusal::InvalidTransition(_)))));
    let old = service.submit(id, &ann).await.expect("submitted");
    let old = service.decide(approval_of(&old, "rob"), &reject(), &rob).await.expect("rejected");
    // Neither the reviewer who rejected it, nor an administrator, nor somebody who only issued a token.
    for (name, roles) in [("rob", &[REVIEWER, AUTHOR][..]), ("max", &[ADMIN]), ("sam", &[AUTHOR])] {
        let refused = service.resubmit(id, &caller(name, roles)).await;
        assert_eq!(refused, Err(Error::Refused(Refusal::Forbidden)), "{name}");
    }
    let copy = service.resubmit(id, &ann).await.expect("by an author");
    assert_eq!(copy.predecessor.as_deref(), Some(id.as_str()));
    assert_eq!((copy.state, copy.revision), (TaskState::Draft, 1));
    assert_eq!(copy.author_id, UserId::new("ann"));
    assert_eq!(copy.digest, old.digest);
    assert_eq!((&copy.preview, &copy.metadata.tags), (&old.preview, &old.metadata.tags));
    assert!(copy.author_set.contains(&UserId::new("sam")));
    assert_eq!(fixture.task(&copy.task_id).await, copy);
    assert_eq!(fixture.task(id).await.state, TaskState::Rejected);
    let copy = service.submit(&copy.task_id, &ann).await.expect("submitted");
    let reviewers: Vec<&str> = copy.approvals.iter().map(|approval| approval.reviewer_id.as_str()).collect();
    assert_eq!(reviewers, ["rob"]);
    let own =
        service.decide(approval_of(&copy, "rob"), &approve(&copy), &caller("sam", &[REVIEWER, ADMIN])).await;
    assert!(matches!(own, Err(Error::Refused(Refusal::OwnTask { .. }))), "{own:?}");
    assert_eq!(fixture.audit_actions(Some(id)).await.last().map(String::as_str), Some("task.resubmit"));
    assert_eq!(fixture.audit_actions(Some(&copy.task_id)).await[0], "task.create");
}

async fn token_creator_cannot_decide_on_a_change(fixture: Fixture) {
    fixture.add_user("ann", &[AUTHOR]).await;
    fixture.add_user("rob", &[REVIEWER]).await;
    fixture.add_user("sue", &[REVIEWER]).await;
    let (service, ann) = (fixture.service(), caller("ann", &[AUTHOR]));
    let task = submitted(&service, "one").await;
    let mut by_token = ann;
    by_token.token_created_by = Some(UserId::new("rob"));
    let changed = service.modify(
        &task.task_id,
        |task| {
            let mut config = task.config.clone();
            config.description = "two".to_owned();
            Ok(TaskDraft { config, ..TaskDraft::of(task) })
        },
        &by_token,
    );
    let task = changed.await.expect("changed");
    let open: Vec<&str> = task
        .task
        .approvals
        .iter()
        .filter(|approval| approval.is_decidable())
        .map(|approval| approval.reviewer_id.as_str())
        .collect();
    assert_eq!(open, ["sue"], "rob created the token of the change");
}
