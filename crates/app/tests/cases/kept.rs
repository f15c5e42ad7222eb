//! What a server keeps of people and rules is never older than the record: whatever is changed counts at the very next decision of
//! every process, whoever changed it and by whichever way.

use std::collections::BTreeSet;

use ade_app::RuleService;
use ade_domain::approval::delegation::{Conditions, Delegation, Kind};
use ade_domain::approval::policy::{Policy, default_policy};
use ade_domain::people::{ADMIN, AUTHOR, REVIEWER, UserId};
use ade_store::database::{Commit, DocumentKind, StoredDocument, StoredTask, StoredUser, Write};
use serde_json::json;

use crate::office::{Office, caller, on_both, request_to, submitted, user, yes};

on_both!(
    whatever_is_changed_counts_at_the_next_decision_elsewhere,
    of_decisions_and_changes_at_once_none_goes_by_what_was_before,
);

fn asked(task: &StoredTask) -> BTreeSet<String> {
    task.approvals.iter().map(|one| one.reviewer_id.to_string()).collect()
}

fn people<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.map(str::to_owned).into()
}

fn policy(reviewers: &[&str]) -> Policy {
    Policy {
        name: "schemas".to_owned(),
        task_types: vec!["schema".to_owned()],
        reviewers: reviewers.iter().map(|who| UserId::new(*who)).collect(),
        ..default_policy()
    }
}

async fn commit(office: &Office, write: Write) {
    office.record.commit(Commit { writes: vec![write], ..Commit::default() }).await.expect("written");
}

async fn rule_again(office: &Office, policy: &Policy, revision: u64) {
    let body = json!(ade_app::rules::StoredPolicy { active: Some(policy.clone()), draft: None });
    let thing =
        StoredDocument { kind: DocumentKind::Policy, id: policy.name.clone(), revision: revision + 1, body };
    commit(office, Write::Thing { thing, expected: Some(revision) }).await;
}

async fn whatever_is_changed_counts_at_the_next_decision_elsewhere(office: Office) {
    office.hire("ann", &[AUTHOR]).await;
    office.hire("rob", &[REVIEWER]).await;
    office.hire("sue", &[REVIEWER]).await;
    office.rule(policy(&["rob"])).await;
    let (here, elsewhere) = (office.desk(), office.another_desk().await);
    // Both have read everything.
    for desk in [&here, &elsewhere] {
        assert_eq!(asked(&submitted(desk, "before").await), people(["rob"]));
    }
    // A policy.
    rule_again(&office, &policy(&["sue"]), 1).await;
    for desk in [&elsewhere, &here] {
        assert_eq!(asked(&submitted(desk, "another policy").await), people(["sue"]));
    }
    // A delegation.
    let now = ade_domain::Clock::now(&office.clock);
    let delegation = Delegation {
        delegation_id: "away".to_owned(),
        owner_id: UserId::new("sue"),
        delegate_to: UserId::new("rob"),
        kind: Kind::Delegate,
        conditions: Conditions::default(),
        cascade: false,
        active: true,
        valid_from: None,
        valid_until: None,
    };
    let body = json!(delegation);
    let thing = StoredDocument { kind: DocumentKind::Delegation, id: "away".to_owned(), revision: 1, body };
    commit(&office, Write::Thing { thing, expected: None }).await;
    for desk in [&elsewhere, &here] {
        assert_eq!(asked(&submitted(desk, "sue is away").await), people(["rob"]));
    }
    let back = Write::DeleteThing { kind: DocumentKind::Delegation, id: "away".to_owned(), expected: 1 };
    commit(&office, back).await;
    for desk in [&elsewhere, &here] {
        assert_eq!(asked(&submitted(desk, "sue is back").await), people(["sue"]));
    }
    // A person.
    let gone = StoredUser {
        user: ade_domain::people::User { active: false, ..user("sue", &[REVIEWER]) },
        revision: 2,
        password: None,
    };
    rule_again(&office, &policy(&["rob", "sue"]), 2).await;
    assert_eq!(asked(&submitted(&elsewhere, "two").await), people(["rob", "sue"]));
    commit(&office, Write::User { user: Box::new(gone), expected: Some(1) }).await;
    for desk in [&elsewhere, &here] {
        assert_eq!(asked(&submitted(desk, "one left").await), people(["rob"]));
    }
    // A setting.
    let (rules, max) = (office.rules(), caller("max", &[ADMIN]));
    let validity = async |rules: &RuleService, seconds: u64| {
        rules.set("approval:validity", json!(seconds), &max).await.expect("set");
        let task = submitted(&elsewhere, "a setting").await;
        let rob = caller("rob", &[REVIEWER]);
        let task = elsewhere.respond(request_to(&task, "rob"), &yes(), &rob).await.expect("approved");
        task.approval_ends_at.expect("approved").ms_since(now) / 1_000
    };
    assert_eq!(validity(&rules, 600).await, 600);
    assert_eq!(validity(&rules, 60).await, 60);
    // And that something is there no more.
    let deleted = Write::DeleteThing { kind: DocumentKind::Policy, id: "schemas".to_owned(), expected: 3 };
    commit(&office, deleted).await;
    for desk in [&elsewhere, &here] {
        let task = submitted(desk, "no policy").await;
        assert_eq!(task.requirements[0].policy, default_policy().name);
    }
}

async fn of_decisions_and_changes_at_once_none_goes_by_what_was_before(office: Office) {
    office.hire("ann", &[AUTHOR]).await;
    for name in ["rob", "sue"] {
        office.hire(name, &[REVIEWER]).await;
    }
    office.rule(policy(&["rob"])).await;
    let mut desks = Vec::new();
    for _ in 0..3 {
        desks.push(office.another_desk().await);
    }
    let busy: Vec<_> = desks
        .iter()
        .cloned()
        .map(|desk| {
            tokio::spawn(async move {
                for _ in 0..40 {
                    submitted(&desk, "whoever it is").await;
                }
            })
        })
        .collect();
    // Meanwhile: whoever is asked after a change was made is asked by it, on every desk.
    for revision in 1..=20 {
        let reviewer = if revision % 2 == 0 { "rob" } else { "sue" };
        rule_again(&office, &policy(&[reviewer]), revision).await;
        for desk in &desks {
            assert_eq!(asked(&submitted(desk, "after the change").await), people([reviewer]));
        }
    }
    for desk in busy {
        desk.await.expect("decided");
    }
}
