//! The server under test: a process of its own with a temporary folder, or one that already runs.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use ade_store::redis::{InvalidRedisUrl, RedisUrl};
use tempfile::TempDir;
use tokio::time::Instant;
use uuid::Uuid;

use super::http_client::Target;
use crate::error::{BenchError, ErrorKind};
use crate::redis_baseline::RedisBaseline;

/// The secret of the servers under test: tasks that are loaded without them need it too.
pub(super) const SECRET: &str = "secret-of-the-server-under-test-01";
pub(super) const FOLDER_PREFIX: &str = "ade-bench-";

#[derive(Debug)]
pub(super) enum ServerChoice {
    /// Started here, with data below this folder, and optionally with locks on Redis.
    Spawned(PathBuf, Option<BenchRedis>),
    /// Already running.
    External(Target),
}

/// A Redis that was empty at the start and may be flushed.
#[derive(Debug, Clone)]
pub(super) struct BenchRedis {
    pub(super) url: RedisUrl,
    /// The URL with its password.
    address: String,
    pub(super) baseline: RedisBaseline,
}

impl BenchRedis {
    pub(super) async fn open(address: &str) -> Result<Self, BenchError> {
        let url: RedisUrl = address
            .parse()
            .map_err(|error: InvalidRedisUrl| BenchError::new(ErrorKind::Input, error.to_string()))?;
        let baseline = RedisBaseline::open(&url).await?;
        if !baseline.is_empty().await? {
            return Err(BenchError::new(
                ErrorKind::Input,
                format!("{url} is not empty, and benchmarks delete all its keys"),
            )
            .hint("start a separate Redis, such as redis-server --port 6390 --save ''"));
        }
        Ok(Self { url, address: address.to_owned(), baseline })
    }

    /// CPU time in seconds and memory in bytes of all its servers.
    pub(super) async fn usage(&self) -> Result<(f64, f64), BenchError> {
        let cpu = self.baseline.cpu_seconds().await?;
        Ok((cpu, self.baseline.memory_bytes().await?))
    }

    pub(super) async fn clear(&self) -> Result<(), BenchError> {
        self.baseline.delete_all_keys().await
    }
}

fn start_failed(error: &std::io::Error) -> BenchError {
    BenchError::new(ErrorKind::Unavailable, format!("cannot start the server under test: {error}"))
}

#[derive(Debug)]
pub(super) struct ServerUnderTest {
    pub(super) target: Target,
    process: Option<Process>,
    /// None with embedded locks.
    pub(super) redis: Option<BenchRedis>,
}

/// Dropping it kills the process and removes its folder, in this order.
#[derive(Debug)]
struct Process {
    child: Child,
    /// None if the folder belongs to the caller.
    folder: Option<TempDir>,
}

/// Resources used since the start of the process.
#[derive(Debug, Clone, Copy)]
pub(super) struct ResourceUsage {
    at: Instant,
    pub(super) cpu_seconds: f64,
    pub(super) resident_bytes: f64,
    /// Zero without Redis, like `redis_bytes`.
    pub(super) redis_cpu_seconds: f64,
    pub(super) redis_bytes: f64,
}

impl ServerChoice {
    pub(super) fn start(&self) -> Result<ServerUnderTest, BenchError> {
        match self {
            Self::Spawned(parent, redis) => ServerUnderTest::start(parent, redis.as_ref()),
            Self::External(target) => {
                Ok(ServerUnderTest { target: target.clone(), process: None, redis: None })
            }
        }
    }
}

impl ServerUnderTest {
    /// Starts this binary as a server with a temporary folder.
    fn start(parent: &Path, redis: Option<&BenchRedis>) -> Result<Self, BenchError> {
        let folder = tempfile::Builder::new()
            .prefix(FOLDER_PREFIX)
            .tempdir_in(parent)
            .map_err(|error| start_failed(&error))?;
        Self::start_in_own(folder, redis)
    }

    fn start_in_own(folder: TempDir, redis: Option<&BenchRedis>) -> Result<Self, BenchError> {
        let mut server = Self::start_in(folder.path(), redis, &[])?;
        if let Some(process) = &mut server.process {
            process.folder = Some(folder);
        }
        Ok(server)
    }

    /// Kills a server that was started with a temporary folder, and starts it again with the same data; `None` for any other.
    pub(super) fn restart(mut self) -> Result<Option<Self>, BenchError> {
        let folder = self.process.as_mut().and_then(|process| process.folder.take());
        self.process = None;
        folder.map(|folder| Self::start_in_own(folder, self.redis.as_ref())).transpose()
    }

    /// Starts this binary as a server in an existing folder, with settings as environment variables.
    pub(super) fn start_in(
        folder: &Path,
        redis: Option<&BenchRedis>,
        settings: &[(&str, &str)],
    ) -> Result<Self, BenchError> {
        let failed = |error: std::io::Error| start_failed(&error);
        let log = folder.join("log");
        let token = Uuid::new_v4().simple().to_string();
        // The measurements decide as many users. A measurement may have written further settings.
        let config = folder.join("bench.toml");
        let settings_file = std::fs::read_to_string(folder.join("ade.toml")).unwrap_or_default();
        std::fs::write(&config, format!("{settings_file}\n[security]\nbootstrap_decides = true\n"))
            .map_err(failed)?;
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        // Variables and configuration file of the caller must not change the results.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ADE_")) {
            command.env_remove(name);
        }
        command
            .args(["serve", "--listen", "127.0.0.1:0", "--data"])
            .arg(folder.join("data"))
            .arg("--config")
            .arg(&config)
            .current_dir(folder)
            .env("ADE_ADMIN_TOKEN", &token)
            .env("ADE_SECRET", SECRET)
            .env("ADE_LOG_LEVEL", "warn")
            .envs(settings.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&log).map_err(failed)?);
        if let Some(redis) = redis {
            command.env("ADE_SERVER_REDIS", &redis.address);
        }
        let child = command.spawn().map_err(failed)?;
        let mut process = Process { child, folder: None };
        let mut line = String::new();
        if let Some(out) = process.child.stdout.as_mut() {
            BufReader::new(out).read_line(&mut line).map_err(failed)?;
        }
        let Some(url) = line.trim().strip_prefix("listening on ") else {
            let log = std::fs::read_to_string(&log).unwrap_or_default();
            let message = format!("the server under test did not start: {}", log.trim());
            return Err(BenchError::new(ErrorKind::Unavailable, message));
        };
        Ok(Self { target: Target::new(url, &token)?, process: Some(process), redis: redis.cloned() })
    }

    /// None for an external server.
    pub(super) async fn usage(&self) -> Result<Option<ResourceUsage>, BenchError> {
        let Some(process) = &self.process else { return Ok(None) };
        let path = PathBuf::from(format!("/proc/{}", process.child.id()));
        let read = |file: &str| {
            std::fs::read_to_string(path.join(file)).map_err(|error| {
                BenchError::new(
                    ErrorKind::Unavailable,
                    format!("cannot read the resource usage of the server: {error}"),
                )
            })
        };
        // The program name, in parentheses, may have spaces. User and system time are fields 14 and 15.
        let stat = read("stat")?;
        let fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ');
        let ticks: f64 = fields.skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
        let statm = read("statm")?;
        let pages: f64 = statm.split(' ').nth(1).and_then(|field| field.parse().ok()).unwrap_or_default();
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let (tick, page) =
            (rustix::param::clock_ticks_per_second() as f64, rustix::param::page_size() as f64);
        let (redis_cpu_seconds, redis_bytes) = match &self.redis {
            Some(redis) => redis.usage().await?,
            None => (0.0, 0.0),
        };
        let (cpu_seconds, resident_bytes) = (ticks / tick, pages * page);
        Ok(Some(ResourceUsage {
            at: Instant::now(),
            cpu_seconds,
            resident_bytes,
            redis_cpu_seconds,
            redis_bytes,
        }))
    }
}

impl ResourceUsage {
    /// CPU usage since `earlier`, in percent of one core.
    pub(super) fn cpu_percent_since(&self, earlier: &Self) -> f64 {
        100.0 * (self.cpu_seconds - earlier.cpu_seconds) / self.at.duration_since(earlier.at).as_secs_f64()
    }

    /// CPU usage of Redis since `earlier`, in percent of one core.
    pub(super) fn redis_percent_since(&self, earlier: &Self) -> f64 {
        let used = self.redis_cpu_seconds - earlier.redis_cpu_seconds;
        100.0 * used / self.at.duration_since(earlier.at).as_secs_f64()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Its data is temporary, so it need not shut down cleanly. It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
