//! The server process: opens its stores, starts its background services, serves the HTTP API, and shuts down gracefully.

use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ade_app::agents::AgentService;
use ade_app::audit::CheckpointFile;
use ade_app::background::{BackgroundHandle, BackgroundServices};
use ade_app::bindings::BindingPublisher;
use ade_app::demo::Demo;
use ade_app::rules::RuleService;
use ade_app::webhooks::{
    InboundHookService, MailEncryption, MailServer, MailSettings, SlackService, WebhookDispatcher,
    WebhookNetwork,
};
use ade_app::worker::AgentWorkService;
use ade_app::{
    AccountService, Alerts, AuditService, ChangeService, Context, DatabaseEventSink, EventFeed, EventTail,
    Jobs, LockEventTarget, LockMaintenance, LockService, Relay, TaskService, TokenRateLimit, WebhookService,
    WorkerHandle, follow_lock_stream, forward_lock_events,
};
use ade_config::{Config, SmtpEncryption};
use ade_domain::InvalidField;
use ade_store::{DataFolder, SystemClock};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use uuid::Uuid;

use super::address_file::AddressFile;
use super::error::StartError;
use super::executors::AllowedExecutors;
use super::storage::{open_blobs, open_coordination, open_database, open_keys, open_projections};
use super::worker::{new_worker, new_worker_name, previews, publish};
use super::{demo, metrics};
use crate::api::events::EventConnections;
use crate::api::settings::ServerSetting;
use crate::api::{self, AppState, Services};
use crate::auth::{BootstrapToken, TOKEN_FILE};
use crate::http::accept::{self, ServeOptions};
use crate::http::client_address::TrustedProxies;
use crate::http::connections::Connections;
use crate::http::idempotency::InFlightKeys;

/// For lock events that are not yet written to the database at shutdown.
const EVENT_FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
/// For rate limits that this process has reserved for requests that did not come.
const RETURN_TIMEOUT: Duration = Duration::from_secs(2);
const METRICS_UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// A server with an open listener.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    app: AppState,
    stop: watch::Sender<bool>,
    lock_maintenance: LockMaintenance,
    background: BackgroundHandle,
    lock_events: JoinHandle<()>,
    worker: WorkerHandle,
    bindings: BindingPublisher,
    publishing: JoinHandle<()>,
    lock_feed: JoinSet<()>,
    write_timeout: Duration,
    address: SocketAddr,
    new_token_path: Option<PathBuf>,
    initial_admin_password: Option<String>,
    address_file: AddressFile,
    _folder: Option<DataFolder>,
}

impl Server {
    /// Opens the stores and the listener. Requests are served once [`run`](Self::run) is called.
    pub async fn start(config: &Config, admin_token: Option<&str>) -> Result<Self, StartError> {
        demo::check_folder(config)?;
        let mut config = config.clone();
        demo::set_up_folders(&mut config)?;
        let config = &config;
        let (coordination, folder) = open_coordination(config).await?;
        let (bootstrap_token, is_new_token) =
            BootstrapToken::load_or_create(admin_token, &config.data).map_err(StartError::BootstrapToken)?;
        let listen_error = |source| StartError::Listen { address: config.listen, source };
        let listener = TcpListener::bind(config.listen).await.map_err(listen_error)?;
        let address = listener.local_addr().map_err(listen_error)?;
        let keys = open_keys(config)?;
        let database = open_database(config, &keys).await?;
        demo::check_database(config, &database).await?;
        let blobs = open_blobs(config, &database).await?;
        let name = format!("server-{}", Uuid::new_v4().simple());
        let context = Context {
            database,
            coordination,
            blobs,
            clock: Arc::new(SystemClock::start()),
            instance: name.as_str().into(),
            alerts: Alerts::default(),
            tail: EventTail::default(),
            // The users of a demo share one password.
            dual_control: config.dual_control && !config.demo,
        };
        let (event_sink, lock_events) = DatabaseEventSink::start(&context);
        let mut locks = LockService::new(context.coordination.clone(), Arc::new(event_sink));
        if config.redis.is_some() {
            locks = locks.with_stored_requests(&context.database, &context.clock, &context.instance);
        }
        locks.reload_limits(&context.database).await?;
        locks.admit_requests().await?;
        let mut lock_maintenance = LockMaintenance::start(&locks);
        lock_maintenance.follow_settings(&locks, &context.database);
        let allowed = AllowedExecutors::from_config(config, &keys)?;
        let worker_name = new_worker_name();
        let bindings = publish(config, &context, &worker_name, &allowed).await?;
        let tasks = TaskService::new(context.clone(), previews(config, &allowed));
        let agents = AgentService::new(context.clone());
        let accounts = AccountService::new(context.clone(), tasks.clone())
            .with_bootstrap_decides(config.bootstrap_decides);
        if config.bootstrap_decides {
            tracing::warn!(
                "security.bootstrap_decides is on: anybody with the bootstrap token can decide for every user; use it for tests only"
            );
        }
        let initial_admin_password = accounts.create_first_admin().await.map_err(StartError::FirstAdmin)?;
        let rules = RuleService::new(context.clone());
        if config.demo && initial_admin_password.is_some() {
            let demo = Demo { accounts: &accounts, agents: &agents, rules: &rules, tasks: &tasks };
            demo.create().await.map_err(StartError::Demo)?;
        }
        let jobs = Jobs {
            context: context.clone(),
            tasks: tasks.clone(),
            agents: agents.clone(),
            locks: locks.clone(),
            name: name.clone(),
            event_retention_days: config.event_retention_days,
        };
        let relay = open_projections(config).await?.map(|projections| Relay {
            database: context.database.clone(),
            clock: context.clock.clone(),
            tail: context.tail.clone(),
            projections,
            name: name.clone(),
        });
        let feed = EventFeed::open(context.clone()).await?;
        let invalid_host = |fault: InvalidField| StartError::Webhooks(fault.to_string());
        let network = WebhookNetwork::new(&config.webhook_private_hosts).map_err(invalid_host)?;
        let network = network.with_public_url(config.public_url.clone()).with_mail(mail_server(config)?);
        let webhooks = WebhookService::new(context.clone(), network);
        let background = BackgroundServices {
            jobs: jobs.clone(),
            feed: feed.clone(),
            relay: relay.clone().filter(|_| config.relay),
            webhooks: WebhookDispatcher::new(webhooks.clone(), &name),
            checkpoint_file: CheckpointFile::in_folder(&config.data),
            checkpoint_interval: Duration::from_secs(config.checkpoint_seconds.into()),
        };
        let background = background.start()?;
        let mut lock_feed = JoinSet::new();
        let target = match &relay {
            // The events of all processes come from the stream.
            Some(relay) => {
                lock_feed.spawn(follow_lock_stream(relay.projections.clone(), feed.clone()));
                LockEventTarget::Stream(relay.projections.clone())
            }
            None => LockEventTarget::Feed(feed.clone()),
        };
        lock_feed.spawn(forward_lock_events(context.clone(), target));
        let secrets = allowed.secrets.clone();
        let worker = new_worker(config, allowed, context.clone(), tasks.clone(), locks.clone(), worker_name);
        // Without slots it only recovers the tasks of lost agents.
        let worker = if config.worker_slots > 0 { worker.start() } else { worker.start_recovery_only() };
        let agent_work = AgentWorkService {
            context: context.clone(),
            tasks: tasks.clone(),
            locks: locks.clone(),
            agents: agents.clone(),
            secrets,
            lease_ms: config.worker_lease_ms,
        };
        let publishing = tokio::spawn(bindings.clone().keep_published());
        let (stop, stopping) = watch::channel(false);
        let changes = ChangeService {
            context: context.clone(),
            accounts: accounts.clone(),
            agents: agents.clone(),
            rules: rules.clone(),
        };
        let app = Services {
            locks,
            agents,
            accounts,
            rules,
            changes,
            slack: SlackService { webhooks: webhooks.clone(), tasks: tasks.clone() },
            webhooks,
            hooks: InboundHookService { context: context.clone(), tasks: tasks.clone() },
            audits: AuditService::new(
                context.clone(),
                tasks.clone(),
                CheckpointFile::in_folder(&config.data),
            ),
            tasks,
            agent_work,
            archives: jobs.archives(),
            relay,
            jobs,
            database: context.database.clone(),
            alerts: context.alerts.clone(),
            server_settings: ServerSetting::all(&config.lock_limits, context.dual_control).into(),
            in_flight: InFlightKeys::default(),
            bootstrap_token,
            service: format!("ade {} at {address}", env!("CARGO_PKG_VERSION")).into(),
            connections: Connections::default(),
            trusted_proxies: TrustedProxies::new(&config.trusted_proxies),
            allow_plain_http: config.allow_plain_http,
            read_timeout: config.read_timeout,
            write_timeout: config.write_timeout,
            feed,
            event_connections: EventConnections::default(),
            requests_per_minute: config.requests_per_minute,
            token_rate_limit: TokenRateLimit::new(context.clone()),
            sign_ins_per_minute: config.sign_ins_per_minute,
            demo_key: config.demo.then(|| Uuid::new_v4().simple().to_string().into()),
            hosts: config.hosts.clone().into(),
            stopping,
        };
        Ok(Self {
            listener,
            app: app.into(),
            stop,
            lock_maintenance,
            background,
            lock_events,
            worker,
            bindings,
            publishing,
            lock_feed,
            write_timeout: config.write_timeout,
            address,
            new_token_path: is_new_token.then(|| config.data.join(TOKEN_FILE)),
            initial_admin_password,
            address_file: AddressFile::write(&config.data, address).map_err(StartError::AddressFile)?,
            _folder: folder,
        })
    }

    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The file of the bootstrap token, if this start created it.
    #[must_use]
    pub const fn new_token_path(&self) -> Option<&PathBuf> {
        self.new_token_path.as_ref()
    }

    /// The path that opens the dashboard of a demo as its reviewer. It works until the server stops.
    #[must_use]
    pub fn demo_path(&self) -> Option<String> {
        self.app.demo_key.as_ref().map(|key| format!("/demo/{key}"))
    }

    /// The password of the user `admin`, if this start created the user.
    #[must_use]
    pub fn first_password(&self) -> Option<&str> {
        self.initial_admin_password.as_deref()
    }

    /// Serves until `shutdown` completes. Then accepts no more connections, ends waiting requests with STOPPING, and
    /// finishes the others.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let Self {
            listener,
            app,
            stop,
            lock_maintenance,
            background,
            lock_events,
            worker,
            bindings,
            publishing,
            lock_feed,
            write_timeout,
            address_file,
            ..
        } = self;
        let metrics_upkeep = tokio::spawn(async {
            let mut interval = tokio::time::interval(METRICS_UPKEEP_INTERVAL);
            while let Some(recorder) = metrics::recorder() {
                interval.tick().await;
                recorder.run_upkeep();
            }
        });
        let locks = app.locks.clone();
        let coordination = app.locks.coordination().clone();
        let shutdown = async move {
            shutdown.await;
            tracing::info!("shutting down");
            locks.begin_shutdown();
            stop.send_replace(true);
        };
        let options = ServeOptions {
            connections: app.connections.clone(),
            trusted_proxies: app.trusted_proxies.clone(),
            read_timeout: app.read_timeout,
            write_timeout,
        };
        accept::serve(&listener, api::router(app), options, shutdown).await;
        drop(address_file);
        metrics_upkeep.abort();
        worker.stop().await;
        publishing.abort();
        drop(lock_feed);
        bindings.withdraw().await;
        lock_maintenance.stop().await;
        background.stop().await;
        if tokio::time::timeout(RETURN_TIMEOUT, coordination.return_reserved_requests()).await.is_err() {
            tracing::warn!("some requests that did not come stay counted for a minute");
        }
        // All senders of lock events are dropped by now, so the writer ends after the last event.
        if tokio::time::timeout(EVENT_FLUSH_TIMEOUT, lock_events).await.is_err() {
            tracing::warn!("some lock events were not written to the database");
        }
    }
}

/// The mail server of the configuration.
fn mail_server(config: &Config) -> Result<Option<MailServer>, StartError> {
    let Some(smtp) = config.smtp.clone() else { return Ok(None) };
    let settings = MailSettings {
        host: smtp.host,
        port: smtp.port,
        encryption: match smtp.encryption {
            SmtpEncryption::Tls => MailEncryption::Tls,
            SmtpEncryption::StartTls => MailEncryption::StartTls,
            SmtpEncryption::None => MailEncryption::None,
        },
        credentials: smtp.credentials.map(|(user, password)| (user, password.0)),
        from: smtp.from,
    };
    MailServer::new(settings).map(Some).map_err(StartError::Mail)
}
