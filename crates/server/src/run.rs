//! Starting and stopping a server.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ade_app::agents::AgentService;
use ade_app::{LockService, LogNotices, Upkeep};
use ade_store::embedded::{self, OpenError};
use ade_store::redis::{self, OnRedis};
use ade_store::{Coordination, DataFolder, Embedded, FolderError, SystemClock, Unavailable};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::api::{self, App};
use crate::auth::AdminToken;
use crate::{Config, accept, metrics};

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
    Redis(Unavailable),
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
    upkeep: Upkeep,
    address: SocketAddr,
    new_token: Option<PathBuf>,
    _folder: Option<DataFolder>,
}

/// The backend that the configuration asks for. The one in this process takes the data folder by itself.
async fn coordination(config: &Config) -> Result<(Arc<dyn Coordination>, Option<DataFolder>), StartError> {
    let rules = config.rules.clone();
    let Some(url) = &config.redis else {
        let options = embedded::Options { rules, ..embedded::Options::default() };
        let backend = Embedded::open(&config.data, options, Arc::new(SystemClock::start()))?;
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
    let backend = OnRedis::open(url, options).await.map_err(StartError::Redis)?;
    tracing::info!(redis = %url, "locks are coordinated on Redis");
    Ok((Arc::new(backend), Some(folder)))
}

impl Server {
    /// Opens the data folder and listens. Requests are answered once [`run`](Self::run) is called.
    ///
    /// # Errors
    /// The folder, the token or the address cannot be used.
    pub async fn start(config: &Config, admin_token: Option<&str>) -> Result<Self, StartError> {
        let (coordination, folder) = coordination(config).await?;
        let (admin, is_new) = AdminToken::find(admin_token, &config.data).map_err(StartError::Token)?;
        let listening = TcpListener::bind(config.listen).await;
        let listen = |source| StartError::Listen { address: config.listen, source };
        let listener = listening.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let locks = LockService::new(coordination.clone(), Arc::new(LogNotices));
        let upkeep = Upkeep::start(&locks);
        let (stop, stopping) = watch::channel(false);
        let hosts = config.hosts.clone().into();
        let app = App { locks, agents: AgentService::new(coordination), admin, hosts, stopping };
        let new_token = is_new.then(|| config.data.join("admin-token"));
        Ok(Self { listener, app, stop, upkeep, address, new_token, _folder: folder })
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

    /// Serves until `end`. Then it accepts nothing more, tells open answers to try elsewhere, and finishes the rest.
    pub async fn run(self, end: impl Future<Output = ()>) {
        let Self { listener, app, stop, upkeep, .. } = self;
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
        upkeep.stop().await;
    }
}
