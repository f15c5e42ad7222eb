//! Prometheus metrics of the process.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Duration;

use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use ade_app::jobs::JobStatus;
use ade_app::locks::LockAvailability;
use ade_app::tasks::EXECUTORS;
use ade_app::webhooks::{DeliveryOutcome, WebhookBacklog};
use ade_app::{Alerts, LockService};
use ade_domain::webhook::WebhookFormat;
use ade_store::coordination::LockCounts;

const LATENCY_BUCKETS: &[f64] =
    &[0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 60.0];

/// Label for all values that are not in a fixed list. It bounds the number of series.
const OTHER: &str = "other";
const METHODS: [&str; 7] = ["GET", "POST", "PATCH", "PUT", "DELETE", "HEAD", "OPTIONS"];

/// The metrics crate allows one recorder per process, even if it runs several servers.
static RECORDER: OnceLock<Option<PrometheusHandle>> = OnceLock::new();

/// The recorder, installed by the first call.
pub(crate) fn recorder() -> Option<&'static PrometheusHandle> {
    RECORDER.get_or_init(install).as_ref()
}

fn install() -> Option<PrometheusHandle> {
    let builder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), LATENCY_BUCKETS);
    let handle = builder.ok()?.install_recorder().ok()?;
    describe_counter!("ade_http_requests_total", "HTTP requests by method, route and status");
    describe_histogram!(
        "ade_http_request_seconds",
        "HTTP response time by route; includes the wait of long polls"
    );
    describe_counter!("ade_lock_requests_total", "Lock requests by outcome");
    describe_gauge!("ade_lock_held", "Locks held");
    describe_gauge!("ade_lock_waiting", "Lock requests in queues");
    describe_gauge!("ade_agents", "Known agents");
    describe_gauge!("ade_database_up", "1 while the database answers");
    describe_gauge!("ade_lock_outage", "1 while Redis is unavailable and lock requests are stored");
    describe_gauge!("ade_lock_recovering", "1 while stored lock requests are executed before new ones");
    describe_gauge!("ade_lock_requests_stored", "Lock requests that wait until Redis executes them");
    describe_gauge!("ade_job_failures", "Failures of a job since its last success");
    describe_gauge!("ade_job_runs", "Runs of a job");
    describe_gauge!("ade_job_done", "Items processed by the last run of a job");
    describe_gauge!("ade_job_took_seconds", "Duration of the last run of a job");
    describe_counter!(
        "ade_webhook_deliveries_total",
        "Deliveries of webhooks and e-mail by format and outcome of an attempt of this process"
    );
    describe_gauge!("ade_webhook_circuits", "Destinations of webhooks that get a rest, by state");
    describe_gauge!("ade_webhook_unread_events", "Events that are not yet deliveries of webhooks and e-mail");
    describe_gauge!("ade_webhook_unread_seconds", "Age of the oldest of these events");
    describe_gauge!("ade_webhook_overdue_seconds", "How long the first delivery has been due, by format");
    describe_gauge!("ade_event_followers", "Connections that follow events at this process");
    describe_gauge!(
        "ade_relay_unread_events",
        "Events whose projections and stream entries may be missing in Redis"
    );
    describe_gauge!("ade_tasks_ready", "Tasks that wait for a worker or agent, by executor");
    describe_gauge!("ade_audit_quarantined", "Rows of the audit log that ade did not write");
    describe_counter!("ade_audit_quarantined_total", "Rows that this process quarantined");
    describe_gauge!("ade_audit_mismatch", "1 while the audit log contradicts its hash chain or a checkpoint");
    describe_gauge!("ade_audit_held_up", "1 while audit entries get no numbers for more than 30 seconds");
    describe_counter!(
        "ade_audit_mismatches_total",
        "Contradictions of the audit log that this process found"
    );
    describe_counter!(
        "ade_unproven_approvals_total",
        "Tasks not executed because the audit log does not prove their approval"
    );
    Some(handle)
}

pub(crate) fn record_alerts(alerts: &Alerts) {
    let counts = alerts.counts();
    counter!("ade_audit_quarantined_total").absolute(counts.quarantined_entries);
    counter!("ade_audit_mismatches_total").absolute(counts.audit_mismatches);
    counter!("ade_unproven_approvals_total").absolute(counts.unproven_approvals);
    gauge!("ade_audit_mismatch").set(f64::from(u8::from(alerts.mismatch().is_some())));
    gauge!("ade_audit_held_up").set(f64::from(u8::from(alerts.is_held_up())));
}

/// Whether the stores answer.
pub(crate) fn record_availability(locks: &LockService, has_database: bool) {
    let state = locks.availability();
    for (name, is_state) in [
        ("ade_database_up", has_database),
        ("ade_lock_outage", state == LockAvailability::Unavailable),
        ("ade_lock_recovering", state == LockAvailability::Recovering),
    ] {
        gauge!(name).set(f64::from(u8::from(is_state)));
    }
}

/// The requests that wait until coordination answers, at all servers.
pub(crate) fn record_stored_requests(count: u64) {
    #[expect(clippy::cast_precision_loss, reason = "a gauge is a double")]
    gauge!("ade_lock_requests_stored").set(count as f64);
}

/// What this process sent to webhooks. Every label is recorded, so that a rate has a beginning.
pub(crate) fn record_deliveries(counts: &[(WebhookFormat, DeliveryOutcome, u64)]) {
    for (format, outcome, count) in counts {
        let format: &'static str = format.into();
        counter!("ade_webhook_deliveries_total", "format" => format, "outcome" => outcome.name())
            .absolute(*count);
    }
}

pub(crate) fn record_webhook_backlog(backlog: &WebhookBacklog) {
    #[expect(clippy::cast_precision_loss, reason = "a gauge is a double")]
    let (number, seconds) = (|count: u64| count as f64, |ms: u64| ms as f64 / 1e3);
    for (state, count) in [("open", backlog.open_circuits), ("half_open", backlog.half_open_circuits)] {
        gauge!("ade_webhook_circuits", "state" => state).set(number(count));
    }
    gauge!("ade_webhook_unread_events").set(number(backlog.unread_events));
    gauge!("ade_webhook_unread_seconds").set(seconds(backlog.unread_ms));
    for (format, ms) in &backlog.overdue_ms {
        let format: &'static str = format.into();
        gauge!("ade_webhook_overdue_seconds", "format" => format).set(seconds(*ms));
    }
}

pub(crate) fn record_followers(connections: usize) {
    #[expect(clippy::cast_precision_loss, reason = "a gauge is a double")]
    gauge!("ade_event_followers").set(connections as f64);
}

pub(crate) fn record_relay_lag(events: u64) {
    #[expect(clippy::cast_precision_loss, reason = "a gauge is a double")]
    gauge!("ade_relay_unread_events").set(events as f64);
}

pub(crate) fn record_quarantined(rows: u64) {
    #[expect(clippy::cast_precision_loss, reason = "a gauge is a double")]
    gauge!("ade_audit_quarantined").set(rows as f64);
}

pub(crate) fn record_jobs(jobs: &[JobStatus], waiting_tasks: &[(String, u64)]) {
    for JobStatus { job, row } in jobs {
        let Some(row) = row else { continue };
        gauge!("ade_job_failures", "job" => job.name).set(f64::from(row.outcome.failures));
        #[expect(clippy::cast_precision_loss, reason = "a gauge is a double")]
        for (name, number) in [("ade_job_runs", row.outcome.runs), ("ade_job_done", row.outcome.processed)] {
            gauge!(name, "job" => job.name).set(number as f64);
        }
        if let Some((started_at, ended_at)) = row.outcome.started_at.zip(row.outcome.ended_at) {
            #[expect(clippy::cast_precision_loss, reason = "a gauge is a double")]
            gauge!("ade_job_took_seconds", "job" => job.name).set(ended_at.ms_since(started_at) as f64 / 1e3);
        }
    }
    for (executor, count) in count_by_executor(waiting_tasks) {
        #[expect(clippy::cast_precision_loss, reason = "a gauge is a double")]
        gauge!("ade_tasks_ready", "executor" => executor).set(count as f64);
    }
}

/// Places are named by users without limit, so they are not used as labels. All executors are included, so that a gauge
/// falls back to zero.
fn count_by_executor(waiting_tasks: &[(String, u64)]) -> BTreeMap<&'static str, u64> {
    let mut counts: BTreeMap<&'static str, u64> =
        EXECUTORS.into_iter().chain([OTHER]).map(|name| (name, 0)).collect();
    for (work_queue, count) in waiting_tasks {
        *counts.entry(executor_of(work_queue)).or_default() += count;
    }
    counts
}

/// The executor of a work queue: `files:/srv/app`, `can:deploy`, or either with a worker label, as in `eu/files:/srv/app`.
fn executor_of(work_queue: &str) -> &'static str {
    let find = |work_queue: &str| {
        let name = work_queue.split(':').next().unwrap_or(work_queue);
        let name = if name == "can" { "agent" } else { name };
        EXECUTORS.into_iter().find(|executor| *executor == name)
    };
    let find_after_label =
        || work_queue.match_indices('/').find_map(|(at, _)| find(work_queue.get(at + 1..)?));
    find(work_queue).or_else(find_after_label).unwrap_or(OTHER)
}

pub(crate) fn record_request(method: &str, route: &str, status: u16, duration: Duration) {
    let method = METHODS.iter().find(|known| **known == method).copied().unwrap_or(OTHER);
    let labels = [("method", method.to_owned()), ("route", route.to_owned()), ("status", status.to_string())];
    counter!("ade_http_requests_total", &labels).increment(1);
    histogram!("ade_http_request_seconds", "route" => route.to_owned()).record(duration.as_secs_f64());
}

pub(crate) fn record_lock_request(outcome: &'static str) {
    counter!("ade_lock_requests_total", "outcome" => outcome).increment(1);
}

/// The text of a scrape. `counts` is missing while coordination is unavailable.
pub(crate) fn render(counts: Option<LockCounts>) -> Option<String> {
    let recorder = recorder()?;
    gauge!("ade_coordination_up").set(if counts.is_some() { 1.0 } else { 0.0 });
    for (name, count) in counts.into_iter().flat_map(|counts| {
        [("ade_lock_held", counts.held), ("ade_lock_waiting", counts.waiting), ("ade_agents", counts.agents)]
    }) {
        #[expect(clippy::cast_precision_loss, reason = "a gauge is a double")]
        gauge!(name).set(count as f64);
    }
    Some(recorder.render())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_waiting_tasks_by_executor_for_any_place() {
        let work_queues = [
            ("files:/srv/app", "files"),
            ("eu/files:/srv/sql:x", "files"),
            ("x1:y/sql:main", "sql"),
            ("a/b/command:check", "command"),
            ("noop", "noop"),
            ("eu/noop", "noop"),
            ("http", "http"),
            ("agent:files:/x", "agent"),
            ("can:deploy", "agent"),
            ("x1:y", "other"),
            ("", "other"),
            ("/", "other"),
            ("ü/é", "other"),
        ];
        let waiting: Vec<(String, u64)> =
            work_queues.iter().map(|(work_queue, _)| ((*work_queue).to_owned(), 1)).collect();
        let counts = count_by_executor(&waiting);
        for name in EXECUTORS.into_iter().chain([OTHER]) {
            let expected = work_queues.iter().filter(|(_, executor)| *executor == name).count() as u64;
            assert_eq!(counts.get(name), Some(&expected), "{name}");
        }
        assert_eq!(counts.len(), EXECUTORS.len() + 1, "no other labels");
        let empty = count_by_executor(&[]);
        assert!(empty.len() == counts.len() && empty.values().sum::<u64>() == 0, "gauges fall back to zero");
    }
}
