//! Finds and connects to the servers of a deployment: one, the primary that sentinels name, or every primary of a cluster; or
//! their replicas.
//!
//! Nothing here writes. A lost connection is an error: no command is repeated.

mod error;
mod topology;
mod url;

use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ErrorKind, FromRedisValue, Pipeline,
    RedisError, Value,
};
use serde::Serialize;
use tokio::time::timeout;

pub use self::error::ServerError;
use self::error::one_line;
use self::topology::{ClusterNode, cluster_nodes, first_slots, info_field, online_replicas};
use self::url::UrlKind;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// One pipeline. Long, because a server may be busy with a slow command of another client.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// How the servers of a deployment work together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DeploymentKind {
    Standalone,
    Sentinel,
    Cluster,
}

/// Which servers are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Primary,
    Replica,
}

/// The connected servers that together have all keys.
#[derive(Debug)]
pub struct Deployment {
    pub kind: DeploymentKind,
    pub nodes: Vec<Node>,
}

/// One connected server.
#[derive(Debug, Clone)]
pub struct Node {
    /// Node id in a cluster, otherwise the address.
    pub id: String,
    pub address: String,
    pub role: Role,
    /// Changes when the server restarts; `None` if INFO is denied.
    pub run_id: Option<String>,
    /// Number of the database.
    pub database: i64,
    connection: MultiplexedConnection,
}

impl Deployment {
    /// Connects to every server that has to be read.
    pub async fn connect(url: &str, role: Role) -> Result<Self, ServerError> {
        let url = url::parse(url)?;
        if url.hosts.iter().any(|host| matches!(host.addr(), ConnectionAddr::TcpTls { .. })) {
            // Fails if the process has a provider already, which is fine.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let mut failure = ServerError::InvalidUrl { reason: "it has no host".to_owned() };
        for host in &url.hosts {
            let connected = match &url.kind {
                UrlKind::Sentinel { master } => behind_sentinel(host, master, role).await,
                UrlKind::Standalone | UrlKind::Cluster => behind_server(host, role, &url.kind).await,
            };
            match connected {
                Err(error @ ServerError::Unreachable { .. }) => failure = error,
                result => return result,
            }
        }
        Err(failure)
    }
}

/// Asks a sentinel for the primary or a replica.
async fn behind_sentinel(
    sentinel: &ConnectionInfo,
    master: &str,
    role: Role,
) -> Result<Deployment, ServerError> {
    let address = sentinel.addr().to_string();
    let mut connection = match open(sentinel).await {
        // Sentinels often have no password although their servers have.
        Err(ServerError::Unauthorized { .. }) => {
            let anonymous = sentinel.clone().set_redis_settings(redis::RedisConnectionInfo::default());
            open(&anonymous).await?
        }
        other => other?,
    };
    let mut command = redis::cmd("SENTINEL");
    command.arg("GET-MASTER-ADDR-BY-NAME").arg(master);
    let found: Option<(String, u16)> = query(&address, "SENTINEL", &mut connection, &command).await?;
    let Some((host, port)) = found else {
        let what = format!("the sentinel {address} knows no master named {master:?}");
        return Err(ServerError::Unsuitable { what, advice: "check the name at the end of the URL" });
    };
    let primary = Node::connect(&at(sentinel, &host, port), Role::Primary).await?;
    let node = if role == Role::Primary { primary } else { primary.replica(sentinel).await? };
    Ok(Deployment { kind: DeploymentKind::Sentinel, nodes: vec![node] })
}

/// Connects to a server, or to all servers of its cluster.
async fn behind_server(host: &ConnectionInfo, role: Role, kind: &UrlKind) -> Result<Deployment, ServerError> {
    let mut node = Node::connect(host, Role::Primary).await?;
    let info = node.info("server").await?;
    match info.as_deref().and_then(|info| info_field(info, "redis_mode")) {
        Some("sentinel") => {
            let what = format!("{} is a sentinel", node.address);
            Err(ServerError::Unsuitable { what, advice: "use redis+sentinel://HOST:PORT/MASTER-NAME" })
        }
        Some("cluster") => cluster(node, host, role).await,
        None if *kind == UrlKind::Cluster => cluster(node, host, role).await,
        _ if *kind == UrlKind::Cluster => {
            let what = format!("{} is not part of a cluster", node.address);
            Err(ServerError::Unsuitable { what, advice: "use redis:// for a standalone server" })
        }
        _ => {
            let replication = node.info("replication").await?;
            let is_replica =
                replication.as_deref().and_then(|info| info_field(info, "role")) == Some("slave");
            let node = match role {
                Role::Replica if !is_replica => node.replica(host).await?,
                _ => Node { role: if is_replica { Role::Replica } else { Role::Primary }, ..node },
            };
            Ok(Deployment { kind: DeploymentKind::Standalone, nodes: vec![node] })
        }
    }
}

/// Connects to every primary of a cluster, or to a replica of each.
async fn cluster(mut seed: Node, host: &ConnectionInfo, role: Role) -> Result<Deployment, ServerError> {
    let mut command = redis::cmd("CLUSTER");
    command.arg("NODES");
    let text: String = query(&seed.address, "CLUSTER", &mut seed.connection, &command).await?;
    let queried = match host.addr() {
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host.clone(),
        _ => "localhost".to_owned(),
    };
    let all = cluster_nodes(&text, &queried);
    let is_primary = |node: &&ClusterNode| node.replica_of.is_none() && node.has_slots;
    let mut nodes = Vec::new();
    for primary in all.iter().filter(is_primary) {
        let chosen = match role {
            Role::Primary => primary,
            Role::Replica => {
                let is_usable =
                    |node: &&ClusterNode| node.is_reachable && node.replica_of.as_ref() == Some(&primary.id);
                all.iter()
                    .find(is_usable)
                    .ok_or_else(|| no_replica(&format!("{}:{}", primary.host, primary.port)))?
            }
        };
        let mut node = Node::connect(&at(host, &chosen.host, chosen.port), role).await?;
        node.id.clone_from(&chosen.id);
        if role == Role::Replica {
            let (address, mut connection) = (node.address.clone(), node.connection.clone());
            let () = query(&address, "READONLY", &mut connection, &redis::cmd("READONLY")).await?;
        }
        nodes.push(node);
    }
    if nodes.is_empty() {
        let what = format!("{} knows no primary with slots", seed.address);
        return Err(ServerError::Unsuitable { what, advice: "create the cluster first" });
    }
    nodes.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(Deployment { kind: DeploymentKind::Cluster, nodes })
}

fn no_replica(address: &str) -> ServerError {
    let what = format!("{address} has no replica that is online");
    ServerError::Unsuitable { what, advice: "leave out --replicas" }
}

/// The same connection settings at another address.
fn at(info: &ConnectionInfo, host: &str, port: u16) -> ConnectionInfo {
    let host = host.to_owned();
    let addr = match info.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
        }
        _ => ConnectionAddr::Tcp(host, port),
    };
    info.clone().set_addr(addr)
}

async fn open(info: &ConnectionInfo) -> Result<MultiplexedConnection, ServerError> {
    let address = info.addr().to_string();
    let unreachable = |reason: String| ServerError::Unreachable { address: address.clone(), reason };
    let client = Client::open(info.clone()).map_err(|error| unreachable(one_line(&error)))?;
    let config =
        AsyncConnectionConfig::new().set_connection_timeout(Some(CONNECT_TIMEOUT)).set_response_timeout(None);
    let opening = client.get_multiplexed_async_connection_with_config(&config);
    let opened = timeout(CONNECT_TIMEOUT, opening).await;
    let opened = opened.map_err(|_| unreachable(format!("no reply within {CONNECT_TIMEOUT:?}")))?;
    opened.map_err(|error| ServerError::connecting(&address, &error))
}

async fn query<T: FromRedisValue>(
    address: &str,
    name: &'static str,
    connection: &mut MultiplexedConnection,
    command: &redis::Cmd,
) -> Result<T, ServerError> {
    let reply =
        timeout(REPLY_TIMEOUT, command.query_async(connection)).await.unwrap_or_else(|_| Err(no_reply()));
    reply.map_err(|error| ServerError::running(address, name, &error))
}

fn no_reply() -> RedisError {
    RedisError::from((ErrorKind::Io, "no reply", format!("within {REPLY_TIMEOUT:?}")))
}

impl Node {
    async fn connect(info: &ConnectionInfo, role: Role) -> Result<Self, ServerError> {
        let (connection, address) = (open(info).await?, info.addr().to_string());
        let database = info.redis_settings().db();
        let mut node = Self { id: address.clone(), address, role, run_id: None, database, connection };
        let () = node.query("PING", &redis::cmd("PING")).await.or_else(|error| match error {
            // A user who may not PING may still SCAN.
            ServerError::Denied { .. } => Ok(()),
            other => Err(other),
        })?;
        let info = node.info("server").await?;
        node.run_id = info.as_deref().and_then(|info| info_field(info, "run_id")).map(str::to_owned);
        Ok(node)
    }

    /// A replica of this primary.
    async fn replica(mut self, info: &ConnectionInfo) -> Result<Self, ServerError> {
        let replication = self.info("replication").await?.ok_or_else(|| ServerError::Denied {
            address: self.address.clone(),
            command: "INFO",
            reason: "it names the replicas".to_owned(),
        })?;
        let (host, port) =
            online_replicas(&replication).into_iter().next().ok_or_else(|| no_replica(&self.address))?;
        Self::connect(&at(info, &host, port), Role::Replica).await
    }

    /// The first slot of each range that this node of a cluster serves.
    pub(crate) async fn first_slots(&mut self) -> Result<Vec<u16>, ServerError> {
        let mut command = redis::cmd("CLUSTER");
        command.arg("NODES");
        let text: String = self.query("CLUSTER", &command).await?;
        Ok(first_slots(&text))
    }

    /// A section of INFO; `None` if it is denied.
    pub(crate) async fn info(&mut self, section: &str) -> Result<Option<String>, ServerError> {
        let mut command = redis::cmd("INFO");
        command.arg(section);
        match self.query("INFO", &command).await {
            Err(ServerError::Denied { .. }) => Ok(None),
            other => other.map(Some),
        }
    }

    /// Runs one command.
    pub async fn query<T: FromRedisValue>(
        &mut self,
        name: &'static str,
        command: &redis::Cmd,
    ) -> Result<T, ServerError> {
        query(&self.address, name, &mut self.connection, command).await
    }

    /// Runs a pipeline. The replies may be errors of single commands.
    pub(crate) async fn replies(&self, pipeline: &Pipeline) -> Result<Vec<Value>, ServerError> {
        let mut connection = self.connection.clone();
        let replies = connection.req_packed_commands(pipeline, 0, pipeline.len());
        let replies = timeout(REPLY_TIMEOUT, replies).await.unwrap_or_else(|_| Err(no_reply()));
        replies.map_err(|error| ServerError::Lost { address: self.address.clone(), reason: one_line(&error) })
    }
}
