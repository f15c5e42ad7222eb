//! One connection for one operation. It never goes back to a pool: dropped at any point, it is closed, and what it had not
//! committed is rolled back. What it says never contains a password.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ade_domain::Invalid;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};

/// How long connecting may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// How long it waits for others where waiting is bounded.
pub(super) const WAIT_FOR_OTHERS: Duration = Duration::from_secs(3);
/// How long an answer to COMMIT is waited for before somebody else is asked how it ended.
const COMMIT_WITHIN: Duration = Duration::from_secs(30);
/// Instructions of SQLite between two looks at whether anybody still waits.
const LOOK_EVERY: i32 = 10_000;

/// What PostgreSQL does by itself, so that nothing stays locked for a worker that froze, or whose machine is gone. Each is asked
/// for by itself: older servers do not know all of them.
const SESSION: [&str; 5] = [
    "SET client_connection_check_interval = '1s'",
    "SET idle_in_transaction_session_timeout = '15s'",
    "SET tcp_keepalives_idle = 10",
    "SET tcp_keepalives_interval = 5",
    "SET tcp_keepalives_count = 3",
];

/// Which SQL is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    Postgres,
    Sqlite,
}

/// Where to connect to.
#[derive(Clone)]
pub(super) enum Target {
    Postgres(Box<PgConnectOptions>),
    Sqlite(Box<SqliteConnectOptions>),
}

/// Why something went wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Trouble {
    pub(super) message: String,
    /// Another time it may work.
    pub(super) again: bool,
    /// A statement left the transaction: nobody knows what stays of it.
    pub(super) escaped: bool,
}

impl Trouble {
    /// It would go wrong the same way again.
    pub(super) fn lasting(message: impl Into<String>) -> Self {
        Self { message: message.into(), again: false, escaped: false }
    }

    /// Another time it may work.
    pub(super) fn passing(message: impl Into<String>) -> Self {
        Self { again: true, ..Self::lasting(message) }
    }
}

impl Target {
    pub(super) fn read(url: &str, pointer: &str) -> Result<Self, Invalid> {
        // What is wrong with it could quote it: only how it should look is said.
        let unreadable = |how: &str| Invalid::at(pointer, format!("cannot be read: write {how}"));
        if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            let how =
                "postgres://USER:PASSWORD@HOST:5432/DATABASE, and special characters of the password as %XX";
            let options: PgConnectOptions = url.parse().map_err(|_| unreadable(how))?;
            let options = options.application_name("ade").statement_cache_capacity(0);
            return Ok(Self::Postgres(Box::new(options.disable_statement_logging())));
        }
        let how = "postgres://USER:PASSWORD@HOST:5432/DATABASE or sqlite:///path/to/file";
        if !url.starts_with("sqlite:") || url.contains(":memory:") || url.contains("mode=memory") {
            return Err(unreadable(how));
        }
        let options: SqliteConnectOptions = url.parse().map_err(|_| unreadable(how))?;
        let options = options.create_if_missing(false).busy_timeout(WAIT_FOR_OTHERS);
        Ok(Self::Sqlite(Box::new(options.disable_statement_logging())))
    }

    pub(super) const fn dialect(&self) -> Dialect {
        match self {
            Self::Postgres(_) => Dialect::Postgres,
            Self::Sqlite(_) => Dialect::Sqlite,
        }
    }

    /// As whom, where there are roles.
    pub(super) fn role(&self) -> Option<&str> {
        match self {
            Self::Postgres(options) => Some(options.get_username()),
            Self::Sqlite(_) => None,
        }
    }

    /// For people.
    fn place(&self) -> String {
        match self {
            Self::Postgres(options) => format!("PostgreSQL at {}:{}", options.get_host(), options.get_port()),
            Self::Sqlite(options) => format!("SQLite in {}", options.get_filename().display()),
        }
    }

    pub(super) async fn open(&self) -> Result<Link, Trouble> {
        let away = |why: String| Trouble::passing(format!("{}: {why}", self.place()));
        let seconds = CONNECT_WITHIN.as_secs();
        tokio::time::timeout(CONNECT_WITHIN, self.connect())
            .await
            .map_err(|_| away(format!("no answer within {seconds} seconds")))?
            .map_err(|error| away(Trouble::from(error).message))
    }

    async fn connect(&self) -> Result<Link, sqlx::Error> {
        match self {
            Self::Postgres(options) => {
                let mut connection = options.connect().await?;
                for setting in SESSION {
                    match sqlx::raw_sql(setting).execute(&mut connection).await {
                        Err(sqlx::Error::Database(error)) => {
                            tracing::debug!(%error, "a setting is not known");
                        }
                        other => {
                            other?;
                        }
                    }
                }
                Ok(Link::Postgres(Box::new(connection)))
            }
            Self::Sqlite(options) => {
                let mut connection = options.connect().await?;
                let given_up = GivenUp::default();
                let seen = Arc::clone(&given_up.0);
                let mut handle = connection.lock_handle().await?;
                handle.set_progress_handler(LOOK_EVERY, move || !seen.load(Ordering::Relaxed));
                drop(handle);
                Ok(Link::Sqlite(Box::new(connection), given_up))
            }
        }
    }
}

/// A statement of SQLite runs on a thread, which would not see that nobody waits any more.
#[derive(Debug, Default)]
pub(super) struct GivenUp(Arc<AtomicBool>);

impl Drop for GivenUp {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A connection.
#[derive(Debug)]
pub(super) enum Link {
    Postgres(Box<PgConnection>),
    Sqlite(Box<SqliteConnection>, GivenUp),
}

/// The same on either database.
macro_rules! on {
    ($link:expr, $connection:ident => $done:expr) => {
        match $link {
            Link::Postgres($connection) => {
                let $connection = &mut **$connection;
                $done
            }
            Link::Sqlite($connection, _) => {
                let $connection = &mut **$connection;
                $done
            }
        }
    };
}

pub(super) use on;

/// A transaction that was begun: to be recognized later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Inside(i64);

impl Link {
    async fn plain(&mut self, sql: &'static str) -> Result<(), Trouble> {
        on!(self, connection => sqlx::raw_sql(sql).execute(connection).await.map(drop))?;
        Ok(())
    }

    async fn number(&mut self, sql: &'static str) -> Result<Option<i64>, Trouble> {
        Ok(on!(self, connection => sqlx::query_scalar(sql).fetch_one(connection).await)?)
    }

    /// Begins to write.
    pub(super) async fn begin(&mut self) -> Result<Inside, Trouble> {
        let begin = match self {
            Self::Postgres(_) => "BEGIN",
            Self::Sqlite(..) => "BEGIN IMMEDIATE",
        };
        self.plain(begin).await?;
        self.inside().await
    }

    /// Begins to try something: others are not locked out longer than needed.
    pub(super) async fn begin_to_try(&mut self) -> Result<Inside, Trouble> {
        self.plain("BEGIN").await?;
        self.inside().await
    }

    async fn inside(&mut self) -> Result<Inside, Trouble> {
        match self {
            Self::Postgres(_) => {
                Ok(Inside(self.number("SELECT pg_catalog.txid_current()").await?.unwrap_or_default()))
            }
            Self::Sqlite(..) => Ok(Inside(0)),
        }
    }

    /// Whether the transaction that was begun is still the present one.
    pub(super) async fn is_inside(&mut self, begun: Inside) -> Result<bool, Trouble> {
        match self {
            Self::Postgres(_) => {
                let now = self.number("SELECT pg_catalog.txid_current_if_assigned()").await?;
                Ok(now == Some(begun.0))
            }
            // It begins none within another.
            Self::Sqlite(..) => match self.plain("BEGIN").await {
                Ok(()) => Ok(false),
                Err(trouble) if trouble.message.contains("within a transaction") => Ok(true),
                Err(trouble) => Err(trouble),
            },
        }
    }

    /// From the next statement on, each may take this long and wait this long for locks. SQLite waits as it was told when it
    /// was connected to, and ends when nobody waits for it.
    pub(super) async fn limit(&mut self, statement: Option<Duration>, lock: Duration) -> Result<(), Trouble> {
        let Self::Postgres(connection) = self else { return Ok(()) };
        let ms = |time: Duration| time.as_millis().max(1).to_string();
        // Asked for again before each statement, so that none lifts the limit for those after it.
        let statement = statement.map_or_else(|| "0".to_owned(), ms);
        sqlx::query(
            "SELECT pg_catalog.set_config('statement_timeout', $1, true), pg_catalog.set_config('lock_timeout', $2, true)",
        )
        .bind(statement)
        .bind(ms(lock))
        .execute(&mut **connection)
        .await?;
        Ok(())
    }

    /// Carries out one statement; how many rows it concerned. Prepared first: that is how PostgreSQL refuses two in one.
    pub(super) async fn run(&mut self, sql: &str) -> Result<u64, Trouble> {
        let total = "SELECT total_changes()";
        let sql = AssertSqlSafe(sql);
        match self {
            Self::Postgres(connection) => {
                let done = sqlx::query(sql).persistent(false).execute(&mut **connection).await?;
                Ok(done.rows_affected())
            }
            Self::Sqlite(connection, _) => {
                let before: i64 = sqlx::query_scalar(total).fetch_one(&mut **connection).await?;
                let done = sqlx::query(sql).persistent(false).execute(&mut **connection).await?;
                let after: i64 = sqlx::query_scalar(total).fetch_one(&mut **connection).await?;
                // After a statement that changes no rows, it repeats the number of the one before.
                Ok(if before == after { 0 } else { done.rows_affected() })
            }
        }
    }

    /// Whether it was committed is certain only if this says so.
    pub(super) async fn commit(&mut self) -> Result<(), Trouble> {
        let seconds = COMMIT_WITHIN.as_secs();
        tokio::time::timeout(COMMIT_WITHIN, self.plain("COMMIT")).await.unwrap_or_else(|_| {
            Err(Trouble::passing(format!("COMMIT was not answered within {seconds} seconds")))
        })
    }

    /// Takes back what was tried, and ends.
    pub(super) async fn take_back(mut self) {
        // Closed, it is taken back as well; but nobody would wait for that.
        if let Ok(Err(trouble)) = tokio::time::timeout(WAIT_FOR_OTHERS, self.plain("ROLLBACK")).await {
            tracing::debug!(
                error = trouble.message,
                "what was tried is taken back by closing its connection"
            );
        }
        self.close().await;
    }

    /// Ends in order. Dropped, it ends the same way, only without saying so.
    pub(super) async fn close(self) {
        let closed = async {
            match self {
                Self::Postgres(connection) => connection.close().await,
                Self::Sqlite(connection, given_up) => {
                    let closed = connection.close().await;
                    drop(given_up);
                    closed
                }
            }
        };
        if let Ok(Err(error)) = tokio::time::timeout(WAIT_FOR_OTHERS, closed).await {
            tracing::debug!(%error, "a connection was not closed in order");
        }
    }
}

impl From<sqlx::Error> for Trouble {
    fn from(error: sqlx::Error) -> Self {
        let sqlx::Error::Database(error) = error else {
            return Self::passing(error.to_string());
        };
        let code = error.code().unwrap_or_default();
        let sqlite_is_busy = |code: &str| code.parse::<u32>().is_ok_and(|code| matches!(code & 0xff, 5 | 6));
        // Connections, having been frozen, collisions with others, too little of something, locks, being shut down.
        let passes = ["08", "25P03", "40", "53", "55P03", "57P"].iter().any(|class| code.starts_with(class));
        let is_postgres =
            code.len() == 5 && error.try_downcast_ref::<sqlx::postgres::PgDatabaseError>().is_some();
        let again = if is_postgres { passes } else { sqlite_is_busy(&code) };
        Self { again, ..Self::lasting(error.message()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What no check by words finds is found afterwards.
    #[tokio::test(flavor = "multi_thread")]
    async fn leaving_the_transaction_is_noticed() {
        let server = ade_testkit::Postgres::start().expect("starts");
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        std::fs::write(&file, b"").expect("written");
        for url in [server.url("postgres"), format!("sqlite://{}", file.display())] {
            let target = Target::read(&url, "/url").expect("readable");
            for ending in [&["COMMIT"][..], &["ROLLBACK"], &["COMMIT", "BEGIN"]] {
                let mut link = target.open().await.expect("connects");
                let begun = link.begin().await.expect("begun");
                link.run("CREATE TABLE IF NOT EXISTS a (b INTEGER)").await.expect("made");
                assert_eq!(link.is_inside(begun).await, Ok(true), "{url}");
                for statement in ending {
                    link.run(statement).await.expect("runs");
                }
                // SQLite does not number its transactions: there each statement is looked after by itself.
                let told = ending.len() == 1 || target.dialect() == Dialect::Postgres;
                assert_eq!(link.is_inside(begun).await, Ok(!told), "{ending:?} on {url}");
                link.take_back().await;
            }
        }
    }
}
