//! PostgreSQL: connecting, running operations, and executing statements. Error messages never contain the password.
//!
//! A commit is first sent as a batch: one round trip for all of its statements. A batch that fails has changed nothing.

use std::fmt::Write as _;
use std::time::Duration;

use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::postgres::{PgArguments, PgConnectOptions, PgPoolOptions, PgRow};
use sqlx::query::Query;
use sqlx::{
    AssertSqlSafe, Column, ConnectOptions, Connection, PgConnection, Postgres, Row as _, SqlSafeStr,
    TypeInfo, ValueRef,
};

use super::batch::Statement;
use super::pool::ConnectionPool;
use super::sql::{Arg, Cell, Row, SqlConnection, for_postgres, integer, replace_nul};
use super::{DatabaseError, Operation, Result};

/// The statements of each migration, in order. A released migration never changes.
const MIGRATIONS: [&str; 10] = [
    include_str!("schema/postgres.sql"),
    include_str!("schema/postgres_events.sql"),
    include_str!("schema/postgres_event_retention.sql"),
    include_str!("schema/postgres_lock_requests.sql"),
    include_str!("schema/postgres_webhooks.sql"),
    include_str!("schema/postgres_email.sql"),
    include_str!("schema/postgres_agent_labels.sql"),
    include_str!("schema/postgres_audit_objects.sql"),
    include_str!("schema/postgres_raises.sql"),
    include_str!("schema/postgres_risk_labels.sql"),
];

/// Connections per process.
const MAX_CONNECTIONS: u32 = 16;
/// Prepared statements per connection; more than are in frequent use.
const STATEMENT_CACHE: usize = 200;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Parses a database URL. The error only says how a URL should look, because the cause may quote the password.
fn parse_url(url: &str) -> Result<PgConnectOptions> {
    url.parse().map_err(|_| {
        DatabaseError::Unavailable(
            "invalid database URL: use postgres://USER:PASSWORD@HOST:5432/DATABASE, with special characters of the \
             password written as %XX"
                .to_owned(),
        )
    })
}

/// Connects, migrates the schema, and creates the partitions of the audit log for the coming months.
pub(super) async fn open(url: &str) -> Result<ConnectionPool> {
    let options = parse_url(url)?.statement_cache_capacity(STATEMENT_CACHE);
    let (host, port) = (options.get_host().to_owned(), options.get_port());
    let failed = |why: String| DatabaseError::Unavailable(format!("PostgreSQL at {host}:{port}: {why}"));
    // A single connection first: the pool would report only a timeout, and not why it cannot connect.
    let mut connection = tokio::time::timeout(CONNECT_TIMEOUT, options.connect())
        .await
        .map_err(|_| failed(format!("no answer within {} seconds", CONNECT_TIMEOUT.as_secs())))?
        .map_err(|error| failed(error.to_string()))?;
    migrate(&mut connection, &MIGRATIONS).await.map_err(failed)?;
    sqlx::query("SELECT audit_create_partitions(now())")
        .execute(&mut connection)
        .await
        .map_err(|error| failed(error.to_string()))?;
    // The work is done; an error on closing does not matter.
    let _ = connection.close().await;
    let pool = PgPoolOptions::new().max_connections(MAX_CONNECTIONS).acquire_timeout(CONNECT_TIMEOUT);
    Ok(ConnectionPool::new(pool.connect_lazy_with(options.clone()), options))
}

/// Applies the migrations that are missing. The error says why it cannot.
async fn migrate(connection: &mut PgConnection, migrations: &[&'static str]) -> Result<(), String> {
    const NEWER: &str = "a newer version of ade has changed its schema";
    const UNRELEASED: &str =
        "an unreleased version of ade or another application has made its tables; start with a new database";
    const DUPLICATE_TABLE: &str = "42P07";
    let migration = |(version, sql): (i64, &&'static str)| {
        Migration::new(version, "schema".into(), MigrationType::Simple, sql.into_sql_str(), false)
    };
    let migrator = Migrator::with_migrations((1..).zip(migrations).map(migration).collect());
    migrator.run(connection).await.map_err(|error| match &error {
        MigrateError::VersionMissing(_) => NEWER.to_owned(),
        MigrateError::VersionMismatch(_) => UNRELEASED.to_owned(),
        MigrateError::ExecuteMigration(sqlx::Error::Database(cause), _)
            if cause.code().as_deref() == Some(DUPLICATE_TABLE) =>
        {
            UNRELEASED.to_owned()
        }
        _ => error.to_string(),
    })
}

/// Applies an operation in a transaction of its own.
pub(super) async fn execute<O: Operation>(pool: &ConnectionPool, operation: &O) -> Result<O::Output> {
    let mut connection = pool.acquire().await?;
    let outcome = pool.while_answering(apply(connection.get(), operation)).await;
    connection.release(outcome)
}

async fn apply<O: Operation>(connection: &mut PgConnection, operation: &O) -> Result<O::Output> {
    if let Some((statements, output)) = operation.batch()
        && execute_batch(connection, statements).await?
    {
        return Ok(output);
    }
    let mut transaction = connection.begin().await?;
    let outcome = operation.apply(&mut SqlConnection::Postgres(&mut transaction)).await;
    match outcome {
        Ok(_) => transaction.commit().await?,
        // Here and not on drop, so that the connection is clean for its next user.
        Err(_) => transaction.rollback().await?,
    }
    outcome
}

type PgQuery = Query<'static, Postgres, PgArguments>;

fn bind<'a>(sql: String, args: impl IntoIterator<Item = &'a Arg>) -> PgQuery {
    let mut query = sqlx::query(AssertSqlSafe(sql));
    for arg in args {
        query = match arg {
            Arg::Text(text) | Arg::Uuid(text) => query.bind(text.as_deref().map(replace_nul).as_deref()),
            Arg::Int(number) => query.bind(*number),
            Arg::Time(moment) => query.bind(moment.map(|moment| integer(moment.micros()))),
        };
    }
    query
}

pub(super) async fn execute_statement(
    connection: &mut PgConnection,
    sql: String,
    args: &[Arg],
) -> Result<u64> {
    Ok(bind(sql, args).execute(connection).await?.rows_affected())
}

pub(super) async fn query(connection: &mut PgConnection, sql: String, args: &[Arg]) -> Result<Vec<Row>> {
    bind(sql, args).fetch_all(connection).await?.iter().map(read_row).collect()
}

fn read_row(row: &PgRow) -> Result<Row> {
    let cell = |at: usize| {
        let raw = row.try_get_raw(at)?;
        if raw.is_null() {
            return Ok(Cell::Null);
        }
        match raw.type_info().name() {
            "INT8" => row.try_get(at).map(Cell::Int),
            _ => row.try_get(at).map(Cell::Text),
        }
    };
    let cells = row.columns().iter().map(|column| cell(column.ordinal()));
    Ok(Row(cells.collect::<Result<_, sqlx::Error>>()?))
}

/// Executes all statements in one round trip; `false` if one of them failed or missed its expectation, and nothing has happened. No
/// statement may depend on the effects or the order of the others: they run on the same snapshot, in any order.
async fn execute_batch(connection: &mut PgConnection, statements: &[Statement]) -> Result<bool> {
    let args = statements.iter().flat_map(|statement| &statement.args);
    match bind(combine(statements), args).execute(connection).await {
        Err(sqlx::Error::Database(_)) => Ok(false),
        outcome => Ok(outcome.map(|_| true)?),
    }
}

/// One statement that executes several, and fails with a division by zero if one misses its expectation.
fn combine(statements: &[Statement]) -> String {
    let (mut combined, mut conditions, mut offset) = (String::from("WITH "), String::new(), 0);
    for (number, statement) in statements.iter().enumerate() {
        let comma = if number == 0 { "" } else { ", " };
        let sql = for_postgres(&statement.sql, &statement.args, offset);
        offset += statement.args.len();
        let _ = write!(combined, "{comma}s{number} AS ({sql} RETURNING 1)");
        if statement.unless_one_row.is_some() {
            let _ = write!(conditions, " AND (SELECT count(*) FROM s{number}) = 1");
        }
    }
    let _ = write!(combined, " SELECT 1 / CASE WHEN TRUE{conditions} THEN 1 ELSE 0 END");
    combined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn migrates_databases_of_earlier_versions_and_keeps_their_data() {
        const SECOND: &str = "ALTER TABLE users ADD COLUMN note text NOT NULL DEFAULT 'none'";
        let server = ade_testkit::Postgres::start().expect("server starts");
        let url = server.create_database("earlier").expect("created");
        let mut connection = PgConnection::connect(&url).await.expect("connected");
        migrate(&mut connection, &MIGRATIONS).await.expect("migrated");
        let insert = "INSERT INTO users (user_id, active, revision, body) VALUES ('ann', 1, 1, '{}')";
        sqlx::query(insert).execute(&mut connection).await.expect("inserted");
        let later = [&MIGRATIONS[..], &[SECOND]].concat();
        for _ in 0..2 {
            migrate(&mut connection, &later).await.expect("migrated");
            let users = sqlx::query_as("SELECT user_id, note FROM users").fetch_all(&mut connection);
            let users: Vec<(String, String)> = users.await.expect("read");
            assert_eq!(users, [("ann".to_owned(), "none".to_owned())]);
        }
        let refused = migrate(&mut connection, &MIGRATIONS).await.expect_err("of a newer version");
        assert!(refused.contains("a newer version of ade"), "{refused}");
        let broken = [&later[..], &["ALTER TABLE users ADD COLUMN other text; SELECT broken"]].concat();
        migrate(&mut connection, &broken).await.expect_err("broken");
        migrate(&mut connection, &later).await.expect("as before");
    }

    #[test]
    fn combines_statements() {
        let args = [1_u64.into(), 2_u64.into()];
        let first = Statement::new("UPDATE a SET b = $2 WHERE c = $1", args).or_conflict("a");
        let second = Statement::new("INSERT INTO d VALUES ($1)", [3_u64.into()]);
        assert_eq!(
            combine(&[first, second]),
            "WITH s0 AS (UPDATE a SET b = $2 WHERE c = $1 RETURNING 1), \
             s1 AS (INSERT INTO d VALUES ($3) RETURNING 1) \
             SELECT 1 / CASE WHEN TRUE AND (SELECT count(*) FROM s0) = 1 THEN 1 ELSE 0 END"
        );
    }
}
