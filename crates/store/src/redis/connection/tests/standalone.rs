//! One server: calls, faults of every kind, subscriptions, the gate.

use ade_testkit::Redis;
use rustix::process::Signal;
use tokio::time::Instant;

use super::*;

#[tokio::test]
async fn a_standalone_server_works() {
    let server = Redis::start().expect("redis");
    works(&open(&server.url(), quick()).await).await;
}

#[tokio::test]
async fn thousands_of_channels_are_confirmed() {
    let server = Redis::start().expect("redis");
    let link = open(&server.url(), quick()).await;
    let channels: Vec<_> = (0..5000).map(|number| channel(link.layout(), &format!("c{number}"))).collect();
    for channel in &channels {
        link.subscribe(channel);
        link.subscribe(channel);
    }
    for channel in &channels {
        link.subscribed(channel).await.expect("confirmed");
        link.unsubscribe(channel);
    }
    let mut server_side = server.connect().expect("connects");
    let mut shards = redis::cmd("PUBSUB");
    shards.arg("CHANNELS");
    let subscribed: Vec<String> = shards.query(&mut server_side).expect("channels");
    assert_eq!(subscribed.len(), 5000);
    for channel in &channels {
        link.unsubscribe(channel);
    }
    until("all channels are left", SOON, || {
        let left: Vec<String> = shards.query(&mut server_side).expect("channels");
        std::future::ready(if left.is_empty() { Ok(()) } else { Err(format!("{} left", left.len())) })
    })
    .await
    .expect("left");
    let error = link.subscribed(&channels[0]).await.expect_err("not wanted");
    assert!(error.to_string().contains("subscribe first"), "{error}");
}

#[tokio::test]
async fn a_restart_is_survived_with_its_subscriptions() {
    let server = Redis::start().expect("redis");
    let link = open(&server.url(), quick()).await;
    let mut hints = link.hints();
    subscribe(&link, "a").await;
    count(&link, "a").await.expect("counts");
    server.kill_and_restart().expect("restarts");
    heals(&link, "b").await;
    assert_eq!(heard(&mut hints).await, ChannelEvent::Gap);
    publish(&link, "a", "back").await;
    assert_eq!(heard(&mut hints).await, message(&link, "a", "back"));
    // Empty: what was counted is gone, and nothing was counted twice.
    assert_eq!(count(&link, "a").await, Ok(1));
}

#[tokio::test]
async fn an_end_of_the_connection_between_two_calls_is_not_noticed() {
    let server = Redis::start().expect("redis");
    let link = open(&server.url(), quick()).await;
    let mut server_side = server.connect().expect("connects");
    for round in 1..20 {
        let mut kill = redis::cmd("CLIENT");
        kill.arg("KILL").arg("TYPE").arg("normal").arg("SKIPME").arg("yes");
        let killed: i64 = kill.query(&mut server_side).expect("kills");
        assert!(killed >= 1, "{killed}");
        until("the link knows", SOON, || {
            let known = link.shared.primaries()[0].current_connection().is_none();
            std::future::ready(if known { Ok(()) } else { Err(String::new()) })
        })
        .await
        .expect("known");
        assert_eq!(count(&link, "a").await, Ok(round));
    }
}

#[tokio::test]
async fn answers_go_to_those_who_asked_and_nothing_is_done_twice_while_connections_die() {
    let server = Redis::start().expect("redis");
    let link = open(&server.url(), quick()).await;
    let script = Script::new(format!("{GUARD} return redis.call('INCR', KEYS[1]) .. ':' .. ARGV[2]"));
    let mut asking = tokio::task::JoinSet::new();
    for task in 0..20 {
        let (link, script) = (link.clone(), script.clone());
        asking.spawn(async move {
            let name = format!("t{task}");
            let keys = [key(link.layout(), &name)];
            let (mut done, mut failed) = (0, 0);
            for round in 0..200 {
                let mark = format!("{task}-{round}");
                match link.call(&script, &keys, &[mark.as_bytes()]).await {
                    Ok(value) => {
                        done += 1;
                        let text = String::from_redis_value(value).expect("text");
                        assert!(text.ends_with(&format!(":{mark}")), "{text} is not for {mark}");
                    }
                    Err(_) => failed += 1,
                }
            }
            let all = 1 + done + failed;
            let counted = until("counts at last", SOON, || count(&link, &name)).await.expect("counts");
            // One that failed may have been carried out; none was carried out twice.
            assert!((done < counted) && (counted <= all), "{counted}: {done} done, {failed} failed");
            failed
        });
    }
    let mut server_side = server.connect().expect("connects");
    let mut kill = redis::cmd("CLIENT");
    kill.arg("KILL").arg("TYPE").arg("normal").arg("SKIPME").arg("yes");
    let mut failed = Vec::new();
    while failed.len() < 20 {
        let _: i64 = kill.query(&mut server_side).expect("kills");
        if let Ok(Some(joined)) = timeout(Duration::from_millis(20), asking.join_next()).await {
            failed.push(joined.expect("no task fails"));
        }
    }
    assert!(failed.iter().sum::<i64>() > 0, "the connection never ended during a call");
}

#[tokio::test]
async fn a_dead_server_is_told_fast_and_without_the_password() {
    let server = Redis::start().expect("redis");
    let url = server.url().replace("://", "://:hush@");
    let link = open(&url, quick()).await;
    server.kill().expect("dies");
    let mut last = String::new();
    for _ in 0..20 {
        let started = Instant::now();
        last = count(&link, "a").await.expect_err("is down");
        assert!(started.elapsed() < Duration::from_secs(1), "{:?}: {last}", started.elapsed());
    }
    assert!(last.contains("redis://:***@127.0.0.1"), "{last}");
    assert!(!last.contains("hush"), "{last}");
    let again = RedisClient::open(&url.parse().expect("a url"), quick()).await.err().expect("is down");
    assert!(again.to_string().contains(":***@") && !again.to_string().contains("hush"), "{again}");
}

#[tokio::test]
async fn a_stopped_server_fails_calls_in_time_and_recovers() {
    let server = Redis::start().expect("redis");
    let options = ConnectionOptions { response_timeout: Duration::from_millis(1500), ..quick() };
    let link = open(&server.url(), options).await;
    let mut hints = link.hints();
    subscribe(&link, "a").await;
    assert_eq!(count(&link, "a").await, Ok(1));
    server.process().signal(Signal::STOP).expect("stops");
    let started = Instant::now();
    count(&link, "a").await.expect_err("no answer");
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    for _ in 0..3 {
        let started = Instant::now();
        count(&link, "a").await.expect_err("known to be down");
        assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    }
    server.process().signal(Signal::CONT).expect("goes on");
    heals(&link, "b").await;
    // The first call that got no answer was carried out; the answer came to nobody.
    assert_eq!(count(&link, "a").await, Ok(3));
    gets_through(&link, &mut hints, "a", "back").await;
}

#[tokio::test]
async fn scripts_wait_before_the_gate_of_a_new_server() {
    let skew = Duration::from_millis(600);
    let server = Redis::start().expect("redis");
    let started = Instant::now();
    let link =
        open(&server.url(), ConnectionOptions { max_clock_skew: skew, ..ConnectionOptions::default() }).await;
    assert!(started.elapsed() < skew);
    link.ask(&key(link.layout(), "a"), redis::cmd("PING")).await.expect("reads do not wait");
    assert!(started.elapsed() < skew);
    count(&link, "a").await.expect("counts");
    assert!(started.elapsed() >= skew, "{:?}", started.elapsed());
    let calm = Instant::now();
    count(&link, "a").await.expect("counts");
    assert!(calm.elapsed() < skew);

    server.kill_and_restart().expect("restarts");
    let restarted = Instant::now();
    heals(&link, "a").await;
    assert!(restarted.elapsed() >= skew, "{:?}", restarted.elapsed());

    // The same server over another connection: nothing to wait for.
    let mut kill = redis::cmd("CLIENT");
    kill.arg("KILL").arg("TYPE").arg("normal").arg("SKIPME").arg("yes");
    let _: i64 = kill.query(&mut server.connect().expect("connects")).expect("kills");
    let again = Instant::now();
    heals(&link, "a").await;
    assert!(again.elapsed() < skew, "{:?}", again.elapsed());
}

#[tokio::test]
async fn a_primary_that_became_a_replica_is_left_and_found_again() {
    let skew = Duration::from_millis(600);
    let server = Redis::start().expect("redis");
    let mut server_side = server.connect().expect("connects");
    let link =
        open(&server.url(), ConnectionOptions { max_clock_skew: skew, ..ConnectionOptions::default() }).await;
    count(&link, "a").await.expect("counts");
    let mut follow = redis::cmd("REPLICAOF");
    follow.arg("127.0.0.1").arg(1).exec(&mut server_side).expect("follows nobody");
    let error = count(&link, "a").await.expect_err("not a primary");
    assert!(error.contains("is a replica"), "{error}");
    let promoted = Instant::now();
    redis::cmd("REPLICAOF").arg("NO").arg("ONE").exec(&mut server_side).expect("leads");
    heals(&link, "a").await;
    // The same process, but promoted: its gate was closed again.
    assert!(promoted.elapsed() >= skew, "{:?}", promoted.elapsed());
    assert_eq!(count(&link, "a").await, Ok(3));
}

#[tokio::test]
async fn what_was_certainly_not_done_is_repeated_but_not_for_ever() {
    let server = Redis::start().expect("redis");
    let link = open(&server.url(), quick()).await;
    let keys = [key(link.layout(), "a")];
    let another = "return redis.error_reply('ANOTHERPRIMARY')";
    let third = Script::new(format!("if redis.call('INCR', KEYS[1]) < 3 then {another} end return ARGV[2]"));
    let value = link.call(&third, &keys, &[b"x"]).await.expect("the third time");
    assert_eq!(value, Value::BulkString(b"x".to_vec()));
    let never = link.call(&Script::new(another), &keys, &[]).await.expect_err("never").to_string();
    assert!(never.contains("gave up"), "{never}");
    let wrong = Script::new("return redis.call('NONSENSE')");
    let wrong = link.call(&wrong, &keys, &[]).await.expect_err("wrong").to_string();
    assert!(wrong.contains("refused") && !wrong.contains("gave up"), "{wrong}");
}

#[tokio::test]
async fn acks_of_replicas_are_counted() {
    let server = Redis::start().expect("redis");
    let link = open(&server.url(), quick()).await;
    let keys = [key(link.layout(), "a")];
    let within = Duration::from_millis(50);
    let (value, acks) = link.call_acked(&counter(), &keys, &[b"1"], 0, within).await.expect("called");
    assert_eq!((number(value), acks), (1, 0));
    let (value, acks) = link.call_acked(&counter(), &keys, &[b"1"], 1, within).await.expect("called");
    assert_eq!((number(value), acks), (2, 0));
    // Waiting for replicas holds up nobody else.
    let script = counter();
    let waiting = link.call_acked(&script, &keys, &[b"1"], 1, Duration::from_secs(30));
    tokio::select! {
        biased;
        _ = waiting => panic!("there is no replica"),
        counted = count(&link, "b") => assert_eq!(counted, Ok(1)),
    }
    let port = server.port().to_string();
    let _replica = Redis::start_with(&["--replicaof", "127.0.0.1", &port]).expect("a replica");
    until("the replica follows", SOON, || async {
        match link.call_acked(&counter(), &keys, &[b"1"], 1, within).await {
            Ok((_, 1)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .expect("an ack");
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let (link, keys) = (link.clone(), keys.clone());
        calls.spawn(async move {
            let within = Duration::from_secs(5);
            link.call_acked(&counter(), &keys, &[b"1"], 1, within).await.expect("called").1
        });
    }
    assert_eq!(calls.join_all().await, vec![1; 100]);
}

#[tokio::test]
async fn the_last_link_ends_everything() {
    let server = Redis::start().expect("redis");
    let mut server_side = server.connect().expect("connects");
    let link = open(&server.url(), quick()).await;
    let mut hints = link.hints();
    subscribe(&link, "a").await;
    let other = link.clone();
    drop(link);
    count(&other, "a").await.expect("still there");
    drop(other);
    assert_eq!(timeout(SOON, hints.next()).await, Ok(None));
    until("all connections are closed", SOON, || {
        let list: String = redis::cmd("CLIENT").arg("LIST").query(&mut server_side).expect("a list");
        std::future::ready(if list.lines().count() == 1 { Ok(()) } else { Err(list) })
    })
    .await
    .expect("closed");
}
