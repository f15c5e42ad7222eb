//! One primary, two replicas and three sentinels that watch them.

use std::time::Duration;

use super::{Redis, START_TIMEOUT};
use crate::error::StartError;
use crate::guard::{Guarded, Spec};
use crate::ports::Port;
use crate::process::program;
use crate::wait::eventually;

const MASTER_NAME: &str = "ade";
const REPLICAS: usize = 2;
const SENTINELS: usize = 3;
const MEETING_TIMEOUT: Duration = Duration::from_secs(60);

/// A running Redis with Sentinel.
#[derive(Debug)]
pub struct RedisSentinel {
    // Sentinels first: dropped in this order they do not mourn the servers.
    sentinels: Vec<Sentinel>,
    /// The first is the primary at the start; a failover may change that.
    pub servers: Vec<Redis>,
}

#[derive(Debug)]
struct Sentinel {
    process: Guarded,
    port: Port,
}

impl RedisSentinel {
    /// Starts all of them and waits until every sentinel knows the replicas and the other sentinels.
    pub fn start() -> Result<Self, StartError> {
        let primary = Redis::start()?;
        let primary_port = primary.port().to_string();
        let mut servers = vec![primary];
        for _ in 0..REPLICAS {
            servers.push(Redis::start_with(&["--replicaof", "127.0.0.1", &primary_port])?);
        }
        for replica in servers.iter().skip(1) {
            replica.process.wait_for_lines(
                "MASTER <-> REPLICA sync: Finished with success",
                1,
                START_TIMEOUT,
            )?;
        }
        let sentinels: Vec<Sentinel> =
            (0..SENTINELS).map(|_| Sentinel::start(&primary_port)).collect::<Result<_, _>>()?;
        for sentinel in &sentinels {
            sentinel.process.wait_for_lines("+slave slave", REPLICAS, MEETING_TIMEOUT)?;
            sentinel.process.wait_for_lines("+sentinel sentinel", SENTINELS - 1, MEETING_TIMEOUT)?;
        }
        Ok(Self { sentinels, servers })
    }

    /// `redis+sentinel://…/name`
    #[must_use]
    pub fn url(&self) -> String {
        let hosts: Vec<String> =
            self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port.number())).collect();
        format!("redis+sentinel://{}/{MASTER_NAME}", hosts.join(","))
    }

    /// Name under which the sentinels know the primary.
    #[must_use]
    pub fn master_name(&self) -> &'static str {
        MASTER_NAME
    }

    /// A connection to each sentinel.
    pub fn connect_sentinels(&self) -> Result<Vec<redis::Connection>, StartError> {
        self.sentinels
            .iter()
            .map(|sentinel| {
                let url = format!("redis://127.0.0.1:{}", sentinel.port.number());
                let client = redis::Client::open(url).map_err(StartError::redis("read a URL"))?;
                client.get_connection().map_err(StartError::redis("connect to a sentinel"))
            })
            .collect()
    }

    /// The primary, once every sentinel names the same and it knows that it is one.
    pub fn primary(&self) -> Result<&Redis, StartError> {
        let mut sentinels = self.connect_sentinels()?;
        eventually("the sentinels agree about the primary", MEETING_TIMEOUT, || {
            let mut named: Vec<String> = Vec::new();
            for sentinel in &mut sentinels {
                let mut question = redis::cmd("SENTINEL");
                let answer: Result<(String, String), _> =
                    question.arg("get-master-addr-by-name").arg(MASTER_NAME).query(sentinel);
                named.push(answer.map_err(|error| error.to_string())?.1);
            }
            let of = |server: &&Redis| named.iter().all(|port| *port == server.port().to_string());
            let primary = self.servers.iter().find(of).ok_or_else(|| format!("{named:?}"))?;
            let role: String = primary.tell(&["INFO", "replication"]).map_err(|error| error.to_string())?;
            if role.contains("role:master") { Ok(primary) } else { Err(role) }
        })
    }

    /// Every process, for those who watch over them.
    pub fn processes(&self) -> impl Iterator<Item = &Guarded> {
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
        let process = Guarded::start(Spec {
            name: format!("Sentinel on port {}", port.number()),
            files: vec![("sentinel.conf", config)],
            preparation: String::new(),
            argv: vec![sentinel, "sentinel.conf".into()],
            stop_signal: "KILL",
            owner: None,
        })?;
        process.wait_for_lines("+monitor master", 1, START_TIMEOUT)?;
        Ok(Self { process, port })
    }
}
