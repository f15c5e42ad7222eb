//! Prometheus metrics of the process.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Duration;

use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use ade_app::jobs::Standing;
use ade_app::tasks::EXECUTORS;
use ade_store::coordination::Counts;

const SECONDS: &[f64] =
    &[0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 60.0];

/// The recorder is one for the whole process, however many servers it runs.
static RECORDER: OnceLock<Option<PrometheusHandle>> = OnceLock::new();

/// The recorder, made by whoever comes first.
pub(crate) fn recorder() -> Option<&'static PrometheusHandle> {
    RECORDER.get_or_init(install).as_ref()
}

fn install() -> Option<PrometheusHandle> {
    let builder =
        PrometheusBuilder::new().set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), SECONDS);
    let handle = builder.ok()?.install_recorder().ok()?;
    describe_counter!("ade_http_requests_total", "Requests by method, route and status");
    describe_histogram!(
        "ade_http_request_seconds",
        "Time to answer, by route; open answers include their wait"
    );
    describe_counter!("ade_lock_requests_total", "Requests for locks by outcome");
    describe_gauge!("ade_lock_held", "Grants in force");
    describe_gauge!("ade_lock_waiting", "Requests in queues");
    describe_gauge!("ade_agents", "Agents that are known");
    describe_gauge!("ade_job_failures", "How often a job failed since it last worked");
    describe_gauge!("ade_job_runs", "How often a job was done");
    describe_gauge!("ade_job_done", "How much a job had to do the last time");
    describe_gauge!("ade_job_took_seconds", "How long a job took the last time");
    describe_gauge!("ade_tasks_ready", "Tasks that wait for a worker or an agent");
    Some(handle)
}

/// How jobs go, and how much waits for workers.
pub(crate) fn jobs(standing: &[Standing], waiting: &[(String, u64)]) {
    for Standing { job, row } in standing {
        let Some(row) = row else { continue };
        gauge!("ade_job_failures", "job" => job.name).set(f64::from(row.outcome.failures));
        #[expect(clippy::cast_precision_loss, reason = "a gauge is a double")]
        for (name, number) in [("ade_job_runs", row.outcome.runs), ("ade_job_done", row.outcome.done)] {
            gauge!(name, "job" => job.name).set(number as f64);
        }
        if let Some((began, ended)) = row.outcome.started_at.zip(row.outcome.ended_at) {
            #[expect(clippy::cast_precision_loss, reason = "a gauge is a double")]
            gauge!("ade_job_took_seconds", "job" => job.name).set(ended.ms_since(began) as f64 / 1e3);
        }
    }
    for (executor, many) in by_executor(waiting) {
        #[expect(clippy::cast_precision_loss, reason = "a gauge is a double")]
        gauge!("ade_tasks_ready", "executor" => executor).set(many as f64);
    }
}

/// What is none of ours.
const OTHER: &str = "other";

/// Places and labels are as many as people make up; what is told apart are our few executors.
fn by_executor(waiting: &[(String, u64)]) -> BTreeMap<&'static str, u64> {
    let mut all: BTreeMap<&'static str, u64> =
        EXECUTORS.into_iter().chain([OTHER]).map(|name| (name, 0)).collect();
    for (place, many) in waiting {
        *all.entry(executor_of(place)).or_default() += many;
    }
    all
}

/// The executor of a place: `files:/srv/app`, `can:deploy`, or either behind the label of a worker, as `eu/files:/srv/app`.
fn executor_of(place: &str) -> &'static str {
    let known = |place: &str| {
        let word = place.split(':').next().unwrap_or(place);
        let word = if word == "can" { "agent" } else { word };
        EXECUTORS.into_iter().find(|executor| *executor == word)
    };
    let behind_label = || place.match_indices('/').find_map(|(at, _)| known(place.get(at + 1..)?));
    known(place).or_else(behind_label).unwrap_or(OTHER)
}

/// Methods are whatever callers make up; only these are told apart.
const METHODS: [&str; 7] = ["GET", "POST", "PATCH", "PUT", "DELETE", "HEAD", "OPTIONS"];

pub(crate) fn request(method: &str, route: &str, status: u16, took: Duration) {
    let method = METHODS.iter().find(|known| **known == method).copied().unwrap_or("other");
    let labels = [("method", method.to_owned()), ("route", route.to_owned()), ("status", status.to_string())];
    counter!("ade_http_requests_total", &labels).increment(1);
    histogram!("ade_http_request_seconds", "route" => route.to_owned()).record(took.as_secs_f64());
}

pub(crate) fn lock_request(outcome: &'static str) {
    counter!("ade_lock_requests_total", "outcome" => outcome).increment(1);
}

/// The text for a scrape.
pub(crate) fn render(counts: Option<Counts>) -> Option<String> {
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
    fn work_is_told_by_executor_whatever_people_call_their_places() {
        let places = [
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
        let waiting: Vec<(String, u64)> = places.iter().map(|(place, _)| ((*place).to_owned(), 1)).collect();
        let counted = by_executor(&waiting);
        for name in EXECUTORS.into_iter().chain([OTHER]) {
            let expected = places.iter().filter(|(_, executor)| *executor == name).count() as u64;
            assert_eq!(counted.get(name), Some(&expected), "{name}");
        }
        assert_eq!(counted.len(), EXECUTORS.len() + 1, "and by nothing else");
        assert_eq!(
            by_executor(&[]).values().sum::<u64>(),
            0,
            "what was told is told again when nothing is left"
        );
    }
}
