//! `ade-servers redis sentinel cluster postgres` starts temporary servers. It prints one line per server (kind and URL) and
//! one per process (`pid`, `guardian`, `folder`), then runs until standard input closes or it is killed.
//! `ade-servers redis -- COMMAND …` prints nothing and runs the command with each URL in a variable, such as `REDIS`.

use std::io::{self, Read, Write};
use std::process::{Command, ExitCode};

use ade_testkit::guard::GuardedProcess;
use ade_testkit::{Postgres, Redis, RedisCluster, RedisSentinel, StartError};

const USAGE: &str = "usage: ade-servers [redis] [sentinel] [cluster] [postgres] [-- COMMAND ...]";

enum Server {
    Redis(Redis),
    Sentinel(RedisSentinel),
    Cluster(RedisCluster),
    Postgres(Postgres),
}

impl Server {
    fn start(kind: &str) -> Result<Option<Self>, StartError> {
        Ok(Some(match kind {
            "redis" => Self::Redis(Redis::start()?),
            "sentinel" => Self::Sentinel(RedisSentinel::start()?),
            "cluster" => Self::Cluster(RedisCluster::start()?),
            "postgres" => Self::Postgres(Postgres::start()?),
            _ => return Ok(None),
        }))
    }

    fn url(&self) -> String {
        match self {
            Self::Redis(server) => server.url(),
            Self::Sentinel(server) => server.url(),
            Self::Cluster(server) => server.url(),
            Self::Postgres(server) => server.url("postgres"),
        }
    }

    fn processes(&self) -> Vec<&GuardedProcess> {
        match self {
            Self::Redis(server) => vec![server.process()],
            Self::Sentinel(server) => server.processes().collect(),
            Self::Cluster(server) => server.processes().collect(),
            Self::Postgres(server) => vec![server.process()],
        }
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            // Nothing can be done if standard error is closed.
            let _ = writeln!(io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let kinds: Vec<String> = args.by_ref().take_while(|arg| arg != "--").collect();
    if kinds.is_empty() {
        return Err(USAGE.into());
    }
    if let Some(program) = args.next() {
        return run_command(&kinds, &program, args);
    }
    let mut servers = Vec::new();
    let mut out = io::stdout().lock();
    for kind in &kinds {
        let server = Server::start(kind)?.ok_or(USAGE)?;
        writeln!(out, "{kind} {}", server.url())?;
        for process in server.processes() {
            let (pid, guardian, folder) = (process.pid(), process.guardian_pid(), process.folder().display());
            writeln!(out, "process {pid} {guardian} {folder}")?;
        }
        servers.push(server);
    }
    writeln!(out, "ready")?;
    out.flush()?;
    io::stdin().lock().read_to_end(&mut Vec::new())?;
    Ok(ExitCode::SUCCESS)
}

fn run_command(
    kinds: &[String],
    program: &str,
    args: impl Iterator<Item = String>,
) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let mut command = Command::new(program);
    command.args(args);
    let mut servers = Vec::new();
    for kind in kinds {
        let server = Server::start(kind)?.ok_or(USAGE)?;
        command.env(kind.to_uppercase(), server.url());
        servers.push(server);
    }
    let status = command.status()?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
