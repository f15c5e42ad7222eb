//! The rules cache is never older than the database: a change of users or rules applies to the next decision of every process,
//! whichever process made it.

use std::collections::BTreeSet;

use ade_app::RuleService;
use ade_domain::approval::delegation::{Delegation, DelegationConditions, DelegationKind};
use ade_domain::approval::policy::{Policy, PolicyVersions, default_policy};
use ade_domain::people::{ADMIN, AUTHOR, REVIEWER, UserId};
use ade_store::database::{Commit, DocumentKind, StoredTask, StoredUser, Versioned, Write};
use serde_json::json;

use crate::fixture::{Fixture, approval_of, approve, caller, on_both_databases, submitted, user};

on_both_databases!(
    rule_changes_apply_to_the_next_decision_in_every_process,
    concurrent_decisions_never_use_outdated_rules,
);

fn reviewers_of(task: &StoredTask) -> BTreeSet<String> {
    task.approvals.iter().map(|approval| approval.reviewer_id.to_string()).collect()
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

async fn commit(fixture: &Fixture, write: Write) {
    fixture.database.commit(Commit { writes: vec![write], ..Commit::default() }).await.expect("written");
}

async fn update_policy(fixture: &Fixture, policy: &Policy, revision: u64) {
    let value = PolicyVersions::new(policy.clone(), true);
    let document = Versioned { id: policy.name.clone(), revision: revision + 1, value };
    commit(fixture, Write::document(&document, Some(revision))).await;
}

async fn rule_changes_apply_to_the_next_decision_in_every_process(fixture: Fixture) {
    fixture.add_user("ann", &[AUTHOR]).await;
    fixture.add_user("rob", &[REVIEWER]).await;
    fixture.add_user("sue", &[REVIEWER]).await;
    fixture.add_policy(policy(&["rob"])).await;
    let (here, elsewhere) = (fixture.service(), fixture.other_process().await);
    // Both have cached the rules.
    for service in [&here, &elsewhere] {
        assert_eq!(reviewers_of(&submitted(service, "before").await), people(["rob"]));
    }
    // A policy changes.
    update_policy(&fixture, &policy(&["sue"]), 1).await;
    for service in [&elsewhere, &here] {
        assert_eq!(reviewers_of(&submitted(service, "another policy").await), people(["sue"]));
    }
    // A delegation is created and deleted.
    let now = ade_domain::Clock::now(&fixture.clock);
    let delegation = Delegation {
        delegation_id: "away".to_owned(),
        owner_id: UserId::new("sue"),
        delegate_to: UserId::new("rob"),
        kind: DelegationKind::Delegate,
        conditions: DelegationConditions::default(),
        cascade: false,
        active: true,
        created_at: now,
        valid_from: None,
        valid_until: None,
    };
    let document = Versioned { id: "away".to_owned(), revision: 1, value: delegation };
    commit(&fixture, Write::document(&document, None)).await;
    for service in [&elsewhere, &here] {
        assert_eq!(reviewers_of(&submitted(service, "sue is absent").await), people(["rob"]));
    }
    let back = Write::DeleteDocument { kind: DocumentKind::Delegation, id: "away".to_owned(), expected: 1 };
    commit(&fixture, back).await;
    for service in [&elsewhere, &here] {
        assert_eq!(reviewers_of(&submitted(service, "sue is back").await), people(["sue"]));
    }
    // A user leaves.
    let gone = StoredUser {
        user: ade_domain::people::User { active: false, ..user("sue", &[REVIEWER]) },
        revision: 2,
        password: None,
        invitation: None,
    };
    update_policy(&fixture, &policy(&["rob", "sue"]), 2).await;
    assert_eq!(reviewers_of(&submitted(&elsewhere, "two").await), people(["rob", "sue"]));
    commit(&fixture, Write::User { user: Box::new(gone), expected: Some(1) }).await;
    for service in [&elsewhere, &here] {
        assert_eq!(reviewers_of(&submitted(service, "one left").await), people(["rob"]));
    }
    // A setting changes.
    let (rules, max) = (fixture.rules(), caller("max", &[ADMIN]));
    let validity = async |rules: &RuleService, seconds: u64| {
        rules.set_setting("approval:validity", json!(seconds), &max).await.expect("set");
        let task = submitted(&elsewhere, "a setting").await;
        let rob = caller("rob", &[REVIEWER]);
        let task =
            elsewhere.decide(approval_of(&task, "rob"), &approve(&task), &rob).await.expect("approved");
        task.approval_ends_at.expect("approved").ms_since(now) / 1_000
    };
    assert_eq!(validity(&rules, 600).await, 600);
    assert_eq!(validity(&rules, 60).await, 60);
    // A policy is deleted.
    let deleted = Write::DeleteDocument { kind: DocumentKind::Policy, id: "schemas".to_owned(), expected: 3 };
    commit(&fixture, deleted).await;
    for service in [&elsewhere, &here] {
        let task = submitted(service, "no policy").await;
        assert_eq!(task.requirements[0].policy, default_policy().name);
    }
}

async fn concurrent_decisions_never_use_outdated_rules(fixture: Fixture) {
    fixture.add_user("ann", &[AUTHOR]).await;
    for name in ["rob", "sue"] {
        fixture.add_user(name, &[REVIEWER]).await;
    }
    fixture.add_policy(policy(&["rob"])).await;
    let mut services = Vec::new();
    for _ in 0..3 {
        services.push(fixture.other_process().await);
    }
    let busy: Vec<_> = services
        .iter()
        .cloned()
        .map(|service| {
            tokio::spawn(async move {
                for _ in 0..40 {
                    submitted(&service, "concurrent").await;
                }
            })
        })
        .collect();
    // Meanwhile, every submission after a change uses it, in every process.
    for revision in 1..=20 {
        let reviewer = if revision % 2 == 0 { "rob" } else { "sue" };
        update_policy(&fixture, &policy(&[reviewer]), revision).await;
        for service in &services {
            assert_eq!(reviewers_of(&submitted(service, "after the change").await), people([reviewer]));
        }
    }
    for service in busy {
        service.await.expect("decided");
    }
}
