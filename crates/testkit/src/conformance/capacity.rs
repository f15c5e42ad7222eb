//! Capacity of agents: claims on task slots are counted, limited, renewed, released, and expire.

#![expect(clippy::expect_used, reason = "helpers of tests fail like tests")]

use std::sync::Arc;

use ade_domain::agent::DEFAULT_MAX_TASKS;
use ade_store::coordination::{AgentUpdate, CapacityClaim};

use super::fixture::Fixture;
use super::{BackendFactory, BackendSettings};

scenarios!(
    limits_tasks_per_agent,
    limits_concurrent_claims,
    counts_renewed_claim_once,
    claim_expires,
    expired_claim_takes_no_capacity,
    draining_agent_keeps_its_claims,
    lowered_limit_keeps_existing_claims,
    claim_registers_unknown_agent,
    removal_drops_claims,
);

const MINUTE_MS: u64 = 60_000;

async fn claim_for(fixture: &Fixture, name: &str, task: &str, ms: u64) -> CapacityClaim {
    let until = fixture.now().plus_ms(ms);
    fixture.backend.claim_capacity(fixture.agent(name), task.to_owned(), until).await.expect("a reply")
}

async fn claim(fixture: &Fixture, name: &str, task: &str) -> CapacityClaim {
    claim_for(fixture, name, task, MINUTE_MS).await
}

async fn unclaim(fixture: &Fixture, name: &str, task: &str) {
    fixture.backend.release_capacity(fixture.agent(name), task.to_owned()).await.expect("a reply");
}

/// Registers an agent, or updates it.
async fn set_capacity(fixture: &Fixture, name: &str, max_tasks: u32, draining: bool) {
    let update = AgentUpdate { profile: None, max_tasks: Some(max_tasks), draining: Some(draining) };
    let agent = fixture.agent(name);
    if fixture.backend.put_agent(agent.clone(), update.clone(), true).await.expect("a reply").is_none() {
        fixture.backend.put_agent(agent, update, false).await.expect("a reply").expect("known");
    }
}

/// Active and queued tasks of an agent. Asserts that lookup and list agree.
async fn tasks(fixture: &Fixture, name: &str) -> (usize, usize) {
    let view = fixture.backend.agent(fixture.agent(name)).await.expect("a reply").expect("known");
    let all = fixture.backend.agents(None, usize::MAX).await.expect("a reply");
    let listed = all.iter().find(|listed| listed.agent_id == view.agent_id).expect("listed");
    let counts = (view.active_tasks, view.queued_tasks);
    assert_eq!((listed.active_tasks, listed.queued_tasks), counts);
    counts
}

async fn limits_tasks_per_agent(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    set_capacity(&fixture, "ann", 2, false).await;
    set_capacity(&fixture, "ben", 1, false).await;
    assert_eq!(tasks(&fixture, "ann").await, (0, 0));
    let special = ":{a} ü🔒 t:q:";
    assert_eq!(claim(&fixture, "ann", "one").await, CapacityClaim::Claimed);
    assert_eq!(claim(&fixture, "ann", special).await, CapacityClaim::Claimed);
    assert_eq!(tasks(&fixture, "ann").await, (2, 0));
    for _ in 0..2 {
        assert_eq!(claim(&fixture, "ann", "three").await, CapacityClaim::Full);
    }
    assert_eq!(tasks(&fixture, "ann").await, (2, 1), "queued once");
    assert_eq!(
        claim(&fixture, "ben", "three").await,
        CapacityClaim::Claimed,
        "another agent has its own capacity"
    );
    for _ in 0..2 {
        unclaim(&fixture, "ann", special).await;
    }
    assert_eq!(tasks(&fixture, "ann").await, (1, 1));
    assert_eq!(claim(&fixture, "ann", "three").await, CapacityClaim::Claimed);
    assert_eq!(tasks(&fixture, "ann").await, (2, 0));
    assert_eq!(claim(&fixture, "ann", "four").await, CapacityClaim::Full);
    unclaim(&fixture, "ann", "four").await;
    assert_eq!(tasks(&fixture, "ann").await, (2, 0), "no longer queued");
    fixture.remove_agents(&["ann", "ben"]).await;
}

async fn limits_concurrent_claims(factory: BackendFactory) {
    let fixture = Arc::new(Fixture::new(&factory).await);
    set_capacity(&fixture, "ann", 3, false).await;
    let claims: Vec<_> = (0..16)
        .map(|number| {
            let fixture = Arc::clone(&fixture);
            tokio::spawn(async move { claim(&fixture, "ann", &format!("task-{number}")).await })
        })
        .collect();
    let mut granted = 0;
    for claim in claims {
        match claim.await.expect("no panic") {
            CapacityClaim::Claimed => granted += 1,
            other => assert_eq!(other, CapacityClaim::Full),
        }
    }
    assert_eq!(granted, 3);
    assert_eq!(tasks(&fixture, "ann").await, (3, 13));
    fixture.remove_agents(&["ann"]).await;
}

async fn counts_renewed_claim_once(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    set_capacity(&fixture, "ann", 1, false).await;
    assert_eq!(claim_for(&fixture, "ann", "one", 300).await, CapacityClaim::Claimed);
    assert_eq!(claim(&fixture, "ann", "one").await, CapacityClaim::Claimed);
    assert_eq!(claim_for(&fixture, "ann", "one", 100).await, CapacityClaim::Claimed, "a late renewal");
    assert_eq!(tasks(&fixture, "ann").await, (1, 0));
    fixture.advance(400).await;
    assert_eq!(tasks(&fixture, "ann").await, (1, 0), "renewed, never shortened");
    assert_eq!(claim(&fixture, "ann", "two").await, CapacityClaim::Full);
    fixture.remove_agents(&["ann"]).await;
}

async fn claim_expires(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    set_capacity(&fixture, "ann", 2, false).await;
    assert_eq!(claim(&fixture, "ann", "long").await, CapacityClaim::Claimed);
    let until = fixture.now().plus_ms(1_000);
    assert_eq!(
        fixture.backend.claim_capacity(fixture.agent("ann"), "short".to_owned(), until).await,
        Ok(CapacityClaim::Claimed)
    );
    assert_eq!(
        fixture.backend.claim_capacity(fixture.agent("ann"), "waits".to_owned(), until).await,
        Ok(CapacityClaim::Full)
    );
    if fixture.has_manual_clock() {
        fixture.advance(999).await;
        assert_eq!(tasks(&fixture, "ann").await, (2, 1), "last moment before expiry");
        fixture.advance(1).await;
    } else {
        fixture.advance(1_100).await;
    }
    assert_eq!(tasks(&fixture, "ann").await, (1, 0));
    assert_eq!(claim(&fixture, "ann", "other").await, CapacityClaim::Claimed);
    assert_eq!(claim(&fixture, "ann", "short").await, CapacityClaim::Full, "the slot is taken");
    assert_eq!(tasks(&fixture, "ann").await, (2, 1));
    fixture.remove_agents(&["ann"]).await;
}

async fn expired_claim_takes_no_capacity(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    set_capacity(&fixture, "ann", 1, false).await;
    let before = fixture.now();
    fixture.advance(2).await;
    assert_eq!(
        fixture.backend.claim_capacity(fixture.agent("ann"), "late".to_owned(), before).await,
        Ok(CapacityClaim::Claimed)
    );
    assert_eq!(tasks(&fixture, "ann").await, (0, 0));
    assert_eq!(claim(&fixture, "ann", "one").await, CapacityClaim::Claimed);
    assert_eq!(
        fixture.backend.claim_capacity(fixture.agent("ann"), "late".to_owned(), before).await,
        Ok(CapacityClaim::Full)
    );
    assert_eq!(tasks(&fixture, "ann").await, (1, 0));
    fixture.remove_agents(&["ann"]).await;
}

async fn draining_agent_keeps_its_claims(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    set_capacity(&fixture, "ann", 3, false).await;
    assert_eq!(claim(&fixture, "ann", "one").await, CapacityClaim::Claimed);
    set_capacity(&fixture, "ann", 3, true).await;
    assert_eq!(claim(&fixture, "ann", "one").await, CapacityClaim::Claimed);
    assert_eq!(claim(&fixture, "ann", "two").await, CapacityClaim::Draining);
    assert_eq!(tasks(&fixture, "ann").await, (1, 0));
    unclaim(&fixture, "ann", "one").await;
    assert_eq!(claim(&fixture, "ann", "one").await, CapacityClaim::Draining);
    set_capacity(&fixture, "ann", 3, false).await;
    assert_eq!(claim(&fixture, "ann", "two").await, CapacityClaim::Claimed);
    fixture.remove_agents(&["ann"]).await;
}

async fn lowered_limit_keeps_existing_claims(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    set_capacity(&fixture, "ann", 2, false).await;
    assert_eq!(claim(&fixture, "ann", "one").await, CapacityClaim::Claimed);
    assert_eq!(claim(&fixture, "ann", "two").await, CapacityClaim::Claimed);
    set_capacity(&fixture, "ann", 0, false).await;
    for task in ["one", "two"] {
        assert_eq!(claim(&fixture, "ann", task).await, CapacityClaim::Claimed, "existing claims stay");
    }
    unclaim(&fixture, "ann", "one").await;
    assert_eq!(claim(&fixture, "ann", "three").await, CapacityClaim::Full);
    assert_eq!(tasks(&fixture, "ann").await, (1, 1));
    fixture.remove_agents(&["ann"]).await;
}

async fn claim_registers_unknown_agent(factory: BackendFactory) {
    let fixture = Fixture::with_settings(
        &factory,
        BackendSettings { max_auto_registered_agents: 1, ..BackendSettings::default() },
    )
    .await;
    unclaim(&fixture, "ann", "one").await;
    assert_eq!(fixture.backend.agent(fixture.agent("ann")).await, Ok(None), "releasing registers nobody");
    assert_eq!(claim(&fixture, "ann", "one").await, CapacityClaim::Claimed);
    let view = fixture.backend.agent(fixture.agent("ann")).await.expect("a reply").expect("known");
    assert_eq!((view.max_tasks, view.profile.name), (DEFAULT_MAX_TASKS, fixture.agent("ann")));
    assert_eq!(tasks(&fixture, "ann").await, (1, 0));
    assert_eq!(claim(&fixture, "ben", "two").await, CapacityClaim::Unknown, "too many unregistered agents");
    assert_eq!(fixture.backend.agent(fixture.agent("ben")).await, Ok(None));
    set_capacity(&fixture, "ann", 1, false).await;
    assert_eq!(tasks(&fixture, "ann").await, (1, 0), "registration keeps claims");
    assert_eq!(claim(&fixture, "ben", "two").await, CapacityClaim::Claimed, "registered agents do not count");
    fixture.heartbeat("ann").await;
    assert_eq!(tasks(&fixture, "ann").await, (1, 0), "a heartbeat changes nothing");
    fixture.remove_agents(&["ann", "ben"]).await;
}

async fn removal_drops_claims(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    set_capacity(&fixture, "ann", 1, false).await;
    assert_eq!(claim(&fixture, "ann", "one").await, CapacityClaim::Claimed);
    assert_eq!(claim(&fixture, "ann", "two").await, CapacityClaim::Full);
    fixture.remove_agents(&["ann"]).await;
    set_capacity(&fixture, "ann", 1, false).await;
    assert_eq!(tasks(&fixture, "ann").await, (0, 0));
    assert_eq!(claim(&fixture, "ann", "two").await, CapacityClaim::Claimed);
    fixture.remove_agents(&["ann"]).await;
}
