//! Deliveries of webhooks and the circuits of their destinations.
//!
//! A delivery exists once for each event and webhook, or for each person that e-mail goes to: it is written in one transaction with the position of the consumer that read the
//! event. A process claims what it sends until a time; if it stops, another one sends it again, with the same id.

use ade_domain::Moment;
use ade_domain::webhook::delivery::Circuit;
use serde::{Deserialize, Serialize};

use super::batch::{Statement, TableRow, insert_all};
use super::sql::{Arg, LOCK_ROWS, Row, SKIP_LOCKED, Select, SqlConnection, json, uuid};
use super::{Database, DatabaseError, Operation, Result};

/// Rows that one statement of the cleanup changes.
const MAX_CLEANED: u32 = 1_000;
/// Deliveries of one message. What is left becomes another one.
const MAX_DIGEST: u32 = 200;
/// The latest changes of a message among which is the newest.
const MAX_UPDATES: u32 = 50;

#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr, strum::EnumString,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum DeliveryStatus {
    Pending,
    Delivered,
    Failed,
}

/// What is sent: rendered when the delivery is created, so that every attempt sends the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliveryContent {
    /// The name of the event.
    pub event: String,
    pub task_id: Option<String>,
    /// The number of the event in the log; 0 if it is in none.
    #[serde(default, skip_serializing_if = "is_zero_number")]
    pub number: u64,
    /// The body of the request.
    pub payload: String,
    /// People whom the event concerns, but who have no address for e-mail.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub skipped_people: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero_number(number: &u64) -> bool {
    *number == 0
}

/// How the attempts went.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct DeliveryReport {
    pub last_attempt_at: Option<Moment>,
    pub finished_at: Option<Moment>,
    /// The HTTP status of the last response.
    pub response_status: Option<u16>,
    /// The beginning of the last response, or why nothing had to be sent.
    pub response: Option<String>,
    /// Why the last attempt failed.
    pub error: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct DeliveryBody {
    content: DeliveryContent,
    #[serde(default)]
    report: DeliveryReport,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewDelivery {
    pub delivery_id: String,
    pub webhook_id: String,
    pub event_id: String,
    /// To whom it goes, for e-mail.
    pub recipient: Option<String>,
    /// When it is sent in one message with the others for the recipient until then; none: at once and alone.
    pub digest_at: Option<Moment>,
    pub created_at: Moment,
    pub give_up_at: Moment,
    pub content: DeliveryContent,
    /// Why it is never sent, if it is not.
    pub refused: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    pub delivery_id: String,
    pub webhook_id: String,
    pub event_id: String,
    /// To whom it goes, for e-mail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipient: Option<String>,
    pub status: DeliveryStatus,
    pub next_at: Option<Moment>,
    /// Attempts that ended, since it was created or sent again on request.
    pub attempts: u64,
    pub give_up_at: Moment,
    pub created_at: Moment,
    pub content: DeliveryContent,
    pub report: DeliveryReport,
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptOutcome {
    pub status: DeliveryStatus,
    /// When a pending delivery is tried again.
    pub next_at: Option<Moment>,
    pub report: DeliveryReport,
    /// Where the receiver keeps the message, if it can be changed there.
    pub message_ref: Option<String>,
}

/// A message about a task that the receiver keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskMessage {
    pub message_ref: String,
    /// The number of the event that it shows.
    pub number: u64,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct DeliveryFilter<'a> {
    pub webhook_id: &'a str,
    pub status: Option<DeliveryStatus>,
    /// Only deliveries that are older than this one.
    pub before: Option<&'a str>,
}

const SELECT: &str = "SELECT delivery_id::text, webhook_id, event_id::text, status, micros(next_at), attempts, \
                      micros(give_up_at), micros(created_at), body, recipient FROM webhook_deliveries";

fn delivery(row: &Row) -> Result<Delivery> {
    let status: String = row.get(3)?;
    let unknown = |_| DatabaseError::Corrupt(format!("a delivery has the unknown status {status:?}"));
    let DeliveryBody { content, report } = row.json(8)?;
    Ok(Delivery {
        delivery_id: row.get(0)?,
        webhook_id: row.get(1)?,
        event_id: row.get(2)?,
        recipient: row.get::<Option<String>>(9)?.filter(|recipient| !recipient.is_empty()),
        status: status.parse().map_err(unknown)?,
        next_at: row.get(4)?,
        attempts: row.get(5)?,
        give_up_at: row.get(6)?,
        created_at: row.get(7)?,
        content,
        report,
    })
}

fn new_row(new: &NewDelivery) -> Result<TableRow> {
    let status: &str =
        if new.refused.is_none() { DeliveryStatus::Pending } else { DeliveryStatus::Failed }.into();
    let finished_at = new.refused.as_ref().map(|_| new.created_at);
    let report = DeliveryReport { error: new.refused.clone(), finished_at, ..DeliveryReport::default() };
    let columns = [
        ("delivery_id", uuid(&new.delivery_id)),
        ("webhook_id", new.webhook_id.as_str().into()),
        ("event_id", uuid(&new.event_id)),
        ("recipient", new.recipient.as_deref().unwrap_or_default().into()),
        ("digest_at", Arg::Time(new.digest_at)),
        ("status", status.into()),
        ("next_at", Arg::Time(new.refused.is_none().then_some(new.digest_at.unwrap_or(new.created_at)))),
        ("task_id", Arg::Uuid(new.content.task_id.clone())),
        ("attempts", 0_u64.into()),
        ("give_up_at", new.give_up_at.into()),
        ("created_at", new.created_at.into()),
        ("body", json(&DeliveryBody { content: new.content.clone(), report })?),
    ];
    Ok(TableRow::new("webhook_deliveries", columns))
}

/// What a process claims, and until when.
#[derive(Debug, Clone)]
pub struct Claim {
    pub webhook_id: String,
    /// The process.
    pub by: String,
    pub now: Moment,
    pub until: Moment,
    /// Of messages.
    pub limit: u32,
}

struct ClaimDeliveries {
    claim: Claim,
    /// Whether all processes together have at most one delivery of a task at a time.
    one_per_task: bool,
}

impl Operation for ClaimDeliveries {
    type Output = Vec<Delivery>;

    async fn apply(&self, connection: &mut SqlConnection<'_>) -> Result<Vec<Delivery>> {
        let Self { claim, one_per_task } = self;
        let id = || Arg::from(claim.webhook_id.as_str());
        let mut which = "";
        if *one_per_task {
            // Processes claim in turn: otherwise none would see what another one is about to claim.
            let lock = format!(
                "SELECT document_id FROM documents WHERE kind = 'webhook' AND document_id = $1{LOCK_ROWS}"
            );
            connection.query(&lock, &[id()]).await?;
            // The limit counts tasks: many deliveries of one must not keep those of others waiting.
            which = " AND delivery_id IN (SELECT delivery_id FROM (SELECT delivery_id, task_id, \
                     row_number() OVER (PARTITION BY coalesce(task_id, delivery_id) ORDER BY next_at, delivery_id) AS turn \
                     FROM webhook_deliveries WHERE webhook_id = $1 AND next_at IS NOT NULL AND next_at <= $2) AS due \
                     WHERE turn = 1 AND (task_id IS NULL OR task_id NOT IN (SELECT task_id FROM webhook_deliveries \
                     WHERE webhook_id = $1 AND next_at > $2 AND claimed_by IS NOT NULL AND task_id IS NOT NULL)))";
        }
        let sql = format!(
            "{SELECT} WHERE webhook_id = $1 AND next_at IS NOT NULL AND next_at <= $2{which} \
             ORDER BY next_at, delivery_id LIMIT {}{SKIP_LOCKED}",
            claim.limit
        );
        let rows = connection.query(&sql, &[id(), claim.now.into()]).await?;
        let due = rows.iter().map(delivery).collect::<Result<Vec<_>>>()?;
        claim.mark(connection, &due).await?;
        Ok(due)
    }
}

impl Claim {
    async fn mark(&self, connection: &mut SqlConnection<'_>, due: &[Delivery]) -> Result<()> {
        for claimed in due {
            let sql = "UPDATE webhook_deliveries SET next_at = $2, claimed_by = $3 WHERE delivery_id = $1";
            let args = [uuid(&claimed.delivery_id), self.until.into(), self.by.as_str().into()];
            connection.execute(sql, &args).await?;
        }
        Ok(())
    }
}

/// Claims messages that may consist of several deliveries; the limit is one of messages.
struct ClaimDigests(Claim);

impl Operation for ClaimDigests {
    type Output = Vec<Vec<Delivery>>;

    async fn apply(&self, connection: &mut SqlConnection<'_>) -> Result<Self::Output> {
        let Self(claim) = self;
        let due = || [claim.webhook_id.as_str().into(), claim.now.into()];
        let mut messages = Vec::new();
        for _ in 0..claim.limit {
            let first = "SELECT recipient, micros(digest_at), delivery_id::text FROM webhook_deliveries WHERE webhook_id = $1 \
                         AND next_at IS NOT NULL AND next_at <= $2 ORDER BY next_at, delivery_id LIMIT 1";
            let Some(first) = connection.query_first(first, &due()).await? else { break };
            let (recipient, digest_at): (String, Option<Moment>) = first.pair()?;
            let which = match digest_at {
                Some(_) => "recipient = $3 AND digest_at = $4",
                None => "delivery_id = $3",
            };
            let key = match digest_at {
                Some(at) => vec![recipient.as_str().into(), at.into()],
                None => vec![uuid(&first.get::<String>(2)?)],
            };
            // A process that claims the same message waits here, and then finds that nothing of it is due: it stays one message.
            let sql = format!(
                "{SELECT} WHERE webhook_id = $1 AND next_at IS NOT NULL AND next_at <= $2 AND {which} \
                 ORDER BY delivery_id LIMIT {MAX_DIGEST}{LOCK_ROWS}"
            );
            let args: Vec<Arg> = due().into_iter().chain(key).collect();
            let rows = connection.query(&sql, &args).await?;
            let message = rows.iter().map(delivery).collect::<Result<Vec<_>>>()?;
            claim.mark(connection, &message).await?;
            if !message.is_empty() {
                messages.push(message);
            }
        }
        Ok(messages)
    }
}

struct RecordAttempt {
    destination: String,
    /// Whether the destination works; unknown if nothing was sent.
    is_reachable: Option<bool>,
    now: Moment,
    /// One for each delivery of the message.
    statements: Vec<Statement>,
}

impl Operation for RecordAttempt {
    /// Whether the process still had all deliveries.
    type Output = bool;

    async fn apply(&self, connection: &mut SqlConnection<'_>) -> Result<bool> {
        let destination = || Arg::from(self.destination.as_str());
        match self.is_reachable {
            // If it was a test of the destination, it decided nothing: the next attempt is one. None of before the rest still runs then.
            None => {
                connection.execute(END_PROBE, &[destination()]).await?;
            }
            Some(true) => {
                connection
                    .execute("DELETE FROM webhook_circuits WHERE destination = $1", &[destination()])
                    .await?;
            }
            Some(false) => {
                let insert = "INSERT INTO webhook_circuits (destination, failures) VALUES ($1, 0) ON CONFLICT DO NOTHING";
                connection.execute(insert, &[destination()]).await?;
                let select = format!("{SELECT_CIRCUIT} WHERE destination = $1{LOCK_ROWS}");
                let row = connection.query_first(&select, &[destination()]).await?;
                let before = row.as_ref().map_or_else(|| Ok(Circuit::default()), circuit)?;
                let Circuit { failures, open_until, probe_until } = before.after_failure(self.now);
                let update = "UPDATE webhook_circuits SET failures = $2, open_until = $3, probe_until = $4 \
                              WHERE destination = $1";
                let failures = u64::from(failures).into();
                let args = [destination(), failures, Arg::Time(open_until), Arg::Time(probe_until)];
                connection.execute(update, &args).await?;
            }
        }
        let mut is_complete = true;
        for statement in &self.statements {
            is_complete &= connection.execute(&statement.sql, &statement.args).await? > 0;
        }
        Ok(is_complete)
    }
}

const END_PROBE: &str = "UPDATE webhook_circuits SET probe_until = NULL WHERE destination = $1";
const SELECT_CIRCUIT: &str =
    "SELECT failures, micros(open_until), micros(probe_until), destination FROM webhook_circuits";

fn circuit(row: &Row) -> Result<Circuit> {
    let failures = u32::try_from(row.get::<u64>(0)?).unwrap_or(u32::MAX);
    Ok(Circuit { failures, open_until: row.get(1)?, probe_until: row.get(2)? })
}

impl Database {
    /// Writes the deliveries of some events, and moves their consumer from one position to another. Fails with a conflict, and writes
    /// nothing, if another process reads for the consumer meanwhile.
    pub async fn add_deliveries(
        &self,
        consumer: &str,
        holder: &str,
        (from, to): (u64, u64),
        until: Moment,
        deliveries: &[NewDelivery],
    ) -> Result<()> {
        let sql = "UPDATE event_consumers SET position = $4, lease_until = $5 \
                   WHERE name = $1 AND holder = $2 AND position = $3";
        let args = [consumer.into(), holder.into(), from.into(), to.into(), until.into()];
        let mut statements = vec![Statement::new(sql, args).or_conflict(format!("consumer {consumer}"))];
        let rows = deliveries.iter().map(new_row).collect::<Result<_>>()?;
        statements.extend(insert_all(rows, " ON CONFLICT (webhook_id, event_id, recipient) DO NOTHING"));
        self.execute(statements).await.map(drop)
    }

    /// Writes a delivery that belongs to no event of the log.
    pub async fn add_delivery(&self, new: &NewDelivery) -> Result<()> {
        self.execute(vec![new_row(new)?.insert("")]).await.map(drop)
    }

    /// How many deliveries of a webhook wait, at most `limit`.
    pub async fn count_pending_deliveries(&self, webhook_id: &str, limit: u32) -> Result<u64> {
        let sql = format!(
            "SELECT count(*)::bigint FROM (SELECT 1 FROM webhook_deliveries WHERE webhook_id = $1 \
             AND next_at IS NOT NULL LIMIT {limit}) AS pending"
        );
        self.fetch_number(&sql, &[webhook_id.into()]).await
    }

    /// Every webhook with deliveries that wait, and when the first of them is due.
    pub async fn next_deliveries(&self) -> Result<Vec<(String, Moment)>> {
        // One lookup in the index for each webhook, however many deliveries wait.
        let sql = "SELECT webhook_id, micros(next_at) FROM (SELECT document_id AS webhook_id, \
                   (SELECT min(next_at) FROM webhook_deliveries WHERE webhook_id = document_id AND next_at IS NOT NULL) AS next_at \
                   FROM documents WHERE kind = 'webhook') AS due WHERE next_at IS NOT NULL ORDER BY next_at";
        self.fetch_all(sql, &[], Row::pair).await
    }

    /// Claims deliveries of a webhook that are due, the oldest first. With `one_per_task`, the oldest of each task, and none
    /// of a task of which any process still has another one.
    pub async fn claim_deliveries(&self, claim: Claim, one_per_task: bool) -> Result<Vec<Delivery>> {
        self.execute(ClaimDeliveries { claim, one_per_task }).await
    }

    /// Claims messages of a webhook that are due, the oldest first: each is one delivery, or the digest of a person.
    pub async fn claim_digests(&self, claim: Claim) -> Result<Vec<Vec<Delivery>>> {
        self.execute(ClaimDigests(claim)).await
    }

    /// Stores how an attempt to send a message ended, for those of its deliveries that the process still has; the circuit of the
    /// destination follows in any case.
    pub async fn finish_attempt(
        &self,
        message: &[Delivery],
        by: &str,
        outcome: &AttemptOutcome,
        (destination, is_reachable): (&str, Option<bool>),
        now: Moment,
    ) -> Result<bool> {
        let sql = "UPDATE webhook_deliveries SET status = $3, next_at = $4, claimed_by = NULL, attempts = attempts + 1, \
                   body = $5, message_ref = coalesce($6, message_ref) WHERE delivery_id = $1 AND claimed_by = $2";
        let status: &str = outcome.status.into();
        let statement = |delivery: &Delivery| {
            let body = DeliveryBody { content: delivery.content.clone(), report: outcome.report.clone() };
            let args = [
                uuid(&delivery.delivery_id),
                by.into(),
                status.into(),
                Arg::Time(outcome.next_at),
                json(&body)?,
                Arg::Text(outcome.message_ref.clone()),
            ];
            Ok(Statement::new(sql, args))
        };
        let statements = message.iter().map(statement).collect::<Result<_>>()?;
        let destination = destination.to_owned();
        self.execute(RecordAttempt { destination, is_reachable, now, statements }).await
    }

    /// Makes a delivery due now; `false` if a process is sending it.
    pub async fn redeliver(&self, delivery_id: &str, now: Moment, give_up_at: Moment) -> Result<bool> {
        let sql = "UPDATE webhook_deliveries SET status = 'pending', next_at = $2, give_up_at = $3, claimed_by = NULL, attempts = 0 \
                   WHERE delivery_id = $1 AND (claimed_by IS NULL OR next_at <= $2)";
        let args = [uuid(delivery_id), now.into(), give_up_at.into()];
        Ok(self.execute_statement(sql, &args).await? > 0)
    }

    pub async fn delivery(&self, webhook_id: &str, delivery_id: &str) -> Result<Option<Delivery>> {
        let sql = format!("{SELECT} WHERE delivery_id = $1 AND webhook_id = $2");
        self.fetch_first(&sql, &[uuid(delivery_id), webhook_id.into()], delivery).await
    }

    /// The message about a task that the receiver of a webhook keeps and that can be changed there, with the newest event it shows.
    pub async fn message_of_task(&self, webhook_id: &str, task_id: &str) -> Result<Option<TaskMessage>> {
        // Servers whose clocks differ make ids that are almost in order: the numbers decide.
        let sql = format!(
            "SELECT message_ref, body FROM webhook_deliveries WHERE webhook_id = $1 AND task_id = $2 \
             AND message_ref IS NOT NULL ORDER BY delivery_id DESC LIMIT {MAX_UPDATES}"
        );
        let message = |row: &Row| {
            let DeliveryBody { content, .. } = row.json(1)?;
            Ok(TaskMessage { message_ref: row.get(0)?, number: content.number })
        };
        let shown: Vec<TaskMessage> =
            self.fetch_all(&sql, &[webhook_id.into(), uuid(task_id)], message).await?;
        Ok(shown.into_iter().max_by_key(|message| message.number))
    }

    /// Deliveries of a webhook, the newest first.
    pub async fn deliveries(&self, filter: DeliveryFilter<'_>, limit: u32) -> Result<Vec<Delivery>> {
        let mut select = Select::new(SELECT);
        select.and("webhook_id = ?", [filter.webhook_id.into()]);
        select.and_if("delivery_id < ?", filter.before.map(uuid));
        select.and_if("status = ?", filter.status.map(<&str>::from));
        select.sql.push_str(" ORDER BY delivery_id DESC");
        self.fetch_page(&select.sql, &select.args, limit, delivery).await
    }

    /// The circuits of the destinations that failed lately.
    pub async fn circuits(&self) -> Result<Vec<(String, Circuit)>> {
        self.fetch_all(SELECT_CIRCUIT, &[], |row| Ok((row.get(3)?, circuit(row)?))).await
    }

    /// Lets this process test a destination whose circuit was open; `false` if another one does.
    pub async fn begin_probe(&self, destination: &str, now: Moment, until: Moment) -> Result<bool> {
        let sql = "UPDATE webhook_circuits SET probe_until = $3 WHERE destination = $1 AND open_until <= $2 \
                   AND (probe_until IS NULL OR probe_until <= $2)";
        Ok(self.execute_statement(sql, &[destination.into(), now.into(), until.into()]).await? > 0)
    }

    /// Ends a test for which nothing was sent.
    pub async fn end_probe(&self, destination: &str) -> Result<()> {
        self.execute_statement(END_PROBE, &[destination.into()]).await.map(drop)
    }

    /// Deletes deliveries from before a time, and returns how many. Each call deletes a bounded number.
    pub async fn delete_old_deliveries(&self, before: Moment) -> Result<u64> {
        let sql = format!(
            "DELETE FROM webhook_deliveries WHERE delivery_id IN (SELECT delivery_id FROM webhook_deliveries \
             WHERE created_at < $1 ORDER BY created_at LIMIT {MAX_CLEANED})"
        );
        self.execute_statement(&sql, &[before.into()]).await
    }

    /// Ends deliveries whose time is over and that nobody sends, and returns how many. Each call ends a bounded number.
    pub async fn expire_deliveries(&self, now: Moment) -> Result<u64> {
        let sql = format!(
            "UPDATE webhook_deliveries SET status = 'failed', next_at = NULL, claimed_by = NULL \
             WHERE delivery_id IN (SELECT delivery_id FROM webhook_deliveries WHERE next_at IS NOT NULL \
             AND give_up_at < $1 AND next_at <= $1 ORDER BY give_up_at LIMIT {MAX_CLEANED})"
        );
        self.execute_statement(&sql, &[now.into()]).await
    }
}
