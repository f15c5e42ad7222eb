//! etcd: one member of its own in a temporary folder, and the lock of its v3 API over gRPC, a connection and a lease for
//! each client.
//!
//! Invariant: like the servers of the test kit, it stands under guard and never outlives its owner.

use std::time::Duration;

use ade_testkit::guard::{Guarded, Spec};
use ade_testkit::ports::Port;
use etcd_client::LockOptions;

use crate::failure::Failure;
use crate::peer::{Client, Peer};

const READY: &str = "serving client traffic";
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Longer than any crowd lives: so no lease has to be kept alive while something is measured.
const LEASE_S: i64 = 300;

/// A running etcd.
pub(crate) struct Etcd {
    process: Guarded,
    clients: Port,
    _peers: Port,
}

impl Etcd {
    pub(crate) fn start() -> Result<Self, Failure> {
        let (clients, peers) = (claim()?, claim()?);
        let (client_url, peer_url) = (url(&clients), url(&peers));
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
        let process = Guarded::start(Spec {
            name: "etcd".to_owned(),
            files: Vec::new(),
            preparation: String::new(),
            argv: argv.map(str::to_owned).to_vec(),
            stop_signal: "KILL",
            owner: None,
        })
        .and_then(|process| process.wait_for_lines(READY, 1, START_TIMEOUT).map(|()| process))
        .map_err(Failure::of("start etcd (run `scripts/deps bench`, or install etcd-server)"))?;
        Ok(Self { process, clients, _peers: peers })
    }

    pub(crate) async fn version(&self) -> Result<String, Failure> {
        let mut client = self.peer().connect().await?;
        let status = client.status().await.map_err(Failure::of("ask etcd for its version"))?;
        Ok(status.version().to_owned())
    }

    pub(crate) fn pid(&self) -> i32 {
        self.process.pid()
    }

    pub(crate) fn peer(&self) -> EtcdLock {
        EtcdLock { url: url(&self.clients) }
    }
}

fn claim() -> Result<Port, Failure> {
    Port::claim().map_err(Failure::of("claim a port"))
}

fn url(port: &Port) -> String {
    format!("http://127.0.0.1:{}", port.number())
}

pub(crate) struct EtcdLock {
    url: String,
}

pub(crate) struct EtcdClient {
    client: etcd_client::Client,
    lease: i64,
    /// What etcd named the place in the queue.
    key: Vec<u8>,
}

impl EtcdLock {
    async fn connect(&self) -> Result<etcd_client::Client, Failure> {
        etcd_client::Client::connect([&self.url], None).await.map_err(Failure::of("connect to etcd"))
    }
}

impl Peer for EtcdLock {
    type Client = EtcdClient;

    async fn client(&self) -> Result<EtcdClient, Failure> {
        let mut client = self.connect().await?;
        let lease = client.lease_grant(LEASE_S, None).await.map_err(Failure::of("get a lease of etcd"))?;
        Ok(EtcdClient { client, lease: lease.id(), key: Vec::new() })
    }
}

impl Client for EtcdClient {
    async fn acquire(&mut self, lock: &str) -> Result<(), Failure> {
        let options = LockOptions::new().with_lease(self.lease);
        let locked = self.client.lock(lock, Some(options)).await.map_err(Failure::of("lock with etcd"))?;
        self.key = locked.key().to_vec();
        Ok(())
    }

    async fn release(&mut self, _lock: &str) -> Result<(), Failure> {
        let unlocked = self.client.unlock(std::mem::take(&mut self.key)).await;
        unlocked.map(drop).map_err(Failure::of("unlock with etcd"))
    }
}
