//! What operators allow tasks to work on, as each process publishes it. A name stands for one thing: while a process uses it, no other
//! can publish something else under it.

use ade_domain::Moment;
use ade_domain::task::{Digest, PublishedBinding};
use serde_json::json;

use super::documents::{Document, DocumentKind};
use super::sql::{self, Row};
use super::{Database, Result};

impl Database {
    /// Publishes a binding for a process until a time. Returns false, and changes nothing, if another process uses the name for
    /// something else.
    pub async fn publish_binding(
        &self,
        name: &str,
        published: &PublishedBinding,
        process: &str,
        now: Moment,
        until: Moment,
    ) -> Result<bool> {
        let sql = "INSERT INTO leases (name, holder, expires_at) VALUES ($1, $2, $3) \
                   ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, expires_at = excluded.expires_at \
                   WHERE leases.holder = excluded.holder OR leases.expires_at <= $4";
        // Everything counts: of two processes with different rules for one name, the laxer must not win now and then.
        let holder = Digest::of_bytes(json!(published).to_string().as_bytes()).to_string();
        let args = [lease_name(name).into(), holder.into(), until.into(), now.into()];
        if self.execute_statement(sql, &args).await? == 0 {
            return Ok(false);
        }
        // Without a change nothing is written, so that caches of the rules stay valid.
        let sql = "INSERT INTO documents (kind, document_id, revision, body) VALUES ($1, $2, 1, $3) \
                   ON CONFLICT (kind, document_id) DO UPDATE SET body = excluded.body, revision = documents.revision + 1 \
                   WHERE documents.body <> excluded.body";
        let args = [PublishedBinding::KIND.as_str().into(), name.into(), sql::json(published)?];
        self.execute_statement(sql, &args).await?;
        let sql = "INSERT INTO binding_processes (binding, process, expires_at) VALUES ($1, $2, $3) \
                   ON CONFLICT (binding, process) DO UPDATE SET expires_at = excluded.expires_at";
        self.execute_statement(sql, &[name.into(), process.into(), until.into()]).await?;
        Ok(true)
    }

    /// Withdraws everything that a process publishes. What it published stays known, but nobody serves it any more.
    pub async fn withdraw_bindings(&self, process: &str) -> Result<()> {
        let sql = "DELETE FROM binding_processes WHERE process = $1";
        self.execute_statement(sql, &[process.into()]).await?;
        let sql = "DELETE FROM leases WHERE name LIKE 'binding:%' AND NOT EXISTS \
                   (SELECT 1 FROM binding_processes WHERE leases.name = 'binding:' || binding)";
        self.execute_statement(sql, &[]).await.map(drop)
    }

    /// Withdraws what any process published: for the only process of a database, after a crash.
    pub async fn withdraw_all_bindings(&self) -> Result<()> {
        self.execute_statement("DELETE FROM binding_processes", &[]).await?;
        self.execute_statement("DELETE FROM leases WHERE name LIKE 'binding:%'", &[]).await.map(drop)
    }

    /// Forgets processes that ended without withdrawing what they published.
    pub async fn forget_ended_processes(&self, now: Moment) -> Result<()> {
        let sql = "DELETE FROM binding_processes WHERE expires_at <= $1";
        self.execute_statement(sql, &[now.into()]).await.map(drop)
    }

    /// Binding and process, for all that are served at a time.
    pub async fn binding_processes(&self, now: Moment) -> Result<Vec<(String, String)>> {
        let sql =
            "SELECT binding, process FROM binding_processes WHERE expires_at > $1 ORDER BY binding, process";
        self.fetch_all(sql, &[now.into()], |row: &Row| Ok((row.get(0)?, row.get(1)?))).await
    }

    /// Deletes what is known about changes of the rules before a time.
    pub async fn delete_rule_changes(&self, ids: &[String]) -> Result<()> {
        for id in ids {
            let sql = "DELETE FROM documents WHERE kind = $1 AND document_id = $2";
            self.execute_statement(sql, &[DocumentKind::RuleChange.as_str().into(), id.as_str().into()])
                .await?;
        }
        Ok(())
    }
}

fn lease_name(binding: &str) -> String {
    format!("binding:{binding}")
}
