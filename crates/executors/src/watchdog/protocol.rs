//! The messages to a watchdog, as JSON. Times are sent by the monotonic clock that all processes of a machine share, so that a delay
//! on the way never extends them.

use std::fmt;
use std::io::Read;
use std::time::Duration;

use rustix::process::{Pid, RawPid};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// What a watchdog prints once the command may start.
pub(super) const READY: [u8; 6] = *b"ready\n";

/// The configuration of a watchdog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchdogConfig {
    /// Between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// When the command must end unless the deadline is extended. Without one it may run as long as the starting process lives.
    pub deadline: Option<Instant>,
    /// Whether the grace must end with the deadline, so that nothing of the command runs after it.
    pub grace_within_deadline: bool,
    /// The process group that gets the terminal back.
    pub return_terminal_to: Option<Pid>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Message {
    /// The first message: a [`WatchdogConfig`].
    Start {
        /// Part of the mark of the command's processes.
        started_at: SharedTime,
        grace: Duration,
        deadline: Option<SharedTime>,
        grace_within_deadline: bool,
        return_terminal_to: Option<RawPid>,
    },
    ExtendDeadline(SharedTime),
    /// The pid of the command.
    Watch(RawPid),
    /// A signal for the processes of the command that only the watchdog finds.
    Signal(i32),
    /// The command has exited; other processes of it may keep running.
    Done,
    /// The command must be killed at once.
    Kill,
}

impl Message {
    pub(super) fn start(config: WatchdogConfig, started_at: SharedTime) -> Self {
        let WatchdogConfig { grace, deadline, grace_within_deadline, return_terminal_to } = config;
        let return_terminal_to = return_terminal_to.map(|group| group.as_raw_nonzero().get());
        let deadline = deadline.map(Into::into);
        Self::Start { started_at, grace, deadline, grace_within_deadline, return_terminal_to }
    }

    /// Ends with the stream, or with an invalid message.
    pub(super) fn read_all(source: impl Read) -> impl Iterator<Item = Self> {
        serde_json::Deserializer::from_reader(source).into_iter().map_while(Result::ok)
    }
}

/// A time of the shared monotonic clock, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SharedTime(u64);

impl SharedTime {
    pub(super) fn now() -> Self {
        let now = clock_gettime(ClockId::Monotonic);
        let (seconds, nanos) =
            (u64::try_from(now.tv_sec).unwrap_or(0), u64::try_from(now.tv_nsec).unwrap_or(0));
        Self(seconds * 1_000_000 + nanos / 1_000)
    }
}

impl fmt::Display for SharedTime {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

impl From<Instant> for SharedTime {
    /// If this process is suspended in between, the result is too early, never too late.
    fn from(time: Instant) -> Self {
        let Self(now) = Self::now();
        let left = time.saturating_duration_since(Instant::now()).as_micros();
        Self(now.saturating_add(u64::try_from(left).unwrap_or(u64::MAX)))
    }
}

impl From<SharedTime> for Instant {
    fn from(SharedTime(time): SharedTime) -> Self {
        let now = Self::now();
        now + Duration::from_micros(time.saturating_sub(SharedTime::now().0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_encoded_messages_without_extending_deadlines() {
        let time = Instant::now() + Duration::from_secs(7);
        let decoded = Instant::from(SharedTime::from(time));
        assert!(decoded <= time + Duration::from_millis(1) && decoded + Duration::from_secs(5) > time);
        let config = |grace, deadline| {
            let return_terminal_to = Pid::from_raw(7);
            let config = WatchdogConfig { grace, deadline, grace_within_deadline: true, return_terminal_to };
            Message::start(config, SharedTime::now())
        };
        let messages = [
            config(Duration::ZERO, None),
            config(Duration::from_secs(90 * 86_400), Some(time)),
            Message::Watch(41),
            Message::Signal(15),
            Message::ExtendDeadline(time.into()),
            Message::Done,
            Message::Kill,
        ];
        let mut encoded: Vec<u8> =
            messages.iter().flat_map(|message| serde_json::to_vec(message).expect("encoded")).collect();
        encoded.extend(b"x");
        assert!(Message::read_all(encoded.as_slice()).eq(messages));
    }
}
