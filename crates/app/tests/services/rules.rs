//! Policies, delegations, the resource registry, settings and feature flags: who can change them, and that changes apply at once.

use std::time::Duration;

use ade_app::ObjectKind::Document;
use ade_app::rules::{DelegationChange, PolicyChange, ResourceChange};
use ade_app::shared_settings::{self as settings, Settings};
use ade_app::{Caller, Error};
use ade_domain::approval::delegation::{Delegation, DelegationKind};
use ade_domain::approval::policy::PolicyVersions;
use ade_domain::glob::Pattern;
use ade_domain::people::{ADMIN, AUDITOR, AUTHOR, REVIEWER, User, UserId};
use ade_domain::permission::Scope;
use ade_domain::risk::RegisteredPattern;
use ade_domain::task::Refusal;
use ade_domain::task::TaskState;
use ade_store::database::{Commit, DocumentKind, FeatureFlag, Setting, StoredUser, Write};
use serde_json::json;

use crate::fixture::{
    Fixture, approval_of, approve, approve_all, caller, on_both_databases, submitted, user, with_if_match,
    with_key,
};

on_both_databases!(
    policy_is_drafted_activated_deactivated_and_deleted,
    policy_names_are_unique,
    only_administrators_change_rules,
    only_owners_and_administrators_change_delegations,
    resource_registry_is_keyed_by_pattern,
    settings_apply_to_the_next_decision,
    approval_keeps_the_validity_it_was_given_with,
    feature_flag_disables_batches,
);

fn admin() -> Caller {
    caller("max", &[ADMIN])
}

fn named(name: &str) -> PolicyChange {
    PolicyChange { name: Some(name.to_owned()), ..PolicyChange::default() }
}

async fn policy_is_drafted_activated_deactivated_and_deleted(fixture: Fixture) {
    fixture.add_user("ann", &[AUTHOR]).await;
    fixture.add_user("rob", &[REVIEWER]).await;
    fixture.add_user("sue", &["dba"]).await;
    let (rules, service, max) = (fixture.rules(), fixture.service(), admin());
    let roles =
        |role: &str| PolicyChange { required_roles: Some(vec![role.to_owned()]), ..PolicyChange::default() };
    let created =
        rules.create_policy(&PolicyChange { ..named("dbs") }, &with_key(&max, "one")).await.expect("created");
    let id = created.id.clone();
    assert!(uuid::Uuid::parse_str(&id).is_ok_and(|id| id.get_version_num() == 7));
    assert_eq!(rules.get::<PolicyVersions>(&id, &max).await, Ok(created.clone()));
    assert_eq!(rules.list::<PolicyVersions>(&max).await, Ok(vec![created]));
    rules.update_policy(&id, &roles("dba"), &max).await.expect("a draft");
    let policies = async || {
        let task = submitted(&service, "something").await;
        approval_of(&task, "rob");
        task.requirements.iter().map(|requirement| requirement.policy.clone()).collect::<Vec<_>>()
    };
    assert_eq!(policies().await, ["default"], "a draft does not count");
    let stale = rules.activate_policy(&id, &with_if_match(&max, 1)).await;
    assert_eq!(stale, Err(Error::Stale { now: 2 }));
    let now = rules.activate_policy(&id, &with_if_match(&max, 2)).await.expect("activated");
    let again = rules.activate_policy(&id, &max).await.expect("unchanged");
    assert_eq!(now, again, "without a draft nothing changes");
    let task = submitted(&service, "something").await;
    approval_of(&task, "sue");
    // A draft beside the active version.
    let now = rules.update_policy(&id, &roles("nobody"), &max).await.expect("a draft");
    assert_eq!(now.value.active().expect("activated").required_roles, ["dba"]);
    assert_eq!(now.value.draft().expect("drafted").required_roles, ["nobody"]);
    approval_of(&submitted(&service, "something").await, "sue");
    let off = PolicyChange { active: Some(false), ..PolicyChange::default() };
    let now = rules.update_policy(&id, &off, &max).await.expect("deactivated");
    assert_eq!(now.value.active(), None);
    assert_eq!(now.value.latest().required_roles, ["nobody"]);
    assert_eq!(policies().await, ["default"]);
    let on = PolicyChange { active: Some(true), ..roles("dba") };
    let now = rules.update_policy(&id, &on, &max).await.expect("activated");
    approval_of(&submitted(&service, "something").await, "sue");
    assert_eq!(
        rules.delete_policy(&id, &with_if_match(&max, 1)).await,
        Err(Error::Stale { now: now.revision })
    );
    rules.delete_policy(&id, &max).await.expect("deleted");
    assert_eq!(policies().await, ["default"]);
    assert_eq!(
        rules.get::<PolicyVersions>(&id, &max).await,
        Err(Error::NotFound(Document(DocumentKind::Policy)))
    );
    assert_eq!(rules.list::<PolicyVersions>(&max).await, Ok(Vec::new()));
    let actions: Vec<String> = fixture
        .audit_actions(None)
        .await
        .into_iter()
        .filter(|action| action.starts_with("policy."))
        .collect();
    let steps = ["create", "update", "activate", "update", "update", "update", "delete"];
    assert_eq!(actions, steps.map(|step| format!("policy.{step}")));
    let entries = fixture.entries().await;
    let entry = entries.iter().find(|entry| entry.action == "policy.activate").expect("audited");
    assert_eq!((entry.object_id.as_str(), entry.revision), (id.as_str(), Some(3)));
    assert_eq!(entry.details["after"]["active"]["required_roles"], json!(["dba"]));
}

async fn policy_names_are_unique(fixture: Fixture) {
    let (rules, max) = (fixture.rules(), admin());
    let mut racers = Vec::new();
    for _ in 0..8 {
        let rules = rules.clone();
        racers.push(tokio::spawn(async move { rules.create_policy(&named("mine"), &admin()).await }));
    }
    let mut created = Vec::new();
    for racer in racers {
        match racer.await.expect("no panic") {
            Ok(document) => created.push(document.id),
            Err(error) => assert_eq!(error, Error::Exists("a policy with the name mine".to_owned())),
        }
    }
    assert_eq!(created.len(), 1);
    let other = rules.create_policy(&named("other"), &max).await.expect("created").id;
    let taken = rules.update_policy(&other, &named("mine"), &max).await;
    assert_eq!(taken, Err(Error::Exists("a policy with the name mine".to_owned())));
    // The name of the active version stays reserved while the draft has another one.
    rules.activate_policy(&created[0], &max).await.expect("activated");
    rules.update_policy(&created[0], &named("later"), &max).await.expect("drafted");
    for name in ["mine", "later"] {
        assert!(matches!(rules.create_policy(&named(name), &max).await, Err(Error::Exists(_))), "{name}");
    }
    rules.activate_policy(&created[0], &max).await.expect("activated");
    rules.update_policy(&other, &named("mine"), &max).await.expect("name is free");
    rules.delete_policy(&created[0], &max).await.expect("deleted");
    rules.create_policy(&named("later"), &max).await.expect("name is free");
    for name in ["", " "] {
        let refused = rules.create_policy(&named(name), &max).await;
        assert!(matches!(&refused, Err(Error::Invalid(faults)) if faults[0].path.to_string() == "name"));
    }
}

async fn only_administrators_change_rules(fixture: Fixture) {
    let rules = fixture.rules();
    let forbidden = Error::Forbidden("only an administrator can do this".to_owned());
    let mut agent = admin();
    agent.agent_id = Some("robot".to_owned());
    let mut without = admin();
    without.scopes.remove(&Scope::Admin);
    let resource =
        ResourceChange { pattern: Some(Pattern::new("db:*")), criticality: Some(80), dependents: None };
    for (who, why) in [
        (caller("rob", &[REVIEWER, AUTHOR, AUDITOR]), forbidden.clone()),
        (agent, forbidden),
        (without, Error::Scope(Scope::Admin)),
    ] {
        assert_eq!(rules.create_policy(&named("x"), &who).await, Err(why.clone()));
        assert_eq!(rules.create_resource(&resource, &who).await, Err(why.clone()));
        assert_eq!(rules.set_setting("approval:validity", json!(60), &who).await, Err(why.clone()));
        assert_eq!(rules.set_feature("batch_approvals", false, &who).await, Err(why));
    }
    let bootstrap = Caller { user: None, ..admin() };
    rules.create_policy(&named("x"), &bootstrap).await.expect("the bootstrap token administers");
    assert!(
        rules.list::<PolicyVersions>(&caller("eve", &[])).await.is_ok_and(|all| all.len() == 1),
        "everybody can read"
    );
}

async fn only_owners_and_administrators_change_delegations(fixture: Fixture) {
    for name in ["rob", "sue", "eve"] {
        fixture.add_user(name, &[REVIEWER]).await;
    }
    let left = User { active: false, ..user("old", &[]) };
    let gone = StoredUser { user: left, revision: 1, password: None, invitation: None };
    let writes = vec![Write::User { user: Box::new(gone), expected: None }];
    fixture.database.commit(Commit { writes, ..Commit::default() }).await.expect("stored");
    let (rules, rob, sue) = (fixture.rules(), caller("rob", &[REVIEWER]), caller("sue", &[REVIEWER]));
    let to = |owner: Option<&str>, to: &str| DelegationChange {
        owner_id: owner.map(UserId::new),
        delegate_to: Some(UserId::new(to)),
        ..DelegationChange::default()
    };
    let created = rules.create_delegation(&to(None, "sue"), &rob).await.expect("by its owner");
    let delegation = &created.value;
    assert_eq!((&delegation.delegation_id, delegation.owner_id.as_str()), (&created.id, "rob"));
    assert!(delegation.active && delegation.cascade && delegation.kind == DelegationKind::Delegate);
    let forbidden = Err(Error::Refused(Refusal::Forbidden));
    assert_eq!(rules.create_delegation(&to(Some("rob"), "eve"), &sue).await, forbidden);
    let others =
        rules.create_delegation(&to(Some("eve"), "sue"), &admin()).await.expect("by an administrator");
    // Neither a token without the scope to decide nor an agent can create a delegation.
    let mut without = rob.clone();
    without.scopes.remove(&Scope::Decide);
    assert_eq!(rules.create_delegation(&to(None, "eve"), &without).await, Err(Error::Scope(Scope::Decide)));
    let mut agent = rob.clone();
    agent.agent_id = Some("robot".to_owned());
    assert_eq!(rules.create_delegation(&to(None, "eve"), &agent).await, forbidden);
    for (change, path) in [
        (to(None, "rob"), "delegate_to"),
        (to(None, "nobody"), "delegate_to"),
        (to(None, "old"), "delegate_to"),
        (DelegationChange::default(), "delegate_to"),
    ] {
        let refused = rules.create_delegation(&change, &rob).await;
        assert!(
            matches!(&refused, Err(Error::Invalid(faults)) if faults[0].path.to_string() == path),
            "{refused:?}"
        );
    }
    let unknown = rules.create_delegation(&to(Some("nobody"), "eve"), &admin()).await;
    assert!(matches!(&unknown, Err(Error::Invalid(faults)) if faults[0].path.to_string() == "owner_id"));
    // Visible to its owner and its delegate.
    let ids = async |who: &Caller| {
        let all = rules.list::<Delegation>(who).await.expect("listed");
        all.into_iter().map(|document| document.id).collect::<Vec<_>>()
    };
    assert_eq!(ids(&rob).await, std::slice::from_ref(&created.id));
    assert_eq!(ids(&sue).await, [created.id.clone(), others.id.clone()]);
    assert_eq!(ids(&caller("vera", &[AUDITOR])).await.len(), 2);
    assert_eq!(
        rules.get::<Delegation>(&others.id, &rob).await,
        Err(Error::NotFound(Document(DocumentKind::Delegation)))
    );
    let off = DelegationChange { active: Some(false), ..DelegationChange::default() };
    assert_eq!(rules.update_delegation(&created.id, &off, &sue).await, forbidden);
    assert_eq!(
        rules.update_delegation(&created.id, &off, &with_if_match(&rob, 9)).await,
        Err(Error::Stale { now: 1 })
    );
    let now = rules.update_delegation(&created.id, &off, &rob).await.expect("by its owner");
    assert!(!now.value.active);
    let given = rules.update_delegation(&created.id, &to(Some("eve"), "sue"), &rob).await;
    assert!(matches!(given, Err(Error::Forbidden(_))), "an owner cannot give a delegation away");
    assert_eq!(rules.delete_delegation(&created.id, &sue).await, Err(Error::Refused(Refusal::Forbidden)));
    rules.delete_delegation(&created.id, &rob).await.expect("by its owner");
    let actions = fixture.audit_actions(None).await;
    assert_eq!(actions, ["create", "create", "update", "delete"].map(|step| format!("delegation.{step}")));
}

async fn resource_registry_is_keyed_by_pattern(fixture: Fixture) {
    fixture.add_user("ann", &[AUTHOR]).await;
    let (rules, max) = (fixture.rules(), admin());
    let new = |pattern: &str, criticality: u8, dependents: &[&str]| ResourceChange {
        pattern: Some(Pattern::new(pattern)),
        criticality: Some(criticality),
        dependents: Some(dependents.iter().map(|name| (*name).to_owned()).collect()),
    };
    let created = rules.create_resource(&new("db:*", 80, &["service:a"]), &max).await.expect("created");
    assert_eq!(created.id, "db:*");
    let twice = rules.create_resource(&new("db:*", 1, &[]), &max).await;
    assert_eq!(twice, Err(Error::Exists("resource db:*".to_owned())));
    for (change, path) in [
        (new("", 1, &[]), "pattern"),
        (new("x", 101, &[]), "criticality"),
        (new("x", 1, &["plain"]), "dependents.0"),
        (new("x", 1, &["a:b"; 1_001]), "dependents"),
    ] {
        let refused = rules.create_resource(&change, &max).await;
        assert!(
            matches!(&refused, Err(Error::Invalid(faults)) if faults[0].path.to_string() == path),
            "{refused:?}"
        );
    }
    let higher = ResourceChange { criticality: Some(90), ..ResourceChange::default() };
    let now = rules.update_resource("db:*", &higher, &with_if_match(&max, 1)).await.expect("changed");
    assert_eq!((now.value.criticality, now.value.dependents.len()), (90, 1));
    assert!(rules.update_resource("db:*", &new("y", 1, &[]), &max).await.is_err());
    assert_eq!(rules.list::<RegisteredPattern>(&caller("ann", &[AUTHOR])).await, Ok(vec![now]));
    rules.delete_resource("db:*", &max).await.expect("deleted");
    assert_eq!(
        rules.get::<RegisteredPattern>("db:*", &max).await,
        Err(Error::NotFound(Document(DocumentKind::Resource)))
    );
    let actions = fixture.audit_actions(None).await;
    assert_eq!(actions, ["create", "update", "delete"].map(|step| format!("resource.{step}")));
}

async fn settings_apply_to_the_next_decision(fixture: Fixture) {
    fixture.add_user("ann", &[AUTHOR]).await;
    fixture.add_user("rob", &[REVIEWER]).await;
    let (rules, service, other, max) =
        (fixture.rules(), fixture.service(), fixture.other_process().await, admin());
    let all = rules.list::<Setting>(&max).await.expect("listed");
    let names: Vec<&str> = all.iter().map(|document| document.id.as_str()).collect();
    assert_eq!(names, settings::setting_names().collect::<Vec<_>>());
    assert!(
        all.iter().all(|setting| setting.revision == 0
            && Settings::default().check(&setting.id, &setting.value.0).is_ok())
    );
    let wait = |task: &ade_store::database::StoredTask| {
        let approval = &task.approvals[0];
        approval.due_at.ms_since(approval.created_at) / 1_000
    };
    assert_eq!(wait(&submitted(&service, "one").await), 48 * 3_600);
    let set = rules
        .set_setting("approval:default_timeout", json!(600), &with_if_match(&max, 0))
        .await
        .expect("set");
    assert_eq!((set.revision, &set.value.0), (1, &json!(600)));
    assert_eq!(rules.get::<Setting>("approval:default_timeout", &max).await, Ok(set));
    assert_eq!(wait(&submitted(&other, "two").await), 600);
    let below = rules.set_setting("approval:max_timeout", json!(60), &max).await;
    assert!(matches!(below, Err(Error::Invalid(_))), "below the default: {below:?}");
    rules.set_setting("approval:max_timeout", json!(600), &max).await.expect("set");
    let above = rules.set_setting("approval:default_timeout", json!(601), &max).await;
    assert!(matches!(above, Err(Error::Invalid(_))), "above the maximum: {above:?}");
    rules.set_setting("approval:default_timeout", json!(60), &max).await.expect("set");
    assert_eq!(wait(&submitted(&other, "three").await), 60);
    let low = json!({ "medium": 98, "high": 99, "critical": 100 });
    rules.set_setting("risk:thresholds", low, &max).await.expect("set");
    let task = submitted(&other, "four").await;
    assert_eq!(json!(task.risk)["level"], "LOW");
    let stale = rules.set_setting("approval:max_timeout", json!(61), &with_if_match(&max, 0)).await;
    assert_eq!(stale, Err(Error::Stale { now: 1 }));
    for (name, value) in [
        ("approval:validity", json!(0)),
        ("approval:validity", json!("7d")),
        ("risk:thresholds", json!({ "medium": 50, "high": 50, "critical": 75 })),
        ("risk:thresholds", json!({ "medium": 25, "high": 50 })),
        ("risk:thresholds", json!([25, 50, 75])),
    ] {
        let refused = rules.set_setting(name, value, &max).await;
        assert!(matches!(refused, Err(Error::Invalid(_))), "{name}: {refused:?}");
    }
    assert_eq!(
        rules.set_setting("approval:nothing", json!(1), &max).await,
        Err(Error::NotFound(Document(DocumentKind::Setting)))
    );
    assert_eq!(
        rules.set_feature("nothing", true, &max).await,
        Err(Error::NotFound(Document(DocumentKind::Feature)))
    );
    let entries = fixture.entries().await;
    let entry = entries.iter().find(|entry| entry.action == "config.set").expect("audited");
    assert_eq!(json!(entry.details), json!({ "before": 172_800, "after": 600 }));
    let loaded = Settings::load(&fixture.database).await.expect("loaded");
    assert_eq!((loaded.approval_default_timeout, loaded.due_after_ms()), (60, 60_000));
}

async fn approval_keeps_the_validity_it_was_given_with(fixture: Fixture) {
    fixture.add_user("ann", &[AUTHOR]).await;
    fixture.add_user("rob", &[REVIEWER]).await;
    let (rules, service, max, rob) =
        (fixture.rules(), fixture.service(), admin(), caller("rob", &[REVIEWER]));
    rules.set_setting("approval:validity", json!(600), &max).await.expect("set");
    let mut ends = Vec::new();
    for validity in [600, 1_200] {
        rules.set_setting("approval:validity", json!(validity), &max).await.expect("set");
        let task = submitted(&service, "one").await;
        ends.push(service.decide(approval_of(&task, "rob"), &approve(&task), &rob).await.expect("approved"));
    }
    let lasts = |number: usize| {
        let ends_at = ends[number].approval_ends_at.expect("approved");
        ends_at.ms_since(ends[number].entered_at[&TaskState::Approved]) / 1_000
    };
    assert_eq!((lasts(0), lasts(1)), (600, 1_200));
    fixture.clock.advance(Duration::from_secs(600));
    assert_eq!(service.process_timeouts().await, Ok(1));
    let first = fixture.task(&ends[0].task_id).await;
    assert_eq!((first.state, first.approval_ends_at), (TaskState::Reviewing, None));
    assert_eq!(fixture.task(&ends[1].task_id).await.state, TaskState::Approved);
}

async fn feature_flag_disables_batches(fixture: Fixture) {
    fixture.add_user("ann", &[AUTHOR]).await;
    fixture.add_user("rob", &[REVIEWER]).await;
    let (rules, service, other) = (fixture.rules(), fixture.service(), fixture.other_process().await);
    let features = rules.list::<FeatureFlag>(&admin()).await.expect("listed");
    let features: Vec<(&str, bool)> = features.iter().map(|flag| (flag.id.as_str(), flag.value.0)).collect();
    assert_eq!(
        features,
        [("auto_approve_low_risk", false), ("batch_approvals", true), ("deadlock_detection", true)]
    );
    let task = submitted(&service, "one").await;
    let batch = approve_all([&task], "rob");
    let rob = caller("rob", &[REVIEWER]);
    rules.set_feature("batch_approvals", false, &admin()).await.expect("disabled");
    assert_eq!(other.decide_batch(&batch, &rob).await, Err(Error::Disabled("batch_approvals")));
    let on = rules.set_feature("batch_approvals", true, &admin()).await.expect("enabled");
    assert_eq!((on.revision, on.value.0), (2, true));
    assert!(other.decide_batch(&batch, &rob).await.is_ok());
    assert_eq!(fixture.audit_actions(None).await.iter().filter(|action| *action == "feature.set").count(), 2);
}
