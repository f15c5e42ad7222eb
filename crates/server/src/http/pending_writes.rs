//! A stream whose peer must read: it fails when bytes stay pending for too long. Without pending bytes no time runs, so that
//! long polls and idle connections are left alone.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// A peer that reads more slowly than this is too slow, however small the steps in which it reads.
const MIN_BYTES_PER_SECOND: u64 = 4_096;

#[derive(Debug)]
pub(super) struct PendingWrites<S> {
    stream: S,
    timeout: Duration,
    /// Runs from the first byte that could not be written until everything is.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<S> PendingWrites<S> {
    pub(super) const fn new(stream: S, timeout: Duration) -> Self {
        Self { stream, timeout, timer: None }
    }

    fn check(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match written {
            Poll::Pending => {
                let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(self.timeout)));
                ready!(timer.as_mut().poll(cx));
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")))
            }
            Poll::Ready(Ok(bytes)) => {
                if let Some(timer) = &mut self.timer {
                    let deadline = extended(timer.deadline(), bytes, Instant::now() + self.timeout);
                    timer.as_mut().reset(deadline);
                }
                Poll::Ready(Ok(bytes))
            }
            failed => failed,
        }
    }
}

/// The deadline after some bytes were written: later by the time that they may take, but never later than `latest`.
fn extended(deadline: Instant, bytes: usize, latest: Instant) -> Instant {
    let earned = Duration::from_millis(bytes as u64 * 1_000 / MIN_BYTES_PER_SECOND);
    (deadline + earned).min(latest)
}

impl<S: AsyncRead + Unpin> AsyncRead for PendingWrites<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for PendingWrites<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.check(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.check(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Called when everything has been written.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.timer = None;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn time_runs_only_while_bytes_are_pending() {
        let (near, mut far) = duplex(1_024);
        let mut near = PendingWrites::new(near, Duration::from_millis(50));
        near.write_all(&[0; 1_024]).await.expect("there is room");
        assert!(near.timer.is_none(), "nothing is pending");
        let mut received = [0; 1_024];
        let (written, read) = tokio::join!(near.write_all(&[0; 1_024]), far.read_exact(&mut received));
        assert!(written.is_ok() && read.is_ok());
        assert!(near.timer.is_some(), "it had to wait");
        near.flush().await.expect("everything is written");
        assert!(near.timer.is_none(), "an idle connection stays open");
        let error = near.write_all(&[0; 1_025]).await.expect_err("nobody reads");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn reading_in_tiny_steps_earns_little_time() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let latest = now + 30 * second;
        assert_eq!(extended(now + second, 16, latest), now + second + Duration::from_millis(3));
        assert_eq!(extended(now + second, 40_960, latest), now + 11 * second);
        assert_eq!(extended(now + second, 10_000_000, latest), latest);
    }
}
