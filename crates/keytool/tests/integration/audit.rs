//! What an audit finds, and what its reports show.

use ade_catalog::Layout;
use ade_keytool::audit::{AuditOptions, Baseline, Rule, html};
use ade_testkit::{Redis, effort};

use crate::support::{audit, command, counts, options, send, valid_keys};

const SECRETS: [&str; 4] =
    ["hunter2", "correct-horse", "ghp_0123456789abcdefghijABCDEFGHIJ012345", "pa55w0rd"];

/// Breaks every rule of single keys a known number of times.
fn plant(connection: &mut redis::Connection) {
    let digest = "0123456789abcdef0123456789abcdef01234567";
    let envelope = |version: &str| {
        format!(
            r#"{{"createdAt":"2026-01-01T00:00:00Z","expiresAt":"2026-01-02T00:00:00Z","version":{version},"payload":{{}},"meta":{{}}}}"#
        )
    };
    let idem = |name: &str| format!("med:prod:a:idem:event:{name}~{digest}");
    let long = format!("other:{}", "x".repeat(200));
    let (good, bad, text) = (idem("good"), idem("bad"), idem("text"));
    let commands: Vec<Vec<&str>> = vec![
        vec!["SET", "other:1", "x"],
        vec!["SET", "other:2", "x"],
        vec!["SET", &long, "x", "EX", "1000"],
        vec!["SET", "cart:old", "x", "EX", "1000"],
        vec!["SET", "<b>\u{1b}[31m", "x"],
        vec!["LPUSH", "shop:cart:a:state", "x"],
        vec!["EXPIRE", "shop:cart:a:state", "1000"],
        vec!["SET", "shop:draft:~0123456789abcdef0123456789abcdef01234567", "x"],
        vec!["SET", "shop:cart:b:state", "x", "EX", "7300"],
        vec!["RPUSH", "shop:mail", r#"{"to":"x","password":"hunter2"}"#],
        vec!["EXPIRE", "shop:mail", "1000"],
        vec!["HSET", "shop:cart:c:items", "sku", "a", "api_key", "correct-horse"],
        vec!["EXPIRE", "shop:cart:c:items", "1000"],
        vec!["SET", "shop:cart:d:state", SECRETS[2], "EX", "1000"],
        vec!["SET", "user:7:password", "pa55w0rd"],
        vec!["SET", "ghp_0123456789abcdefghijABCDEFGHIJ012345", "x"],
        vec!["SET", &good, "{}", "EX", "800"],
    ];
    for words in &commands {
        let () = command(words).query(connection).expect("written");
    }
    for (key, value) in
        [(&good, envelope("1")), (&bad, envelope("\"hunter2\"")), (&text, "hunter2".to_owned())]
    {
        let () = command(&["SET", key, &value, "EX", "800"]).query(connection).expect("written");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn finds_every_violation_exactly() {
    let redis = Redis::start().expect("starts");
    let mut connection = redis.connect().expect("connects");
    let number = effort::rounds(20_000, 200_000);
    send(&mut connection, &valid_keys(number, Layout::Plain));
    let clean = audit(&redis.url(), &options()).await.expect("audited");
    assert_eq!(counts(&clean), Vec::<String>::new());
    plant(&mut connection);
    let report = audit(&redis.url(), &options()).await.expect("audited");
    assert_eq!(
        counts(&report),
        [
            "orphan cart.items 1",
            "orphan orphans 6",
            "wrong-type cart.items 1",
            "wrong-type cart.state 1",
            "ttl-missing mail.draft 1",
            "ttl-out-of-rule cart.state 1",
            "ttl-out-of-rule mail.match 1",
            "key-too-long orphans 1",
            "bad-envelope a.idem_event 2",
            "suspected-secret cart.items 1",
            "suspected-secret cart.state 1",
            "suspected-secret mail.match 1",
            "suspected-secret orphans 2",
        ]
    );
    let size: u64 = command(&["DBSIZE"]).query(&mut connection).expect("a number");
    assert_eq!((report.coverage.keys_seen, report.coverage.keys_expected), (size, Some(size)));
    let state = report.classes.iter().find(|class| class.class == "cart.state").expect("counted");
    assert_eq!(state.keys, number / 4 + 3);
    assert_eq!(state.ttl.iter().map(|bar| bar.keys).sum::<u64>(), state.keys);
    assert!(state.memory.sampled_keys >= 1000 && state.memory.estimated_bytes > Some(50 * state.keys));
    let (json, page) = (serde_json::to_string(&report).expect("JSON"), html(&report));
    for text in [&json, &page] {
        assert!(SECRETS.iter().all(|secret| !text.contains(secret)), "no secret is shown");
        assert!(!text.contains('\u{1b}'));
    }
    assert!(page.contains("&lt;b&gt;\\x1b[31m") && !page.contains("<b>\\x1b") && !page.contains("<script"));
    assert!(page.contains("<svg") && !page.contains("http://") && !page.contains("https://"));
}

#[tokio::test(flavor = "multi_thread")]
async fn examples_are_limited_and_counts_exact() {
    let redis = Redis::start().expect("starts");
    let mut connection = redis.connect().expect("connects");
    let orphans: Vec<_> =
        (0..500).map(|id| (String::new(), command(&["SET", &format!("other:{id}"), "x"]))).collect();
    send(&mut connection, &orphans);
    let report = audit(&redis.url(), &AuditOptions { max_examples: 3, ..options() }).await.expect("audited");
    assert_eq!(counts(&report), ["orphan orphans 500"]);
    assert_eq!((report.violations.len(), report.counts[0].shown), (3, 3));
    assert_eq!(report.orphans.prefixes, [("other:*".to_owned(), 500)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn drift_is_measured_against_a_baseline_file() {
    let redis = Redis::start().expect("starts");
    let mut connection = redis.connect().expect("connects");
    send(&mut connection, &valid_keys(400, Layout::Plain));
    let folder = tempfile::tempdir().expect("created");
    let file = folder.path().join("baseline.json");
    let before = audit(&redis.url(), &options()).await.expect("audited");
    before.baseline().write(&file).expect("written");
    let baseline = Baseline::read(&file).expect("read");
    assert_eq!(baseline.keys["shop/cart.state"], 100);
    let options = AuditOptions { baseline: Some(baseline), ..options() };
    assert_eq!(counts(&audit(&redis.url(), &options).await.expect("audited")), Vec::<String>::new());
    send(&mut connection, &valid_keys(1000, Layout::Plain));
    let report = audit(&redis.url(), &options).await.expect("audited");
    assert_eq!(report.violation_count(), 4);
    assert!(report.violations.iter().all(|it| it.rule == Rule::CardinalityDrift && it.key.is_none()));
    assert_eq!(report.violations[0].message, "has 250 keys, the baseline 100 (+150 %)");
    std::fs::write(&file, "{}").expect("written");
    assert!(Baseline::read(&file).expect_err("incomplete").to_string().contains("--write-baseline"));
}
