//! Client methods of the audit log, jobs, archives and statistics.

use std::time::Duration;

use reqwest::{Method, Response};

use super::{Client, RESPONSE_TIMEOUT, Result, routes};
use crate::Error;
use crate::wire::{
    Archive, AuditEntry, AuditVerification, Job, Overview, Page, ProjectionCheck, RestoreResult,
};

/// Verification and export read the whole log.
const WHOLE_LOG_TIMEOUT: Duration = Duration::from_secs(3_600);

/// A streamed export of the audit log.
#[derive(Debug)]
pub struct AuditExport {
    client: Client,
    response: Response,
}

impl AuditExport {
    /// The next chunk, or `None` at the end. After an error the export is incomplete.
    pub async fn next_chunk(&mut self) -> Result<Option<Vec<u8>>> {
        match tokio::time::timeout(RESPONSE_TIMEOUT, self.response.chunk()).await {
            Ok(Ok(chunk)) => Ok(chunk.map(|bytes| bytes.to_vec())),
            Ok(Err(error)) => Err(self.client.unreachable(&error)),
            Err(_) => {
                let (url, cause) =
                    (self.client.base.clone(), format!("no data for {} s", RESPONSE_TIMEOUT.as_secs()));
                Err(Error::Unreachable { url, cause })
            }
        }
    }
}

routes! {
    /// Lists background jobs (admin or auditor).
    get jobs() "/jobs" => Page<Job>;
    /// Lists archives (admin or auditor). Filters: `limit`, `cursor`.
    list archives() "/archives" => Archive;
    /// Restores an archive (admin).
    post restore_archive(archive_id) "/archives/{}/restore" => RestoreResult;
    /// Lists audit entries. Filters: `task`, `actor`, `action`, `object`, `from`, `to`, `order`, `limit`, `cursor`.
    list audit() "/audit" => AuditEntry;
    /// Gets counts of the whole system.
    get overview() "/stats/overview" => Overview;
}

impl Client {
    /// Verifies the whole audit log on the server. It must contain the `trusted` entry, given by number and hash.
    pub async fn verify_audit(&self, trusted: Option<(u64, &str)>) -> Result<AuditVerification> {
        let mut request = self.request(Method::GET, "/audit/verify").timeout(WHOLE_LOG_TIMEOUT);
        if let Some((number, hash)) = trusted {
            request = request.query(&[("number", number.to_string().as_str()), ("entry_hash", hash)]);
        }
        let (_, body) = self.send(request).await?;
        self.parse(&body)
    }

    /// Compares the projections in Redis with the database: a sample, or everything (admin).
    pub async fn check_projections(&self, full: bool) -> Result<ProjectionCheck> {
        let request = self.request(Method::GET, "/projections/check").timeout(WHOLE_LOG_TIMEOUT);
        let (_, body) = self.send(request.query(&[("full", full)])).await?;
        self.parse(&body)
    }

    /// Exports the audit log as `ndjson` or `csv`. Filters are those of [`Client::audit`], without `order`,
    /// `limit` and `cursor`.
    pub async fn export_audit(&self, format: &str, filters: &[(&str, &str)]) -> Result<AuditExport> {
        let request = self.request(Method::GET, "/audit/export").timeout(WHOLE_LOG_TIMEOUT);
        let request = self.with_query(request.query(&[("format", format)]), filters);
        let response = self.open(request).await?;
        Ok(AuditExport { client: self.clone(), response })
    }
}
