//! How much agents do at once: claims that are counted, renewed, given back, and end by themselves.

#![expect(clippy::expect_used, reason = "helpers of tests fail like tests")]

use std::sync::Arc;

use ade_domain::agent::DEFAULT_MAX_TASKS;
use ade_store::coordination::{AgentUpdate, CapacityClaim};

use super::play::Play;
use super::{Opener, Setting};

scenarios!(
    an_agent_takes_as_many_tasks_as_it_may,
    of_many_claims_at_once_only_so_many_are_granted,
    a_claim_is_counted_once_and_can_be_renewed,
    a_claim_ends_by_itself,
    a_claim_that_is_over_already_takes_no_room,
    a_draining_agent_keeps_what_it_has,
    who_may_do_less_than_it_does_takes_nothing_new,
    an_agent_that_claims_is_known_by_its_name,
    a_removed_agent_has_claimed_nothing,
);

const MINUTE_MS: u64 = 60_000;

async fn claim_for(play: &Play, name: &str, task: &str, ms: u64) -> CapacityClaim {
    let until = play.now().plus_ms(ms);
    play.port.claim(play.agent(name), task.to_owned(), until).await.expect("answers")
}

async fn claim(play: &Play, name: &str, task: &str) -> CapacityClaim {
    claim_for(play, name, task, MINUTE_MS).await
}

async fn unclaim(play: &Play, name: &str, task: &str) {
    play.port.unclaim(play.agent(name), task.to_owned()).await.expect("answers");
}

/// Registers an agent, or changes it.
async fn may(play: &Play, name: &str, max_tasks: u32, draining: bool) {
    let update = AgentUpdate { profile: None, max_tasks: Some(max_tasks), draining: Some(draining) };
    let agent = play.agent(name);
    if play.port.put(agent.clone(), update.clone(), true).await.expect("answers").is_none() {
        play.port.put(agent, update, false).await.expect("answers").expect("known");
    }
}

/// How many tasks an agent does, and how many wait for it; the list says the same.
async fn tasks(play: &Play, name: &str) -> (usize, usize) {
    let view = play.port.agent(play.agent(name)).await.expect("answers").expect("known");
    let all = play.port.agents(None, usize::MAX).await.expect("answers");
    let listed = all.iter().find(|listed| listed.agent_id == view.agent_id).expect("listed");
    let counts = (view.active_tasks, view.queued_tasks);
    assert_eq!((listed.active_tasks, listed.queued_tasks), counts);
    counts
}

async fn an_agent_takes_as_many_tasks_as_it_may(opener: Opener) {
    let play = Play::usual(&opener).await;
    may(&play, "ann", 2, false).await;
    may(&play, "ben", 1, false).await;
    assert_eq!(tasks(&play, "ann").await, (0, 0));
    let strange = ":{a} ü🔒 t:q:";
    assert_eq!(claim(&play, "ann", "one").await, CapacityClaim::Yes);
    assert_eq!(claim(&play, "ann", strange).await, CapacityClaim::Yes);
    assert_eq!(tasks(&play, "ann").await, (2, 0));
    for _ in 0..2 {
        assert_eq!(claim(&play, "ann", "three").await, CapacityClaim::Full);
    }
    assert_eq!(tasks(&play, "ann").await, (2, 1), "it waits, once");
    assert_eq!(claim(&play, "ben", "three").await, CapacityClaim::Yes, "another agent is not concerned");
    for _ in 0..2 {
        unclaim(&play, "ann", strange).await;
    }
    assert_eq!(tasks(&play, "ann").await, (1, 1));
    assert_eq!(claim(&play, "ann", "three").await, CapacityClaim::Yes);
    assert_eq!(tasks(&play, "ann").await, (2, 0));
    assert_eq!(claim(&play, "ann", "four").await, CapacityClaim::Full);
    unclaim(&play, "ann", "four").await;
    assert_eq!(tasks(&play, "ann").await, (2, 0), "it does not wait any more");
    play.leave(&["ann", "ben"]).await;
}

async fn of_many_claims_at_once_only_so_many_are_granted(opener: Opener) {
    let play = Arc::new(Play::usual(&opener).await);
    may(&play, "ann", 3, false).await;
    let asking: Vec<_> = (0..16)
        .map(|number| {
            let play = Arc::clone(&play);
            tokio::spawn(async move { claim(&play, "ann", &format!("task-{number}")).await })
        })
        .collect();
    let mut granted = 0;
    for one in asking {
        match one.await.expect("no panic") {
            CapacityClaim::Yes => granted += 1,
            other => assert_eq!(other, CapacityClaim::Full),
        }
    }
    assert_eq!(granted, 3);
    assert_eq!(tasks(&play, "ann").await, (3, 13));
    play.leave(&["ann"]).await;
}

async fn a_claim_is_counted_once_and_can_be_renewed(opener: Opener) {
    let play = Play::usual(&opener).await;
    may(&play, "ann", 1, false).await;
    assert_eq!(claim_for(&play, "ann", "one", 300).await, CapacityClaim::Yes);
    assert_eq!(claim(&play, "ann", "one").await, CapacityClaim::Yes);
    assert_eq!(claim_for(&play, "ann", "one", 100).await, CapacityClaim::Yes, "a renewal that was late");
    assert_eq!(tasks(&play, "ann").await, (1, 0));
    play.pass(400).await;
    assert_eq!(tasks(&play, "ann").await, (1, 0), "it was renewed, and never made shorter");
    assert_eq!(claim(&play, "ann", "two").await, CapacityClaim::Full);
    play.leave(&["ann"]).await;
}

async fn a_claim_ends_by_itself(opener: Opener) {
    let play = Play::usual(&opener).await;
    may(&play, "ann", 2, false).await;
    assert_eq!(claim(&play, "ann", "long").await, CapacityClaim::Yes);
    let until = play.now().plus_ms(1_000);
    assert_eq!(play.port.claim(play.agent("ann"), "short".to_owned(), until).await, Ok(CapacityClaim::Yes));
    assert_eq!(play.port.claim(play.agent("ann"), "waits".to_owned(), until).await, Ok(CapacityClaim::Full));
    if play.passes_at_once() {
        play.pass(999).await;
        assert_eq!(tasks(&play, "ann").await, (2, 1), "the last moment");
        play.pass(1).await;
    } else {
        play.pass(1_100).await;
    }
    assert_eq!(tasks(&play, "ann").await, (1, 0));
    assert_eq!(claim(&play, "ann", "other").await, CapacityClaim::Yes);
    assert_eq!(claim(&play, "ann", "short").await, CapacityClaim::Full, "its place was taken");
    assert_eq!(tasks(&play, "ann").await, (2, 1));
    play.leave(&["ann"]).await;
}

async fn a_claim_that_is_over_already_takes_no_room(opener: Opener) {
    let play = Play::usual(&opener).await;
    may(&play, "ann", 1, false).await;
    let before = play.now();
    play.pass(2).await;
    assert_eq!(play.port.claim(play.agent("ann"), "late".to_owned(), before).await, Ok(CapacityClaim::Yes));
    assert_eq!(tasks(&play, "ann").await, (0, 0));
    assert_eq!(claim(&play, "ann", "one").await, CapacityClaim::Yes);
    assert_eq!(play.port.claim(play.agent("ann"), "late".to_owned(), before).await, Ok(CapacityClaim::Full));
    assert_eq!(tasks(&play, "ann").await, (1, 0));
    play.leave(&["ann"]).await;
}

async fn a_draining_agent_keeps_what_it_has(opener: Opener) {
    let play = Play::usual(&opener).await;
    may(&play, "ann", 3, false).await;
    assert_eq!(claim(&play, "ann", "one").await, CapacityClaim::Yes);
    may(&play, "ann", 3, true).await;
    assert_eq!(claim(&play, "ann", "one").await, CapacityClaim::Yes);
    assert_eq!(claim(&play, "ann", "two").await, CapacityClaim::Draining);
    assert_eq!(tasks(&play, "ann").await, (1, 0));
    unclaim(&play, "ann", "one").await;
    assert_eq!(claim(&play, "ann", "one").await, CapacityClaim::Draining);
    may(&play, "ann", 3, false).await;
    assert_eq!(claim(&play, "ann", "two").await, CapacityClaim::Yes);
    play.leave(&["ann"]).await;
}

async fn who_may_do_less_than_it_does_takes_nothing_new(opener: Opener) {
    let play = Play::usual(&opener).await;
    may(&play, "ann", 2, false).await;
    assert_eq!(claim(&play, "ann", "one").await, CapacityClaim::Yes);
    assert_eq!(claim(&play, "ann", "two").await, CapacityClaim::Yes);
    may(&play, "ann", 0, false).await;
    for task in ["one", "two"] {
        assert_eq!(claim(&play, "ann", task).await, CapacityClaim::Yes, "what it has it keeps");
    }
    unclaim(&play, "ann", "one").await;
    assert_eq!(claim(&play, "ann", "three").await, CapacityClaim::Full);
    assert_eq!(tasks(&play, "ann").await, (1, 1));
    play.leave(&["ann"]).await;
}

async fn an_agent_that_claims_is_known_by_its_name(opener: Opener) {
    let play = Play::open(&opener, Setting { max_named_agents: 1, ..Setting::default() }).await;
    unclaim(&play, "ann", "one").await;
    assert_eq!(play.port.agent(play.agent("ann")).await, Ok(None), "giving back names nobody");
    assert_eq!(claim(&play, "ann", "one").await, CapacityClaim::Yes);
    let view = play.port.agent(play.agent("ann")).await.expect("answers").expect("known");
    assert_eq!((view.max_tasks, view.profile.name), (DEFAULT_MAX_TASKS, play.agent("ann")));
    assert_eq!(tasks(&play, "ann").await, (1, 0));
    assert_eq!(claim(&play, "ben", "two").await, CapacityClaim::Unknown, "there are too many already");
    assert_eq!(play.port.agent(play.agent("ben")).await, Ok(None));
    may(&play, "ann", 1, false).await;
    assert_eq!(tasks(&play, "ann").await, (1, 0), "who registers keeps what it has");
    assert_eq!(claim(&play, "ben", "two").await, CapacityClaim::Yes, "registered ones are not counted");
    play.heard("ann").await;
    assert_eq!(tasks(&play, "ann").await, (1, 0), "being heard of changes nothing");
    play.leave(&["ann", "ben"]).await;
}

async fn a_removed_agent_has_claimed_nothing(opener: Opener) {
    let play = Play::usual(&opener).await;
    may(&play, "ann", 1, false).await;
    assert_eq!(claim(&play, "ann", "one").await, CapacityClaim::Yes);
    assert_eq!(claim(&play, "ann", "two").await, CapacityClaim::Full);
    play.leave(&["ann"]).await;
    may(&play, "ann", 1, false).await;
    assert_eq!(tasks(&play, "ann").await, (0, 0));
    assert_eq!(claim(&play, "ann", "two").await, CapacityClaim::Yes);
    play.leave(&["ann"]).await;
}
