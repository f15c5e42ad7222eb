//! Taking a lock and giving it back on Redis, beside the least that any lock there can cost, with the same client.

use std::time::Duration;

use ade_domain::lock::{Acquire, Holder, LockCommand, LockName, Mode, Outcome, RequestKey, Standing};
use ade_store::redis::{Bare, Options, RedisCoordination};
use ade_store::{CoordinationError, Locks};
use indicatif::ProgressBar;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::Instant;
use uuid::Uuid;

use super::Sizes;
use crate::error::{BenchError, ErrorKind};
use crate::report::{Figure, Row};
use crate::samples::Samples;
use crate::subject::OnARedis;

/// Both take turns, so that a noisy neighbour disturbs both alike.
const ROUNDS: u32 = 4;

/// What is taken and given back.
#[derive(Debug, Clone)]
enum Way {
    Ade(RedisCoordination),
    Bare(Bare),
}

#[derive(Debug, Default)]
struct Measured {
    samples: Samples,
    took: Duration,
    cpu_seconds: f64,
}

impl Measured {
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    fn per_second(&self) -> f64 {
        self.samples.len() as f64 / self.took.as_secs_f64()
    }

    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    fn redis_us(&self) -> f64 {
        self.cpu_seconds * 1e6 / self.samples.len().max(1) as f64
    }
}

pub(super) async fn measure(redis: &OnARedis, sizes: &Sizes, bar: &ProgressBar) -> Result<Row, BenchError> {
    let clients = sizes.connections;
    let options = Options::default();
    let ade = Way::Ade(RedisCoordination::open(&redis.url, options).await.map_err(away)?);
    let bare = Way::Bare(redis.bare.clone());
    bar.set_length(u64::from(2 * ROUNDS));
    let part = Duration::from_secs_f64(sizes.seconds / f64::from(ROUNDS));
    for way in [&ade, &bare] {
        run(way, clients, part.min(Duration::from_secs(1))).await?;
    }
    let (mut own, mut least) = (Measured::default(), Measured::default());
    for _ in 0..ROUNDS {
        for (way, all) in [(&ade, &mut own), (&bare, &mut least)] {
            let cpu = redis.bare.cpu_seconds().await.map_err(away)?;
            let (samples, took) = run(way, clients, part).await?;
            all.cpu_seconds += redis.bare.cpu_seconds().await.map_err(away)? - cpu;
            all.samples.append(samples);
            all.took += took;
            bar.inc(1);
        }
    }
    let (rate, least_rate) = (own.per_second(), least.per_second());
    let (redis_us, least_us) = (own.redis_us(), least.redis_us());
    let (own, least) = (own.samples.latencies(), least.samples.latencies());
    let to = "SET NX PX + compare-and-delete";
    Ok(Row {
        row: "pair",
        what: format!(
            "acquire + release on Redis: {clients} clients, each with locks of its own, over one connection; beside it \
             SET NX PX and a compare-and-delete script over the same kind of connection"
        ),
        figures: vec![
            Figure::at_least("pairs", rate, "/s", 0.5 * least_rate).against(least_rate, to),
            Figure::plain("p50", own.p50_ms, "ms").against(least.p50_ms, to),
            Figure::plain("p99", own.p99_ms, "ms").against(least.p99_ms, to),
            Figure::plain("Redis per pair", redis_us, "µs").against(least_us, to),
        ],
        details: json!({
            "clients": clients,
            "pairs_per_second": rate,
            "bare_pairs_per_second": least_rate,
            "redis_us_per_pair": redis_us,
            "bare_redis_us_per_pair": least_us,
            "pair": own,
            "bare": least,
        }),
    })
}

async fn run(way: &Way, clients: usize, lasts: Duration) -> Result<(Samples, Duration), BenchError> {
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for client in 0..clients {
        let way = way.clone();
        tasks.spawn(async move {
            let mut samples = Samples::default();
            for number in 0_u64.. {
                let began = Instant::now();
                if began - start >= lasts {
                    break;
                }
                pair(&way, client, number % 100).await?;
                samples.add(began.elapsed());
            }
            Ok::<_, BenchError>(samples)
        });
    }
    let mut all = Samples::default();
    while let Some(done) = tasks.join_next().await {
        all.append(done.map_err(|error| BenchError::from(std::io::Error::other(error)))??);
    }
    Ok((all, start.elapsed()))
}

async fn pair(way: &Way, client: usize, number: u64) -> Result<(), BenchError> {
    let wrong = |what: &str| {
        BenchError::new(ErrorKind::Unavailable, format!("a lock of our own could not be {what}"))
    };
    let ade = match way {
        Way::Bare(bare) => {
            let done =
                bare.pair(&format!("bench-{client}-{number}"), &Uuid::new_v4().simple().to_string()).await;
            return if done.map_err(away)? { Ok(()) } else { Err(wrong("taken")) };
        }
        Way::Ade(ade) => ade,
    };
    let invalid = |_| wrong("named");
    let lock: LockName = format!("resource:bench-pair:{client}-{number}").parse().map_err(invalid)?;
    let holder = Holder::new(&format!("bench-{client}"), None).map_err(invalid)?;
    let wish = Acquire {
        holder: holder.clone(),
        request: RequestKey::once(Uuid::new_v4().as_u128()),
        remember: false,
        mode: Mode::Exclusive,
        ttl_ms: 30_000,
        claimed: true,
        wait: None,
        purpose: "".into(),
        priority: 0,
    };
    let Outcome::Standing(Standing::Held(grant)) = one(ade, &lock, LockCommand::Acquire(wish)).await? else {
        return Err(wrong("taken"));
    };
    match one(ade, &lock, LockCommand::Release { holder, token: grant.token }).await? {
        Outcome::Done => Ok(()),
        _ => Err(wrong("given back")),
    }
}

async fn one(ade: &RedisCoordination, lock: &LockName, command: LockCommand) -> Result<Outcome, BenchError> {
    let answers = ade.commands(vec![(lock.clone(), command)]).await.map_err(away)?;
    answers
        .into_iter()
        .next()
        .map(|answer| answer.outcome)
        .ok_or_else(|| away(CoordinationError("no answer".to_owned())))
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn away(error: CoordinationError) -> BenchError {
    BenchError::new(ErrorKind::Unavailable, error.to_string())
}
