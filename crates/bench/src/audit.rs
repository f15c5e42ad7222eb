//! `ade bench audit`: how fast `ade keys audit` reads a keyspace, and what another client of the same server notices.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ade_keyspace::ade::{self as keys, ids};
use ade_keyspace::{Layout, RedisKey, catalogs};
use ade_keytool::audit::{AuditOptions, Progress, audit};
use ade_keytool::scan::Pace;
use ade_store::redis::RedisUrl;
use clap::Args as ClapArgs;
use indicatif::{ProgressBar, ProgressStyle};
use jiff::Timestamp;
use redis::aio::MultiplexedConnection;
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::client_threads::ClientThreads;
use crate::cpu::{CpuMeter, CpuTimes};
use crate::error::{BenchError, ErrorKind};
use crate::machine::Machine;
use crate::redis_baseline::RedisBaseline;
use crate::report::{Deployment, Figure, Report, Row};
use crate::samples::{Latencies, Samples};

const METHOD: &str = "\
What is measured, and how:
  throttled  `ade keys audit` with its default pace for half of --seconds, in turns with an idle
             server, on keys of five classes: strings, JSON, hashes, sets, sorted sets.
  flat out   The same with --flat-out, until all keys are read. Keys per second of the whole audit.
Meanwhile another client sends one GET every 5 ms on a thread of its own. Its latency counts from
the scheduled time, so that a stall counts for every request that it delays. A missed aim is not
an error.";

/// Between two requests of the other client.
const PROBE_INTERVAL: Duration = Duration::from_millis(5);
/// Idle and throttled turns.
const TURNS: u32 = 3;
const CHUNK: u64 = 2_000;
const MIN_KEYS_PER_SECOND: f64 = 100_000.0;

#[derive(Debug, ClapArgs)]
#[command(after_long_help = METHOD, after_help = "Use --help for what is measured, and how.")]
pub(super) struct Args {
    /// The Redis to fill and audit, which must be empty and is flushed afterwards
    #[arg(long, value_name = "URL")]
    redis: String,
    /// Keys to audit
    #[arg(long, value_name = "NUMBER", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1_000..=50_000_000))]
    keys: u64,
    /// Percentage of time for the throttled audit [default: that of ade keys audit]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=100))]
    share: Option<u32>,
    /// Seconds of the throttled row
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0, value_parser = super::locks::parse_seconds)]
    seconds: f64,
    /// Small sizes, to check that everything works; without verdicts
    #[arg(long)]
    quick: bool,
    /// Print JSON with all quantiles and the machine
    #[arg(long)]
    pub(crate) json: bool,
}

impl Args {
    fn keys(&self) -> u64 {
        if self.quick { 5_000 } else { self.keys }
    }

    fn seconds(&self) -> f64 {
        if self.quick { 0.6 } else { self.seconds }
    }
}

pub(super) async fn run(args: &Args) -> Result<Report, BenchError> {
    let url: RedisUrl =
        args.redis.parse().map_err(|error| BenchError::new(ErrorKind::Input, format!("{error}")))?;
    if url.layout() == Layout::Cluster {
        return Err(BenchError::new(
            ErrorKind::Input,
            "the audit is measured on one server: use redis://HOST:PORT",
        ));
    }
    let baseline = RedisBaseline::open(&url).await?;
    if !baseline.is_empty().await? {
        let error = BenchError::new(
            ErrorKind::Input,
            "this Redis is not empty, and the benchmark flushes it afterwards",
        );
        return Err(error.hint("use an empty one"));
    }
    let measured = crate::interruptible(measure(args, &baseline)).await;
    let deleted = baseline.delete_all_keys().await;
    let report = measured?;
    deleted?;
    Ok(report)
}

async fn measure(args: &Args, baseline: &RedisBaseline) -> Result<Report, BenchError> {
    let bar = ProgressBar::new(args.keys());
    bar.set_style(
        ProgressStyle::with_template("{msg} [{bar:30}] {percent} %")
            .unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    bar.set_message("filling");
    let mut connection = connect(&args.redis).await?;
    fill(&mut connection, args.keys(), &bar).await?;
    let meter = CpuMeter { redis: Some(baseline.clone()), ..CpuMeter::default() };
    let threads = ClientThreads::start(2)?;
    bar.set_message("throttled");
    let share = args.share.map_or(Pace::POLITE, |share| Pace { share, max_ops: None });
    let throttled = throttled(args, share, &threads, &meter).await?;
    bar.set_message("flat out");
    let flat_out = flat_out(args, &threads, &meter).await?;
    bar.finish_and_clear();
    Ok(Report {
        machine: Machine::detect(),
        deployment: Deployment::External,
        binary: None,
        quick: args.quick,
        seconds: args.seconds(),
        rows: vec![throttled, flat_out],
    })
}

async fn connect(url: &str) -> Result<MultiplexedConnection, BenchError> {
    let client = redis::Client::open(url).map_err(|error| unavailable(&error))?;
    client.get_multiplexed_async_connection().await.map_err(|error| unavailable(&error))
}

fn unavailable(error: &impl ToString) -> BenchError {
    BenchError::new(ErrorKind::Unavailable, error.to_string())
}

/// Writes valid keys of five classes.
async fn fill(
    connection: &mut MultiplexedConnection,
    number: u64,
    bar: &ProgressBar,
) -> Result<(), BenchError> {
    let text = |key: RedisKey| key.as_str().to_owned();
    let mut pipeline = redis::pipe();
    for count in 0..number {
        let id = ids::TaskId::new(&format!("0192f6c0-5a7e-7cc0-8c7b-{count:012}"))
            .map_err(|error| unavailable(&error))?;
        let user = ids::UserId::new(&format!("user-{count}")).map_err(|error| unavailable(&error))?;
        let layout = Layout::Plain;
        let ttl = 60 + count % (80 * 86_400);
        match count % 5 {
            0 => pipeline.cmd("SET").arg(text(keys::task::state(&id).in_layout(layout))).arg("APPROVED").arg("EX").arg(ttl),
            1 => {
                let document = json!({ "task_id": format!("{count}"), "config": { "type": "note", "parameters": {} }, "tags": ["nightly"] });
                let key = text(keys::task::data(&id).in_layout(layout));
                pipeline.cmd("SET").arg(key).arg(document.to_string()).arg("EX").arg(ttl)
            }
            2 => {
                let key = text(keys::task::risk(&id).in_layout(layout));
                pipeline.cmd("HSET").arg(&key).arg(&["score", "17", "level", "LOW", "assessed_by", "1"]).ignore();
                pipeline.cmd("EXPIRE").arg(key).arg(ttl)
            }
            3 => {
                let key = text(keys::approval::by_task(&id).in_layout(layout));
                pipeline.cmd("SADD").arg(&key).arg(&["one", "two"]).ignore();
                pipeline.cmd("EXPIRE").arg(key).arg(60 + count % (29 * 86_400))
            }
            _ => {
                let key = text(keys::approval::user_queue(&user).in_layout(layout));
                pipeline.cmd("ZADD").arg(key).arg(17).arg("request")
            }
        }
        .ignore();
        if (count + 1) % CHUNK == 0 || count + 1 == number {
            pipeline.query_async::<()>(connection).await.map_err(|error| unavailable(&error))?;
            pipeline.clear();
            bar.set_position(count);
        }
    }
    Ok(())
}

/// The other client: one GET at a time, at a constant rate, until it is stopped.
async fn probe(url: String, is_over: Arc<AtomicBool>) -> Result<Samples, BenchError> {
    let mut connection = connect(&url).await?;
    let mut ticks = interval(PROBE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut samples = Samples::default();
    let id = ids::TaskId::new("probe").map_err(|error| unavailable(&error))?;
    let key = keys::task::state(&id).in_layout(Layout::Plain);
    while !is_over.load(Ordering::Relaxed) {
        let scheduled = ticks.tick().await;
        let _: Option<String> = redis::cmd("GET")
            .arg(key.as_str())
            .query_async(&mut connection)
            .await
            .map_err(|error| unavailable(&error))?;
        samples.add(scheduled.elapsed());
    }
    Ok(samples)
}

/// Runs `work` beside the other client, and returns both results.
async fn beside_probe<T>(
    url: &str,
    work: impl Future<Output = Result<T, BenchError>>,
) -> Result<(T, Samples), BenchError> {
    let own_thread = ClientThreads::start(1)?;
    let is_over = Arc::new(AtomicBool::new(false));
    let other = own_thread.run(probe(url.to_owned(), Arc::clone(&is_over)));
    let work = async {
        let result = work.await;
        is_over.store(true, Ordering::Relaxed);
        result
    };
    let (result, samples) = tokio::join!(work, other);
    Ok((result?, samples?))
}

/// Audits until the end, or until the time is over. Returns the number of keys and the seconds.
async fn audited(
    args: &Args,
    pace: Pace,
    within: Option<Duration>,
    threads: &ClientThreads,
) -> Result<(u64, f64), BenchError> {
    let url = args.redis.clone();
    threads
        .run(async move {
            let seen = AtomicU64::new(0);
            let progress = |now: Progress| seen.store(now.keys, Ordering::Relaxed);
            let options = AuditOptions { pace, ..AuditOptions::default() };
            let started = Instant::now();
            let work = audit(&url, catalogs(), &options, Timestamp::UNIX_EPOCH, &progress);
            match within {
                None => drop(work.await.map_err(|error| unavailable(&error))?),
                Some(within) => {
                    // Small keyspaces are audited before the time is over.
                    if let Ok(report) = tokio::time::timeout(within, work).await {
                        drop(report.map_err(|error| unavailable(&error))?);
                    }
                }
            }
            Ok((seen.load(Ordering::Relaxed), started.elapsed().as_secs_f64()))
        })
        .await
}

async fn throttled(
    args: &Args,
    pace: Pace,
    threads: &ClientThreads,
    meter: &CpuMeter,
) -> Result<Row, BenchError> {
    let turn = Duration::from_secs_f64(args.seconds() / f64::from(2 * TURNS));
    let (mut idle, mut busy) = (Samples::default(), Samples::default());
    let (mut keys, mut seconds, mut cpu) = (0, 0.0, CpuTimes::default());
    for _ in 0..TURNS {
        let pause = async {
            tokio::time::sleep(turn).await;
            Ok(())
        };
        let ((), samples) = beside_probe(&args.redis, pause).await?;
        idle.append(samples);
        let before = meter.read().await?;
        let ((turn_keys, turn_seconds), samples) =
            beside_probe(&args.redis, audited(args, pace, Some(turn), threads)).await?;
        cpu += meter.read().await?.since(&before);
        busy.append(samples);
        keys += turn_keys;
        seconds += turn_seconds;
    }
    let (idle, busy) = (idle.latencies(), busy.latencies());
    let rate = per_second(keys, seconds);
    Ok(Row {
        row: "throttled",
        what: format!(
            "the audit with its default pace of {} %, in turns with an idle server; another client's GET",
            pace.share
        ),
        figures: vec![
            Figure::below("p99 of another client", busy.p99_ms, "ms", 2.0 * idle.p99_ms)
                .relative_to(idle.p99_ms, "an idle server"),
            Figure::plain("p99 on an idle server", idle.p99_ms, "ms"),
            Figure::plain("keys", rate, "/s"),
        ],
        cpu: vec![cpu.per("key", usize::try_from(keys).unwrap_or(usize::MAX), 2)],
        details: json!({ "keys": keys, "seconds": seconds, "idle": idle, "throttled": busy }),
    })
}

async fn flat_out(args: &Args, threads: &ClientThreads, meter: &CpuMeter) -> Result<Row, BenchError> {
    let before = meter.read().await?;
    let ((keys, seconds), samples) =
        beside_probe(&args.redis, audited(args, Pace::FULL, None, threads)).await?;
    let cpu = meter.read().await?.since(&before);
    let other: Latencies = samples.latencies();
    Ok(Row {
        row: "flat out",
        what: format!("the audit of {keys} keys without pauses; another client's GET"),
        figures: vec![
            Figure::at_least("keys", per_second(keys, seconds), "/s", MIN_KEYS_PER_SECOND),
            Figure::plain("p99 of another client", other.p99_ms, "ms"),
        ],
        cpu: vec![cpu.per("key", usize::try_from(keys).unwrap_or(usize::MAX), 2)],
        details: json!({ "keys": keys, "seconds": seconds, "other": other }),
    })
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn per_second(keys: u64, seconds: f64) -> f64 {
    keys as f64 / seconds.max(1e-9)
}
