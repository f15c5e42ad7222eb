//! What is measured: a server process of its own with a throw-away folder, or one that runs already.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use ade_store::CoordinationError;
use ade_store::redis::{Bare, InvalidUrl, RedisUrl};
use tempfile::TempDir;
use tokio::time::Instant;
use uuid::Uuid;

use super::link::Target;
use crate::error::{BenchError, ErrorKind};

/// How the folders of measurements are named.
pub(super) const FOLDER: &str = "ade-bench-";

/// Which server is measured.
#[derive(Debug)]
pub(super) enum Choice {
    /// One of our own, with its data below this folder, and its locks on a Redis perhaps.
    Own(PathBuf, Option<OnARedis>),
    /// One that somebody else runs.
    Running(Target),
}

/// A Redis that was empty when we came, and may be emptied.
#[derive(Debug, Clone)]
pub(super) struct OnARedis {
    pub(super) url: RedisUrl,
    /// The same as text, with its password.
    address: String,
    pub(super) bare: Bare,
}

impl OnARedis {
    pub(super) async fn open(address: &str) -> Result<Self, BenchError> {
        let url: RedisUrl = address
            .parse()
            .map_err(|error: InvalidUrl| BenchError::new(ErrorKind::Input, error.to_string()))?;
        let bare = Bare::open(&url).await.map_err(away)?;
        if !bare.is_empty().await.map_err(away)? {
            return Err(BenchError::new(
                ErrorKind::Input,
                format!("{url} holds keys; measurements empty it"),
            )
            .hint("start a Redis for this alone, such as redis-server --port 6390 --save ''"));
        }
        Ok(Self { url, address: address.to_owned(), bare })
    }

    /// What its servers have used so far: processor time in seconds, and bytes of data.
    pub(super) async fn usage(&self) -> Result<(f64, f64), BenchError> {
        let cpu = self.bare.cpu_seconds().await.map_err(away)?;
        Ok((cpu, self.bare.memory_bytes().await.map_err(away)?))
    }

    pub(super) async fn clear(&self) -> Result<(), BenchError> {
        self.bare.clear().await.map_err(away)
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn away(error: CoordinationError) -> BenchError {
    BenchError::new(ErrorKind::Unavailable, error.to_string())
}

fn cannot(error: &std::io::Error) -> BenchError {
    BenchError::new(ErrorKind::Unavailable, format!("cannot start a server to measure: {error}"))
}

/// A server under load.
#[derive(Debug)]
pub(super) struct Subject {
    pub(super) target: Target,
    process: Option<Process>,
    /// Where its locks are, if not in the process.
    pub(super) redis: Option<OnARedis>,
}

/// Dropping it ends the process and removes its folder, in this order.
#[derive(Debug)]
struct Process {
    child: Child,
    /// Nothing, if the folder outlives the process.
    _folder: Option<TempDir>,
}

/// What a process has used so far.
#[derive(Debug, Clone, Copy)]
pub(super) struct Usage {
    at: Instant,
    pub(super) cpu_seconds: f64,
    pub(super) resident_bytes: f64,
    /// Of Redis, where there is one.
    pub(super) redis_cpu_seconds: f64,
    pub(super) redis_bytes: f64,
}

impl Choice {
    pub(super) fn start(&self) -> Result<Subject, BenchError> {
        match self {
            Self::Own(parent, redis) => Subject::start(parent, redis.as_ref()),
            Self::Running(target) => Ok(Subject { target: target.clone(), process: None, redis: None }),
        }
    }
}

impl Subject {
    /// Starts this very binary as a server, with a folder of its own.
    fn start(parent: &Path, redis: Option<&OnARedis>) -> Result<Self, BenchError> {
        let folder =
            tempfile::Builder::new().prefix(FOLDER).tempdir_in(parent).map_err(|error| cannot(&error))?;
        let mut subject = Self::start_in(folder.path(), redis, &[])?;
        if let Some(process) = &mut subject.process {
            process._folder = Some(folder);
        }
        Ok(subject)
    }

    /// Starts this very binary as a server in a folder that is there, with some settings as variables.
    pub(super) fn start_in(
        folder: &Path,
        redis: Option<&OnARedis>,
        settings: &[(&str, &str)],
    ) -> Result<Self, BenchError> {
        let cannot = |error: std::io::Error| cannot(&error);
        let log = folder.join("log");
        let token = Uuid::new_v4().simple().to_string();
        let mut command = Command::new(std::env::current_exe().map_err(cannot)?);
        // Neither the variables nor the configuration file of whoever measures may change what is measured.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ADE_")) {
            command.env_remove(name);
        }
        command
            .args(["serve", "--listen", "127.0.0.1:0", "--data"])
            .arg(folder.join("data"))
            .current_dir(folder)
            .env("ADE_ADMIN_TOKEN", &token)
            .env("ADE_LOG_LEVEL", "warn")
            .envs(settings.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&log).map_err(cannot)?);
        if let Some(redis) = redis {
            command.env("ADE_SERVER_REDIS", &redis.address);
        }
        let child = command.spawn().map_err(cannot)?;
        let mut process = Process { child, _folder: None };
        let mut line = String::new();
        if let Some(out) = process.child.stdout.as_mut() {
            BufReader::new(out).read_line(&mut line).map_err(cannot)?;
        }
        let Some(url) = line.trim().strip_prefix("listening on ") else {
            let why = std::fs::read_to_string(&log).unwrap_or_default();
            let message = format!("the server to measure did not start: {}", why.trim());
            return Err(BenchError::new(ErrorKind::Unavailable, message));
        };
        Ok(Self { target: Target::new(url, &token)?, process: Some(process), redis: redis.cloned() })
    }

    /// What the process has used; nothing is known of a server that somebody else runs.
    pub(super) async fn usage(&self) -> Result<Option<Usage>, BenchError> {
        let Some(process) = &self.process else { return Ok(None) };
        let path = PathBuf::from(format!("/proc/{}", process.child.id()));
        let read = |file: &str| {
            std::fs::read_to_string(path.join(file)).map_err(|error| {
                BenchError::new(ErrorKind::Unavailable, format!("cannot see what the server uses: {error}"))
            })
        };
        // The name of the program, in parentheses, may have blanks; user and system time are fields 14 and 15.
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
        Ok(Some(Usage { at: Instant::now(), cpu_seconds, resident_bytes, redis_cpu_seconds, redis_bytes }))
    }
}

impl Usage {
    /// Percent of one core that were used since.
    pub(super) fn cpu_percent_since(&self, earlier: &Self) -> f64 {
        100.0 * (self.cpu_seconds - earlier.cpu_seconds) / self.at.duration_since(earlier.at).as_secs_f64()
    }

    /// The same of Redis.
    pub(super) fn redis_percent_since(&self, earlier: &Self) -> f64 {
        let used = self.redis_cpu_seconds - earlier.redis_cpu_seconds;
        100.0 * used / self.at.duration_since(earlier.at).as_secs_f64()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Its data is thrown away, so there is nothing that it should finish. If it is gone already, so much the better.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
