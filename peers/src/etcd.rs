//! etcd: a single member in a temporary folder, and the lock of the v3 API over gRPC. Each client has its own connection and lease.
//!
//! Invariant: like the servers of the test kit, etcd never outlives its owner.

use std::time::Duration;

use ade_testkit::guard::{GuardedProcess, ProcessSpec};
use ade_testkit::ports::Port;
use etcd_client::LockOptions;

use crate::error::BenchError;
use crate::lock_service::{LockClient, LockService};

const READY: &str = "serving client traffic";
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Longer than any measurement, so that no lease has to be renewed meanwhile.
const LEASE_SECONDS: i64 = 300;

pub(crate) struct Etcd {
    process: GuardedProcess,
    client_port: Port,
    _peer_port: Port,
}

impl Etcd {
    pub(crate) fn start() -> Result<Self, BenchError> {
        let (client_port, peer_port) = (claim_port()?, claim_port()?);
        let (client_url, peer_url) = (url(&client_port), url(&peer_port));
        let argv = [
            "etcd",
            "--name=bench",
            "--data-dir=data",
            &format!("--listen-client-urls={client_url}"),
            &format!("--advertise-client-urls={client_url}"),
            &format!("--listen-peer-urls={peer_url}"),
            &format!("--initial-advertise-peer-urls={peer_url}"),
            &format!("--initial-cluster=bench={peer_url}"),
            "--logger=zap",
            "--log-level=info",
        ];
        let process = GuardedProcess::start(ProcessSpec {
            name: "etcd".to_owned(),
            files: Vec::new(),
            preparation: String::new(),
            argv: argv.map(str::to_owned).to_vec(),
            stop_signal: "KILL",
            owner: None,
        })
        .and_then(|process| process.wait_for_log_lines(READY, 1, START_TIMEOUT).map(|()| process))
        .map_err(BenchError::context("start etcd (run `scripts/deps bench`, or install etcd-server)"))?;
        Ok(Self { process, client_port, _peer_port: peer_port })
    }

    pub(crate) async fn version(&self) -> Result<String, BenchError> {
        let mut client = self.lock_service().connect().await?;
        let status = client.status().await.map_err(BenchError::context("read the version of etcd"))?;
        Ok(status.version().to_owned())
    }

    pub(crate) fn pid(&self) -> i32 {
        self.process.pid()
    }

    pub(crate) fn lock_service(&self) -> EtcdLocks {
        EtcdLocks { url: url(&self.client_port) }
    }
}

fn claim_port() -> Result<Port, BenchError> {
    Port::claim().map_err(BenchError::context("claim a port"))
}

fn url(port: &Port) -> String {
    format!("http://127.0.0.1:{}", port.number())
}

pub(crate) struct EtcdLocks {
    url: String,
}

pub(crate) struct EtcdClient {
    client: etcd_client::Client,
    lease: i64,
    /// The key of the lock in etcd, which releases it.
    key: Vec<u8>,
}

impl EtcdLocks {
    async fn connect(&self) -> Result<etcd_client::Client, BenchError> {
        etcd_client::Client::connect([&self.url], None).await.map_err(BenchError::context("connect to etcd"))
    }
}

impl LockService for EtcdLocks {
    type Client = EtcdClient;

    async fn client(&self) -> Result<EtcdClient, BenchError> {
        let mut client = self.connect().await?;
        let lease = client
            .lease_grant(LEASE_SECONDS, None)
            .await
            .map_err(BenchError::context("create a lease in etcd"))?;
        Ok(EtcdClient { client, lease: lease.id(), key: Vec::new() })
    }
}

impl LockClient for EtcdClient {
    async fn acquire(&mut self, lock: &str) -> Result<(), BenchError> {
        let options = LockOptions::new().with_lease(self.lease);
        let locked =
            self.client.lock(lock, Some(options)).await.map_err(BenchError::context("lock with etcd"))?;
        self.key = locked.key().to_vec();
        Ok(())
    }

    async fn release(&mut self, _lock: &str) -> Result<(), BenchError> {
        let unlocked = self.client.unlock(std::mem::take(&mut self.key)).await;
        unlocked.map(drop).map_err(BenchError::context("unlock with etcd"))
    }
}
