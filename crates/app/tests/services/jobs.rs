//! Jobs by time and by wake-up: commits schedule wake-ups, a wake-up starts its job immediately, missed days are counted later, and
//! a process that stops releases its leases.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ade_app::WebhookService;
use ade_app::agents::AgentService;
use ade_app::audit::CheckpointFile;
use ade_app::background::{BackgroundHandle, BackgroundServices};
use ade_app::tasks::{PreviewConfig, TaskAction, TaskDraft, TaskService};
use ade_app::webhooks::{WebhookDispatcher, WebhookNetwork};
use ade_app::{AuditService, Caller, EventFeed, Jobs, LockMaintenance, LockService, LogEventSink};
use ade_domain::people::{ADMIN, AUTHOR, REVIEWER};
use ade_domain::task::{Binding, Digest, PreviewStatus, PublishedBinding, TaskState};
use ade_store::Coordination;
use ade_store::coordination::{MovedWakeUps, WakeAt, WakeUp};
use ade_store::database::{DailyStats, StoredJob};
use ade_testkit::wait::until;
use serde_json::json;

use crate::fixture::{
    Fixture, approval_of, approve, approve_all, caller, draft, on_both_databases, reject, submitted,
};

on_both_databases!(
    schedules_wake_ups_for_deadlines,
    wakes_remote_workers_for_previews_and_approved_tasks,
    wake_up_starts_its_job_immediately,
    counts_missed_days_later,
    lock_cleanup_reports_the_sweeps,
);

const DAY: Duration = Duration::from_secs(86_400);
/// A timeout that is only reached on failure, also on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// A fixture with jobs.
struct JobsFixture {
    base: Fixture,
    coordination: Arc<dyn Coordination>,
}

impl JobsFixture {
    fn of(base: Fixture) -> Self {
        Self { coordination: base.coordination.clone(), base }
    }

    fn service(&self) -> TaskService {
        self.base.service()
    }

    fn jobs(&self) -> Jobs {
        let context = self.base.context();
        Jobs {
            agents: AgentService::new(context.clone()),
            locks: LockService::new(self.coordination.clone(), Arc::new(LogEventSink)),
            tasks: self.service(),
            name: "server-1".to_owned(),
            event_retention_days: 30,
            context,
        }
    }

    fn serve(&self) -> BackgroundHandle {
        self.serve_with(self.jobs())
    }

    fn serve_with(&self, jobs: Jobs) -> BackgroundHandle {
        let network = WebhookNetwork::new(&[]).expect("valid");
        let webhooks = WebhookService::new(jobs.context.clone(), network);
        let services = BackgroundServices {
            feed: EventFeed::starting_at(jobs.context.clone(), 0),
            webhooks: WebhookDispatcher::new(webhooks, &jobs.name),
            jobs,
            checkpoint_file: CheckpointFile::in_folder(self.base.folder.path()),
            checkpoint_interval: DAY,
            relay: None,
        };
        services.start().expect("starts")
    }

    /// The scheduled wake-ups, once they meet a condition: commits do not wait for wake-ups.
    async fn scheduled(&self, what: &str, holds: impl Fn(MovedWakeUps) -> bool) -> MovedWakeUps {
        let look = || async {
            let moved = self.coordination.move_due_wake_ups().await.expect("reachable");
            if holds(moved) { Ok(moved) } else { Err(format!("{moved:?}")) }
        };
        until(what, LONG, look).await.expect("reached in time")
    }

    async fn woken(&self, queue: &str) -> Option<String> {
        let received =
            self.coordination.receive_wake_up(vec![queue.to_owned()], Duration::from_millis(1)).await;
        received.expect("reachable").map(|wake_up| wake_up.subject)
    }

    async fn job(&self, what: &str, name: &str, holds: impl Fn(&StoredJob) -> bool) -> StoredJob {
        let look = || async {
            let rows = self.base.database.jobs().await.expect("read");
            let row = rows.into_iter().find(|row| row.name == name);
            match row {
                Some(row) if holds(&row) => Ok(row),
                other => Err(format!("{other:?}")),
            }
        };
        until(what, LONG, look).await.expect("reached in time")
    }
}

fn in_days(days: u32) -> impl Fn(MovedWakeUps) -> bool {
    move |moved| moved.next_in == Some(days * DAY)
}

async fn fixture_with_users(base: Fixture) -> JobsFixture {
    base.add_user("ann", &[AUTHOR]).await;
    base.add_user("rob", &[REVIEWER]).await;
    JobsFixture::of(base)
}

async fn schedules_wake_ups_for_deadlines(base: Fixture) {
    let fixture = fixture_with_users(base).await;
    let service = fixture.service();
    let first = submitted(&service, "approved").await;
    // An approval request is due after two days, an approval expires after seven.
    fixture.scheduled("the request is due", in_days(2)).await;
    let rob = caller("rob", &[REVIEWER]);
    let approved = service.decide(approval_of(&first, "rob"), &approve(&first), &rob).await.expect("decided");
    assert_eq!(approved.state, TaskState::Approved);
    fixture.scheduled("the approval expires", in_days(7)).await;
    let rejected = submitted(&service, "rejected").await;
    fixture.scheduled("the request is due first", in_days(2)).await;
    service.decide(approval_of(&rejected, "rob"), &reject(), &rob).await.expect("decided");
    fixture.scheduled("the decided request is cancelled", in_days(7)).await;
    let second = submitted(&service, "pending").await;
    fixture.scheduled("the request is due first", in_days(2)).await;
    fixture.base.clock.advance(2 * DAY);
    let moved = fixture.scheduled("it is due", |moved| moved.count > 0).await;
    assert_eq!(moved, MovedWakeUps { count: 1, next_in: Some(5 * DAY) });
    assert_eq!(fixture.woken("approval_timeout").await, Some(second.task_id.clone()));
    let (cancel, ann) = (TaskAction::Cancel { reason: None }, caller("ann", &[AUTHOR]));
    service.perform(&first.task_id, &cancel, &ann).await.expect("cancelled");
    service.perform(&second.task_id, &cancel, &ann).await.expect("cancelled");
    fixture.scheduled("nothing is scheduled", |moved| moved == MovedWakeUps::default()).await;
}

async fn wakes_remote_workers_for_previews_and_approved_tasks(base: Fixture) {
    let fixture = fixture_with_users(base).await;
    let previews = PreviewConfig { has_remote_workers: true, ..PreviewConfig::default() };
    let service = TaskService::new(fixture.base.context(), previews);
    let ann = caller("ann", &[AUTHOR]);
    let TaskDraft { mut config, metadata, preview } = draft("elsewhere");
    config.executor = "files".to_owned();
    config.parameters.insert("root".to_owned(), json!("elsewhere"));
    let (fingerprint, now) = (Digest::of_bytes(b"/srv/elsewhere"), fixture.base.context().clock.now());
    let binding = PublishedBinding { binding: Binding::default(), fingerprint, host: None };
    let database = &fixture.base.database;
    let published =
        database.publish_binding("files:elsewhere", &binding, "worker-1", now, now.plus_ms(60_000));
    assert_eq!(published.await, Ok(true));
    let created = service.create(TaskDraft { config, metadata, preview }, &ann).await.expect("created");
    assert_eq!(created.preview.status, PreviewStatus::Pending);
    let woken = async |queue: &str| {
        let look = || async { fixture.woken(queue).await.ok_or_else(|| "no wake-up".to_owned()) };
        until("a wake-up arrives", LONG, look).await.expect("woken")
    };
    assert_eq!(woken("preview").await, created.task_id);
    let rob = caller("rob", &[REVIEWER]);
    let tasks = [submitted(&service, "one").await, submitted(&service, "two").await];
    service.decide_batch(&approve_all(&tasks, "rob"), &rob).await.expect("decided");
    let mut task_ids = [woken("apply").await, woken("apply").await];
    task_ids.sort();
    assert_eq!(task_ids, tasks.map(|task| task.task.task_id), "also for tasks of a batch");
    assert_eq!(fixture.woken("preview").await, None);
}

async fn wake_up_starts_its_job_immediately(base: Fixture) {
    let fixture = fixture_with_users(base).await;
    let running = fixture.serve();
    let runs = |many: u64| move |row: &StoredJob| row.outcome.runs == many && row.holder.is_none();
    fixture.job("the first run", "archive", runs(1)).await;
    // By time it is due in an hour, and the clock does not advance by itself.
    for (run, when) in [(2, WakeAt::Now), (3, WakeAt::At(fixture.coordination.now().plus_ms(1_500)))] {
        fixture.base.clock.advance(Duration::from_secs(1));
        let wake_up = WakeUp { queue: "archive".to_owned(), subject: "test".to_owned(), when };
        assert_eq!(fixture.coordination.send_wake_ups(vec![wake_up]).await, Ok(0));
        if matches!(when, WakeAt::At(_)) {
            fixture.base.clock.advance(Duration::from_secs(1));
        }
        fixture.job("the next run", "archive", runs(run)).await;
    }
    running.stop().await;
    let rows = fixture.base.database.jobs().await.expect("read");
    assert!(rows.iter().all(|row| row.holder.is_none()), "{rows:?}");
    assert!(
        fixture
            .coordination
            .lock_job("scheduled".to_owned(), "another".to_owned(), 1_000)
            .await
            .expect("reachable"),
        "the next process gets the lease at once"
    );
}

async fn lock_cleanup_reports_the_sweeps(base: Fixture) {
    let fixture = JobsFixture::of(base);
    let jobs = fixture.jobs();
    let maintenance = LockMaintenance::start(&jobs.locks);
    let running = fixture.serve_with(jobs);
    // The first run may precede the first sweep.
    let is_reported = |row: &StoredJob| {
        fixture.base.clock.advance(Duration::from_secs(5));
        row.outcome.processed > 0
    };
    fixture.job("sweeps are reported", "lock_cleanup", is_reported).await;
    running.stop().await;
    maintenance.stop().await;
}

async fn counts_missed_days_later(base: Fixture) {
    let fixture = fixture_with_users(base).await;
    let service = fixture.service();
    let ann: Caller = caller("ann", &[AUTHOR, ADMIN]);
    let end = async |state: TaskState| {
        let task = submitted(&service, "one").await;
        if state == TaskState::Rejected {
            let rob = caller("rob", &[REVIEWER]);
            service.decide(approval_of(&task, "rob"), &reject(), &rob).await.expect("decided");
        } else {
            let cancel = TaskAction::Cancel { reason: None };
            service.perform(&task.task_id, &cancel, &ann).await.expect("cancelled");
        }
    };
    let clock = &fixture.base.clock;
    let day = || clock.now().strftime("%Y-%m-%d").to_string();
    let mut expected = BTreeMap::new();
    // No server runs at three midnights; nothing ends on the second day.
    for (rejected, cancelled) in [(1, 2), (0, 0), (2, 0)] {
        for (many, state) in [(rejected, TaskState::Rejected), (cancelled, TaskState::Cancelled)] {
            for _ in 0..many {
                end(state).await;
            }
        }
        let median_decision_micros = (rejected > 0).then_some(0);
        let stats =
            DailyStats { day: day(), rejected, cancelled, reviewed: rejected, ..DailyStats::default() };
        expected.insert(day(), DailyStats { median_decision_micros, ..stats });
        clock.advance(DAY);
    }
    let running = fixture.serve();
    let done = |many: u64| move |row: &StoredJob| row.outcome.runs > 0 && row.outcome.processed == many;
    fixture.job("all days are counted", "daily_stats", done(3)).await;
    let newest_first =
        |expected: &BTreeMap<String, DailyStats>| expected.values().rev().cloned().collect::<Vec<_>>();
    assert_eq!(fixture.base.database.daily_stats(100).await.expect("read"), newest_first(&expected));
    // Today is counted tomorrow.
    end(TaskState::Cancelled).await;
    let tasks = fixture.base.service();
    let folder = CheckpointFile::in_folder(fixture.base.folder.path());
    let audits = AuditService::new(fixture.base.context(), tasks, folder);
    let today = audits.overview(&ann).await.expect("read").today;
    let stats = DailyStats { day: day(), cancelled: 1, ..DailyStats::default() };
    assert_eq!(today, DailyStats { backlog: Some(0), ..stats.clone() });
    // What waits right after midnight is the backlog of the day.
    let _ = submitted(&service, "waits").await;
    expected.insert(day(), DailyStats { backlog: Some(1), ..stats });
    let into_the_day = clock.now().as_microsecond() % 86_400_000_000;
    clock.advance(DAY - Duration::from_micros(u64::try_from(into_the_day).expect("after 1970")));
    fixture.job("one more day is counted", "daily_stats", done(1)).await;
    assert_eq!(fixture.base.database.daily_stats(100).await.expect("read"), newest_first(&expected));
    assert_eq!(fixture.base.database.daily_stats(1).await.expect("read").len(), 1, "only the newest");
    running.stop().await;
}
