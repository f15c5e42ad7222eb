//! Whoever does not get the root in time leaves nothing there, and whoever was stopped for longer than its lease touches nothing.

use super::*;

/// The same run for somebody whose lease has ended without anybody telling.
fn too_late(run: &Run) -> (watch::Sender<tokio::time::Instant>, Run) {
    let (renew, good_until) = watch::channel(tokio::time::Instant::now());
    let (_, halted) = Halted::within(good_until);
    (renew, Run { halted, ..run.clone() })
}

#[tokio::test]
async fn whoever_waited_in_vain_leaves_no_note() {
    let place = Place::new();
    for (why, left) in [(Halt::TimedOut, 0), (Halt::Lost, 1)] {
        let (halt, run) = place.run(json!([{ "path": "a", "content": "A" }]));
        let stash = place.files.stash(&run).await.expect("kept");
        assert_eq!(place.noted().len(), 1);
        let root = fs::File::open(place.at("")).expect("opened");
        flock(&root, FlockOperation::LockExclusive).expect("locked");
        let (applied, _) =
            tokio::join!(place.files.apply(&run, &stash), async { halt.send_replace(Some(why)) });
        assert_eq!(applied.expect_err("halted").changed, Changed::Nothing);
        assert_eq!(place.noted().len(), left, "{why:?}: what is lost is up to whoever took over");
    }
}

#[tokio::test]
async fn whoever_wakes_late_settles_nothing_and_changes_nothing_back() {
    let place = Place::new();
    let (_halt, run) = place.run(json!([{ "path": "a", "content": "A" }]));
    let stash = place.files.stash(&run).await.expect("kept");
    place.files.apply(&run, &stash).await.expect("done");
    let before = place.all();
    let (_renew, late) = too_late(&run);
    // A note that it left would keep everybody waiting for ever.
    let failure = place.files.settle(&late, &stash).await.expect_err("too late");
    assert_eq!((failure.halted, failure.again), (Some(Halt::Lost), true), "{failure}");
    let failure = place.files.roll_back(&late, &stash).await.expect_err("too late");
    assert_eq!((failure.halted, failure.changed), (Some(Halt::Lost), Changed::Something), "{failure}");
    assert_eq!(place.all(), before);
}
