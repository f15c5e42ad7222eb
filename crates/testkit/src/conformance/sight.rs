//! What people see: one lock, lists of locks with filters and pages, who waits for whom, names as they were given.

#![expect(clippy::expect_used, clippy::indexing_slicing, reason = "helpers of tests fail like tests")]

use ade_domain::lock::{
    Acquire, Holder, LockCommand, LockKind, LockName, Mode, Outcome, RequestKey, Standing,
};
use ade_store::coordination::{Filter, LockEventKind, LockView, WaitView};

use super::Opener;
use super::play::{Play, soon};

use Mode::{Exclusive, Shared};

scenarios!(
    an_unknown_lock_has_neither_holders_nor_queue,
    locks_are_listed_by_name_and_in_pages,
    locks_are_listed_by_agent,
    locks_are_listed_by_type_and_by_kind,
    what_nobody_holds_or_waits_for_is_not_listed,
    waits_tell_who_is_in_the_way,
    names_come_back_as_they_were_given,
    rules_are_those_of_the_stage,
);

async fn list(play: &Play, filter: Filter, after: Option<LockName>, limit: usize) -> Vec<LockView> {
    play.port.list(filter, after, limit).await.expect("answers")
}

fn names(views: &[LockView]) -> Vec<LockName> {
    views.iter().map(|view| view.lock.clone()).collect()
}

fn of_type(play: &Play) -> Filter {
    Filter { resource_type: Some(play.tag.clone()), ..Filter::default() }
}

async fn an_unknown_lock_has_neither_holders_nor_queue(opener: Opener) {
    let play = Play::usual(&opener).await;
    let view = play.look("unknown").await;
    assert_eq!(view.lock, play.lock("unknown"));
    assert_eq!((view.mode, view.queue_length), (None, 0));
    assert!(view.holders.is_empty() && view.queue.is_empty());
    assert!(list(&play, of_type(&play), None, 10).await.is_empty(), "a look leaves no trace");
}

async fn locks_are_listed_by_name_and_in_pages(opener: Opener) {
    let play = Play::usual(&opener).await;
    let mut expected: Vec<LockName> = ["p", "a", "Z", "z", "a:b", "ü"].map(|name| play.lock(name)).to_vec();
    for lock in &expected {
        play.command(lock, LockCommand::Acquire(play.wish("ann", lock.as_str(), Exclusive))).await;
    }
    expected.sort();
    assert_eq!(names(&list(&play, of_type(&play), None, 100).await), expected);
    for page in 1..=expected.len() {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let views = list(&play, of_type(&play), after.clone(), page).await;
            assert!(views.len() <= page);
            let Some(last) = views.last() else { break };
            after = Some(last.lock.clone());
            found.extend(names(&views));
        }
        assert_eq!(found, expected, "in pages of {page}");
    }
    let between = Some(play.lock("m"));
    assert_eq!(
        names(&list(&play, of_type(&play), between, 1).await),
        [play.lock("p")],
        "after no lock at all"
    );
}

async fn locks_are_listed_by_agent(opener: Opener) {
    let play = Play::usual(&opener).await;
    play.grant("a", play.wish("ann", "1", Exclusive)).await;
    play.grant("b", play.wish("ben", "1", Exclusive)).await;
    play.position("b", play.wish("ann", "1", Exclusive)).await;
    play.grant("c", play.wish("ben", "1", Exclusive)).await;
    let attempt = Holder::new(&play.agent("ann"), Some("attempt")).expect("valid");
    let request = RequestKey::of(&attempt, "1");
    play.grant("d", Acquire { holder: attempt, request, ..play.wish("ann", "1", Shared) }).await;
    // An agent whose id begins with another's is another agent.
    play.grant("e", play.wish("ann2", "1", Exclusive)).await;
    let of = |name: &str| Filter { agent: Some(play.agent(name)), ..Filter::default() };
    let views = list(&play, of("ann"), None, 10).await;
    assert_eq!(names(&views), ["a", "b", "d"].map(|name| play.lock(name)), "held or waited for");
    assert_eq!((views[1].queue_length, views[1].queue[0].holder.clone()), (1, play.holder("ann")));
    assert_eq!(views[1], play.look("b").await, "the same as a look");
    assert_eq!(names(&list(&play, of("ann"), Some(play.lock("a")), 1).await), [play.lock("b")]);
    assert_eq!(names(&list(&play, of("ann2"), None, 10).await), [play.lock("e")]);
    assert!(list(&play, of("nobody"), None, 10).await.is_empty());
    let both = Filter { resource_type: Some("other".into()), ..of("ann") };
    assert!(list(&play, both, None, 10).await.is_empty());
}

async fn locks_are_listed_by_type_and_by_kind(opener: Opener) {
    let play = Play::usual(&opener).await;
    let task: LockName = format!("task:{}", play.tag).parse().expect("valid");
    let similar: LockName = format!("resource:{}x:p", play.tag).parse().expect("valid");
    let resource = play.lock("p");
    for lock in [&task, &similar, &resource] {
        play.command(lock, LockCommand::Acquire(play.wish("ann", "1", Exclusive))).await;
    }
    let of_ann = |kind| Filter { agent: Some(play.agent("ann")), kind, ..Filter::default() };
    assert_eq!(names(&list(&play, of_type(&play), None, 10).await), std::slice::from_ref(&resource));
    assert_eq!(
        names(&list(&play, of_ann(Some(LockKind::Task)), None, 10).await),
        std::slice::from_ref(&task)
    );
    let resources = names(&list(&play, of_ann(Some(LockKind::Resource)), None, 10).await);
    assert_eq!(resources, [resource.clone(), similar.clone()]);
    let all = names(&list(&play, of_ann(None), None, 10).await);
    assert_eq!(all, [task.clone(), resource, similar], "tasks before resources");
    let tasks = Filter { kind: Some(LockKind::Task), ..Filter::default() };
    let found = list(&play, tasks, None, usize::MAX).await;
    assert!(found.iter().all(|view| view.lock.kind() == LockKind::Task) && names(&found).contains(&task));
}

async fn what_nobody_holds_or_waits_for_is_not_listed(opener: Opener) {
    let play = Play::usual(&opener).await;
    play.grant("p", play.wish("ann", "1", Exclusive)).await;
    play.grant("q", Acquire { ttl_ms: 300, ..play.wish("ann", "2", Exclusive) }).await;
    play.release("p", "ann").await;
    play.pass(400).await;
    play.sweep().await;
    assert!(list(&play, of_type(&play), None, 10).await.is_empty());
    assert!(
        list(&play, Filter { agent: Some(play.agent("ann")), ..Filter::default() }, None, 10)
            .await
            .is_empty()
    );
}

async fn waits_tell_who_is_in_the_way(opener: Opener) {
    let play = Play::usual(&opener).await;
    play.grant("p", play.wish("s1", "1", Shared)).await;
    play.grant("p", play.wish("s2", "1", Shared)).await;
    play.position("p", play.wish("w1", "1", Exclusive)).await;
    play.position("p", play.wish("s3", "1", Shared)).await;
    play.position("p", play.wish("w2", "1", Exclusive)).await;
    let all = play.port.waits(usize::MAX).await.expect("answers");
    let mut waits: Vec<WaitView> = all.into_iter().filter(|wait| wait.lock == play.lock("p")).collect();
    waits.sort_by(|a, b| a.holder.cmp(&b.holder));
    let wait = |who: &str, mode, ahead: &[&str]| WaitView {
        holder: play.holder(who),
        lock: play.lock("p"),
        mode,
        request: play.key(who, "1"),
        holders: ["s1", "s2"].map(|name| play.holder(name)).to_vec(),
        ahead: ahead.iter().map(|name| play.holder(name)).collect(),
    };
    let expected = [wait("s3", Shared, &["w1"]), wait("w1", Exclusive, &[]), wait("w2", Exclusive, &["s3"])];
    for (found, wanted) in waits.iter().zip(&expected) {
        let same = WaitView { ahead: wanted.ahead.clone(), ..found.clone() };
        assert_eq!(&same, wanted);
        assert!(wanted.ahead.iter().all(|one| found.ahead.contains(one)), "{found:?}");
    }
    assert_eq!(waits.len(), 3);
    assert_eq!(play.port.waits(1).await.expect("answers").len(), 1, "at most so many");
}

async fn names_come_back_as_they_were_given(opener: Opener) {
    let play = Play::usual(&opener).await;
    let strange = ":{}%:{a}:%7B ü🔒\n\t\"\\*?[x]";
    let lock = play.lock(strange);
    let task: LockName = format!("task:{}{strange}", play.tag).parse().expect("valid");
    let agent = format!("{}{strange}", play.tag);
    let holder = Holder::new(&agent, Some(strange)).expect("valid");
    let wish = Acquire {
        request: RequestKey::of(&holder, strange),
        holder: holder.clone(),
        purpose: strange.into(),
        ..play.wish("ann", "1", Exclusive)
    };
    let mut events = play.port.events();
    for name in [&lock, &task] {
        let answer = play.command(name, LockCommand::Acquire(wish.clone())).await;
        assert!(matches!(answer.outcome, Outcome::Standing(Standing::Held(_))), "{answer:?}");
        play.command(name, LockCommand::Acquire(play.wish("ben", "1", Exclusive))).await;
        let view = play.port.look(name.clone()).await.expect("answers");
        assert_eq!(view.lock.as_str(), name.as_str());
        assert_eq!((&view.holders[0].holder, &*view.holders[0].purpose), (&holder, strange));
        let happening = loop {
            let happening = soon(events.recv()).await.expect("not too slow");
            if happening.lock == *name {
                break happening;
            }
        };
        assert!(
            matches!(&happening.event, LockEventKind::Acquired(who, _) if *who == holder),
            "{happening:?}"
        );
    }
    let of_agent = Filter { agent: Some(agent.clone()), ..Filter::default() };
    assert_eq!(names(&list(&play, of_agent, None, 10).await), [task.clone(), lock.clone()]);
    let waits = play.port.waits(usize::MAX).await.expect("answers");
    let wait = waits.iter().find(|wait| wait.lock == lock).expect("ben waits");
    assert_eq!(wait.holders, [holder]);
    play.port.heard(agent.clone()).await.expect("answers");
    let view = play.port.agent(agent.clone()).await.expect("answers").expect("known");
    assert_eq!((&view.agent_id, &view.profile.name), (&agent, &agent));
    play.port.remove(agent).await.expect("answers");
}

async fn rules_are_those_of_the_stage(opener: Opener) {
    let setting = super::play::with(|rules| rules.max_queue = 17);
    let play = Play::open(&opener, setting.clone()).await;
    assert_eq!(play.port.rules(), &setting.rules);
    let before = play.now();
    play.pass(2).await;
    assert!(play.now() >= before.plus_ms(2));
}
