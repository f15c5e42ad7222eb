//! Jobs by call and by time: what is committed calls for what follows from it, a call starts its job at once, a day that nobody
//! counted is counted later, and whoever stops leaves nothing behind.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ade_app::agents::AgentService;
use ade_app::duties::{BackgroundServices, Running};
use ade_app::tasks::{Draft, Previews, TaskAction, TaskService};
use ade_app::{Caller, Jobs, LockService, LogNotices};
use ade_domain::people::{ADMIN, AUTHOR, REVIEWER};
use ade_domain::task::{PreviewStatus, State};
use ade_store::coordination::{Moved, WakeAt, WakeUp};
use ade_store::database::{Day, JobRow};
use ade_store::embedded::{EmbeddedCoordination, Options};
use ade_store::{Blobs, Coordination};
use ade_testkit::wait::until;
use serde_json::json;
use tempfile::TempDir;

use crate::office::{Office, caller, draft, no, on_both, request_to, submitted, yes};

on_both!(
    what_is_due_later_is_called_for_then,
    workers_elsewhere_are_called_for_previews_and_for_what_is_approved,
    a_call_starts_its_job_at_once,
    days_that_nobody_counted_are_counted_later,
);

const DAY: Duration = Duration::from_secs(86_400);
/// Far beyond what anything here takes, also on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// An office with what coordinates, and the folder that both need.
struct House {
    office: Office,
    coordination: Arc<dyn Coordination>,
    folder: TempDir,
}

impl House {
    fn of(office: Office) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let clock = Arc::new(office.clock.clone());
        let embedded = EmbeddedCoordination::open(&folder.path().join("locks"), Options::default(), clock)
            .expect("opens");
        Self { office, coordination: Arc::new(embedded), folder }
    }

    fn desk(&self) -> TaskService {
        let clock = Arc::new(self.office.clock.clone());
        TaskService::new(self.office.record.clone(), clock, Some(self.coordination.clone()))
    }

    fn jobs(&self) -> Jobs {
        let (record, clock) = (self.office.record.clone(), Arc::new(self.office.clock.clone()));
        Jobs {
            agents: AgentService::new(self.coordination.clone(), record.clone(), clock.clone()),
            locks: LockService::new(self.coordination.clone(), Arc::new(LogNotices)),
            blobs: Blobs::in_folder(self.folder.path().join("blobs")).expect("made"),
            reviews: self.desk(),
            name: "server-1".to_owned(),
            record,
            clock,
        }
    }

    fn serve(&self) -> Running {
        let jobs = self.jobs();
        let duties = BackgroundServices {
            record: jobs.record.clone(),
            clock: jobs.clock.clone(),
            reviews: jobs.reviews.clone(),
            name: jobs.name.clone(),
            jobs,
            data: self.folder.path().to_owned(),
            checkpoint_every: DAY,
        };
        duties.start().expect("starts")
    }

    /// What waits to be called for, once it is as it should be: commits do not wait for it.
    async fn moved(&self, what: &str, holds: impl Fn(Moved) -> bool) -> Moved {
        let look = || async {
            let moved = self.coordination.wake_scheduled().await.expect("answers");
            if holds(moved) { Ok(moved) } else { Err(format!("{moved:?}")) }
        };
        until(what, LONG, look).await.expect("becomes so")
    }

    async fn woken(&self, queue: &str) -> Option<String> {
        let heard = self.coordination.woken(vec![queue.to_owned()], Duration::from_millis(1)).await;
        heard.expect("answers").map(|call| call.about)
    }

    async fn job(&self, what: &str, name: &str, holds: impl Fn(&JobRow) -> bool) -> JobRow {
        let look = || async {
            let rows = self.office.record.jobs().await.expect("read");
            let row = rows.into_iter().find(|row| row.name == name);
            match row {
                Some(row) if holds(&row) => Ok(row),
                other => Err(format!("{other:?}")),
            }
        };
        until(what, LONG, look).await.expect("becomes so")
    }
}

fn in_days(days: u32) -> impl Fn(Moved) -> bool {
    move |moved| moved.next_in == Some(days * DAY)
}

async fn staffed(office: Office) -> House {
    office.hire("ann", &[AUTHOR]).await;
    office.hire("rob", &[REVIEWER]).await;
    House::of(office)
}

async fn what_is_due_later_is_called_for_then(office: Office) {
    let house = staffed(office).await;
    let desk = house.desk();
    let first = submitted(&desk, "answered").await;
    // A request has two days, an approval is good for seven.
    house.moved("its request is due", in_days(2)).await;
    let rob = caller("rob", &[REVIEWER]);
    let approved = desk.respond(request_to(&first, "rob"), &yes(), &rob).await.expect("answered");
    assert_eq!(approved.state, State::Approved);
    house.moved("its approval ends", in_days(7)).await;
    let rejected = submitted(&desk, "rejected").await;
    house.moved("its request comes first", in_days(2)).await;
    desk.respond(request_to(&rejected, "rob"), &no(), &rob).await.expect("answered");
    house.moved("nobody waits for it any more", in_days(7)).await;
    let second = submitted(&desk, "not answered").await;
    house.moved("its request comes first", in_days(2)).await;
    house.office.clock.advance(2 * DAY);
    let moved = house.moved("it is due", |moved| moved.calls > 0).await;
    assert_eq!(moved, Moved { calls: 1, next_in: Some(5 * DAY) });
    assert_eq!(house.woken("approval_timeout").await, Some(second.task_id.clone()));
    let (cancel, ann) = (TaskAction::Cancel { reason: None }, caller("ann", &[AUTHOR]));
    desk.act(&first.task_id, &cancel, &ann).await.expect("given up");
    desk.act(&second.task_id, &cancel, &ann).await.expect("given up");
    house.moved("nothing is due any more", |moved| moved == Moved::default()).await;
}

async fn workers_elsewhere_are_called_for_previews_and_for_what_is_approved(office: Office) {
    let house = staffed(office).await;
    let desk = house.desk().with_previews(Previews { elsewhere: true, ..Previews::default() });
    let ann = caller("ann", &[AUTHOR]);
    let Draft { mut config, metadata, preview, predecessor } = draft("elsewhere");
    config.executor = "files".to_owned();
    config.parameters.insert("root".to_owned(), json!("/srv/elsewhere"));
    let made = desk.create(Draft { config, metadata, preview, predecessor }, &ann).await.expect("made");
    assert_eq!(made.preview.status, PreviewStatus::Pending);
    let called = async |queue: &str| {
        let look = || async { house.woken(queue).await.ok_or_else(|| "nobody called".to_owned()) };
        until("somebody is called", LONG, look).await.expect("called")
    };
    assert_eq!(called("preview").await, made.task_id);
    let rob = caller("rob", &[REVIEWER]);
    let tasks = [submitted(&desk, "one").await, submitted(&desk, "two").await];
    let requests = tasks.iter().map(|task| request_to(task, "rob").to_owned()).collect();
    let (skip_validation, apply_immediately) = (false, false);
    let batch =
        ade_app::tasks::Batch { approval_ids: requests, response: yes(), skip_validation, apply_immediately };
    desk.respond_to_all(&batch, &rob).await.expect("answered");
    let mut heard = [called("apply").await, called("apply").await];
    heard.sort();
    assert_eq!(heard, tasks.map(|task| task.task.task_id), "also for those of a batch");
    assert_eq!(house.woken("preview").await, None);
}

async fn a_call_starts_its_job_at_once(office: Office) {
    let house = staffed(office).await;
    let running = house.serve();
    let runs = |many: u64| move |row: &JobRow| row.outcome.runs == many && row.holder.is_none();
    house.job("it is done once", "archive", runs(1)).await;
    // By time it is due in an hour, and the clock stands still.
    for (call, when) in [(2, WakeAt::Now), (3, WakeAt::At(house.coordination.now().plus_ms(1_500)))] {
        house.office.clock.advance(Duration::from_secs(1));
        let called = WakeUp { queue: "archive".to_owned(), about: "test".to_owned(), when };
        assert_eq!(house.coordination.call(vec![called]).await, Ok(0));
        if matches!(when, WakeAt::At(_)) {
            house.office.clock.advance(Duration::from_secs(1));
        }
        house.job("it is done again", "archive", runs(call)).await;
    }
    running.stop().await;
    let rows = house.office.record.jobs().await.expect("read");
    assert!(rows.iter().all(|row| row.holder.is_none()), "{rows:?}");
    assert!(
        house
            .coordination
            .lock_job("scheduled".to_owned(), "another".to_owned(), 1_000)
            .await
            .expect("answers"),
        "whoever comes next has the turn at once"
    );
}

async fn days_that_nobody_counted_are_counted_later(office: Office) {
    let house = staffed(office).await;
    let desk = house.desk();
    let ann: Caller = caller("ann", &[AUTHOR, ADMIN]);
    let end = async |state: State| {
        let task = submitted(&desk, "one").await;
        if state == State::Rejected {
            let rob = caller("rob", &[REVIEWER]);
            desk.respond(request_to(&task, "rob"), &no(), &rob).await.expect("answered");
        } else {
            let cancel = TaskAction::Cancel { reason: None };
            desk.act(&task.task_id, &cancel, &ann).await.expect("given up");
        }
    };
    let clock = &house.office.clock;
    let day = || clock.now().strftime("%Y-%m-%d").to_string();
    let mut expected = BTreeMap::new();
    // Nobody is there at three midnights; on the day between nothing ends.
    for (rejected, cancelled) in [(1, 2), (0, 0), (2, 0)] {
        for (many, state) in [(rejected, State::Rejected), (cancelled, State::Cancelled)] {
            for _ in 0..many {
                end(state).await;
            }
        }
        expected.insert(day(), Day { day: day(), rejected, cancelled, ..Day::default() });
        clock.advance(DAY);
    }
    let running = house.serve();
    let done = |many: u64| move |row: &JobRow| row.outcome.runs > 0 && row.outcome.done == many;
    house.job("all of them are counted", "daily_stats", done(3)).await;
    let newest_first =
        |expected: &BTreeMap<String, Day>| expected.values().rev().cloned().collect::<Vec<_>>();
    assert_eq!(house.office.record.days(100).await.expect("read"), newest_first(&expected));
    // What ends later on a day that was counted does not happen; what ended today is counted tomorrow.
    end(State::Cancelled).await;
    expected.insert(day(), Day { day: day(), cancelled: 1, ..Day::default() });
    clock.advance(DAY);
    house.job("one more is counted", "daily_stats", done(1)).await;
    assert_eq!(house.office.record.days(100).await.expect("read"), newest_first(&expected));
    assert_eq!(house.office.record.days(1).await.expect("read").len(), 1, "only the newest");
    running.stop().await;
}
