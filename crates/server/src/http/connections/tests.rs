//! Limits of connections that are not authenticated.

use super::*;

fn peer(last: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, last], 9))
}

#[tokio::test]
async fn one_address_waits_for_itself_only() {
    let (connections, now) = (Connections::default(), Instant::now());
    let admit = |last| connections.admit(peer(last), false, now).expect("admitted");
    let served: Vec<Connection> = (0..MAX_TURNS_PER_ADDRESS).map(|_| admit(1)).collect();
    let mut requests = Vec::new();
    for connection in &served {
        connection.wait_for_turn().await;
        requests.push(connection.start_request());
    }
    let next = admit(1);
    let waiting = tokio::time::timeout(Duration::ZERO, next.wait_for_turn()).await;
    assert!(waiting.is_err(), "all turns of the address are taken");
    admit(2).wait_for_turn().await;
    served.first().expect("some").mark_authenticated();
    next.wait_for_turn().await;
    drop((requests, served, next));
    let usage = connections.usage();
    assert!(usage.by_address.is_empty() && usage.anonymous == 0);
}

/// Whether it was chosen to be closed.
fn is_chosen(connection: &Connection) -> bool {
    connection.anonymous().as_ref().is_some_and(Anonymous::is_chosen)
}

#[tokio::test]
async fn oldest_connection_that_waits_for_its_client_gives_its_turn_to_others() {
    let (connections, now) = (Connections::default(), Instant::now());
    let mut served = Vec::new();
    for last in [1, 1, 1, 1, 2] {
        let connection = connections.admit(peer(last), false, now).expect("admitted");
        connection.wait_for_turn().await;
        served.push(connection);
    }
    let [busy, with_body, idle, newest, other] = served.as_slice() else { unreachable!("five") };
    let request = busy.start_request();
    let _request = with_body.start_request();
    let body = with_body.start_body();
    drop(idle.start_request());
    let close = |address, after| connections.usage().close_one(address, true, now + after);
    assert!(!close(None, Duration::ZERO), "all of them are new");
    let (one, later) = (Some(counted_address(peer(1).ip())), 2 * MIN_TURN);
    assert!(close(one, later) && close(None, later));
    assert!(is_chosen(with_body) && is_chosen(idle), "of the address that has the most");
    drop(body);
    assert!(!is_chosen(with_body), "its body arrived just in time");
    drop(request);
    assert!(close(one, later) && is_chosen(busy), "after its request");
    assert!(close(one, later) && is_chosen(newest) && !close(one, later));
    assert!(close(None, later) && is_chosen(other) && !close(None, later));
    other.closed_to_make_room().await;
}

#[test]
fn bounds_connections_per_address_and_in_total() {
    let (connections, now) = (Connections::default(), Instant::now());
    let admit = |last, is_proxy, now| connections.admit(peer(last), is_proxy, now);
    let mut admitted = Vec::new();
    for last in 1..=2 {
        admitted.extend((0..MAX_ANONYMOUS_PER_ADDRESS).map(|_| admit(last, false, now).expect("room")));
        assert!(admit(last, false, now).is_none());
    }
    assert!(admit(3, false, now).is_none() && admit(3, true, now).is_none(), "in total");
    // Later, those that sent nothing make room.
    let later = now + MIN_TURN;
    let newest = [admit(1, false, later), admit(3, false, later), admit(3, true, later)];
    assert!(newest.iter().all(Option::is_some));
    assert_eq!(admitted.iter().filter(|connection| is_chosen(connection)).count(), 4);
    admitted.retain(|connection| !is_chosen(connection));
    admitted.pop().expect("some").mark_authenticated();
    let through_proxy = admit(2, true, now).expect("room");
    assert!(through_proxy.anonymous().as_ref().is_some_and(|held| held.turns.is_none()));
    drop((admitted, newest, through_proxy));
    let usage = connections.usage();
    assert_eq!((usage.anonymous, usage.by_address.len()), (0, 0));
}

#[test]
fn bounds_buffered_bytes_per_address_and_in_total() {
    let connections = Connections::default();
    let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
    let mut first = connections.reserve(ip("2001:db8::1"), MAX_BUFFERED_PER_ADDRESS - 10).expect("room");
    assert!(first.grow(10) && !first.grow(1));
    assert!(connections.reserve(ip("2001:db8::ffff:1"), 1).is_none(), "the same network");
    let others: Vec<_> = (1..8).map(|n| connections.reserve(ip(&format!("192.0.2.{n}")), 2 << 20)).collect();
    assert!(others.iter().all(Option::is_some));
    assert!(connections.reserve(ip("198.51.100.1"), 1).is_none(), "in total");
    drop((first, others));
    let usage = connections.usage();
    assert!(usage.by_address.is_empty() && usage.buffered == 0);
}
