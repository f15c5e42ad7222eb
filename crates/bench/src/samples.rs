//! Latency samples. All of them are kept, so that quantiles are exact.

use serde::Serialize;
use std::time::Duration;

#[derive(Debug, Default)]
pub(super) struct Samples(Vec<Duration>);

#[derive(Debug, Clone, Serialize)]
pub(super) struct Latencies {
    pub(super) count: usize,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) p99_9_ms: f64,
    pub(super) max_ms: f64,
}

impl Samples {
    pub(super) fn add(&mut self, latency: Duration) {
        self.0.push(latency);
    }

    pub(super) fn append(&mut self, mut others: Self) {
        self.0.append(&mut others.0);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn latencies(mut self) -> Latencies {
        self.0.sort_unstable();
        Latencies {
            count: self.0.len(),
            p50_ms: self.quantile(500),
            p99_ms: self.quantile(990),
            p99_9_ms: self.quantile(999),
            max_ms: self.quantile(1_000),
        }
    }

    /// The smallest sample that at least this share of the samples does not exceed. The samples must be sorted.
    fn quantile(&self, thousandths: usize) -> f64 {
        let rank = (self.0.len() * thousandths).div_ceil(1_000);
        self.0.get(rank.saturating_sub(1)).map_or(0.0, |latency| latency.as_secs_f64() * 1_000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_exact_samples() {
        let mut samples = Samples::default();
        for ms in (1..=1_000).rev() {
            samples.add(Duration::from_millis(ms));
        }
        let all = samples.latencies();
        assert_eq!((all.count, all.p50_ms, all.p99_ms), (1_000, 500.0, 990.0));
        assert_eq!((all.p99_9_ms, all.max_ms), (999.0, 1_000.0));
        let mut single = Samples::default();
        single.add(Duration::from_millis(7));
        assert_eq!(single.latencies().p50_ms, 7.0);
        assert_eq!(Samples::default().latencies().max_ms, 0.0);
    }
}
