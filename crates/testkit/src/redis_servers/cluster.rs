//! A Redis Cluster of three primaries with one replica each.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Redis;
use crate::error::StartError;
use crate::guard::GuardedProcess;
use crate::ports::Port;
use crate::wait::eventually;

const PRIMARIES: usize = 3;
const NODES: usize = 2 * PRIMARIES;
const SLOTS: usize = 16384;
const START_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct RedisCluster {
    /// Initially the first three are primaries, the others their replicas in the same order.
    pub nodes: Vec<Redis>,
}

impl RedisCluster {
    /// Starts six nodes, joins them and waits until every node is connected and every replica in sync.
    pub fn start() -> Result<Self, StartError> {
        let nodes: Vec<Redis> = (0..NODES).map(|_| node()).collect::<Result<_, _>>()?;
        let mut connections: Vec<redis::Connection> =
            nodes.iter().map(Redis::connect).collect::<Result<_, _>>()?;
        let ports: Vec<(u16, u16)> =
            nodes.iter().map(|node| (node.port(), node._bus_port.as_ref().map_or(0, Port::number))).collect();
        let mut ids: Vec<String> = Vec::new();
        for (number, connection) in connections.iter_mut().enumerate() {
            ids.push(cluster_command(connection, &["MYID"])?);
            // Distinct epochs avoid the resolution of an epoch collision later.
            cluster_command::<()>(connection, &["SET-CONFIG-EPOCH", &(number + 1).to_string()])?;
            if number < PRIMARIES {
                let (first, last) = (SLOTS * number / PRIMARIES, SLOTS * (number + 1) / PRIMARIES - 1);
                cluster_command::<()>(connection, &["ADDSLOTSRANGE", &first.to_string(), &last.to_string()])?;
            }
        }
        if let Some(first) = connections.first_mut() {
            for (port, bus) in ports.iter().skip(1) {
                cluster_command::<()>(first, &["MEET", "127.0.0.1", &port.to_string(), &bus.to_string()])?;
            }
        }
        for connection in &mut connections {
            eventually("every node knows every other", START_TIMEOUT, || check_known(connection, &ids))?;
        }
        for (connection, primary) in connections.iter_mut().skip(PRIMARIES).zip(&ids) {
            cluster_command::<()>(connection, &["REPLICATE", primary])?;
        }
        for connection in &mut connections {
            eventually("the cluster serves all slots with a replica each", START_TIMEOUT, || {
                check_formed(connection)
            })?;
        }
        for (number, connection) in connections.iter_mut().enumerate().skip(PRIMARIES) {
            eventually(&format!("node {number} is in sync"), START_TIMEOUT, || check_synced(connection))?;
        }
        Ok(Self { nodes })
    }

    /// `redis+cluster://host:port,…`
    #[must_use]
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        format!("redis+cluster://{}", hosts.join(","))
    }

    /// Waits until all nodes except `dead` agree on the primary of a slot, and it is none of `dead`.
    pub fn slot_owner(&self, slot: u16, dead: &[u16]) -> Result<&Redis, StartError> {
        eventually("the nodes agree on the owner of a slot", START_TIMEOUT, || {
            let live_nodes = self.nodes.iter().filter(|node| !dead.contains(&node.port()));
            let mut owners: Vec<u16> = Vec::new();
            for node in live_nodes {
                let nodes: String = node.query(&["CLUSTER", "NODES"]).map_err(|error| error.to_string())?;
                owners.push(owner_in(&nodes, slot).ok_or(nodes)?);
            }
            let is_owner = |node: &&Redis| owners.iter().all(|port| *port == node.port());
            let owner = self.nodes.iter().find(is_owner).ok_or_else(|| format!("{owners:?}"))?;
            if dead.contains(&owner.port()) { Err(format!("{owners:?}")) } else { Ok(owner) }
        })
    }

    /// Waits until every node says that the cluster serves all slots.
    pub fn wait_until_ok(&self) -> Result<(), StartError> {
        for node in &self.nodes {
            eventually("the cluster serves all slots", START_TIMEOUT, || {
                let info: String = node.query(&["CLUSTER", "INFO"]).map_err(|error| error.to_string())?;
                if info.contains("cluster_state:ok") { Ok(()) } else { Err(info) }
            })?;
        }
        Ok(())
    }

    pub fn processes(&self) -> impl Iterator<Item = &GuardedProcess> {
        self.nodes.iter().map(Redis::process)
    }
}

fn node() -> Result<Redis, StartError> {
    let bus_port = Port::claim()?;
    let bus = bus_port.number().to_string();
    let arguments = [
        "--cluster-enabled",
        "yes",
        "--cluster-port",
        &bus,
        "--cluster-node-timeout",
        "2000",
        "--appendonly",
        "no",
    ];
    Redis::launch("cluster node", &arguments, Some(bus_port))
}

fn cluster_command<T: redis::FromRedisValue>(
    connection: &mut redis::Connection,
    arguments: &[&str],
) -> Result<T, StartError> {
    redis::cmd("CLUSTER")
        .arg(arguments)
        .query(connection)
        .map_err(StartError::redis(format!("run CLUSTER {}", arguments.join(" "))))
}

fn check_known(connection: &mut redis::Connection, ids: &[String]) -> Result<(), String> {
    let nodes: String = cluster_command(connection, &["NODES"]).map_err(|error| error.to_string())?;
    let seen: BTreeSet<&str> = nodes
        .lines()
        .filter(|line| !line.contains("handshake"))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    if ids.iter().all(|id| seen.contains(id.as_str())) { Ok(()) } else { Err(nodes) }
}

fn check_formed(connection: &mut redis::Connection) -> Result<(), String> {
    let info: String = cluster_command(connection, &["INFO"]).map_err(|error| error.to_string())?;
    let nodes: String = cluster_command(connection, &["NODES"]).map_err(|error| error.to_string())?;
    let connected = nodes.lines().filter(|line| line.contains(" connected")).count();
    let replicas = nodes.lines().filter(|line| line.contains("slave")).count();
    let is_formed = info.contains("cluster_state:ok") && connected == NODES && replicas == NODES - PRIMARIES;
    if is_formed { Ok(()) } else { Err(format!("{info}\n{nodes}")) }
}

/// Finds the port of the primary that serves a slot in the reply to CLUSTER NODES.
fn owner_in(nodes: &str, slot: u16) -> Option<u16> {
    let serves = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let ends = first.parse::<u16>().ok().zip(last.parse::<u16>().ok());
        ends.is_some_and(|(first, last)| (first..=last).contains(&slot))
    };
    let fields = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let line = nodes.lines().map(fields).find(|fields| {
        let is_primary = fields.get(2).is_some_and(|flags| flags.contains("master"));
        is_primary && fields.iter().skip(8).any(|range| serves(range))
    })?;
    line.get(1)?.split('@').next()?.rsplit(':').next()?.parse().ok()
}

fn check_synced(connection: &mut redis::Connection) -> Result<(), String> {
    let info: String =
        redis::cmd("INFO").arg("replication").query(connection).map_err(|error| error.to_string())?;
    if info.contains("master_link_status:up") { Ok(()) } else { Err(info) }
}
