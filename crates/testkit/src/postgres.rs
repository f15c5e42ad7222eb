//! A PostgreSQL server for one test: new data folder, free port, no durability.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rustix::process::geteuid;

use crate::error::StartError;
use crate::guard::{GuardedProcess, ProcessSpec};
use crate::ports::Port;
use crate::process::program;

const READY: &str = "database system is ready to accept connections";
const START_TIMEOUT: Duration = Duration::from_secs(60);
const PACKAGE: &str = "postgresql";

#[derive(Debug)]
pub struct Postgres {
    process: GuardedProcess,
    port: Port,
}

impl Postgres {
    /// Starts a server and waits until it accepts connections.
    pub fn start() -> Result<Self, StartError> {
        Self::start_with(&[])
    }

    /// Starts a server with settings that override the defaults here: `["max_connections=1000"]`.
    pub fn start_with(settings: &[&str]) -> Result<Self, StartError> {
        let owner = unprivileged_user()?;
        let (initdb, postgres) = (binary("initdb")?, binary("postgres")?);
        let port = Port::claim()?;
        let number = port.number().to_string();
        let drop_privileges: Vec<String> = owner.map_or_else(Vec::new, |(user, group)| {
            vec![
                "setpriv".into(),
                format!("--reuid={user}"),
                format!("--regid={group}"),
                "--clear-groups".into(),
            ]
        });
        let preparation = format!(
            "exec {} '{initdb}' --pgdata=data --username=postgres --auth=trust --encoding=UTF8 --locale=C --no-sync",
            drop_privileges.join(" ")
        );
        let mut argv = drop_privileges;
        argv.extend([&postgres, "-D", "data", "-k", "", "-p", &number].map(str::to_owned));
        let defaults = [
            "listen_addresses=127.0.0.1",
            "fsync=off",
            // A killed server must not lose what it has acknowledged.
            "synchronous_commit=on",
            "full_page_writes=off",
            "max_connections=200",
            "log_destination=stderr",
        ];
        for setting in defaults.iter().chain(settings) {
            argv.extend(["-c".to_owned(), (*setting).to_owned()]);
        }
        let name = "PostgreSQL".to_owned();
        let files = Vec::new();
        let process = GuardedProcess::start(ProcessSpec {
            name,
            files,
            preparation,
            argv,
            stop_signal: "QUIT",
            owner,
        })?;
        process.wait_for_log_lines(READY, 1, START_TIMEOUT)?;
        Ok(Self { process, port })
    }

    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port.number())
    }

    /// Creates a database and returns its URL. Each test uses its own.
    pub fn create_database(&self, name: &str) -> Result<String, StartError> {
        self.run("createdb", &[name])?;
        Ok(self.url(name))
    }

    /// Runs SQL with psql and returns its output, unaligned and without headers.
    pub fn psql(&self, database: &str, sql: &str) -> Result<String, StartError> {
        self.run("psql", &["--no-psqlrc", "-qAt", "-v", "ON_ERROR_STOP=1", "-d", database, "-c", sql])
    }

    #[must_use]
    pub fn process(&self) -> &GuardedProcess {
        &self.process
    }

    fn run(&self, tool: &str, arguments: &[&str]) -> Result<String, StartError> {
        let port = self.port.number().to_string();
        let output = Command::new(binary(tool)?)
            .args(["-h", "127.0.0.1", "-p", &port, "-U", "postgres", "--no-password"])
            .args(arguments)
            // The tools would read PGHOST and similar variables.
            .env_clear()
            .output()
            .map_err(StartError::system(format!("run {tool}")))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
        }
        let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(StartError::system(format!("run {tool}"))(std::io::Error::other(reason)))
    }
}

/// Debian installs the programs outside PATH, in a folder per version. The newest version is used.
fn binary(name: &str) -> Result<String, StartError> {
    let mut versions: Vec<(u32, PathBuf)> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            Some((path.file_name()?.to_str()?.parse().ok()?, path.join("bin")))
        })
        .collect();
    versions.sort();
    let folders: Vec<PathBuf> = versions.into_iter().rev().map(|(_, path)| path).collect();
    program(name, PACKAGE, &folders)
}

/// PostgreSQL refuses to run as root, so root starts it as the user that its package creates.
fn unprivileged_user() -> Result<Option<(u32, u32)>, StartError> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    let users = fs::read_to_string("/etc/passwd").map_err(StartError::system("read /etc/passwd"))?;
    let ids_of = |name: &str| {
        let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut numbers = line.split(':').skip(2).map(str::parse);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    };
    let missing = || StartError::Missing { program: "the user postgres".into(), package: PACKAGE };
    ids_of("postgres").or_else(|| ids_of("nobody")).map(Some).ok_or_else(missing)
}
