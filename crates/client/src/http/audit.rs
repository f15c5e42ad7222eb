//! What was recorded: the audit log and how everything stands.

use std::time::Duration;

use reqwest::{Method, Response};

use super::{Client, PATIENCE, segment};
use crate::Error;
use crate::wire::{Archive, AuditEntry, AuditVerdict, Job, Overview, Page, Restored};

/// How long looking at the whole log may take.
const WHOLE_LOG: Duration = Duration::from_secs(3_600);

/// The audit log as text, in pieces. It ends with `None`; whatever ends otherwise is not whole.
#[derive(Debug)]
pub struct Export {
    client: Client,
    answer: Response,
}

impl Export {
    /// The next piece, at most as long as the server takes for one.
    ///
    /// # Errors
    /// The connection broke, or nothing came for too long: what was read is not whole.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        match tokio::time::timeout(PATIENCE, self.answer.chunk()).await {
            Ok(Ok(piece)) => Ok(piece.map(|bytes| bytes.to_vec())),
            Ok(Err(error)) => Err(self.client.unreachable(&error)),
            Err(_) => {
                let (url, cause) = (self.client.base.clone(), "it stopped sending".to_owned());
                Err(Error::Unreachable { url, cause })
            }
        }
    }
}

impl Client {
    /// Work that repeats, and how it goes.
    ///
    /// # Errors
    /// The caller may not see it.
    pub async fn jobs(&self) -> Result<Page<Job>, Error> {
        self.get("/jobs", &[]).await
    }

    /// What was archived. Filters are `limit` and `cursor`.
    ///
    /// # Errors
    /// The caller may not see it.
    pub async fn archives(&self, filters: &[(&str, &str)]) -> Result<Page<Archive>, Error> {
        self.get("/archives", filters).await
    }

    /// Brings back what was archived.
    ///
    /// # Errors
    /// There is no such archive, or the caller may not.
    pub async fn restore(&self, archive_id: &str) -> Result<Restored, Error> {
        self.make_bare(&format!("/archives/{}/restore", segment(archive_id))).await
    }

    /// The audit log. Filters are `task`, `actor`, `action`, `from`, `to`, `limit` and `cursor`.
    ///
    /// # Errors
    /// A filter is wrong, or the caller may not.
    pub async fn audit(&self, filters: &[(&str, &str)]) -> Result<Page<AuditEntry>, Error> {
        self.get("/audit", filters).await
    }

    /// Whether the audit log is as it was written; the server looks at all of it. `trusted` is an entry that it must lead
    /// through: its number and its hash.
    ///
    /// # Errors
    /// The caller may not.
    pub async fn verify_audit(&self, trusted: Option<(u64, &str)>) -> Result<AuditVerdict, Error> {
        let mut call = self.call(Method::GET, "/audit/verify").timeout(WHOLE_LOG);
        if let Some((number, hash)) = trusted {
            call = call.query(&[("number", number.to_string().as_str()), ("entry_hash", hash)]);
        }
        let (_, body) = self.send(call).await?;
        self.read(&body)
    }

    /// The audit log as text: `ndjson` or `csv`. Filters are those of [`Client::audit`].
    ///
    /// # Errors
    /// A filter is wrong, or the caller may not.
    pub async fn export_audit(&self, format: &str, filters: &[(&str, &str)]) -> Result<Export, Error> {
        let call = self.call(Method::GET, "/audit/export").timeout(WHOLE_LOG);
        let call = self.with_query(call.query(&[("format", format)]), filters);
        let answer = self.open(call).await?;
        Ok(Export { client: self.clone(), answer })
    }

    /// How everything stands.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn overview(&self) -> Result<Overview, Error> {
        self.get("/stats/overview", &[]).await
    }
}
