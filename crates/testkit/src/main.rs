//! `ade-servers redis sentinel cluster postgres browser` starts temporary servers. It prints one line per server (kind and URL) and
//! one per process (`pid`, `guardian`, `folder`), then runs until standard input closes or it is killed.
//! `ade-servers redis -- COMMAND …` prints nothing and runs the command with each URL in a variable, such as `REDIS`.

use std::io::{self, Read, Write};
use std::process::{Command, ExitCode};

use ade_testkit::guard::GuardedProcess;
use ade_testkit::{Browser, Page, Postgres, Redis, RedisCluster, RedisSentinel, StartError, WindowOptions};
use tokio::runtime::Runtime;

const USAGE: &str = "usage: ade-servers [redis] [sentinel] [cluster] [postgres] [browser] [-- COMMAND ...]";

enum Server {
    Redis(Redis),
    Sentinel(RedisSentinel),
    Cluster(RedisCluster),
    Postgres(Postgres),
    /// With a window.
    Browser(Browser, Page),
}

impl Server {
    fn start(kind: &str) -> Result<Option<Self>, StartError> {
        Ok(Some(match kind {
            "redis" => Self::Redis(Redis::start()?),
            "sentinel" => Self::Sentinel(RedisSentinel::start()?),
            "cluster" => Self::Cluster(RedisCluster::start()?),
            "postgres" => Self::Postgres(Postgres::start()?),
            "browser" => Self::start_browser()?,
            _ => return Ok(None),
        }))
    }

    fn start_browser() -> Result<Self, StartError> {
        let runtime = Runtime::new()
            .map_err(|source| StartError::System { doing: "start a runtime".to_owned(), source })?;
        let (browser, page) = runtime.block_on(async {
            let browser = Browser::start().await?;
            let page = browser.window(WindowOptions::default()).await;
            Ok::<_, StartError>((browser, page))
        })?;
        Ok(Self::Browser(browser, page))
    }

    fn url(&self) -> String {
        match self {
            Self::Redis(server) => server.url(),
            Self::Sentinel(server) => server.url(),
            Self::Cluster(server) => server.url(),
            Self::Postgres(server) => server.url("postgres"),
            Self::Browser(browser, ..) => browser.url(),
        }
    }

    /// Process ids, each with the guardian that stops it.
    fn processes(&self) -> Vec<(i32, &GuardedProcess)> {
        let guarded: Vec<&GuardedProcess> = match self {
            Self::Redis(server) => vec![server.process()],
            Self::Sentinel(server) => server.processes().collect(),
            Self::Cluster(server) => server.processes().collect(),
            Self::Postgres(server) => vec![server.process()],
            Self::Browser(browser, page) => {
                let process = browser.process();
                return vec![(process.pid(), process), (page.chromium_pid(), process)];
            }
        };
        guarded.into_iter().map(|process| (process.pid(), process)).collect()
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
        for (pid, process) in server.processes() {
            let (guardian, folder) = (process.guardian_pid(), process.folder().display());
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
