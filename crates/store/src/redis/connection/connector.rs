//! Opens a connection to one server and identifies the server.
//!
//! The caller bounds the time of every step. No error contains a password.

use std::time::Duration;

use redis::aio::{AsyncPushSender, MultiplexedConnection, SendError};
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ErrorKind, InfoDict, IntoConnectionInfo, ProtocolVersion,
    PushInfo, PushKind, RedisConnectionInfo, RedisError,
};
use tokio::time::timeout;

use super::ConnectionOptions;
use crate::redis::url::{Address, Kind, RedisUrl};

/// Commands buffered per connection. When it is full callers wait, as backpressure from a slow server.
const WRITE_BUFFER_SIZE: usize = 1024;

const SENTINEL_TIMEOUT: Duration = Duration::from_millis(500);

/// One run of a server process in one role: a restart and a promotion both change it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity {
    run_id: String,
    /// Changes at every promotion, even of a process that was a primary before, and when the first replica connects.
    replication_id: String,
}

impl Identity {
    pub(super) fn is_same_run(&self, other: &Self) -> bool {
        self.run_id == other.run_id
    }
}

pub(super) struct PrimaryConnection {
    pub(super) connection: MultiplexedConnection,
    pub(super) address: Address,
    pub(super) identity: Identity,
}

#[derive(Debug)]
pub(super) struct Connector {
    pub(super) url: RedisUrl,
    pub(super) options: ConnectionOptions,
}

impl Connector {
    pub(super) fn new(url: RedisUrl, options: ConnectionOptions) -> Self {
        if url.tls {
            // Fails if the process has a provider already, which is fine.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        Self { url, options }
    }

    /// Opens an authenticated connection. Pushes, including the disconnection, go to `push_sender`.
    pub(super) async fn open(
        &self,
        address: &Address,
        push_sender: impl AsyncPushSender,
    ) -> Result<MultiplexedConnection, RedisError> {
        self.open_with(address, true, push_sender).await
    }

    async fn open_with(
        &self,
        address: &Address,
        authenticate: bool,
        push_sender: impl AsyncPushSender,
    ) -> Result<MultiplexedConnection, RedisError> {
        let database = match self.url.kind {
            Kind::Standalone { database } => database,
            Kind::Cluster | Kind::Sentinel { .. } => 0,
        };
        let mut settings = RedisConnectionInfo::default()
            // Only RESP3 reports a disconnection at once, and allows commands on a connection with subscriptions.
            .set_protocol(ProtocolVersion::RESP3)
            .set_db(database);
        if let Some(user) = self.url.credentials.user.as_ref().filter(|_| authenticate) {
            settings = settings.set_username(user);
        }
        if let Some(password) = self.url.credentials.password.as_ref().filter(|_| authenticate) {
            settings = settings.set_password(password);
        }
        let info = self.connection_addr(address).into_connection_info()?;
        // Without this, small commands would wait for the acknowledgement of earlier ones.
        let tcp = info.tcp_settings().clone().set_nodelay(true);
        let client = Client::open(info.set_tcp_settings(tcp).set_redis_settings(settings))?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.options.connect_timeout))
            // Callers have their own deadlines.
            .set_response_timeout(None)
            .set_pipeline_buffer_size(WRITE_BUFFER_SIZE)
            .set_push_sender(push_sender);
        client.get_multiplexed_async_connection_with_config(&config).await
    }

    fn connection_addr(&self, address: &Address) -> ConnectionAddr {
        let Address { host, port } = address.clone();
        if self.url.tls {
            ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
        } else {
            ConnectionAddr::Tcp(host, port)
        }
    }

    /// Connects to the primary at `address`, or to the one that the sentinels report.
    pub(super) async fn connect_primary(
        &self,
        address: Option<&Address>,
        push_sender: impl AsyncPushSender,
    ) -> Result<PrimaryConnection, String> {
        let connecting = async {
            let (address, within) = match address {
                Some(address) => (address.clone(), self.options.connect_timeout),
                // Not longer than for a reply: while a server hangs, the sentinels elect another one.
                None => (self.find_primary().await?, self.options.response_timeout),
            };
            let opened = timeout(within, self.open_identified(&address, push_sender)).await;
            let opened = opened.unwrap_or_else(|_| Err(no_connection(within)));
            let (connection, identity) = opened.map_err(|reason| format!("{address}: {reason}"))?;
            Ok(PrimaryConnection { connection, address, identity })
        };
        let within = self.options.connect_timeout;
        timeout(within, connecting).await.unwrap_or_else(|_| Err(no_connection(within)))
    }

    pub(super) async fn open_identified(
        &self,
        address: &Address,
        push_sender: impl AsyncPushSender,
    ) -> Result<(MultiplexedConnection, Identity), String> {
        let mut connection = self.open(address, push_sender).await.map_err(|error| one_line(&error))?;
        let identity = self.identify(&mut connection).await?;
        Ok((connection, identity))
    }

    /// Asks the sentinels in turn for the primary. The first answer counts; the role of the server is verified later.
    async fn find_primary(&self) -> Result<Address, String> {
        let Kind::Sentinel { master } = &self.url.kind else {
            return Err("no address is known".to_owned());
        };
        let mut reasons = Vec::new();
        for sentinel in &self.url.hosts {
            match timeout(SENTINEL_TIMEOUT, self.query_sentinel(sentinel, master)).await {
                Ok(Ok(address)) => return Ok(address),
                Ok(Err(reason)) => reasons.push(format!("sentinel {sentinel}: {reason}")),
                Err(_) => reasons.push(format!("sentinel {sentinel}: no reply within {SENTINEL_TIMEOUT:?}")),
            }
        }
        Err(reasons.join("; "))
    }

    async fn query_sentinel(&self, sentinel: &Address, master: &str) -> Result<Address, String> {
        let mut connection = match self.open(sentinel, on_disconnect(|| ())).await {
            // Sentinels often have no authentication although their servers have.
            Err(error) if error.kind() == ErrorKind::AuthenticationFailed => {
                self.open_with(sentinel, false, on_disconnect(|| ())).await
            }
            other => other,
        }
        .map_err(|error| one_line(&error))?;
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(master);
        let found: Option<(String, u16)> =
            command.query_async(&mut connection).await.map_err(|error| one_line(&error))?;
        match found {
            Some((host, port)) => Ok(Address { host, port }),
            None => Err(format!("no master named {master:?}")),
        }
    }

    /// Identifies a server. Fails if it is not a primary, or of another kind than the URL says.
    async fn identify(&self, connection: &mut MultiplexedConnection) -> Result<Identity, String> {
        let mut commands = redis::pipe();
        commands.cmd("INFO").arg("server").cmd("INFO").arg("replication");
        let (server, replication): (InfoDict, InfoDict) =
            commands.query_async(connection).await.map_err(|error| one_line(&error))?;
        self.check_kind(server.get::<String>("redis_mode").as_deref())?;
        match replication.get::<String>("role").as_deref() {
            Some("master") => {}
            Some(_) => return Err("is a replica, not a primary".to_owned()),
            None => return Err("reports no role".to_owned()),
        }
        Ok(Identity {
            run_id: server.get("run_id").ok_or("reports no run_id")?,
            replication_id: replication.get("master_replid").unwrap_or_default(),
        })
    }

    /// A server may lack the field; an incompatibility then shows later.
    fn check_kind(&self, mode: Option<&str>) -> Result<(), String> {
        match (&self.url.kind, mode) {
            (Kind::Standalone { .. } | Kind::Sentinel { .. }, Some("cluster")) => {
                Err("is a cluster node; use redis+cluster://".to_owned())
            }
            (_, Some("sentinel")) => Err("is a sentinel; use redis+sentinel://HOST:PORT/MASTER".to_owned()),
            _ => Ok(()),
        }
    }
}

/// Calls `notify` when the connection ends.
pub(super) fn on_disconnect(notify: impl Fn() + Send + Sync + 'static) -> impl AsyncPushSender {
    move |info: PushInfo| {
        if info.kind == PushKind::Disconnection {
            notify();
        }
        Ok::<(), SendError>(())
    }
}

fn no_connection(within: Duration) -> String {
    format!("no connection within {within:?}")
}

pub(super) fn one_line(error: &RedisError) -> String {
    error.to_string().replace(['\r', '\n'], " ")
}
