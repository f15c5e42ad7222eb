//! Prometheus metrics of the process.

use std::sync::OnceLock;
use std::time::Duration;

use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

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
    Some(handle)
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
