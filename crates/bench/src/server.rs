//! The server under test: a process of its own with a temporary folder, or one that already runs.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use ade_store::redis::{InvalidRedisUrl, RedisUrl};
use clap::Args as ClapArgs;
use tempfile::TempDir;
use uuid::Uuid;

use super::http_client::Target;
use crate::cpu::CpuMeter;
use crate::error::{BenchError, ErrorKind};
use crate::processes;
use crate::redis_baseline::RedisBaseline;

/// The secret of the servers under test: tasks that are loaded without them need it too.
pub(super) const SECRET: &str = "secret-of-the-server-under-test-01";
pub(super) const FOLDER_PREFIX: &str = "ade-bench-";

/// The program that is started as the server.
#[derive(Debug, Clone, Default, ClapArgs)]
pub(super) struct ServerProgram {
    /// The ade executable to start as the server, such as an older build; it must understand the requests and the settings of this
    /// one [default: this executable]
    #[arg(long, value_name = "FILE")]
    pub(super) binary: Option<PathBuf>,
}

#[derive(Debug)]
pub(super) enum ServerChoice {
    /// Started here, with data below this folder, and optionally with locks on Redis.
    Spawned(ServerProgram, PathBuf, Option<BenchRedis>),
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

/// Bytes in use.
#[derive(Debug, Clone, Copy)]
pub(super) struct MemoryUsage {
    pub(super) resident_bytes: f64,
    /// Zero without Redis.
    pub(super) redis_bytes: f64,
}

impl ServerChoice {
    pub(super) fn start(&self) -> Result<ServerUnderTest, BenchError> {
        match self {
            Self::Spawned(program, parent, redis) => program.start(parent, redis.as_ref()),
            Self::External(target) => {
                Ok(ServerUnderTest { target: target.clone(), process: None, redis: None })
            }
        }
    }

    /// Kills a server that was started with a temporary folder, and starts it again with the same data; `None` for any other.
    pub(super) fn restart(&self, mut server: ServerUnderTest) -> Result<Option<ServerUnderTest>, BenchError> {
        let folder = server.process.as_mut().and_then(|process| process.folder.take());
        server.process = None;
        let (Self::Spawned(program, ..), Some(folder)) = (self, folder) else { return Ok(None) };
        program.start_in_own(folder, server.redis.as_ref()).map(Some)
    }
}

impl ServerProgram {
    /// Starts a server with a temporary folder.
    fn start(&self, parent: &Path, redis: Option<&BenchRedis>) -> Result<ServerUnderTest, BenchError> {
        let folder = tempfile::Builder::new()
            .prefix(FOLDER_PREFIX)
            .tempdir_in(parent)
            .map_err(|error| start_failed(&error))?;
        self.start_in_own(folder, redis)
    }

    fn start_in_own(
        &self,
        folder: TempDir,
        redis: Option<&BenchRedis>,
    ) -> Result<ServerUnderTest, BenchError> {
        let mut server = self.start_in(folder.path(), redis, &[])?;
        if let Some(process) = &mut server.process {
            process.folder = Some(folder);
        }
        Ok(server)
    }

    /// Starts a server in an existing folder, with settings as environment variables.
    pub(super) fn start_in(
        &self,
        folder: &Path,
        redis: Option<&BenchRedis>,
        settings: &[(&str, &str)],
    ) -> Result<ServerUnderTest, BenchError> {
        let failed = |error: std::io::Error| start_failed(&error);
        let log = folder.join("log");
        let token = Uuid::new_v4().simple().to_string();
        // The measurements decide as many users. A measurement may have written further settings.
        let config = folder.join("bench.toml");
        let settings_file = std::fs::read_to_string(folder.join("ade.toml")).unwrap_or_default();
        std::fs::write(&config, format!("{settings_file}\n[security]\nbootstrap_decides = true\n"))
            .map_err(failed)?;
        let mut command = Command::new(self.path()?);
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
        let target = Target::new(url, &token)?;
        Ok(ServerUnderTest { target, process: Some(process), redis: redis.cloned() })
    }

    /// The command that writes projections again, without the database.
    pub(super) fn rebuild(&self, redis: &BenchRedis) -> Result<Command, BenchError> {
        let mut command = Command::new(self.path()?);
        command.arg("rebuild").env("ADE_SECRET", SECRET).env("ADE_SERVER_REDIS", &redis.address);
        command.stdin(Stdio::null());
        Ok(command)
    }

    /// Absolute, because the server runs in another folder.
    fn path(&self) -> Result<PathBuf, BenchError> {
        let Some(binary) = &self.binary else {
            return std::env::current_exe().map_err(|error| start_failed(&error));
        };
        binary.canonicalize().map_err(|error| {
            BenchError::new(ErrorKind::Input, format!("cannot use --binary {}: {error}", binary.display()))
        })
    }
}

impl ServerUnderTest {
    /// Without PostgreSQL, and without the server if it is external.
    pub(super) fn cpu_meter(&self) -> CpuMeter {
        CpuMeter {
            server: self.process.as_ref().map(|process| process.child.id()),
            redis: self.redis.as_ref().map(|redis| redis.baseline.clone()),
            postmaster: None,
        }
    }

    /// None for an external server.
    pub(super) async fn memory(&self) -> Result<Option<MemoryUsage>, BenchError> {
        let Some(process) = &self.process else { return Ok(None) };
        let resident_bytes = processes::resident_bytes(process.child.id())?;
        let redis_bytes = match &self.redis {
            Some(redis) => redis.baseline.memory_bytes().await?,
            None => 0.0,
        };
        Ok(Some(MemoryUsage { resident_bytes, redis_bytes }))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Its data is temporary, so it need not shut down cleanly. It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
