//! Views of locks: single locks, filtered and paged lists, waits with their blockers, names with special characters.

#![expect(clippy::expect_used, clippy::indexing_slicing, reason = "helpers of tests fail like tests")]

use ade_domain::lock::{
    AcquireStatus, Acquisition, Holder, LockCommand, LockKind, LockMode, LockName, LockOutcome, RequestKey,
};
use ade_store::coordination::{LockCounts, LockEventKind, LockFilter, LockView, WaitView};

use super::BackendFactory;
use super::fixture::{Fixture, in_time};

use LockMode::{Exclusive, Shared};

scenarios!(
    unknown_lock_is_empty,
    peeks_at_several_locks,
    lists_locks_by_name_in_pages,
    filters_locks_by_agent,
    filters_locks_by_resource_type_and_kind,
    omits_unused_locks,
    lists_waits_with_blockers,
    counts_locks_and_waiters,
    lists_many_locks_in_pages,
    preserves_special_characters_in_names,
    reports_configured_limits_and_clock,
);

async fn list(fixture: &Fixture, filter: LockFilter, after: Option<LockName>, limit: usize) -> Vec<LockView> {
    fixture.backend.list_locks(filter, after, limit).await.expect("a reply")
}

fn names(views: &[LockView]) -> Vec<LockName> {
    views.iter().map(|view| view.lock.clone()).collect()
}

fn in_namespace(fixture: &Fixture) -> LockFilter {
    LockFilter { resource_type: Some(fixture.namespace.clone()), ..LockFilter::default() }
}

async fn unknown_lock_is_empty(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    let view = fixture.view("unknown").await;
    assert_eq!(view.lock, fixture.lock("unknown"));
    assert_eq!((view.mode, view.queue_length), (None, 0));
    assert!(view.holders.is_empty() && view.queue.is_empty());
    assert!(list(&fixture, in_namespace(&fixture), None, 10).await.is_empty(), "a lookup creates nothing");
}

async fn peeks_at_several_locks(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    fixture.expect_grant("p", fixture.request("ann", "1", Exclusive)).await;
    fixture.expect_queued("p", fixture.request("ben", "2", Exclusive)).await;
    fixture.expect_queued("p", fixture.request("cat", "3", Shared)).await;
    fixture.expect_grant("q", fixture.request("ann", "4", Shared)).await;
    fixture.expect_grant("q", fixture.request("ben", "5", Shared)).await;
    let short = Acquisition { ttl_ms: 200, ..fixture.request("ann", "6", Exclusive) };
    fixture.expect_grant("short", short).await;
    let peek = async |wanted: &[&str]| {
        let locks: Vec<LockName> = wanted.iter().map(|name| fixture.lock(name)).collect();
        let views = fixture.backend.peek_locks(locks.clone()).await.expect("a reply");
        assert_eq!(names(&views), locks, "in the given order");
        views
    };
    let views = peek(&["q", "unknown", "p", "q"]).await;
    let seen: Vec<_> = views.iter().map(|view| (view.mode, view.holders.len(), view.queue_length)).collect();
    assert_eq!(seen, [(Some(Shared), 2, 0), (None, 0, 0), (Some(Exclusive), 1, 2), (Some(Shared), 2, 0)]);
    assert_eq!(views[2].holders, fixture.view("p").await.holders);
    assert!(views.iter().all(|view| view.queue.is_empty()));
    fixture.advance(201).await;
    let views = peek(&["short"]).await;
    assert_eq!((views[0].mode, views[0].holders.len()), (None, 0), "an expired holder is left out");
    assert!(peek(&[]).await.is_empty());
}

async fn lists_locks_by_name_in_pages(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    let mut expected: Vec<LockName> =
        ["p", "a", "_", "z", "a:b", "ü"].map(|name| fixture.lock(name)).to_vec();
    for lock in &expected {
        fixture.command(lock, LockCommand::Acquire(fixture.request("ann", lock.as_str(), Exclusive))).await;
    }
    expected.sort();
    assert_eq!(names(&list(&fixture, in_namespace(&fixture), None, 100).await), expected);
    for page in 1..=expected.len() {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let views = list(&fixture, in_namespace(&fixture), after.clone(), page).await;
            assert!(views.len() <= page);
            let Some(last) = views.last() else { break };
            after = Some(last.lock.clone());
            found.extend(names(&views));
        }
        assert_eq!(found, expected, "in pages of {page}");
    }
    let between = Some(fixture.lock("m"));
    assert_eq!(
        names(&list(&fixture, in_namespace(&fixture), between, 1).await),
        [fixture.lock("p")],
        "the cursor need not be an existing lock"
    );
}

async fn filters_locks_by_agent(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    fixture.expect_grant("a", fixture.request("ann", "1", Exclusive)).await;
    fixture.expect_grant("b", fixture.request("ben", "1", Exclusive)).await;
    fixture.expect_queued("b", fixture.request("ann", "1", Exclusive)).await;
    fixture.expect_grant("c", fixture.request("ben", "1", Exclusive)).await;
    let attempt = Holder::new(&fixture.agent("ann"), Some("attempt")).expect("valid");
    let request = RequestKey::derive(&attempt, "1");
    fixture
        .expect_grant("d", Acquisition { holder: attempt, request, ..fixture.request("ann", "1", Shared) })
        .await;
    // An agent id that starts with another id is a different agent.
    fixture.expect_grant("e", fixture.request("ann2", "1", Exclusive)).await;
    let of = |name: &str| LockFilter { agent: Some(fixture.agent(name)), ..LockFilter::default() };
    let views = list(&fixture, of("ann"), None, 10).await;
    assert_eq!(names(&views), ["a", "b", "d"].map(|name| fixture.lock(name)), "held or awaited");
    assert_eq!((views[1].queue_length, views[1].queue[0].holder.clone()), (1, fixture.holder("ann")));
    assert_eq!(views[1], fixture.view("b").await, "same view as a single lookup");
    assert_eq!(names(&list(&fixture, of("ann"), Some(fixture.lock("a")), 1).await), [fixture.lock("b")]);
    assert_eq!(names(&list(&fixture, of("ann2"), None, 10).await), [fixture.lock("e")]);
    assert!(list(&fixture, of("nobody"), None, 10).await.is_empty());
    let both = LockFilter { resource_type: Some("other".into()), ..of("ann") };
    assert!(list(&fixture, both, None, 10).await.is_empty());
}

async fn filters_locks_by_resource_type_and_kind(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    let task: LockName = format!("task:{}", fixture.namespace).parse().expect("valid");
    let similar: LockName = format!("resource:{}x:p", fixture.namespace).parse().expect("valid");
    let resource = fixture.lock("p");
    for lock in [&task, &similar, &resource] {
        fixture.command(lock, LockCommand::Acquire(fixture.request("ann", "1", Exclusive))).await;
    }
    let of_ann = |kind| LockFilter { agent: Some(fixture.agent("ann")), kind, ..LockFilter::default() };
    assert_eq!(
        names(&list(&fixture, in_namespace(&fixture), None, 10).await),
        std::slice::from_ref(&resource)
    );
    assert_eq!(
        names(&list(&fixture, of_ann(Some(LockKind::Task)), None, 10).await),
        std::slice::from_ref(&task)
    );
    let resources = names(&list(&fixture, of_ann(Some(LockKind::Resource)), None, 10).await);
    assert_eq!(resources, [resource.clone(), similar.clone()]);
    let all = names(&list(&fixture, of_ann(None), None, 10).await);
    assert_eq!(all, [task.clone(), resource, similar], "tasks before resources");
    let tasks = LockFilter { kind: Some(LockKind::Task), ..LockFilter::default() };
    let found = list(&fixture, tasks, None, usize::MAX).await;
    assert!(found.iter().all(|view| view.lock.kind() == LockKind::Task) && names(&found).contains(&task));
}

async fn omits_unused_locks(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    fixture.expect_grant("p", fixture.request("ann", "1", Exclusive)).await;
    fixture.expect_grant("q", Acquisition { ttl_ms: 300, ..fixture.request("ann", "2", Exclusive) }).await;
    fixture.release("p", "ann").await;
    fixture.advance(400).await;
    fixture.sweep().await;
    assert!(list(&fixture, in_namespace(&fixture), None, 10).await.is_empty());
    assert!(
        list(&fixture, LockFilter { agent: Some(fixture.agent("ann")), ..LockFilter::default() }, None, 10)
            .await
            .is_empty()
    );
}

async fn lists_waits_with_blockers(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    fixture.expect_grant("p", fixture.request("s1", "1", Shared)).await;
    fixture.expect_grant("p", fixture.request("s2", "1", Shared)).await;
    fixture.expect_queued("p", fixture.request("w1", "1", Exclusive)).await;
    fixture.expect_queued("p", fixture.request("s3", "1", Shared)).await;
    fixture.expect_queued("p", fixture.request("w2", "1", Exclusive)).await;
    let all = fixture.backend.waits(usize::MAX).await.expect("a reply");
    let mut waits: Vec<WaitView> = all.into_iter().filter(|wait| wait.lock == fixture.lock("p")).collect();
    waits.sort_by(|a, b| a.holder.cmp(&b.holder));
    let wait = |who: &str, mode, ahead: &[&str]| WaitView {
        holder: fixture.holder(who),
        lock: fixture.lock("p"),
        mode,
        request: fixture.key(who, "1"),
        holders: ["s1", "s2"].map(|name| fixture.holder(name)).to_vec(),
        ahead: ahead.iter().map(|name| fixture.holder(name)).collect(),
    };
    let expected = [wait("s3", Shared, &["w1"]), wait("w1", Exclusive, &[]), wait("w2", Exclusive, &["s3"])];
    for (found, expected) in waits.iter().zip(&expected) {
        let same = WaitView { ahead: expected.ahead.clone(), ..found.clone() };
        assert_eq!(&same, expected);
        assert!(expected.ahead.iter().all(|holder| found.ahead.contains(holder)), "{found:?}");
    }
    assert_eq!(waits.len(), 3);
    assert_eq!(fixture.backend.waits(1).await.expect("a reply").len(), 1, "limited");
}

async fn counts_locks_and_waiters(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    let counts = async || {
        let LockCounts { held, waiting, .. } = fixture.backend.counts().await.expect("a reply");
        (held, waiting)
    };
    fixture.expect_grant("p", fixture.request("s1", "1", Shared)).await;
    fixture.expect_grant("p", fixture.request("s2", "1", Shared)).await;
    fixture.expect_grant("q", fixture.request("s1", "2", Exclusive)).await;
    assert_eq!(counts().await, (2, 0), "a shared lock counts once");
    fixture.expect_queued("p", fixture.request("w1", "1", Exclusive)).await;
    fixture.expect_queued("p", fixture.request("w2", "1", Exclusive)).await;
    assert_eq!(counts().await, (2, 2));
    fixture.release("p", "s1").await;
    fixture.release("p", "s2").await;
    assert_eq!(counts().await, (2, 1), "the first waiter was promoted");
    fixture.release("p", "w1").await;
    fixture.release("p", "w2").await;
    assert_eq!(counts().await, (1, 0));
    assert!(fixture.backend.waits(usize::MAX).await.expect("a reply").is_empty());
    fixture.release("q", "s1").await;
    assert_eq!(counts().await, (0, 0));
}

/// More than a backend reads at once.
async fn lists_many_locks_in_pages(factory: BackendFactory) {
    const LOCKS: usize = 700;
    let fixture = Fixture::new(&factory).await;
    let mut expected: Vec<LockName> = (0..LOCKS).map(|number| fixture.lock(&number.to_string())).collect();
    for batch in expected.chunks(100) {
        let acquire = |lock: &LockName| {
            (lock.clone(), LockCommand::Acquire(fixture.no_wait("ann", lock.as_str(), Exclusive)))
        };
        fixture.backend.execute_commands(batch.iter().map(acquire).collect()).await.expect("replies");
    }
    expected.sort();
    let of_ann = LockFilter { agent: Some(fixture.agent("ann")), ..LockFilter::default() };
    for filter in [LockFilter::default(), in_namespace(&fixture), of_ann] {
        assert_eq!(names(&list(&fixture, filter.clone(), None, usize::MAX).await), expected, "{filter:?}");
        let (first, last) = (expected[0].clone(), expected[LOCKS - 1].clone());
        let page = list(&fixture, filter.clone(), Some(first), 600).await;
        assert_eq!(names(&page), expected[1..=600], "{filter:?}");
        assert!(list(&fixture, filter, Some(last), 10).await.is_empty());
    }
}

async fn preserves_special_characters_in_names(factory: BackendFactory) {
    let fixture = Fixture::new(&factory).await;
    let special = ":{}%:{a}:%7B ü🔒\n\t\"\\*?[x]";
    let lock = fixture.lock(special);
    let task: LockName = format!("task:{}{special}", fixture.namespace).parse().expect("valid");
    let agent = format!("{}{special}", fixture.namespace);
    let holder = Holder::new(&agent, Some(special)).expect("valid");
    let request = Acquisition {
        request: RequestKey::derive(&holder, special),
        holder: holder.clone(),
        purpose: special.into(),
        ..fixture.request("ann", "1", Exclusive)
    };
    let mut events = fixture.backend.subscribe_events();
    for name in [&lock, &task] {
        let reply = fixture.command(name, LockCommand::Acquire(request.clone())).await;
        assert!(matches!(reply.outcome, LockOutcome::Status(AcquireStatus::Held(_))), "{reply:?}");
        fixture.command(name, LockCommand::Acquire(fixture.request("ben", "1", Exclusive))).await;
        let view = fixture.backend.lock_view(name.clone()).await.expect("a reply");
        assert_eq!(view.lock.as_str(), name.as_str());
        assert_eq!((&view.holders[0].holder, &*view.holders[0].purpose), (&holder, special));
        let event = loop {
            let event = in_time(events.recv()).await.expect("not lagging");
            if event.lock == *name {
                break event;
            }
        };
        assert!(matches!(&event.kind, LockEventKind::Acquired(who, _) if *who == holder), "{event:?}");
    }
    let of_agent = LockFilter { agent: Some(agent.clone()), ..LockFilter::default() };
    assert_eq!(names(&list(&fixture, of_agent, None, 10).await), [task.clone(), lock.clone()]);
    let waits = fixture.backend.waits(usize::MAX).await.expect("a reply");
    let wait = waits.iter().find(|wait| wait.lock == lock).expect("ben waits");
    assert_eq!(wait.holders, [holder]);
    fixture.backend.record_heartbeat(agent.clone()).await.expect("a reply");
    let view = fixture.backend.agent(agent.clone()).await.expect("a reply").expect("known");
    assert_eq!((&view.agent_id, &view.profile.name), (&agent, &agent));
    fixture.backend.remove_agent(agent).await.expect("a reply");
}

async fn reports_configured_limits_and_clock(factory: BackendFactory) {
    let settings = super::fixture::with_limits(|limits| limits.max_queue = 17);
    let fixture = Fixture::with_settings(&factory, settings.clone()).await;
    assert_eq!(fixture.backend.limits(), &settings.limits);
    let before = fixture.now();
    fixture.advance(2).await;
    assert!(fixture.now() >= before.plus_ms(2));
}
