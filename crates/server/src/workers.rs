//! Workers of this process: what the configuration allows them, and a process that is nothing but a worker.

use std::collections::BTreeMap;
use std::future::Future;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ade_app::demo::CHECK;
use ade_app::tasks::Previews;
use ade_app::{LockMaintenance, LockService, LogNotices, TaskService, Worker, Working};
use ade_domain::Clock;
use ade_executors::egress::Guard;
use ade_executors::watchdog::Program;
use ade_executors::{Command, CommandLimits, Executor, Executors, Files, Http, Noop, Secrets, Sql, Template};
use ade_store::database::BlobStore;
use ade_store::{Blobs, Coordination, Database, SystemClock};
use uuid::Uuid;

use crate::run::{StartError, coordination};
use crate::{Config, config};

/// What may be done here, and what must never be seen.
#[derive(Debug, Clone)]
pub(crate) struct Allowed {
    pub(crate) executors: Executors,
    pub(crate) secrets: Secrets,
}

/// What the app of a demo reads, before anybody changes it.
const PLAYED_WITH: &str = "# The app of the demo reads this.\nlisten 127.0.0.1:8080\nworkers 2\n";

/// A demo has a folder whose files its tasks change, and a command that looks at the result. The folder, if it is one.
pub(crate) fn playground(config: &mut Config) -> Result<Option<String>, StartError> {
    if !config.demo {
        return Ok(None);
    }
    let made = || -> std::io::Result<String> {
        let folder = std::path::absolute(&config.data)?.join("playground");
        std::fs::create_dir_all(&folder)?;
        let file = folder.join("app.conf");
        if !file.exists() {
            std::fs::write(&file, PLAYED_WITH)?;
        }
        Ok(folder.to_string_lossy().into_owned())
    };
    let folder =
        made().map_err(|error| StartError::Executor(format!("the playground of the demo: {error}")))?;
    let says = ["grep", "-x", "workers [1-9][0-9]*"].map(str::to_owned);
    let argv = says.into_iter().chain([format!("{folder}/app.conf")]).collect();
    let template = config::Template { argv, preview_argv: None, rollback_argv: None };
    config.executors.command.templates.insert(CHECK.to_owned(), template);
    config.executors.files.roots.push(folder.clone().into());
    Ok(Some(folder))
}

/// Everything that the configuration allows, each in its place, and once more in the place of the label.
pub(crate) fn allowed(config: &Config) -> Result<Allowed, StartError> {
    let mut executors = Executors::default();
    let mut secrets = config.executors.given.0.clone();
    executors.add("noop", Arc::new(Noop));
    let unusable = |error: String| StartError::Executor(error);
    let mut commands = BTreeMap::new();
    for (name, template) in &config.executors.command.templates {
        let template = Template {
            argv: template.argv.clone(),
            preview_argv: template.preview_argv.clone(),
            rollback_argv: template.rollback_argv.clone(),
        };
        let command = Command::new(name.as_str(), &template, CommandLimits::default(), Program::own());
        let command = Arc::new(command.map_err(|error| unusable(error.to_string()))?);
        executors.add(command.place(), Arc::clone(&command) as Arc<dyn Executor>);
        commands.insert(name.clone(), command);
    }
    apart(&config.executors.files.roots)?;
    for (root, why) in unusable_roots(config) {
        tracing::warn!(
            "the root of files {} {why}: its tasks fail until that is mended; make the folder, or change executors.files.roots",
            root.display()
        );
    }
    for root in &config.executors.files.roots {
        let files = Files::new(root.to_string_lossy()).map_err(|error| unusable(error.to_string()))?;
        let files = files.with_verifiers(commands.clone());
        executors.add(files.place(), Arc::new(files));
    }
    for (name, connection) in &config.executors.sql.connections {
        let sql = Sql::new(name.as_str(), &connection.url, connection.preview_url.as_deref());
        let sql = sql.map_err(|fault| {
            unusable(format!("sql.connections.{name}{}: {}", fault.pointer, fault.detail))
        })?;
        secrets.extend(sql.secrets());
        executors.add(sql.place(), Arc::new(sql));
    }
    let http = &config.executors.http;
    if !http.hosts.is_empty() {
        let named =
            http.secrets.iter().map(|(name, one)| (name.as_str(), one.host.as_str(), one.value.as_str()));
        let made = Guard::new(&http.hosts).and_then(|guard| Http::new(guard, named));
        let made = made.map_err(|fault| unusable(format!("http{}: {}", fault.pointer, fault.detail)))?;
        secrets.extend(made.secrets());
        executors.add(Http::PLACE, Arc::new(made));
    }
    if let Some(label) = &config.worker_label {
        let places: Vec<String> = executors.places().map(str::to_owned).collect();
        for place in places {
            if let Some(executor) = executors.at(&place).cloned() {
                executors.add(format!("{label}/{place}"), executor);
            }
        }
    }
    Ok(Allowed { executors, secrets: Secrets::new(secrets) })
}

/// The roots of files that cannot be used as they are now, each with why. They may come to be later, and keep nothing from
/// starting.
#[must_use]
pub fn unusable_roots(config: &Config) -> Vec<(&Path, String)> {
    let fault = |root: &Path| match std::fs::symlink_metadata(root) {
        Ok(found) if found.is_symlink() => Some("is a symbolic link".to_owned()),
        Ok(found) if !found.is_dir() => Some("is no folder".to_owned()),
        Ok(_) => None,
        Err(error) if error.kind() == ErrorKind::NotFound => Some("is not there".to_owned()),
        Err(error) => Some(format!("cannot be looked at ({error})")),
    };
    let roots = config.executors.files.roots.iter();
    roots.filter_map(|root| fault(root).map(|why| (root.as_path(), why))).collect()
}

/// Each folder has a fence of its own: what is in two of them would be changed by two tasks at once.
fn apart(roots: &[PathBuf]) -> Result<(), StartError> {
    let below = |inner: &PathBuf, outer: &PathBuf| inner != outer && inner.starts_with(outer);
    let both = roots.iter().flat_map(|inner| roots.iter().map(move |outer| (inner, outer)));
    match both.into_iter().find(|(inner, outer)| below(inner, outer)) {
        None => Ok(()),
        Some((inner, outer)) => Err(StartError::Executor(format!(
            "files.roots: {} is within {}; list only one of them",
            inner.display(),
            outer.display()
        ))),
    }
}

/// Where blobs are. Processes that share a record share them: what one saves to undo a change, another one undoes it with.
pub(crate) async fn blobs(config: &Config, record: &Database) -> Result<Blobs, StartError> {
    let folder = config.blobs.clone().unwrap_or_else(|| config.data.join("blobs"));
    let blobs = Blobs::in_folder(folder)?;
    if config.postgres.is_some() {
        let (store_id, folder) = (blobs.id().to_owned(), blobs.folder().to_string_lossy().into_owned());
        let first = record.blob_store(BlobStore { store_id, folder: folder.clone() }).await?;
        if first.store_id != blobs.id() {
            return Err(StartError::OtherBlobs { folder, first: first.folder });
        }
    }
    Ok(blobs)
}

/// How previews are made: here, and elsewhere if there may be other workers.
pub(crate) fn previews(config: &Config, allowed: &Allowed) -> Previews {
    Previews {
        executors: allowed.executors.clone(),
        secrets: allowed.secrets.clone(),
        elsewhere: config.postgres.is_some(),
    }
}

/// The worker of this process.
pub(crate) fn worker(
    config: &Config,
    allowed: Allowed,
    record: Database,
    reviews: TaskService,
    locks: LockService,
    clock: Arc<dyn Clock>,
    blobs: Blobs,
) -> Worker {
    Worker {
        record,
        reviews,
        locks,
        clock,
        executors: allowed.executors,
        secrets: allowed.secrets,
        blobs,
        name: format!("worker-{}", Uuid::new_v4().simple()),
        slots: config.worker_slots,
        lease_ms: config.worker_lease_ms,
    }
}

/// A process that carries out what is approved, and serves nothing.
#[derive(Debug)]
pub struct WorkerProcess {
    working: Working,
    upkeep: LockMaintenance,
    name: String,
    places: Vec<String>,
    _folder: Option<ade_store::DataFolder>,
}

impl WorkerProcess {
    /// Connects to Redis and PostgreSQL, and begins.
    pub async fn start(config: &Config) -> Result<Self, StartError> {
        let Some(postgres) = config.postgres.as_ref().filter(|_| config.redis.is_some()) else {
            return Err(StartError::NoWorker);
        };
        let allowed = allowed(config)?;
        let (coordination, folder): (Arc<dyn Coordination>, _) = coordination(config).await?;
        let record = Database::on_postgres(postgres).await?;
        let blobs = blobs(config, &record).await?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
        let locks = LockService::new(coordination.clone(), Arc::new(LogNotices));
        let upkeep = LockMaintenance::start(&locks);
        let reviews = TaskService::new(record.clone(), clock.clone(), Some(coordination))
            .with_previews(previews(config, &allowed));
        let places = allowed.executors.places().map(str::to_owned).collect();
        let worker = worker(config, allowed, record, reviews, locks, clock, blobs);
        let name = worker.name.clone();
        Ok(Self { working: worker.start(), upkeep, name, places, _folder: folder })
    }

    /// What it is called.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it can carry out.
    #[must_use]
    pub fn places(&self) -> &[String] {
        &self.places
    }

    /// Works until `end`; then it takes nothing new, and ends what is under way.
    pub async fn run(self, end: impl Future<Output = ()>) {
        end.await;
        tracing::info!("stopping");
        self.working.stop().await;
        self.upkeep.stop().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_files_are_apart() {
        let roots = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        for fine in [&["/srv/app", "/srv/apple"][..], &["/srv/app", "/srv/app"], &[]] {
            assert!(apart(&roots(fine)).is_ok(), "{fine:?}");
        }
        for names in [["/srv/app", "/srv"], ["/srv", "/srv/app/deep"]] {
            let said = apart(&roots(&names)).expect_err("one is within the other").to_string();
            assert!(said.contains("within /srv; list only one"), "{said}");
        }
    }
}
