//! Reviews under races, on SQLite and on PostgreSQL: one decision, never for anything else than was looked at, all or nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use ade_app::Error;
use ade_app::tasks::{Batch, Imagined, Response, TaskAction};
use ade_domain::approval::ApprovalStatus;
use ade_domain::approval::policy::{Policy, default_policy};
use ade_domain::people::{ADMIN, AUTHOR, REVIEWER, UserId};
use ade_domain::permission::Scope;
use ade_domain::task::Refusal;
use ade_domain::task::State;
use ade_store::database::StoredTask;
use ade_testkit::{Dice, effort};

use crate::office::{Office, caller, draft, no, on_both, request_to, submitted, yes};

on_both!(
    of_sixteen_who_race_one_decides_and_the_others_are_told,
    an_approval_that_races_a_change_counts_only_for_what_it_was_given_for,
    a_batch_of_five_hundred_is_all_or_nothing,
    three_processes_escalate_once,
    an_old_approval_goes_back_into_review,
    what_others_do_is_not_seen,
    an_override_is_confirmed_by_a_second_administrator_and_forced_by_none_of_the_authors,
    simulating_says_what_submitting_does,
    a_replay_lists_exactly_what_would_have_gone_another_way,
);

async fn of_sixteen_who_race_one_decides_and_the_others_are_told(office: Office) {
    office.hire("ann", &[AUTHOR]).await;
    for number in 0..16 {
        office.hire(&format!("r{number:02}"), &[REVIEWER]).await;
    }
    let task = submitted(&office.desk(), "race").await;
    assert_eq!(task.approvals.len(), 16);
    let mut racers = Vec::new();
    for number in 0..16 {
        let (desk, name) = (office.another_desk().await, format!("r{number:02}"));
        let approval = request_to(&task, &name).to_owned();
        racers.push(tokio::spawn(async move {
            let response = if number % 2 == 0 { yes() } else { no() };
            desk.respond(&approval, &response, &caller(&name, &[REVIEWER])).await
        }));
    }
    let (mut decided, mut late) = (Vec::new(), 0);
    for racer in racers {
        match racer.await.expect("no panic") {
            Ok(task) => decided.push(task.state),
            Err(Error::Refused(Refusal::AlreadyDecided { state })) => {
                assert!(matches!(state, State::Approved | State::Rejected));
                late += 1;
            }
            Err(other) => unreachable!("{other}"),
        }
    }
    assert_eq!((decided.len(), late), (1, 15));
    let told = office.told(Some(&task.task_id)).await;
    let decisions =
        told.iter().filter(|action| *action == "task.approve" || *action == "task.reject").count();
    assert_eq!(decisions, 1, "{told:?}");
    let now = office.record.task(&task.task_id).await.expect("read").expect("there");
    assert_eq!(now.state, decided[0]);
    assert_eq!(now.approvals.iter().filter(|one| one.status == ApprovalStatus::Closed).count(), 15);
}

async fn an_approval_that_races_a_change_counts_only_for_what_it_was_given_for(office: Office) {
    office.hire("ann", &[AUTHOR]).await;
    office.hire("rob", &[REVIEWER]).await;
    let (desk, author, rob) = (office.desk(), caller("ann", &[AUTHOR]), caller("rob", &[REVIEWER]));
    let (mut before, mut after) = (0, 0);
    for round in 0..20 {
        let task = submitted(&desk, &format!("first {round}")).await;
        let (task_id, digest) = (task.task_id.clone(), task.digest);
        let approval = request_to(&task, "rob").to_owned();
        let response = Response { digest: Some(digest), ..yes() };
        let change = |task: &StoredTask| {
            let mut config = task.config.clone();
            config.description = "second".to_owned();
            Ok((config, task.metadata.clone(), task.preview.clone()))
        };
        let (approved, modified) =
            tokio::join!(desk.respond(&approval, &response, &rob), desk.modify(&task_id, change, &author));
        modified.expect("before it is applied it can be changed");
        let now = office.record.task(&task_id).await.expect("read").expect("there");
        assert_ne!(now.digest, digest);
        assert_eq!(now.state, State::Reviewing, "nobody approved what it is now");
        match approved {
            Ok(_) => before += 1,
            Err(Error::Refused(Refusal::DigestMismatch { .. })) => after += 1,
            Err(other) => unreachable!("{other}"),
        }
    }
    assert_eq!(before + after, 20);
}

async fn a_batch_of_five_hundred_is_all_or_nothing(office: Office) {
    office.hire("ann", &[AUTHOR]).await;
    office.hire("rob", &[REVIEWER]).await;
    office.hire("sue", &[REVIEWER]).await;
    let desk = office.desk();
    let mut tasks = Vec::new();
    for number in 0..500 {
        tasks.push(submitted(&desk, &number.to_string()).await);
    }
    let approval_ids: Vec<String> = tasks.iter().map(|task| request_to(task, "rob").to_owned()).collect();
    let batch = Batch { approval_ids, response: yes(), skip_validation: false, apply_immediately: false };
    let (rob, sue) = (caller("rob", &[REVIEWER]), caller("sue", &[REVIEWER]));
    let against = no();
    let (batched, rejected) = tokio::join!(
        desk.respond_to_all(&batch, &rob),
        desk.respond(request_to(&tasks[250], "sue"), &against, &sue)
    );
    let mut states: Vec<State> = Vec::new();
    for task in &tasks {
        states.push(office.record.task(&task.task_id).await.expect("read").expect("there").state);
    }
    let approved = states.iter().filter(|state| **state == State::Approved).count();
    match (batched, rejected) {
        (Ok(changed), Err(Error::Refused(Refusal::AlreadyDecided { .. }))) => {
            assert_eq!((changed.len(), approved), (500, 500));
        }
        (Err(Error::Batch(refused)), Ok(_)) => {
            assert_eq!((refused.len(), approved), (1, 0));
            assert_eq!(refused[0].0, batch.approval_ids[250]);
        }
        other => unreachable!("{other:?}"),
    }
    let unknown = Batch { approval_ids: vec!["x".to_owned()], ..batch.clone() };
    assert!(matches!(desk.respond_to_all(&unknown, &rob).await, Err(Error::Batch(_))));
    let empty = Batch { approval_ids: Vec::new(), ..batch };
    assert!(matches!(desk.respond_to_all(&empty, &rob).await, Err(Error::Invalid(_))));
}

async fn three_processes_escalate_once(office: Office) {
    office.hire("ann", &[AUTHOR]).await;
    office.hire("rob", &[REVIEWER]).await;
    office.hire("max", &[ADMIN]).await;
    let mut tasks = Vec::new();
    for number in 0..10 {
        tasks.push(submitted(&office.desk(), &number.to_string()).await);
    }
    office.clock.advance(Duration::from_secs(48 * 3_600));
    let mut processes = Vec::new();
    for _ in 0..3 {
        let desk = office.another_desk().await;
        processes.push(tokio::spawn(async move { desk.work_off().await }));
    }
    for process in processes {
        process.await.expect("no panic").expect("worked off");
    }
    for task in &tasks {
        let now = office.record.task(&task.task_id).await.expect("read").expect("there");
        let asked: Vec<&str> = now.approvals.iter().map(|one| one.reviewer_id.as_str()).collect();
        assert_eq!(asked, ["rob", "max"]);
    }
    let told = office.told(None).await;
    assert_eq!(told.iter().filter(|action| *action == "approval.escalate").count(), 10);
}

async fn an_old_approval_goes_back_into_review(office: Office) {
    office.hire("ann", &[AUTHOR]).await;
    office.hire("rob", &[REVIEWER]).await;
    let desk = office.desk();
    let task = submitted(&desk, "old").await;
    let rob = caller("rob", &[REVIEWER]);
    let task = desk.respond(request_to(&task, "rob"), &yes(), &rob).await.expect("approved");
    assert_eq!(task.state, State::Approved);
    office.clock.advance(Duration::from_secs(7 * 86_400 - 1));
    assert_eq!(desk.work_off().await, Ok(0));
    office.clock.advance(Duration::from_secs(1));
    assert_eq!(desk.work_off().await, Ok(1));
    let now = desk.task(&task.task_id, &rob).await.expect("seen");
    assert_eq!(now.state, State::Reviewing);
    let statuses: Vec<ApprovalStatus> = now.approvals.iter().map(|one| one.status).collect();
    assert_eq!(statuses, [ApprovalStatus::Invalidated, ApprovalStatus::Pending]);
    assert_eq!(desk.work_off().await, Ok(0), "once");
}

async fn what_others_do_is_not_seen(office: Office) {
    office.hire("ann", &[AUTHOR]).await;
    office.hire("rob", &[REVIEWER]).await;
    let mut own = default_policy();
    (own.name, own.reviewers) = ("own".to_owned(), vec![UserId::new("rob")]);
    office.rule(own).await;
    let desk = office.desk();
    let task = submitted(&desk, "secret").await;
    let id = &task.task_id;
    for (who, roles, sees) in [
        ("ann", AUTHOR, true),
        ("rob", REVIEWER, true),
        ("max", ADMIN, true),
        ("vera", "auditor", true),
        ("eve", REVIEWER, false),
    ] {
        let seen = desk.task(id, &caller(who, &[roles])).await;
        assert_eq!(seen.is_ok(), sees, "{who}: {seen:?}");
    }
    // A token without the scope, whatever the roles: an agent that finds its user's token cannot approve with it.
    let mut without = caller("rob", &[REVIEWER]);
    without.scopes.remove(&Scope::Decide);
    let refused = desk.respond(request_to(&task, "rob"), &yes(), &without).await;
    assert_eq!(refused, Err(Error::Scope(Scope::Decide)));
    // An agent acts as author for its sponsor, whatever roles the sponsor has.
    let mut agent = caller("rob", &[REVIEWER, ADMIN]);
    agent.agent_id = Some("robot".to_owned());
    let refused = desk.respond(request_to(&task, "rob"), &yes(), &agent).await;
    assert_eq!(refused, Err(Error::Refused(Refusal::Forbidden)));
}

async fn simulating_says_what_submitting_does(office: Office) {
    let names = ["ann", "rob", "sue", "eve", "max"];
    for (name, roles) in names.iter().zip([
        &[AUTHOR][..],
        &[REVIEWER],
        &[REVIEWER, "dba"],
        &[REVIEWER, ADMIN],
        &[AUTHOR, ADMIN],
    ]) {
        office.hire(name, roles).await;
    }
    let (desk, seed) = (office.desk(), effort::seed());
    let mut policies: Vec<Policy> = Vec::new();
    for (number, kind) in ["schema", "config", "*"].into_iter().enumerate() {
        let mut policy = default_policy();
        policy.name = format!("p{number}");
        policy.task_types = vec![kind.to_owned()];
        policies.push(policy);
    }
    policies[0].required_roles = vec!["dba".to_owned()];
    policies[1].risk_threshold = 40;
    policies[1].min_approvers = 2;
    policies[2].auto_approve_if =
        Some(ade_domain::approval::policy::AutoApprove { risk_below: Some(45), ..Default::default() });
    for policy in &policies {
        office.rule(policy.clone()).await;
    }
    let mut kinds = BTreeSet::new();
    for round in 0..effort::rounds(40, 2_000) {
        let mut dice = Dice::new(seed, round);
        let mut pick = |many: u64| usize::try_from(dice.below(many)).expect("small");
        let author = caller(["ann", "max"][pick(2)], &[AUTHOR]);
        let mut draft = draft("something");
        draft.config.task_type = ["schema", "config", "other"][pick(3)].to_owned();
        draft.config.resources = (0..pick(4))
            .map(|number| ade_domain::task::Resource {
                resource_type: "database".to_owned(),
                id: number.to_string(),
                mode: ade_domain::task::ResourceMode::Exclusive,
            })
            .collect();
        let imagined = Imagined::new(draft.clone(), None, Vec::new());
        let simulated = desk.simulate(&imagined, &author).await.expect("simulated");
        let task = desk.create(draft, &author).await.expect("made");
        assert_eq!(task.risk.as_ref(), Some(&simulated.risk));
        match (desk.submit(&task.task_id, &author).await, simulated.assignment) {
            (Ok(task), Ok(assignment)) => {
                assert_eq!(task.requirements, assignment.requirements);
                assert_eq!(task.considered, assignment.considered);
                assert_eq!(task.auto_approved, assignment.auto_approved);
                let asked: BTreeSet<&str> =
                    task.approvals.iter().map(|one| one.reviewer_id.as_str()).collect();
                let wanted: BTreeSet<&str> =
                    assignment.wanted.iter().map(|one| one.reviewer_id.as_str()).collect();
                assert_eq!(asked, wanted);
                kinds.insert(task.state);
            }
            (Err(Error::Refused(Refusal::NoQuorum(refused))), Err(simulated)) => {
                assert_eq!(refused, simulated);
            }
            other => unreachable!("{other:?}"),
        }
    }
    assert_eq!(kinds.len(), 2, "some were reviewed and some needed nobody: {kinds:?}");
}

async fn a_replay_lists_exactly_what_would_have_gone_another_way(office: Office) {
    office.hire("ann", &[AUTHOR]).await;
    office.hire("rob", &[REVIEWER]).await;
    office.hire("sue", &[REVIEWER, "dba"]).await;
    let (desk, author) = (office.desk(), caller("ann", &[AUTHOR]));
    let mut schema = BTreeSet::new();
    for number in 0..9 {
        let mut draft = draft(&number.to_string());
        draft.config.task_type = ["schema", "config", "other"][number % 3].to_owned();
        let task = desk.create(draft, &author).await.expect("made");
        // Drafts that were never submitted were never decided.
        if number != 3 {
            desk.submit(&task.task_id, &author).await.expect("submitted");
            if number % 3 == 0 {
                schema.insert(task.task.task_id);
            }
        }
    }
    let mut drafted = default_policy();
    (drafted.name, drafted.task_types) = ("databases".to_owned(), vec!["schema".to_owned()]);
    drafted.required_roles = vec!["dba".to_owned()];
    let differs = desk.replay(&drafted, &author).await.expect("replayed");
    let found: BTreeSet<String> = differs.iter().map(|one| one.task_id.clone()).collect();
    assert_eq!(found, schema);
    assert_eq!(differs[0].was, "1 of rob, sue for default");
    assert_eq!(differs[0].would_be, "1 of sue for databases");
    let told = office.told(None).await;
    office.rule(drafted).await;
    assert!(desk.replay(&default_policy(), &author).await.expect("replayed").is_empty());
    assert_eq!(office.told(None).await, told, "looking changes nothing");
}

async fn an_override_is_confirmed_by_a_second_administrator_and_forced_by_none_of_the_authors(
    office: Office,
) {
    office.hire("ann", &[AUTHOR]).await;
    office.hire("rob", &[REVIEWER]).await;
    let desk = office.desk();
    let task = submitted(&desk, "now").await;
    let id = &task.task_id;
    let said = || Some("it burns".to_owned());
    let (max, pam) = (caller("max", &[ADMIN]), caller("pam", &[ADMIN]));
    let author = caller("ann", &[AUTHOR, ADMIN]);
    let ask = TaskAction::AskOverride { reason: said(), incident_ticket: Some("INC-1".to_owned()) };
    let own = |outcome: Result<StoredTask, Error>| {
        assert!(matches!(outcome, Err(Error::Refused(Refusal::OwnTask { .. }))), "{outcome:?}");
    };
    own(desk.act(id, &ask, &author).await);
    desk.act(id, &ask, &max).await.expect("an administrator");
    own(desk.act(id, &TaskAction::ConfirmOverride, &author).await);
    let same = desk.act(id, &TaskAction::ConfirmOverride, &max).await;
    assert!(matches!(same, Err(Error::Refused(Refusal::SameAdmin { .. }))));
    let task = desk.act(id, &TaskAction::ConfirmOverride, &pam).await.expect("a second one");
    assert_eq!(task.state, State::Approved);
    own(desk.act(id, &TaskAction::ForceApply { reason: said() }, &author).await);
    assert!(desk.act(id, &TaskAction::ForceApply { reason: said() }, &max).await.expect("forced").forced);
    let revoked = desk.act(id, &TaskAction::Revoke { reason: said() }, &pam).await.expect("revoked");
    assert_eq!((revoked.state, revoked.forced), (State::Rejected, false));
    let late = desk.act(id, &TaskAction::Cancel { reason: None }, &author).await;
    assert!(matches!(late, Err(Error::Refused(Refusal::InvalidTransition(_)))));
    let told = office.told(Some(id)).await;
    let expected = ["task.override", "task.confirm_override", "task.force_apply", "task.revoke"];
    assert_eq!(told[told.len() - 4..], expected, "{told:?}");
}
