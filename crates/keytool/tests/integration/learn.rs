//! Learning a catalog from keys whose patterns are known.

use ade_catalog::{Catalog, Layout};
use ade_keytool::audit;
use ade_keytool::learn::{Learned, learn};
use ade_keytool::scan::Pace;
use ade_keytool::server::Role;
use ade_testkit::{Redis, effort};
use jiff::Timestamp;

use crate::support::{command, options, send, valid_keys};

async fn learned(redis: &Redis) -> (Learned, Catalog) {
    let learned = learn(&redis.url(), "learned", Role::Primary, Pace::FULL, &|_| ()).await.expect("learned");
    let catalog = Catalog::parse("learned.toml", &learned.toml).expect("valid");
    (learned, catalog)
}

/// Patterns without the names of identifiers.
fn shapes(catalog: &Catalog) -> Vec<String> {
    let shape = |entry: &ade_catalog::Entry| format!("{} {}", entry.plain.fill(|_| "*"), entry.type_name());
    let mut shapes: Vec<String> = catalog.entries.iter().map(shape).collect();
    shapes.sort();
    shapes
}

#[tokio::test(flavor = "multi_thread")]
async fn learned_catalog_fits_the_keys() {
    let redis = Redis::start().expect("starts");
    let mut connection = redis.connect().expect("connects");
    send(&mut connection, &valid_keys(effort::rounds(4_000, 200_000), Layout::Plain));
    for (key, value) in [("shop:mail", "a"), ("news/today/7", "b"), ("news/today/8", "b"), ("v|1|done", "c")]
    {
        let () = command(&["SET", key, value]).query(&mut connection).expect("written");
    }
    for key in ["", "a::b", "é", "x:{", "{a}b:c"] {
        let () = command(&["SET", key, "x"]).query(&mut connection).expect("written");
    }
    for city in ["oslo", "rome", "lima"] {
        let () =
            command(&["SADD", &format!("shop:city:{city}"), "x"]).query(&mut connection).expect("written");
        let () = command(&["HSET", "shop:places", city, city]).query(&mut connection).expect("written");
    }
    let () = command(&["SADD", "shop:open:today", "x"]).query(&mut connection).expect("written");
    let (learned, catalog) = learned(&redis).await;
    assert_eq!(
        shapes(&catalog),
        [
            "news/today/* string",
            "shop:bounced:* string",
            "shop:cart:*:items hash",
            "shop:cart:*:state string",
            "shop:city:* set",
            "shop:draft:* string",
            "shop:mail string",
            "shop:open:today set",
            "shop:places hash",
            "v|*|done string",
        ]
    );
    assert_eq!(learned.rejected.iter().map(|(_, keys, _)| keys).sum::<u64>(), 5, "{:?}", learned.rejected);
    assert!(
        learned.toml.contains("# confidence high: 1") && learned.toml.contains("[[id]]\nname = \"cart_id\"")
    );
    let (url, catalogs, options) = (redis.url(), [catalog], options());
    let report =
        audit::audit(&url, &catalogs, &options, Timestamp::UNIX_EPOCH, &|_| ()).await.expect("audited");
    let violations: Vec<_> =
        report.counts.iter().map(|it| (it.rule.name(), it.class.as_str(), it.count)).collect();
    assert_eq!(violations, [("orphan", "orphans", 5)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn hash_tags_become_cluster_patterns() {
    let redis = Redis::start().expect("starts");
    let mut connection = redis.connect().expect("connects");
    send(&mut connection, &valid_keys(400, Layout::Cluster));
    let (_, catalog) = learned(&redis).await;
    let entry = catalog.entries.iter().find(|entry| entry.plain.text().ends_with(":items")).expect("learned");
    assert_eq!(
        (entry.plain.text(), entry.cluster.text()),
        ("shop:cart:{cart_id}:items", "shop:{cart:{cart_id}}:items")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn empty_server_and_any_keys_give_a_valid_catalog() {
    let redis = Redis::start().expect("starts");
    let (empty, catalog) = learned(&redis).await;
    assert_eq!((empty.entries, catalog.entries.len()), (0, 0));
    let mut connection = redis.connect().expect("connects");
    let words =
        ["ids", "self", "new", "a", "%", "{x}", "*", "x y", "\"", "\\", "1", "é", "index", "[", "long"];
    for (seed, round) in effort::seeded_rounds(effort::rounds(200, 5000)) {
        let mut random = effort::SeededRng::new(seed, round);
        let segments: Vec<&str> =
            (0..=random.below(6)).map(|_| *random.pick(&words).expect("a word")).collect();
        let key = segments.join([":", "/", ".", "|"][usize::try_from(random.below(4)).expect("small")]);
        let kinds: [&[&str]; 4] = [
            &["SET", &key, "x"],
            &["HSET", &key, "f", "v"],
            &["ZADD", &key, "1", "m"],
            &["XADD", &key, "*", "f", "v"],
        ];
        // A key may have another type already.
        let _: Result<redis::Value, _> = command(random.pick(&kinds).expect("one")).query(&mut connection);
    }
    let (learned, catalog) = learned(&redis).await;
    assert!(learned.entries > 10 && catalog.entries.len() == learned.entries, "{} entries", learned.entries);
}
