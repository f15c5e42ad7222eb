//! A cluster of three primaries with a replica each.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Redis;
use crate::error::StartError;
use crate::guard::Guarded;
use crate::ports::Port;
use crate::wait::eventually;

const PRIMARIES: usize = 3;
const NODES: usize = 2 * PRIMARIES;
const SLOTS: usize = 16384;
const FORMING_TIMEOUT: Duration = Duration::from_secs(60);

/// A running Redis Cluster.
#[derive(Debug)]
pub struct RedisCluster {
    /// The first three are the primaries at the start, the others their replicas in the same order.
    pub nodes: Vec<Redis>,
}

impl RedisCluster {
    /// Starts six nodes, joins them and waits until each of them serves and sees all the others.
    pub fn start() -> Result<Self, StartError> {
        let nodes: Vec<Redis> = (0..NODES).map(|_| node()).collect::<Result<_, _>>()?;
        let mut links: Vec<redis::Connection> = nodes.iter().map(Redis::connect).collect::<Result<_, _>>()?;
        let ports: Vec<(u16, u16)> =
            nodes.iter().map(|node| (node.port(), node._bus_port.as_ref().map_or(0, Port::number))).collect();
        let mut ids: Vec<String> = Vec::new();
        for (number, link) in links.iter_mut().enumerate() {
            ids.push(ask(link, &["MYID"])?);
            // Distinct epochs from the start spare the nodes from settling a collision.
            ask::<()>(link, &["SET-CONFIG-EPOCH", &(number + 1).to_string()])?;
            if number < PRIMARIES {
                let (first, last) = (SLOTS * number / PRIMARIES, SLOTS * (number + 1) / PRIMARIES - 1);
                ask::<()>(link, &["ADDSLOTSRANGE", &first.to_string(), &last.to_string()])?;
            }
        }
        if let Some(first) = links.first_mut() {
            for (port, bus) in ports.iter().skip(1) {
                ask::<()>(first, &["MEET", "127.0.0.1", &port.to_string(), &bus.to_string()])?;
            }
        }
        for link in &mut links {
            eventually("every node knows every other", FORMING_TIMEOUT, || known(link, &ids))?;
        }
        for (link, primary) in links.iter_mut().skip(PRIMARIES).zip(&ids) {
            ask::<()>(link, &["REPLICATE", primary])?;
        }
        for link in &mut links {
            eventually("the cluster serves all slots with a replica each", FORMING_TIMEOUT, || formed(link))?;
        }
        for (number, link) in links.iter_mut().enumerate().skip(PRIMARIES) {
            eventually(&format!("node {number} is in sync"), FORMING_TIMEOUT, || synced(link))?;
        }
        Ok(Self { nodes })
    }

    /// `redis+cluster://host:port,…`
    #[must_use]
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        format!("redis+cluster://{}", hosts.join(","))
    }

    /// The primary of a slot, once all nodes that answer name the same, which is none of `gone`.
    pub fn owner(&self, slot: u16, gone: &[u16]) -> Result<&Redis, StartError> {
        eventually("the nodes agree about the owner of a slot", FORMING_TIMEOUT, || {
            let alive = self.nodes.iter().filter(|node| !gone.contains(&node.port()));
            let mut named: Vec<u16> = Vec::new();
            for node in alive {
                let nodes: String = node.tell(&["CLUSTER", "NODES"]).map_err(|error| error.to_string())?;
                named.push(owner_in(&nodes, slot).ok_or(nodes)?);
            }
            let of = |node: &&Redis| named.iter().all(|port| *port == node.port());
            let owner = self.nodes.iter().find(of).ok_or_else(|| format!("{named:?}"))?;
            if gone.contains(&owner.port()) { Err(format!("{named:?}")) } else { Ok(owner) }
        })
    }

    /// Every process, for those who watch over them.
    pub fn processes(&self) -> impl Iterator<Item = &Guarded> {
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

fn ask<T: redis::FromRedisValue>(link: &mut redis::Connection, arguments: &[&str]) -> Result<T, StartError> {
    redis::cmd("CLUSTER")
        .arg(arguments)
        .query(link)
        .map_err(StartError::redis(format!("CLUSTER {}", arguments.join(" "))))
}

fn known(link: &mut redis::Connection, ids: &[String]) -> Result<(), String> {
    let nodes: String = ask(link, &["NODES"]).map_err(|error| error.to_string())?;
    let seen: BTreeSet<&str> = nodes
        .lines()
        .filter(|line| !line.contains("handshake"))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    if ids.iter().all(|id| seen.contains(id.as_str())) { Ok(()) } else { Err(nodes) }
}

fn formed(link: &mut redis::Connection) -> Result<(), String> {
    let info: String = ask(link, &["INFO"]).map_err(|error| error.to_string())?;
    let nodes: String = ask(link, &["NODES"]).map_err(|error| error.to_string())?;
    let connected = nodes.lines().filter(|line| line.contains(" connected")).count();
    let replicas = nodes.lines().filter(|line| line.contains("slave")).count();
    let is_formed = info.contains("cluster_state:ok") && connected == NODES && replicas == NODES - PRIMARIES;
    if is_formed { Ok(()) } else { Err(format!("{info}\n{nodes}")) }
}

/// The port of the primary that serves a slot, by an answer to CLUSTER NODES.
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

fn synced(link: &mut redis::Connection) -> Result<(), String> {
    let info: String =
        redis::cmd("INFO").arg("replication").query(link).map_err(|error| error.to_string())?;
    if info.contains("master_link_status:up") { Ok(()) } else { Err(info) }
}
