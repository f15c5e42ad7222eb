//! Redis with Sentinel: one primary, two replicas and three sentinels.

use std::time::Duration;

use super::{Redis, START_TIMEOUT};
use crate::error::StartError;
use crate::guard::{GuardedProcess, ProcessSpec};
use crate::ports::Port;
use crate::process::program;
use crate::wait::eventually;

const MASTER_NAME: &str = "ade";
const REPLICAS: usize = 2;
const SENTINELS: usize = 3;
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct RedisSentinel {
    // Dropped first, so that the sentinels do not start a failover.
    sentinels: Vec<Sentinel>,
    /// Initially the first is the primary.
    pub servers: Vec<Redis>,
}

#[derive(Debug)]
struct Sentinel {
    process: GuardedProcess,
    port: Port,
}

impl RedisSentinel {
    /// Starts all processes and waits until every sentinel knows the replicas and the other sentinels.
    pub fn start() -> Result<Self, StartError> {
        let primary = Redis::start()?;
        let primary_port = primary.port().to_string();
        let mut servers = vec![primary];
        for _ in 0..REPLICAS {
            servers.push(Redis::start_with(&["--replicaof", "127.0.0.1", &primary_port])?);
        }
        for replica in servers.iter().skip(1) {
            replica.process.wait_for_log_lines(
                "MASTER <-> REPLICA sync: Finished with success",
                1,
                START_TIMEOUT,
            )?;
        }
        let sentinels: Vec<Sentinel> =
            (0..SENTINELS).map(|_| Sentinel::start(&primary_port)).collect::<Result<_, _>>()?;
        for sentinel in &sentinels {
            sentinel.process.wait_for_log_lines("+slave slave", REPLICAS, DISCOVERY_TIMEOUT)?;
            sentinel.process.wait_for_log_lines("+sentinel sentinel", SENTINELS - 1, DISCOVERY_TIMEOUT)?;
        }
        Ok(Self { sentinels, servers })
    }

    #[must_use]
    pub fn url(&self) -> String {
        let hosts: Vec<String> =
            self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port.number())).collect();
        format!("redis+sentinel://{}/{MASTER_NAME}", hosts.join(","))
    }

    /// The name of the primary in the configuration of the sentinels.
    #[must_use]
    pub fn master_name(&self) -> &'static str {
        MASTER_NAME
    }

    pub fn connect_sentinels(&self) -> Result<Vec<redis::Connection>, StartError> {
        self.sentinels
            .iter()
            .map(|sentinel| {
                let url = format!("redis://127.0.0.1:{}", sentinel.port.number());
                let client = redis::Client::open(url).map_err(StartError::redis("parse a URL"))?;
                client.get_connection().map_err(StartError::redis("connect to a sentinel"))
            })
            .collect()
    }

    /// Waits until every sentinel names the same primary and that server has the role.
    pub fn primary(&self) -> Result<&Redis, StartError> {
        let mut sentinels = self.connect_sentinels()?;
        eventually("the sentinels agree on the primary", DISCOVERY_TIMEOUT, || {
            let mut ports: Vec<String> = Vec::new();
            for sentinel in &mut sentinels {
                let mut command = redis::cmd("SENTINEL");
                let address: Result<(String, String), _> =
                    command.arg("get-master-addr-by-name").arg(MASTER_NAME).query(sentinel);
                ports.push(address.map_err(|error| error.to_string())?.1);
            }
            let is_primary = |server: &&Redis| ports.iter().all(|port| *port == server.port().to_string());
            let primary = self.servers.iter().find(is_primary).ok_or_else(|| format!("{ports:?}"))?;
            let role: String = primary.query(&["INFO", "replication"]).map_err(|error| error.to_string())?;
            if role.contains("role:master") { Ok(primary) } else { Err(role) }
        })
    }

    pub fn processes(&self) -> impl Iterator<Item = &GuardedProcess> {
        let sentinels = self.sentinels.iter().map(|sentinel| &sentinel.process);
        sentinels.chain(self.servers.iter().map(Redis::process))
    }
}

impl Sentinel {
    fn start(primary_port: &str) -> Result<Self, StartError> {
        let port = Port::claim()?;
        let config = format!(
            "bind 127.0.0.1\nport {}\ndir .\n\
             sentinel monitor {MASTER_NAME} 127.0.0.1 {primary_port} 2\n\
             sentinel down-after-milliseconds {MASTER_NAME} 1000\n\
             sentinel failover-timeout {MASTER_NAME} 5000\n",
            port.number()
        );
        let sentinel = program("redis-sentinel", "redis-sentinel", &[])?;
        let process = GuardedProcess::start(ProcessSpec {
            name: format!("Sentinel on port {}", port.number()),
            files: vec![("sentinel.conf", config)],
            preparation: String::new(),
            argv: vec![sentinel, "sentinel.conf".into()],
            stop_signal: "KILL",
            owner: None,
        })?;
        process.wait_for_log_lines("+monitor master", 1, START_TIMEOUT)?;
        Ok(Self { process, port })
    }
}
