//! An attempt that does not get the lock in time leaves nothing behind, and one whose lease has expired changes nothing.

use super::*;

/// The same run after its lease has expired without notification.
fn with_expired_lease(run: &Run) -> (watch::Sender<tokio::time::Instant>, Run) {
    let (renew, valid_until) = watch::channel(tokio::time::Instant::now());
    let (_, stop) = StopSignal::bound_to_lease(valid_until);
    (renew, Run { stop, ..run.clone() })
}

#[tokio::test]
async fn unregisters_when_stopped_before_lock() {
    let root = TestRoot::new();
    for (reason, remaining) in [(StopReason::TimedOut, 0), (StopReason::LeaseLost, 1)] {
        let (stop, run) = root.run(json!([{ "path": "a", "content": "A" }]));
        let rollback_data = root.files.prepare_rollback(&run).await.expect("prepared");
        assert_eq!(root.attempts().len(), 1);
        let root_dir = fs::File::open(root.path("")).expect("opened");
        flock(&root_dir, FlockOperation::LockExclusive).expect("locked");
        let (applied, _) =
            tokio::join!(root.files.apply(&run, &rollback_data), async { stop.send_replace(Some(reason)) });
        assert_eq!(applied.expect_err("stopped").side_effects, SideEffects::None);
        assert_eq!(root.attempts().len(), remaining, "{reason:?}: after a lost lease the next owner decides");
    }
}

#[tokio::test]
async fn expired_lease_prevents_recovery_and_rollback() {
    let root = TestRoot::new();
    let (_stop, run) = root.run(json!([{ "path": "a", "content": "A" }]));
    let rollback_data = root.files.prepare_rollback(&run).await.expect("prepared");
    root.files.apply(&run, &rollback_data).await.expect("applied");
    let before = root.contents();
    let (_renew, expired) = with_expired_lease(&run);
    // Registering the attempt again would block everybody for ever.
    let failure = root.files.resolve_outcome(&expired, &rollback_data).await.expect_err("expired");
    assert_eq!((failure.stop_reason, failure.is_retryable), (Some(StopReason::LeaseLost), true), "{failure}");
    let failure = root.files.roll_back(&expired, &rollback_data).await.expect_err("expired");
    assert_eq!(
        (failure.stop_reason, failure.side_effects),
        (Some(StopReason::LeaseLost), SideEffects::Remaining),
        "{failure}"
    );
    assert_eq!(root.contents(), before);
}
