//! An audit that is interrupted and resumed counts the same as one in a single run.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ade_catalog::Layout;
use ade_keytool::audit::{self, AuditError, AuditOptions, Report};
use ade_testkit::{Redis, RedisCluster, effort};
use jiff::Timestamp;
use tokio::sync::Notify;

use crate::support::{audit, catalogs, command, counts, options, owner_of, send, valid_keys};

/// Audits until so many more keys are read; `None` if the audit was interrupted there.
async fn audit_a_part(url: &str, options: &AuditOptions, keys: u64) -> Option<Report> {
    let (first, reached) = (AtomicU64::new(u64::MAX), Notify::new());
    let progress = |now: audit::Progress| {
        first.fetch_min(now.keys, Ordering::Relaxed);
        if now.keys - first.load(Ordering::Relaxed) >= keys {
            reached.notify_one();
        }
    };
    let catalogs = catalogs();
    tokio::select! {
        report = audit::audit(url, &catalogs, options, Timestamp::UNIX_EPOCH, &progress) => Some(report.expect("audited")),
        () = reached.notified() => None,
    }
}

/// What must not depend on interruptions.
fn summary(report: &Report) -> Vec<String> {
    let classes = report
        .classes
        .iter()
        .map(|it| format!("{} {} {} {}", it.class, it.keys, it.memory.sampled_keys, it.memory.sampled_bytes));
    let coverage = &report.coverage;
    let seen = format!("{} {} {}", coverage.keys_seen, coverage.values_read, coverage.memory_sampled);
    let examples = report.violations.iter().map(|it| format!("{it:?}"));
    counts(report).into_iter().chain(examples).chain(classes).chain([seen]).collect()
}

async fn check(url: &str, number: u64) {
    let whole = audit(url, &options()).await.expect("audited");
    let folder = tempfile::tempdir().expect("created");
    let state = folder.path().join("audit.json");
    let options = AuditOptions { state: Some(state.clone()), save_interval: Duration::ZERO, ..options() };
    let mut interruptions = 0;
    let resumed = loop {
        match audit_a_part(url, &options, number / 7).await {
            Some(report) => break report,
            None => interruptions += 1,
        }
        assert!(state.exists());
    };
    assert!(interruptions >= 3, "{interruptions} interruptions");
    assert_eq!(summary(&resumed), summary(&whole));
    assert!(!state.exists(), "a complete audit leaves no state");
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_audits_count_the_same() {
    let redis = Redis::start().expect("starts");
    let mut connection = redis.connect().expect("connects");
    let number = effort::rounds(20_000, 200_000);
    send(&mut connection, &valid_keys(number, Layout::Plain));
    let orphans: Vec<_> =
        (0..300).map(|id| (String::new(), command(&["SET", &format!("x:{id}"), "x"]))).collect();
    send(&mut connection, &orphans);
    // What expires meanwhile would differ.
    let () = redis::cmd("EVAL")
        .arg("for _, key in ipairs(redis.call('KEYS', '*')) do if redis.call('PTTL', key) > 0 then redis.call('PEXPIRE', key, 1000000) end end")
        .arg(0)
        .query(&mut connection)
        .expect("extended");
    check(&redis.url(), number).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_audits_of_a_cluster_count_the_same() {
    let cluster = RedisCluster::start().expect("starts");
    let number = effort::rounds(21_000, 100_000);
    let commands =
        (0..number).map(|id| format!("x:{id}")).map(|key| (key.clone(), command(&["SET", &key, "x"])));
    let commands: Vec<_> = commands.collect();
    for (position, node) in cluster.nodes.iter().take(3).enumerate() {
        let own: Vec<_> = commands.iter().filter(|(key, _)| owner_of(key) == position).cloned().collect();
        send(&mut node.connect().expect("connects"), &own);
    }
    check(&cluster.url(), number).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_and_useless_states_are_rejected_or_ignored() {
    let redis = Redis::start().expect("starts");
    let mut connection = redis.connect().expect("connects");
    send(&mut connection, &valid_keys(4000, Layout::Plain));
    let folder = tempfile::tempdir().expect("created");
    let state = folder.path().join("audit.json");
    let with_state = AuditOptions { state: Some(state.clone()), save_interval: Duration::ZERO, ..options() };
    assert!(audit_a_part(&redis.url(), &with_state, 1500).await.is_none());
    let other = AuditOptions { sample: 3, ..with_state.clone() };
    let error = audit(&redis.url(), &other).await.expect_err("another audit");
    assert!(matches!(error, AuditError::ForeignState { .. }), "{error}");
    // A cursor means nothing to a server that restarted.
    redis.kill_and_restart().expect("restarted");
    let report = audit(&redis.url(), &with_state).await.expect("audited");
    assert_eq!(report.coverage.keys_seen, 0);
    std::fs::write(&state, "{").expect("written");
    let error = audit(&redis.url(), &with_state).await.expect_err("malformed");
    assert!(error.to_string().contains("remove the file"), "{error}");
    let nowhere = AuditOptions { state: Some(folder.path().join("none/audit.json")), ..options() };
    assert!(matches!(audit(&redis.url(), &nowhere).await, Err(AuditError::State { .. })));
}
