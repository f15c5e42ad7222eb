//! Opening a connection to one server and finding out who it is.
//!
//! Every step is bounded in time by the caller; nothing that is said about a failure contains a password.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::{AsyncPushSender, MultiplexedConnection, SendError};
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ErrorKind, IntoConnectionInfo, ProtocolVersion, PushInfo,
    PushKind, RedisConnectionInfo, RedisError,
};
use tokio::time::timeout;

use super::Options;
use crate::redis::url::{Address, Kind, RedisUrl};

/// Calls that may wait to be written; above that callers wait, which is the pressure that a slow server deserves.
const WRITE_QUEUE: usize = 1024;

/// How long one sentinel may take before the next one is asked.
const SENTINEL_TIMEOUT: Duration = Duration::from_millis(500);

/// One run of a server in one role: a restart and a promotion both make another one of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity {
    run_id: String,
    /// Changes at every promotion, also of a process that was a primary before; and when a first replica comes.
    replication_id: String,
}

impl Identity {
    /// Whether both are the same process.
    pub(super) fn is_same_run(&self, other: &Self) -> bool {
        self.run_id == other.run_id
    }
}

/// A connection to a primary.
pub(super) struct Reached {
    pub(super) connection: MultiplexedConnection,
    pub(super) address: Address,
    pub(super) identity: Identity,
}

/// Opens connections as the URL says.
#[derive(Debug)]
pub(super) struct Connector {
    pub(super) url: RedisUrl,
    pub(super) options: Options,
}

impl Connector {
    pub(super) fn new(url: RedisUrl, options: Options) -> Self {
        if url.tls {
            // The crate takes the provider of the process; whoever set one before us is as good.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        Self { url, options }
    }

    /// A connection that is logged in. What the server pushes, the end of the connection included, goes to `pushed`.
    pub(super) async fn open(
        &self,
        address: &Address,
        pushed: impl AsyncPushSender,
    ) -> Result<MultiplexedConnection, RedisError> {
        self.open_as(address, true, pushed).await
    }

    async fn open_as(
        &self,
        address: &Address,
        logged_in: bool,
        pushed: impl AsyncPushSender,
    ) -> Result<MultiplexedConnection, RedisError> {
        let database = match self.url.kind {
            Kind::Standalone { database } => database,
            Kind::Cluster | Kind::Sentinel { .. } => 0,
        };
        let mut settings = RedisConnectionInfo::default()
            // Only RESP3 tells at once that a connection ended, and lets a connection subscribe and ask.
            .set_protocol(ProtocolVersion::RESP3)
            .set_db(database);
        if let Some(user) = self.url.credentials.user.as_ref().filter(|_| logged_in) {
            settings = settings.set_username(user);
        }
        if let Some(password) = self.url.credentials.password.as_ref().filter(|_| logged_in) {
            settings = settings.set_password(password);
        }
        let place = self.place(address).into_connection_info()?;
        // Without this, small requests would wait for the acknowledgement of earlier ones.
        let tcp = place.tcp_settings().clone().set_nodelay(true);
        let client = Client::open(place.set_tcp_settings(tcp).set_redis_settings(settings))?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.options.connect_within))
            // Callers have their own deadlines.
            .set_response_timeout(None)
            .set_pipeline_buffer_size(WRITE_QUEUE)
            .set_push_sender(pushed);
        client.get_multiplexed_async_connection_with_config(&config).await
    }

    fn place(&self, address: &Address) -> ConnectionAddr {
        let Address { host, port } = address.clone();
        if self.url.tls {
            ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
        } else {
            ConnectionAddr::Tcp(host, port)
        }
    }

    /// A connection to a primary: the one at `fixed`, or else the one of which the sentinels speak.
    pub(super) async fn reach(
        &self,
        fixed: Option<&Address>,
        pushed: impl AsyncPushSender,
    ) -> Result<Reached, String> {
        let (address, within) = match fixed {
            Some(address) => (address.clone(), self.options.connect_within),
            // Not longer than for an answer: while a server hangs, sentinels choose another one.
            None => (self.ask_sentinels().await?, self.options.answer_within),
        };
        let reaching = async {
            let mut connection = self.open(&address, pushed).await.map_err(|error| plain(&error))?;
            let identity = self.identify(&mut connection).await?;
            Ok((connection, identity))
        };
        let reached = timeout(within, reaching).await;
        let reached = reached.unwrap_or_else(|_| Err(format!("no connection within {within:?}")));
        let (connection, identity) = reached.map_err(|reason| format!("{address}: {reason}"))?;
        Ok(Reached { connection, address, identity })
    }

    /// Where the primary is. Sentinels are asked in turn: the first that knows is believed, and its answer is verified by
    /// the role of the server.
    async fn ask_sentinels(&self) -> Result<Address, String> {
        let Kind::Sentinel { master } = &self.url.kind else {
            return Err("no address is known".to_owned());
        };
        let mut reasons = Vec::new();
        for sentinel in &self.url.hosts {
            match timeout(SENTINEL_TIMEOUT, self.ask_sentinel(sentinel, master)).await {
                Ok(Ok(address)) => return Ok(address),
                Ok(Err(reason)) => reasons.push(format!("sentinel {sentinel}: {reason}")),
                Err(_) => reasons.push(format!("sentinel {sentinel}: no answer within {SENTINEL_TIMEOUT:?}")),
            }
        }
        Err(reasons.join("; "))
    }

    async fn ask_sentinel(&self, sentinel: &Address, master: &str) -> Result<Address, String> {
        let mut connection = match self.open(sentinel, nobody).await {
            // Sentinels often have no users although the servers behind them have.
            Err(error) if error.kind() == ErrorKind::AuthenticationFailed => {
                self.open_as(sentinel, false, nobody).await
            }
            other => other,
        }
        .map_err(|error| plain(&error))?;
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(master);
        let answer: Option<(String, u16)> =
            question.query_async(&mut connection).await.map_err(|error| plain(&error))?;
        match answer {
            Some((host, port)) => Ok(Address { host, port }),
            None => Err(format!("knows no master named {master:?}")),
        }
    }

    /// Asks a server who it is; refuses one that is no primary, or of another kind than the URL says.
    pub(super) async fn identify(&self, connection: &mut MultiplexedConnection) -> Result<Identity, String> {
        let mut questions = redis::pipe();
        questions.cmd("INFO").arg("server").cmd("INFO").arg("replication");
        let (server, replication): (String, String) =
            questions.query_async(connection).await.map_err(|error| plain(&error))?;
        let field = |text: &str, name: &str| {
            text.lines()
                .filter_map(|line| line.trim_end().split_once(':'))
                .find(|(found, _)| *found == name)
                .map(|(_, value)| value.to_owned())
        };
        self.check_kind(field(&server, "redis_mode").as_deref())?;
        match field(&replication, "role").as_deref() {
            Some("master") => {}
            Some(_) => return Err("is a replica; its primary is elsewhere".to_owned()),
            None => return Err("does not say its role".to_owned()),
        }
        Ok(Identity {
            run_id: field(&server, "run_id").ok_or("does not say its run_id")?,
            replication_id: field(&replication, "master_replid").unwrap_or_default(),
        })
    }

    /// A server may lack the field; then what it cannot do shows later.
    fn check_kind(&self, mode: Option<&str>) -> Result<(), String> {
        match (&self.url.kind, mode) {
            (Kind::Standalone { .. } | Kind::Sentinel { .. }, Some("cluster")) => {
                Err("is a node of a cluster; say redis+cluster://".to_owned())
            }
            (_, Some("sentinel")) => Err("is a sentinel; say redis+sentinel://HOST:PORT/NAME".to_owned()),
            _ => Ok(()),
        }
    }
}

/// For connections whose end nobody needs to hear of.
pub(super) fn nobody(_: PushInfo) -> Result<(), SendError> {
    Ok(())
}

/// Raised when a connection has ended.
pub(super) fn end_flag(flag: Arc<AtomicBool>) -> impl AsyncPushSender {
    move |info: PushInfo| {
        if info.kind == PushKind::Disconnection {
            flag.store(true, Ordering::Release);
        }
        Ok::<(), SendError>(())
    }
}

/// What went wrong, in one line.
pub(super) fn plain(error: &RedisError) -> String {
    error.to_string().replace(['\r', '\n'], " ")
}
