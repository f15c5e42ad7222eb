//! Previews on SQLite, which runs within the process that uses it: a statement could take all its memory and CPU time. So each
//! preview is a process of its own, with limits of the operating system. It gets the statements on stdin and prints the preview.
//! When its stdin closes, its parent does not wait any more: it interrupts the running statement, rolls back and ends. It is not
//! killed, which would leave a journal that only a writer can roll back.

use std::io::{self, BufRead as _, Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitStatus, Stdio};

use ade_domain::task::Preview;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::connection::Target;
use super::preview::{STATEMENTS_TIMEOUT, preview_of, try_statements};
use crate::limited_process::{LimitedProgram, MIB, ProcessLimits};
use crate::{Failure, Result};

/// What SQLite may allocate. It reports an error before the process reaches the limit of its address space.
const HEAP_BYTES: u64 = 128 * MIB;
const MEMORY_BYTES: u64 = 1_024 * MIB;
/// More than the statements may take, so that they are interrupted and rolled back first.
const CPU_SECONDS: u64 = 15;
/// How much the database and each temporary file may grow.
const WRITTEN_BYTES: u64 = 256 * MIB;
const OPEN_FILES: u64 = 64;
const MAX_REQUEST_BYTES: u64 = MIB;
const MAX_REPLY_BYTES: u64 = MIB;

#[derive(Debug, Serialize, Deserialize)]
struct Request {
    url: String,
    statements: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
enum Reply {
    Preview(Preview),
    Failed { message: String, is_retryable: bool },
}

/// Previews statements in a process of their own, which ends soon after this future is dropped.
pub(super) async fn preview_in_process(
    program: &LimitedProgram,
    url: &str,
    target: &Target,
    statements: &[String],
) -> Result<Preview> {
    let limits = ProcessLimits {
        memory_bytes: MEMORY_BYTES,
        cpu_seconds: CPU_SECONDS,
        file_bytes: target.database_bytes().saturating_add(WRITTEN_BYTES),
        open_files: OPEN_FILES,
    };
    let request = Request { url: url.to_owned(), statements: statements.to_vec() };
    let (reply, status) = exchange(program, limits, &request)
        .await
        .map_err(|error| Failure::retryable(format!("cannot run the process of the preview: {error}")))?;
    match serde_json::from_slice(&reply) {
        Ok(Reply::Preview(preview)) if status.success() => Ok(preview),
        Ok(Reply::Failed { message, is_retryable }) if status.success() => {
            Err(Failure { is_retryable, ..Failure::permanent(message) })
        }
        _ => Err(ended_early(status)),
    }
}

async fn exchange(
    program: &LimitedProgram,
    limits: ProcessLimits,
    request: &Request,
) -> io::Result<(Vec<u8>, ExitStatus)> {
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    let mut process = program
        .sqlite_command(limits)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    // It stays open until the process has exited, or this future is dropped.
    let mut stdin = process.stdin.take();
    if let Some(stdin) = &mut stdin {
        // A process that ended too early explains itself by its exit status.
        let _ = stdin.write_all(&line).await;
        let _ = stdin.flush().await;
    }
    let mut reply = Vec::new();
    if let Some(stdout) = process.stdout.take() {
        stdout.take(MAX_REPLY_BYTES).read_to_end(&mut reply).await?;
    }
    Ok((reply, process.wait().await?))
}

fn ended_early(status: ExitStatus) -> Failure {
    let is_cpu_limit =
        [Signal::XCPU, Signal::KILL].iter().any(|signal| status.signal() == Some(signal.as_raw()));
    Failure::permanent(if is_cpu_limit {
        format!(
            "the preview exceeded its limit of {CPU_SECONDS} s of CPU time; narrow the statements down, or split the task"
        )
    } else {
        let (heap, written) = (HEAP_BYTES / MIB, WRITTEN_BYTES / MIB);
        format!(
            "the preview exceeded its limits ({heap} MiB of memory, {written} MiB of writes; {status}); narrow the \
             statements down, or split the task"
        )
    })
}

/// The process of a preview: reads the request, writes the reply.
pub(crate) fn serve_sqlite_preview() -> io::Result<()> {
    let mut line = String::new();
    io::stdin().lock().take(MAX_REQUEST_BYTES).read_line(&mut line)?;
    let request: Request = serde_json::from_str(&line)?;
    // Nothing else is sent, so reading returns when the parent does not wait any more.
    let (parent_gone, is_parent_gone) = oneshot::channel();
    std::thread::spawn(|| {
        let _ = io::stdin().lock().read(&mut [0]);
        let _ = parent_gone.send(());
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let reply = runtime.block_on(async {
        // Without a handler the process would be killed at its limit of written bytes; with one, the write fails.
        let _handler = signal(SignalKind::from_raw(Signal::XFSZ.as_raw()))?;
        Ok::<_, io::Error>(reply(&request, is_parent_gone).await)
    })?;
    let mut stdout = io::stdout().lock();
    stdout.write_all(&serde_json::to_vec(&reply)?)?;
    stdout.flush()
}

async fn reply(request: &Request, is_parent_gone: oneshot::Receiver<()>) -> Reply {
    match preview(request, is_parent_gone).await {
        Ok(preview) => Reply::Preview(preview),
        Err(Failure { message, is_retryable, .. }) => Reply::Failed { message, is_retryable },
    }
}

async fn preview(request: &Request, is_parent_gone: oneshot::Receiver<()>) -> Result<Preview> {
    let target = Target::parse(&request.url, "preview_url")
        .map_err(|invalid| Failure::permanent(invalid.to_string()))?
        .for_limited_preview(HEAP_BYTES, &request.statements);
    let mut connection = target.connect().await?;
    let result = tokio::select! {
        biased;
        result = try_statements(&mut connection, &target, &request.statements) => Some(result),
        () = sleep(STATEMENTS_TIMEOUT) => None,
        _ = is_parent_gone => None,
    };
    if result.is_none() {
        connection.interrupt();
    }
    connection.roll_back_and_close().await;
    let seconds = STATEMENTS_TIMEOUT.as_secs();
    let timed_out = || Err(Failure::retryable(format!("the preview exceeded its timeout of {seconds} s")));
    result.unwrap_or_else(timed_out).map(preview_of)
}
