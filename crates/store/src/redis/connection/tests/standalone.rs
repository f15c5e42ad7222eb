//! A standalone server: calls, failures, subscriptions, and the gate of a new server.

use ade_testkit::Redis;
use rustix::process::Signal;
use tokio::time::Instant;

use super::*;

fn kill_client_connections(admin: &mut redis::Connection) -> i64 {
    let mut kill = redis::cmd("CLIENT");
    kill.arg("KILL").arg("TYPE").arg("normal").arg("SKIPME").arg("yes");
    kill.query(admin).expect("killed")
}

#[tokio::test]
async fn supports_standalone_server() {
    let server = Redis::start().expect("server starts");
    check_basic_behaviour(&open(&server.url(), short_skew()).await).await;
}

#[tokio::test]
async fn confirms_thousands_of_channels() {
    let server = Redis::start().expect("server starts");
    let client = open(&server.url(), short_skew()).await;
    let channels: Vec<_> = (0..5000).map(|number| channel(client.layout(), &format!("c{number}"))).collect();
    for channel in &channels {
        client.subscribe(channel);
    }
    for channel in &channels {
        client.confirm_subscription(channel).await.expect("confirmed");
    }
    let mut admin = server.connect().expect("connected");
    let mut list = redis::cmd("PUBSUB");
    list.arg("CHANNELS");
    let subscribed: Vec<String> = list.query(&mut admin).expect("channels");
    assert_eq!(subscribed.len(), 5000);
    for channel in &channels {
        client.unsubscribe(channel);
    }
    until("all channels are unsubscribed", TEST_TIMEOUT, || {
        let remaining: Vec<String> = list.query(&mut admin).expect("channels");
        std::future::ready(if remaining.is_empty() {
            Ok(())
        } else {
            Err(format!("{} remain", remaining.len()))
        })
    })
    .await
    .expect("unsubscribed");
    let error = client.confirm_subscription(&channels[0]).await.expect_err("not subscribed");
    assert!(error.to_string().contains("subscribe first"), "{error}");
}

#[tokio::test]
async fn restores_subscriptions_after_restart() {
    let server = Redis::start().expect("server starts");
    let client = open(&server.url(), short_skew()).await;
    let mut events = client.channel_events();
    subscribe(&client, "a").await;
    increment(&client, "a").await.expect("incremented");
    server.kill_and_restart().expect("restarted");
    wait_until_healthy(&client, "b").await;
    assert_eq!(next_event(&mut events).await, ChannelEvent::Gap);
    publish(&client, "a", "back").await;
    assert_eq!(next_event(&mut events).await, message(&client, "a", "back"));
    // The server restarted empty, and nothing was counted twice.
    assert_eq!(increment(&client, "a").await, Ok(1));
}

#[tokio::test]
async fn reconnects_transparently_between_calls() {
    let server = Redis::start().expect("server starts");
    let client = open(&server.url(), short_skew()).await;
    let mut admin = server.connect().expect("connected");
    for round in 1..20 {
        let killed = kill_client_connections(&mut admin);
        assert!(killed >= 1, "{killed}");
        until("the client notices", TEST_TIMEOUT, || {
            let is_disconnected = client.state.servers.primaries()[0].current_connection().is_none();
            std::future::ready(if is_disconnected { Ok(()) } else { Err(String::new()) })
        })
        .await
        .expect("disconnect noticed");
        assert_eq!(increment(&client, "a").await, Ok(round));
    }
}

#[tokio::test]
async fn matches_replies_and_never_repeats_while_connections_drop() {
    let server = Redis::start().expect("server starts");
    let client = open(&server.url(), short_skew()).await;
    let script = script(format!("{GUARD} return redis.call('INCR', KEYS[1]) .. ':' .. ARGV[2]"));
    let mut callers = tokio::task::JoinSet::new();
    for task in 0..20 {
        let (client, script) = (client.clone(), script.clone());
        callers.spawn(async move {
            let name = format!("t{task}");
            let keys = [key(client.layout(), &name)];
            let (mut succeeded, mut failed) = (0, 0);
            for round in 0..200 {
                let tag = format!("{task}-{round}");
                match client.call(&script, &keys.each_ref(), &[&tag]).await {
                    Ok(value) => {
                        succeeded += 1;
                        let text = String::from_redis_value(value).expect("text");
                        assert!(text.ends_with(&format!(":{tag}")), "{text} is not for {tag}");
                    }
                    Err(_) => failed += 1,
                }
            }
            let attempts = 1 + succeeded + failed;
            let counted = until("the server replies", TEST_TIMEOUT, || increment(&client, &name))
                .await
                .expect("incremented");
            // A failed call may have been applied; none was applied twice.
            assert!(
                succeeded < counted && counted <= attempts,
                "{counted}: {succeeded} succeeded, {failed} failed"
            );
            failed
        });
    }
    let mut admin = server.connect().expect("connected");
    let mut failed = Vec::new();
    while failed.len() < 20 {
        kill_client_connections(&mut admin);
        if let Ok(Some(joined)) = timeout(Duration::from_millis(20), callers.join_next()).await {
            failed.push(joined.expect("no task fails"));
        }
    }
    assert!(failed.iter().sum::<i64>() > 0, "no connection dropped during a call");
}

#[tokio::test]
async fn fails_fast_without_showing_the_password() {
    let server = Redis::start().expect("server starts");
    let url = server.url().replace("://", "://:hush@");
    let client = open(&url, short_skew()).await;
    server.kill().expect("killed");
    let mut error = String::new();
    for _ in 0..20 {
        let started = Instant::now();
        error = increment(&client, "a").await.expect_err("is down");
        assert!(started.elapsed() < Duration::from_secs(1), "{:?}: {error}", started.elapsed());
    }
    assert!(error.contains("redis://:***@127.0.0.1"), "{error}");
    assert!(!error.contains("hush"), "{error}");
    let reopened =
        RedisClient::open(&url.parse().expect("valid URL"), short_skew()).await.err().expect("is down");
    assert!(reopened.to_string().contains(":***@") && !reopened.to_string().contains("hush"), "{reopened}");
}

#[tokio::test]
async fn fails_calls_of_a_suspended_server_in_time() {
    let server = Redis::start().expect("server starts");
    let options = ConnectionOptions { response_timeout: Duration::from_millis(1500), ..short_skew() };
    let client = open(&server.url(), options).await;
    let mut events = client.channel_events();
    subscribe(&client, "a").await;
    assert_eq!(increment(&client, "a").await, Ok(1));
    server.process().signal(Signal::STOP).expect("suspended");
    let started = Instant::now();
    increment(&client, "a").await.expect_err("no reply");
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    for _ in 0..3 {
        let started = Instant::now();
        increment(&client, "a").await.expect_err("known to be down");
        assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    }
    server.process().signal(Signal::CONT).expect("resumed");
    wait_until_healthy(&client, "b").await;
    // The first call without a reply was applied; its reply reached nobody.
    assert_eq!(increment(&client, "a").await, Ok(3));
    expect_delivery(&client, &mut events, "a", "back").await;
}

#[tokio::test]
async fn delays_scripts_on_a_new_server() {
    let skew = Duration::from_millis(600);
    let server = Redis::start().expect("server starts");
    let started = Instant::now();
    let client =
        open(&server.url(), ConnectionOptions { max_clock_skew: skew, ..ConnectionOptions::default() }).await;
    assert!(started.elapsed() < skew);
    client.query(&key(client.layout(), "a"), redis::cmd("PING")).await.expect("reads do not wait");
    assert!(started.elapsed() < skew);
    increment(&client, "a").await.expect("incremented");
    assert!(started.elapsed() >= skew, "{:?}", started.elapsed());
    let warm = Instant::now();
    increment(&client, "a").await.expect("incremented");
    assert!(warm.elapsed() < skew);

    server.kill_and_restart().expect("restarted");
    let restarted = Instant::now();
    wait_until_healthy(&client, "a").await;
    assert!(restarted.elapsed() >= skew, "{:?}", restarted.elapsed());

    // The same server over another connection: no need to wait.
    kill_client_connections(&mut server.connect().expect("connected"));
    let reconnected = Instant::now();
    wait_until_healthy(&client, "a").await;
    assert!(reconnected.elapsed() < skew, "{:?}", reconnected.elapsed());
}

#[tokio::test]
async fn detects_demotion_and_promotion_of_a_server() {
    let skew = Duration::from_millis(600);
    let server = Redis::start().expect("server starts");
    let mut admin = server.connect().expect("connected");
    let client =
        open(&server.url(), ConnectionOptions { max_clock_skew: skew, ..ConnectionOptions::default() }).await;
    increment(&client, "a").await.expect("incremented");
    let mut replicate = redis::cmd("REPLICAOF");
    replicate.arg("127.0.0.1").arg(1).exec(&mut admin).expect("demoted");
    let error = increment(&client, "a").await.expect_err("not a primary");
    assert!(error.contains("is a replica"), "{error}");
    let promoted = Instant::now();
    redis::cmd("REPLICAOF").arg("NO").arg("ONE").exec(&mut admin).expect("promoted");
    wait_until_healthy(&client, "a").await;
    // The same process, but promoted: its gate was closed again.
    assert!(promoted.elapsed() >= skew, "{:?}", promoted.elapsed());
    assert_eq!(increment(&client, "a").await, Ok(3));
}

#[tokio::test]
async fn retries_unapplied_calls_a_bounded_number_of_times() {
    let server = Redis::start().expect("server starts");
    let client = open(&server.url(), short_skew()).await;
    let keys = [key(client.layout(), "a")];
    let wrong_node = "return redis.error_reply('ANOTHERPRIMARY')";
    let succeeds_third =
        script(format!("if redis.call('INCR', KEYS[1]) < 3 then {wrong_node} end return ARGV[2]"));
    let value = client.call(&succeeds_third, &keys.each_ref(), &["x"]).await.expect("third attempt succeeds");
    assert_eq!(value, Value::BulkString(b"x".to_vec()));
    let error = client
        .call(&script(wrong_node), &keys.each_ref(), &[])
        .await
        .expect_err("never succeeds")
        .to_string();
    assert!(error.contains("gave up"), "{error}");
    let invalid = script("return redis.call('NONSENSE')");
    let error = client.call(&invalid, &keys.each_ref(), &[]).await.expect_err("invalid command").to_string();
    assert!(error.contains("refused") && !error.contains("gave up"), "{error}");
}

#[tokio::test]
async fn counts_replica_acks() {
    let server = Redis::start().expect("server starts");
    let client = open(&server.url(), short_skew()).await;
    let keys = [key(client.layout(), "a")];
    let within = Duration::from_millis(50);
    let (value, acks) =
        client.call_acked(&increment_script(), &keys.each_ref(), &["1"], 0, within).await.expect("called");
    assert_eq!((number(value), acks), (1, 0));
    let (value, acks) =
        client.call_acked(&increment_script(), &keys.each_ref(), &["1"], 1, within).await.expect("called");
    assert_eq!((number(value), acks), (2, 0));
    // Waiting for replicas does not block other calls.
    let (script, key) = (increment_script(), keys.each_ref());
    let waiting = client.call_acked(&script, &key, &["1"], 1, Duration::from_secs(30));
    tokio::select! {
        biased;
        _ = waiting => panic!("there is no replica"),
        counted = increment(&client, "b") => assert_eq!(counted, Ok(1)),
    }
    let port = server.port().to_string();
    let _replica = Redis::start_with(&["--replicaof", "127.0.0.1", &port]).expect("a replica");
    until("the replica replicates", TEST_TIMEOUT, || async {
        match client.call_acked(&increment_script(), &keys.each_ref(), &["1"], 1, within).await {
            Ok((_, 1)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .expect("an ack");
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let (client, keys) = (client.clone(), keys.clone());
        calls.spawn(async move {
            let within = Duration::from_secs(5);
            client
                .call_acked(&increment_script(), &keys.each_ref(), &["1"], 1, within)
                .await
                .expect("called")
                .1
        });
    }
    assert_eq!(calls.join_all().await, vec![1; 100]);
}

#[tokio::test]
async fn closes_connections_when_the_last_client_is_dropped() {
    let server = Redis::start().expect("server starts");
    let mut admin = server.connect().expect("connected");
    let client = open(&server.url(), short_skew()).await;
    let mut events = client.channel_events();
    subscribe(&client, "a").await;
    let other = client.clone();
    drop(client);
    increment(&other, "a").await.expect("still there");
    drop(other);
    assert_eq!(timeout(TEST_TIMEOUT, events.next()).await, Ok(None));
    until("all connections are closed", TEST_TIMEOUT, || {
        let list: String = redis::cmd("CLIENT").arg("LIST").query(&mut admin).expect("a list");
        std::future::ready(if list.lines().count() == 1 { Ok(()) } else { Err(list) })
    })
    .await
    .expect("closed");
}
