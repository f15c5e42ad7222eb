//! Where lifecycles are measured: a server process with new data, and an author and a reviewer for each client, created through
//! the HTTP API. Rate limits are as high as possible.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use ade_client::wire::{PolicyRequest, UserRequest};
use tempfile::TempDir;

use super::Sizes;
use super::client::Workload;
use crate::approvals::{CHECKPOINT_SECONDS, Distributed, REQUESTS_PER_MINUTE};
use crate::cpu::CpuMeter;
use crate::database::BaselineTable;
use crate::error::{BenchError, ErrorKind};
use crate::http_client;
use crate::server::{FOLDER_PREFIX, ServerProgram, ServerUnderTest};

/// Sees everything and decides nothing.
pub(crate) const AUDITOR: &str = "auditor";
/// The name of the root in the configuration.
pub(crate) const FILES_ROOT: &str = "measured";
/// A worker is one agent and acquires the locks of all its tasks.
const ACQUISITIONS_PER_MINUTE: &str = "10000000";

pub(crate) fn author(number: usize) -> String {
    format!("author-{number:03}")
}

pub(crate) fn reviewer(number: usize) -> String {
    format!("reviewer-{number:03}")
}

/// The task type of a client. Only the reviewer of the client decides these tasks.
pub(crate) fn task_type(number: usize) -> String {
    format!("measured-{number:03}")
}

#[derive(Debug)]
pub(crate) struct Environment {
    // Dropped first: stops before its folder is removed.
    pub(crate) server: ServerUnderTest,
    pub(crate) baseline_table: BaselineTable,
    /// Parent of the files that tasks write.
    pub(crate) root: PathBuf,
    folder: TempDir,
    /// With the number of the schema.
    distributed: Option<(Distributed, usize)>,
    /// With the schema of this environment.
    postgres_url: Option<String>,
}

impl Environment {
    pub(crate) async fn create(
        program: &ServerProgram,
        parent: &Path,
        distributed: Option<&Distributed>,
        number: usize,
        workload: Workload,
        sizes: &Sizes,
    ) -> Result<Self, BenchError> {
        let folder = tempfile::Builder::new().prefix(FOLDER_PREFIX).tempdir_in(parent)?;
        // A root must not be a symbolic link.
        let root = folder.path().canonicalize()?.join("files");
        std::fs::create_dir(&root)?;
        if workload == Workload::Files {
            // What workers may do is configured only in the file, which the server finds in its working directory.
            let path = serde_json::to_string(&root).map_err(std::io::Error::from)?;
            let file = format!("[executors.files.roots.{FILES_ROOT}]\npath = {path}\n");
            std::fs::write(folder.path().join("ade.toml"), file)?;
        }
        let url = match distributed {
            Some(distributed) => Some(distributed.postgres.create_schema(number).await?),
            None => None,
        };
        let slots = sizes.slots.to_string();
        let mut settings = vec![
            ("ADE_LIMIT_REQUESTS_PER_MINUTE", REQUESTS_PER_MINUTE),
            ("ADE_LIMIT_PREVIEWS_PER_MINUTE", REQUESTS_PER_MINUTE),
            ("ADE_LOCK_ACQUISITIONS_PER_MINUTE", ACQUISITIONS_PER_MINUTE),
            ("ADE_AUDIT_CHECKPOINT_SECONDS", CHECKPOINT_SECONDS),
            ("ADE_WORKER_SLOTS", slots.as_str()),
        ];
        // Older builds do not know the setting.
        settings.extend((!sizes.relay).then_some(("ADE_EVENTS_RELAY", "false")));
        settings.extend(url.as_deref().map(|url| ("ADE_SERVER_POSTGRES", url)));
        let server =
            program.start_in(folder.path(), distributed.map(|distributed| &distributed.redis), &settings)?;
        let baseline_table = match &url {
            Some(url) => {
                BaselineTable::open_postgres(url, u32::try_from(sizes.clients).unwrap_or(u32::MAX)).await
            }
            None => BaselineTable::open_sqlite(folder.path()),
        };
        let distributed = distributed.map(|distributed| (distributed.clone(), number));
        let environment =
            Self { server, baseline_table: baseline_table?, root, folder, distributed, postgres_url: url };
        environment.create_users(sizes.clients, workload).await?;
        Ok(environment)
    }

    async fn create_users(&self, clients: usize, workload: Workload) -> Result<(), BenchError> {
        let mut connection = self.server.target.connect().await?;
        let users =
            (0..clients).flat_map(|number| [(author(number), "author"), (reviewer(number), "reviewer")]);
        for (user_id, role) in users.chain([(AUDITOR.to_owned(), "auditor")]) {
            let roles = Some(BTreeSet::from([role.to_owned()]));
            let user = UserRequest { user_id, roles, ..UserRequest::default() };
            connection.post("/api/v1/users", http_client::to_json(&user)?).await?.expect(201)?;
        }
        for number in 0..clients {
            let policy = PolicyRequest {
                name: Some(format!("review of {}", task_type(number))),
                task_types: Some(vec![task_type(number)]),
                // A policy that does not name the files of a task leaves them to the default policy.
                targets: (workload == Workload::Files).then(|| vec![format!("files:{FILES_ROOT}/*")]),
                reviewers: Some(vec![reviewer(number)]),
                active: Some(true),
                ..PolicyRequest::default()
            };
            connection.post("/api/v1/policies", http_client::to_json(&policy)?).await?.expect(201)?;
        }
        Ok(())
    }

    pub(crate) fn cpu_meter(&self) -> CpuMeter {
        let postmaster =
            self.distributed.as_ref().and_then(|(distributed, _)| distributed.postgres.postmaster);
        CpuMeter { postmaster, ..self.server.cpu_meter() }
    }

    /// The baseline uses neither the server nor Redis.
    pub(crate) fn baseline_meter(&self) -> CpuMeter {
        CpuMeter { server: None, redis: None, ..self.cpu_meter() }
    }

    /// Runs `ade rebuild` beside the server.
    pub(crate) async fn rebuild(&self, program: &ServerProgram) -> Result<(), BenchError> {
        let (Some((distributed, _)), Some(postgres)) = (&self.distributed, &self.postgres_url) else {
            return Ok(());
        };
        let (mut command, folder) = (program.rebuild(&distributed.redis)?, self.folder.path().to_owned());
        command.arg("--data").arg(folder.join("rebuild")).current_dir(&folder);
        command.env("ADE_SERVER_POSTGRES", postgres);
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        if output.status.success() {
            return Ok(());
        }
        let reason = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(BenchError::new(ErrorKind::Unavailable, format!("ade rebuild failed: {reason}")))
    }

    /// Stops the server and removes all its data.
    pub(crate) async fn remove(self) -> Result<(), BenchError> {
        let Self { server, baseline_table, folder, distributed, .. } = self;
        drop(server);
        baseline_table.close().await;
        folder.close()?;
        if let Some((distributed, number)) = distributed {
            distributed.postgres.drop_schema(number).await?;
            distributed.redis.clear().await?;
        }
        Ok(())
    }
}
