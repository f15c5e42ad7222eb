//! Agents: registration, heartbeats, updates, listing, removal, draining, and the rate limit of acquisitions.

#![expect(clippy::expect_used, reason = "helpers of tests fail like tests")]

use ade_domain::agent::{AgentProfile, AgentStatus, DEFAULT_MAX_TASKS};
use ade_store::coordination::{AgentUpdate, AgentView};

use super::fixture::{Fixture, end_range, with_limits};
use super::{BackendFactory, BackendSettings};

scenarios!(
    registers_agent_once,
    updates_agent_partially,
    heartbeat_registers_unknown_agent,
    limits_unregistered_agents,
    lists_agents_by_id_in_pages,
    removes_agent,
    reports_draining_agent,
    limits_acquisition_rate_per_agent,
    admits_no_acquisition_with_a_limit_of_zero,
);

async fn put(fixture: &Fixture, name: &str, update: AgentUpdate, create: bool) -> Option<AgentView> {
    fixture.backend.put_agent(fixture.agent(name), update, create).await.expect("a reply")
}

async fn agent(fixture: &Fixture, name: &str) -> Option<AgentView> {
    fixture.backend.agent(fixture.agent(name)).await.expect("a reply")
}

fn profile() -> AgentProfile {
    AgentProfile {
        name: "Ann: {the} first % ü🔒".into(),
        model: Some("large".into()),
        version: None,
        capabilities: vec!["build".into(), "deploy:prod".into()],
        config: r#"{"depth": [1, 2], "text": "\"ü\""}"#.into(),
    }
}

async fn registers_agent_once(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    assert_eq!(agent(&fixture, "ann").await, None);
    let update = AgentUpdate { profile: Some(profile()), max_tasks: Some(3), draining: None };
    let before = fixture.now();
    let view = put(&fixture, "ann", update.clone(), true).await.expect("registered");
    assert!((before..=fixture.now()).contains(&view.last_heartbeat), "{view:?}");
    assert_eq!((&view.agent_id, &view.profile), (&fixture.agent("ann"), &profile()));
    assert_eq!((view.max_tasks, view.active_tasks, view.queued_tasks), (3, 0, 0));
    assert_eq!(view.status, AgentStatus::Active);
    assert_eq!(agent(&fixture, "ann").await, Some(view.clone()));
    let other = AgentUpdate { max_tasks: Some(9), ..update };
    assert_eq!(put(&fixture, "ann", other, true).await, None, "the name is taken");
    assert_eq!(agent(&fixture, "ann").await, Some(view), "unchanged");
    // Absent fields get defaults.
    let plain = put(&fixture, "ben", AgentUpdate::default(), true).await.expect("registered");
    assert_eq!((plain.max_tasks, plain.profile.name), (DEFAULT_MAX_TASKS, fixture.agent("ben")));
    fixture.remove_agents(&["ann", "ben"]).await;
}

async fn updates_agent_partially(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    assert_eq!(put(&fixture, "ann", AgentUpdate::default(), false).await, None, "no such agent");
    assert_eq!(agent(&fixture, "ann").await, None);
    let update = AgentUpdate { profile: Some(profile()), max_tasks: Some(3), draining: None };
    put(&fixture, "ann", update, true).await.expect("registered");
    let update = AgentUpdate { max_tasks: Some(4), ..AgentUpdate::default() };
    let view = put(&fixture, "ann", update, false).await.expect("updated");
    assert_eq!((view.max_tasks, &view.profile), (4, &profile()));
    let update = AgentUpdate { profile: Some(AgentProfile::default()), ..AgentUpdate::default() };
    let view = put(&fixture, "ann", update, false).await.expect("updated");
    assert_eq!((view.max_tasks, &view.profile), (4, &AgentProfile::default()));
    assert_eq!(agent(&fixture, "ann").await, Some(view));
    fixture.remove_agents(&["ann"]).await;
}

async fn heartbeat_registers_unknown_agent(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    fixture.heartbeat("ann").await;
    let first = agent(&fixture, "ann").await.expect("known");
    assert_eq!((&first.profile.name, first.max_tasks), (&fixture.agent("ann"), DEFAULT_MAX_TASKS));
    fixture.advance(2).await;
    fixture.heartbeat("ann").await;
    let later = agent(&fixture, "ann").await.expect("known");
    assert!(later.last_heartbeat > first.last_heartbeat);
    // A heartbeat does not take the name: the agent may still register.
    let update = AgentUpdate { max_tasks: Some(2), ..AgentUpdate::default() };
    put(&fixture, "ann", update.clone(), true).await.expect("registered");
    assert_eq!(put(&fixture, "ann", update, true).await, None, "now the name is taken");
    fixture.heartbeat("ann").await;
    assert_eq!(agent(&fixture, "ann").await.expect("known").max_tasks, 2, "a heartbeat changes nothing else");
    fixture.remove_agents(&["ann"]).await;
}

async fn limits_unregistered_agents(factory: BackendFactory) {
    let fixture = Fixture::with_settings(
        &factory,
        BackendSettings { max_auto_registered_agents: 2, ..BackendSettings::default() },
    )
    .await;
    for name in ["r1", "r2", "r3"] {
        put(&fixture, name, AgentUpdate::default(), true).await.expect("registered agents do not count");
    }
    fixture.heartbeat("n1").await;
    fixture.heartbeat("n2").await;
    assert_eq!(fixture.backend.record_heartbeat(fixture.agent("n3")).await, Ok(false));
    assert_eq!(agent(&fixture, "n3").await, None);
    for name in ["n1", "r1"] {
        fixture.heartbeat(name).await;
    }
    put(&fixture, "n2", AgentUpdate::default(), true).await.expect("registered, so it no longer counts");
    fixture.heartbeat("n3").await;
    assert_eq!(fixture.backend.record_heartbeat(fixture.agent("n4")).await, Ok(false));
    assert!(fixture.backend.remove_agent(fixture.agent("n1")).await.expect("a reply"));
    fixture.heartbeat("n4").await;
    fixture.remove_agents(&["r1", "r2", "r3", "n2", "n3", "n4"]).await;
}

async fn lists_agents_by_id_in_pages(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    let names = ["b", "a", "c:d", "Z", "ü"];
    for name in names {
        fixture.heartbeat(name).await;
    }
    let mut expected: Vec<String> = names.iter().map(|name| fixture.agent(name)).collect();
    expected.sort();
    for page in [1, 2, 100] {
        let (mut found, mut after) = (Vec::new(), Some(fixture.namespace.clone()));
        loop {
            let views = fixture.backend.agents(after.clone(), page).await.expect("a reply");
            assert!(views.len() <= page);
            let Some(last) = views.last() else { break };
            after = Some(last.agent_id.clone());
            found.extend(views.into_iter().map(|view| view.agent_id));
        }
        found.retain(|id| id.starts_with(&format!("{}-", fixture.namespace)));
        assert_eq!(found, expected, "in pages of {page}");
    }
    let all = fixture.backend.agents(None, usize::MAX).await.expect("a reply");
    assert!(all.is_sorted_by(|a, b| a.agent_id < b.agent_id));
    assert!(all.contains(&agent(&fixture, "a").await.expect("known")), "same view as a single lookup");
    fixture.remove_agents(&names).await;
}

async fn removes_agent(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    assert_eq!(fixture.backend.remove_agent(fixture.agent("ann")).await, Ok(false));
    put(&fixture, "ann", AgentUpdate { max_tasks: Some(2), ..AgentUpdate::default() }, true)
        .await
        .expect("new");
    assert_eq!(fixture.backend.remove_agent(fixture.agent("ann")).await, Ok(true));
    assert_eq!(agent(&fixture, "ann").await, None);
    assert_eq!(fixture.backend.remove_agent(fixture.agent("ann")).await, Ok(false));
    let again = put(&fixture, "ann", AgentUpdate::default(), true).await.expect("the name is free");
    assert_eq!(again.max_tasks, DEFAULT_MAX_TASKS, "settings of the removed agent are gone");
    fixture.remove_agents(&["ann"]).await;
}

async fn reports_draining_agent(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    let draining = |is_draining| AgentUpdate { draining: Some(is_draining), ..AgentUpdate::default() };
    put(&fixture, "ann", AgentUpdate::default(), true).await.expect("registered");
    for (is_draining, status) in [(true, AgentStatus::Draining), (false, AgentStatus::Active)] {
        let view = put(&fixture, "ann", draining(is_draining), false).await.expect("updated");
        assert_eq!(view.status, status);
        fixture.heartbeat("ann").await;
        assert_eq!(agent(&fixture, "ann").await.expect("known").status, status);
    }
    fixture.remove_agents(&["ann"]).await;
}

async fn admits_no_acquisition_with_a_limit_of_zero(factory: BackendFactory) {
    let fixture =
        Fixture::with_settings(&factory, with_limits(|limits| limits.acquisitions_per_minute = 0)).await;
    for locks in [1, 3] {
        let admitted = fixture.backend.admit_acquisition(fixture.agent("ann"), locks).await.expect("a reply");
        let retry_at = admitted.expect_err("none is allowed");
        assert!(retry_at > fixture.now(), "{retry_at}");
    }
}

async fn limits_acquisition_rate_per_agent(factory: BackendFactory) {
    let fixture =
        Fixture::with_settings(&factory, with_limits(|limits| limits.acquisitions_per_minute = 3)).await;
    let before = fixture.now();
    assert_eq!(fixture.backend.admit_acquisition(fixture.agent("ann"), 1).await, Ok(Ok(())));
    let window_start = before..=fixture.now();
    for _ in 0..2 {
        assert_eq!(fixture.backend.admit_acquisition(fixture.agent("ann"), 1).await, Ok(Ok(())));
    }
    let last_at = fixture.now();
    for _ in 0..2 {
        let retry_at = fixture
            .backend
            .admit_acquisition(fixture.agent("ann"), 1)
            .await
            .expect("a reply")
            .expect_err("over the limit");
        // A minute after the last one that was counted. A store may round to milliseconds.
        let range = end_range(*window_start.start()..=last_at, 59_999);
        assert!((*range.start()..=range.end().plus_ms(2)).contains(&retry_at), "{retry_at}");
    }
    assert_eq!(
        fixture.backend.admit_acquisition(fixture.agent("ben"), 1).await,
        Ok(Ok(())),
        "another agent has its own limit"
    );
    assert_eq!(
        fixture.backend.admit_acquisition(fixture.agent("cat"), 5).await,
        Ok(Ok(())),
        "a request for more locks than the limit is possible"
    );
    assert!(fixture.backend.admit_acquisition(fixture.agent("cat"), 1).await.expect("a reply").is_err());
}
