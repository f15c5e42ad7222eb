//! The messages to a watchdog: its configuration once, then any number of [`Message`]s. Times are sent by the monotonic clock that
//! all processes of a machine share, so that a delay on the way never extends them.

use std::io::{self, Read};
use std::time::Duration;

use rustix::process::Pid;
use rustix::time::{ClockId, clock_gettime};
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Message {
    ExtendDeadline(Instant),
    /// The pid of the command.
    Watch(Pid),
    /// The command has exited; other processes of the group may keep running.
    Done,
    /// The group must be killed at once.
    Kill,
}

const EXTEND_DEADLINE: u8 = b't';
const WATCH: u8 = b'w';
const DONE: u8 = b'd';
const KILL: u8 = b'k';

/// The shared monotonic clock, in microseconds.
fn monotonic_micros() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000
}

/// If this process is suspended in between, the result is too early, never too late.
fn to_micros(time: Instant) -> u64 {
    let now = monotonic_micros();
    let left = time.saturating_duration_since(Instant::now()).as_micros();
    now.saturating_add(u64::try_from(left).unwrap_or(u64::MAX)).max(1)
}

fn from_micros(time: u64) -> Instant {
    let now = Instant::now();
    now + Duration::from_micros(time.saturating_sub(monotonic_micros()))
}

fn read_bytes<const N: usize>(source: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    source.read_exact(&mut bytes)?;
    Ok(bytes)
}

impl WatchdogConfig {
    pub(super) fn encode(self) -> Vec<u8> {
        let grace = u64::try_from(self.grace.as_micros()).unwrap_or(u64::MAX);
        let mut bytes = grace.to_le_bytes().to_vec();
        bytes.extend(self.deadline.map_or(0, to_micros).to_le_bytes());
        bytes.push(u8::from(self.grace_within_deadline));
        bytes.extend(Pid::as_raw(self.return_terminal_to).to_le_bytes());
        bytes
    }

    pub(super) fn read(source: &mut impl Read) -> io::Result<Self> {
        let grace = Duration::from_micros(u64::from_le_bytes(read_bytes(source)?));
        let deadline = u64::from_le_bytes(read_bytes(source)?);
        let [within_deadline] = read_bytes(source)?;
        let terminal_to = Pid::from_raw(i32::from_le_bytes(read_bytes(source)?));
        let deadline = (deadline > 0).then(|| from_micros(deadline));
        Ok(Self {
            grace,
            deadline,
            grace_within_deadline: within_deadline != 0,
            return_terminal_to: terminal_to,
        })
    }
}

impl Message {
    pub(super) fn encode(self) -> Vec<u8> {
        let tagged = |tag: u8, payload: &[u8]| [&[tag], payload].concat();
        match self {
            Self::ExtendDeadline(deadline) => tagged(EXTEND_DEADLINE, &to_micros(deadline).to_le_bytes()),
            Self::Watch(command) => tagged(WATCH, &Pid::as_raw(Some(command)).to_le_bytes()),
            Self::Done => tagged(DONE, &[]),
            Self::Kill => tagged(KILL, &[]),
        }
    }

    /// The end of the stream and invalid messages are errors.
    pub(super) fn read(source: &mut impl Read) -> io::Result<Self> {
        match read_bytes(source)? {
            [EXTEND_DEADLINE] => {
                Ok(Self::ExtendDeadline(from_micros(u64::from_le_bytes(read_bytes(source)?))))
            }
            [WATCH] => {
                let command = Pid::from_raw(i32::from_le_bytes(read_bytes(source)?));
                command.map(Self::Watch).ok_or(io::ErrorKind::InvalidData.into())
            }
            [DONE] => Ok(Self::Done),
            [KILL] => Ok(Self::Kill),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decodes_encoded_messages_without_extending_deadlines() {
        let deadline = Instant::now() + Duration::from_secs(7);
        let is_close = |decoded: Instant| {
            decoded <= deadline + Duration::from_millis(1) && decoded + Duration::from_secs(5) > deadline
        };
        for (grace, trust_until) in
            [(Duration::ZERO, None), (Duration::from_secs(90 * 86_400), Some(deadline))]
        {
            let config = WatchdogConfig {
                grace,
                deadline: trust_until,
                grace_within_deadline: true,
                return_terminal_to: Pid::from_raw(7),
            };
            let decoded = WatchdogConfig::read(&mut config.encode().as_slice()).expect("complete");
            assert_eq!(WatchdogConfig { deadline: trust_until, ..decoded }, config);
            assert_eq!(decoded.deadline.is_some_and(is_close), trust_until.is_some());
        }
        for message in [Message::Done, Message::Kill, Message::Watch(Pid::from_raw(41).expect("a pid"))] {
            assert_eq!(Message::read(&mut message.encode().as_slice()).expect("complete"), message);
        }
        let encoded = Message::ExtendDeadline(deadline).encode();
        let decoded = Message::read(&mut encoded.as_slice()).expect("complete");
        assert!(matches!(decoded, Message::ExtendDeadline(decoded) if is_close(decoded)), "{decoded:?}");
        assert!(Message::read(&mut [].as_slice()).is_err() && Message::read(&mut b"x".as_slice()).is_err());
    }
}
