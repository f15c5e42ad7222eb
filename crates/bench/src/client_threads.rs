//! Threads of their own for clients that call the lock library in this process instead of a server over HTTP: there the client does
//! the work of a server, which has all cores.

use std::future::Future;

use tokio::runtime::{Builder, Runtime};

use crate::error::BenchError;

/// Dropping it ends all clients.
#[derive(Debug)]
pub(crate) struct ClientThreads(Option<Runtime>);

impl ClientThreads {
    pub(crate) fn start(count: usize) -> Result<Self, BenchError> {
        let runtime = Builder::new_multi_thread().worker_threads(count).enable_all().build()?;
        Ok(Self(Some(runtime)))
    }

    /// Runs a measurement; connections that it opens belong to these threads too.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        measurement: impl Future<Output = Result<T, BenchError>> + Send + 'static,
    ) -> Result<T, BenchError> {
        match &self.0 {
            Some(runtime) => runtime.spawn(measurement).await?,
            None => measurement.await,
        }
    }
}

impl Drop for ClientThreads {
    fn drop(&mut self) {
        // A runtime must not wait for its threads where other tasks run.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
