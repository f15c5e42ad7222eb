//! Starting and stopping a server.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ade_app::agents::AgentService;
use ade_app::audit::LedgerError;
use ade_app::background::{BackgroundServices, Running};
use ade_app::demo::Demo;
use ade_app::rules::RuleService;
use ade_app::worker::Pulls;
use ade_app::{
    AccountService, AuditService, Jobs, LockMaintenance, LockService, RecordNotices, TaskService, Working,
};
use ade_domain::Clock;
use ade_store::embedded::{self, OpenError};
use ade_store::redis::{self, RedisCoordination};
use ade_store::{
    Coordination, CoordinationError, DataFolder, Database, DatabaseError, EmbeddedCoordination, FolderError,
    SystemClock, private_folder,
};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::api::settings::OwnSetting;
use crate::api::{self, App};
use crate::auth::AdminToken;
use crate::posted::InFlight;
use crate::{Config, accept, metrics, workers};
use uuid::Uuid;

/// How long what was told may take to be written once the server stops.
const FAREWELL: Duration = Duration::from_secs(5);
/// How often the recorder of metrics tidies up.
const METRICS_UPKEEP: Duration = Duration::from_secs(5);

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// What the data folder holds.
    #[error(transparent)]
    Store(#[from] OpenError),
    /// The data folder.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// Redis.
    #[error("{0}")]
    Redis(CoordinationError),
    /// The record.
    #[error("{0}")]
    Record(#[from] DatabaseError),
    /// The first administrator.
    #[error("the first administrator cannot be made: {0}")]
    FirstAdmin(ade_app::Error),
    /// The demo.
    #[error("the demo cannot be made: {0}")]
    Demo(ade_app::Error),
    /// The demo, where none may be.
    #[error("{0}")]
    NoDemo(String),
    /// The key that signs checkpoints.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The folder for blobs.
    #[error(transparent)]
    Blobs(#[from] ade_store::BlobError),
    /// Another folder for blobs than others have on the same record.
    #[error(
        "blobs are to be kept in {folder}, but others on this PostgreSQL keep them in another folder, which the first of them \
         called {first}; all servers and workers of one PostgreSQL share one folder"
    )]
    OtherBlobs {
        /// The one of this process.
        folder: String,
        /// The one of the others.
        first: String,
    },
    /// What workers may do.
    #[error("executors: {0}")]
    Executor(String),
    /// A worker without what it shares with servers.
    #[error(
        "a worker of its own needs the Redis and the PostgreSQL of its servers; embedded, ade serve works by itself"
    )]
    NoWorker,
    /// The administrator's token.
    #[error("the administrator's token: {0}")]
    Token(io::Error),
    /// The address.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Which address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
}

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    app: App,
    stop: watch::Sender<bool>,
    upkeep: LockMaintenance,
    duties: Running,
    notices: JoinHandle<()>,
    working: Working,
    address: SocketAddr,
    new_token: Option<PathBuf>,
    first_password: Option<String>,
    _folder: Option<DataFolder>,
}

/// A demo has a data folder of its own, which is never served as anything else: its passwords are known to everybody.
fn mark_demo(config: &Config) -> Result<(), StartError> {
    let (mark, data) = (config.data.join("demo"), config.data.display());
    let no = |why: String| Err(StartError::NoDemo(why));
    let is_marked = mark.exists();
    if !config.demo {
        return if is_marked {
            no(format!("{data} is the folder of a demo: serve it with --demo, or choose another"))
        } else {
            Ok(())
        };
    }
    if !config.listen.ip().is_loopback() {
        return no(format!("a demo is served on a loopback address alone, not on {}", config.listen));
    }
    if config.postgres.is_some() {
        return no("a demo keeps its record in its own data folder: leave --postgres out".to_owned());
    }
    if is_marked {
        return Ok(());
    }
    let is_used = std::fs::read_dir(&config.data).is_ok_and(|mut files| files.next().is_some());
    if is_used {
        return no(format!("{data} holds something else than a demo: choose another folder with --data"));
    }
    let made = private_folder(&config.data).and_then(|()| std::fs::write(&mark, "served with --demo only\n"));
    made.map_err(|source| StartError::Folder(FolderError::Unusable { path: mark, source }))
}

/// The backend that the configuration asks for. The one in this process takes the data folder by itself.
pub(crate) async fn coordination(
    config: &Config,
) -> Result<(Arc<dyn Coordination>, Option<DataFolder>), StartError> {
    let rules = config.rules.clone();
    let Some(url) = &config.redis else {
        let options = embedded::Options { rules, ..embedded::Options::default() };
        let backend = EmbeddedCoordination::open(&config.data, options, Arc::new(SystemClock::start()))?;
        tracing::info!(data = %config.data.display(), "locks are kept in this process");
        return Ok((Arc::new(backend), None));
    };
    let folder = DataFolder::claim(&config.data)?;
    let options = redis::Options {
        rules,
        min_replica_acks: config.min_replica_acks,
        max_clock_skew: Duration::from_millis(config.max_clock_skew_ms),
        ..redis::Options::default()
    };
    let backend = RedisCoordination::open(url, options).await.map_err(StartError::Redis)?;
    tracing::info!(redis = %url, "locks are coordinated on Redis");
    Ok((Arc::new(backend), Some(folder)))
}

impl Server {
    /// Opens the data folder and listens. Requests are answered once [`run`](Self::run) is called.
    pub async fn start(config: &Config, admin_token: Option<&str>) -> Result<Self, StartError> {
        mark_demo(config)?;
        let mut config = config.clone();
        let playground = workers::playground(&mut config)?;
        let config = &config;
        let (coordination, folder) = coordination(config).await?;
        let (admin, is_new) = AdminToken::find(admin_token, &config.data).map_err(StartError::Token)?;
        let listening = TcpListener::bind(config.listen).await;
        let listen = |source| StartError::Listen { address: config.listen, source };
        let listener = listening.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let record = match &config.postgres {
            Some(url) => Database::on_postgres(url).await?,
            None => Database::in_folder(&config.data).await?,
        };
        let blobs = workers::blobs(config, &record).await?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
        let (told, notices) = RecordNotices::start(record.clone(), clock.clone());
        let locks = LockService::new(coordination.clone(), Arc::new(told));
        let upkeep = LockMaintenance::start(&locks);
        let allowed = workers::allowed(config)?;
        let reviews = TaskService::new(record.clone(), clock.clone(), Some(coordination.clone()))
            .with_previews(workers::previews(config, &allowed));
        let agents = AgentService::new(coordination, record.clone(), clock.clone());
        let accounts = AccountService::new(record.clone(), clock.clone(), reviews.clone());
        let first_password = accounts.first_admin().await.map_err(StartError::FirstAdmin)?;
        let rules = RuleService::new(record.clone(), clock.clone());
        if config.demo && first_password.is_some() {
            let demo =
                Demo { accounts: &accounts, agents: &agents, rules: &rules, reviews: &reviews, playground };
            demo.fill().await.map_err(StartError::Demo)?;
        }
        let service = format!("ade {} at {address}", env!("CARGO_PKG_VERSION"));
        let jobs = Jobs {
            record: record.clone(),
            clock: clock.clone(),
            reviews: reviews.clone(),
            agents: agents.clone(),
            locks: locks.clone(),
            blobs: blobs.clone(),
            name: format!("server-{}", Uuid::new_v4().simple()),
        };
        let archives = jobs.archives();
        let duties = BackgroundServices {
            jobs: jobs.clone(),
            name: Uuid::new_v4().to_string(),
            data: config.data.clone(),
            checkpoint_every: Duration::from_secs(config.checkpoint_seconds.into()),
        };
        let duties = duties.start()?;
        let secrets = allowed.secrets.clone();
        let worker = workers::worker(
            config,
            allowed,
            record.clone(),
            reviews.clone(),
            locks.clone(),
            clock.clone(),
            blobs.clone(),
        );
        // Also where nothing is carried out: agents that ask for work may be lost as well.
        let working = if config.worker_slots > 0 { worker.start() } else { worker.watch() };
        let pulls = Pulls {
            record: record.clone(),
            reviews: reviews.clone(),
            locks: locks.clone(),
            agents: agents.clone(),
            clock: clock.clone(),
            blobs,
            secrets,
            lease_ms: config.worker_lease_ms,
        };
        let (stop, stopping) = watch::channel(false);
        let app = App {
            locks,
            agents,
            accounts,
            rules,
            audits: AuditService::new(record.clone(), reviews.clone()),
            reviews,
            pulls,
            jobs,
            archives,
            record,
            own_settings: OwnSetting::of_locks(&config.rules).into(),
            in_flight: InFlight::default(),
            admin,
            service: service.into(),
            requests_per_minute: config.requests_per_minute,
            sign_ins_per_minute: config.sign_ins_per_minute,
            hosts: config.hosts.clone().into(),
            stopping,
        };
        let new_token = is_new.then(|| config.data.join("admin-token"));
        Ok(Self {
            listener,
            app,
            stop,
            upkeep,
            duties,
            notices,
            working,
            address,
            new_token,
            first_password,
            _folder: folder,
        })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The file of the administrator's token, if this start made it.
    #[must_use]
    pub const fn new_token(&self) -> Option<&PathBuf> {
        self.new_token.as_ref()
    }

    /// The password of the user `admin`, if this start made it.
    #[must_use]
    pub fn first_password(&self) -> Option<&str> {
        self.first_password.as_deref()
    }

    /// Serves until `end`. Then it accepts nothing more, tells open answers to try elsewhere, and finishes the rest.
    pub async fn run(self, end: impl Future<Output = ()>) {
        let Self { listener, app, stop, upkeep, duties, notices, working, .. } = self;
        let recording = tokio::spawn(async {
            let mut tick = tokio::time::interval(METRICS_UPKEEP);
            while let Some(recorder) = metrics::recorder() {
                tick.tick().await;
                recorder.run_upkeep();
            }
        });
        let locks = app.locks.clone();
        let end = async move {
            end.await;
            tracing::info!("stopping");
            locks.leave();
            stop.send_replace(true);
        };
        accept::serve(&listener, api::router(app), end).await;
        recording.abort();
        working.stop().await;
        upkeep.stop().await;
        duties.stop().await;
        // Whoever told is gone by now: what was told is written.
        if tokio::time::timeout(FAREWELL, notices).await.is_err() {
            tracing::warn!("some notices were not written to the record");
        }
    }
}
