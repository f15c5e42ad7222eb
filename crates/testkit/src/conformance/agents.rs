//! Agents: registered or named, changed, listed, removed, silent, and how often they may ask.

#![expect(clippy::expect_used, reason = "helpers of tests fail like tests")]

use ade_domain::agent::{DEFAULT_MAX_TASKS, Profile, Status};
use ade_store::coordination::{AgentUpdate, AgentView};

use super::play::{Play, ends, with};
use super::{Opener, Setting};

scenarios!(
    an_agent_is_registered_once,
    an_agent_is_changed_in_part,
    an_agent_that_is_heard_of_is_known_by_its_name,
    too_many_named_agents_are_turned_away,
    agents_are_listed_by_id_and_in_pages,
    an_agent_is_removed,
    a_draining_agent_says_so,
    an_agent_may_ask_so_often_and_no_more,
);

async fn put(play: &Play, name: &str, update: AgentUpdate, create: bool) -> Option<AgentView> {
    play.port.put(play.agent(name), update, create).await.expect("answers")
}

async fn agent(play: &Play, name: &str) -> Option<AgentView> {
    play.port.agent(play.agent(name)).await.expect("answers")
}

fn profile() -> Profile {
    Profile {
        name: "Ann: {the} first % ü🔒".into(),
        model: Some("large".into()),
        version: None,
        capabilities: vec!["build".into(), "deploy:prod".into()],
        config: r#"{"depth": [1, 2], "text": "\"ü\""}"#.into(),
    }
}

async fn an_agent_is_registered_once(opener: Opener) {
    let play = Play::usual(&opener).await;
    assert_eq!(agent(&play, "ann").await, None);
    let update = AgentUpdate { profile: Some(profile()), max_tasks: Some(3), draining: None };
    let before = play.now();
    let view = put(&play, "ann", update.clone(), true).await.expect("registered");
    assert!((before..=play.now()).contains(&view.last_heartbeat), "{view:?}");
    assert_eq!((&view.agent_id, &view.profile), (&play.agent("ann"), &profile()));
    assert_eq!((view.max_tasks, view.active_tasks, view.queued_tasks), (3, 0, 0));
    assert_eq!(view.status, Status::Active);
    assert_eq!(agent(&play, "ann").await, Some(view.clone()));
    let other = AgentUpdate { max_tasks: Some(9), ..update };
    assert_eq!(put(&play, "ann", other, true).await, None, "the name is taken");
    assert_eq!(agent(&play, "ann").await, Some(view), "and nothing was changed");
    // What is left open has defaults.
    let plain = put(&play, "ben", AgentUpdate::default(), true).await.expect("registered");
    assert_eq!((plain.max_tasks, plain.profile.name), (DEFAULT_MAX_TASKS, play.agent("ben")));
    play.leave(&["ann", "ben"]).await;
}

async fn an_agent_is_changed_in_part(opener: Opener) {
    let play = Play::usual(&opener).await;
    assert_eq!(put(&play, "ann", AgentUpdate::default(), false).await, None, "nobody is known by this name");
    assert_eq!(agent(&play, "ann").await, None);
    let update = AgentUpdate { profile: Some(profile()), max_tasks: Some(3), draining: None };
    put(&play, "ann", update, true).await.expect("registered");
    let update = AgentUpdate { max_tasks: Some(4), ..AgentUpdate::default() };
    let view = put(&play, "ann", update, false).await.expect("changed");
    assert_eq!((view.max_tasks, &view.profile), (4, &profile()));
    let update = AgentUpdate { profile: Some(Profile::default()), ..AgentUpdate::default() };
    let view = put(&play, "ann", update, false).await.expect("changed");
    assert_eq!((view.max_tasks, &view.profile), (4, &Profile::default()));
    assert_eq!(agent(&play, "ann").await, Some(view));
    play.leave(&["ann"]).await;
}

async fn an_agent_that_is_heard_of_is_known_by_its_name(opener: Opener) {
    let play = Play::usual(&opener).await;
    play.heard("ann").await;
    let first = agent(&play, "ann").await.expect("known");
    assert_eq!((&first.profile.name, first.max_tasks), (&play.agent("ann"), DEFAULT_MAX_TASKS));
    play.pass(2).await;
    play.heard("ann").await;
    let later = agent(&play, "ann").await.expect("known");
    assert!(later.last_heartbeat > first.last_heartbeat);
    // Its name is not taken: it may still register.
    let update = AgentUpdate { max_tasks: Some(2), ..AgentUpdate::default() };
    put(&play, "ann", update.clone(), true).await.expect("registered");
    assert_eq!(put(&play, "ann", update, true).await, None, "now it is");
    play.heard("ann").await;
    assert_eq!(agent(&play, "ann").await.expect("known").max_tasks, 2, "being heard of changes nothing else");
    play.leave(&["ann"]).await;
}

async fn too_many_named_agents_are_turned_away(opener: Opener) {
    let play = Play::open(&opener, Setting { max_named_agents: 2, ..Setting::default() }).await;
    for name in ["r1", "r2", "r3"] {
        put(&play, name, AgentUpdate::default(), true).await.expect("who registers is not counted");
    }
    play.heard("n1").await;
    play.heard("n2").await;
    assert_eq!(play.port.heard(play.agent("n3")).await, Ok(false));
    assert_eq!(agent(&play, "n3").await, None);
    for name in ["n1", "r1"] {
        play.heard(name).await;
    }
    put(&play, "n2", AgentUpdate::default(), true).await.expect("registered, and so not counted any more");
    play.heard("n3").await;
    assert_eq!(play.port.heard(play.agent("n4")).await, Ok(false));
    assert!(play.port.remove(play.agent("n1")).await.expect("answers"));
    play.heard("n4").await;
    play.leave(&["r1", "r2", "r3", "n2", "n3", "n4"]).await;
}

async fn agents_are_listed_by_id_and_in_pages(opener: Opener) {
    let play = Play::usual(&opener).await;
    let names = ["b", "a", "c:d", "Z", "ü"];
    for name in names {
        play.heard(name).await;
    }
    let mut expected: Vec<String> = names.iter().map(|name| play.agent(name)).collect();
    expected.sort();
    for page in [1, 2, 100] {
        let (mut found, mut after) = (Vec::new(), Some(play.tag.clone()));
        loop {
            let views = play.port.agents(after.clone(), page).await.expect("answers");
            assert!(views.len() <= page);
            let Some(last) = views.last() else { break };
            after = Some(last.agent_id.clone());
            found.extend(views.into_iter().map(|view| view.agent_id));
        }
        found.retain(|id| id.starts_with(&format!("{}-", play.tag)));
        assert_eq!(found, expected, "in pages of {page}");
    }
    let all = play.port.agents(None, usize::MAX).await.expect("answers");
    assert!(all.is_sorted_by(|a, b| a.agent_id < b.agent_id));
    assert!(all.contains(&agent(&play, "a").await.expect("known")), "the same as one by one");
    play.leave(&names).await;
}

async fn an_agent_is_removed(opener: Opener) {
    let play = Play::usual(&opener).await;
    assert_eq!(play.port.remove(play.agent("ann")).await, Ok(false));
    put(&play, "ann", AgentUpdate { max_tasks: Some(2), ..AgentUpdate::default() }, true).await.expect("new");
    assert_eq!(play.port.remove(play.agent("ann")).await, Ok(true));
    assert_eq!(agent(&play, "ann").await, None);
    assert_eq!(play.port.remove(play.agent("ann")).await, Ok(false));
    let again = put(&play, "ann", AgentUpdate::default(), true).await.expect("the name is free");
    assert_eq!(again.max_tasks, DEFAULT_MAX_TASKS, "nothing is left of the one before");
    play.leave(&["ann"]).await;
}

async fn a_draining_agent_says_so(opener: Opener) {
    let play = Play::usual(&opener).await;
    let draining = |yes| AgentUpdate { draining: Some(yes), ..AgentUpdate::default() };
    put(&play, "ann", AgentUpdate::default(), true).await.expect("registered");
    for (yes, status) in [(true, Status::Draining), (false, Status::Active)] {
        let view = put(&play, "ann", draining(yes), false).await.expect("changed");
        assert_eq!(view.status, status);
        play.heard("ann").await;
        assert_eq!(agent(&play, "ann").await.expect("known").status, status);
    }
    play.leave(&["ann"]).await;
}

async fn an_agent_may_ask_so_often_and_no_more(opener: Opener) {
    let play = Play::open(&opener, with(|rules| rules.acquisitions_per_minute = 3)).await;
    let before = play.now();
    assert_eq!(play.port.admit(play.agent("ann"), 1).await, Ok(Ok(())));
    let began = before..=play.now();
    for _ in 0..2 {
        assert_eq!(play.port.admit(play.agent("ann"), 1).await, Ok(Ok(())));
    }
    for _ in 0..2 {
        let retry_at = play.port.admit(play.agent("ann"), 1).await.expect("answers").expect_err("too often");
        // A store may keep it by the millisecond.
        let range = ends(began.clone(), 59_999);
        assert!((*range.start()..=range.end().plus_ms(2)).contains(&retry_at), "{retry_at}");
    }
    assert_eq!(play.port.admit(play.agent("ben"), 1).await, Ok(Ok(())), "another agent is not concerned");
}
