//! What is said to a watchdog through its pipe: terms once, then words. Moments are those of the clock that all processes of a
//! machine share, so that none of them gets longer on its way.

use std::io::{self, Read};
use std::time::Duration;

use rustix::process::Pid;
use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

/// What a watchdog says when the command may begin.
pub(super) const READY: [u8; 6] = *b"ready\n";

/// What a watchdog is told in the beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Between asking the group to end and killing it.
    pub grace: Duration,
    /// Until when the command may go on without another word; nothing: for as long as we live.
    pub trust_until: Option<Instant>,
    /// Whether the grace ends with the trust: nothing of the command may be left after that.
    pub within_trust: bool,
    /// The process group that gets the terminal back.
    pub terminal_to: Option<Pid>,
}

/// What it is told later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Word {
    /// The command may go on until then.
    Trusted(Instant),
    /// Which process the command is.
    Watch(Pid),
    /// The command has ended; what it left running may go on.
    Done,
    /// What is left of the group must go at once.
    Kill,
}

const TRUSTED: u8 = b't';
const WATCH: u8 = b'w';
const DONE: u8 = b'd';
const KILL: u8 = b'k';

fn shared_clock() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0) / 1_000
}

/// Whoever is stopped in between says an earlier moment, never a later one.
fn shared(moment: Instant) -> u64 {
    let clock = shared_clock();
    let left = moment.saturating_duration_since(Instant::now()).as_micros();
    clock.saturating_add(u64::try_from(left).unwrap_or(u64::MAX)).max(1)
}

fn own(moment: u64) -> Instant {
    let now = Instant::now();
    now + Duration::from_micros(moment.saturating_sub(shared_clock()))
}

fn number<const N: usize>(from: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

impl Terms {
    pub(super) fn encoded(self) -> Vec<u8> {
        let grace = u64::try_from(self.grace.as_micros()).unwrap_or(u64::MAX);
        let mut bytes = grace.to_le_bytes().to_vec();
        bytes.extend(self.trust_until.map_or(0, shared).to_le_bytes());
        bytes.push(u8::from(self.within_trust));
        bytes.extend(Pid::as_raw(self.terminal_to).to_le_bytes());
        bytes
    }

    pub(super) fn read(from: &mut impl Read) -> io::Result<Self> {
        let grace = Duration::from_micros(u64::from_le_bytes(number(from)?));
        let trust_until = u64::from_le_bytes(number(from)?);
        let [within] = number(from)?;
        let terminal_to = Pid::from_raw(i32::from_le_bytes(number(from)?));
        let trust_until = (trust_until > 0).then(|| own(trust_until));
        Ok(Self { grace, trust_until, within_trust: within != 0, terminal_to })
    }
}

impl Word {
    pub(super) fn encoded(self) -> Vec<u8> {
        let said = |word: u8, more: &[u8]| [&[word], more].concat();
        match self {
            Self::Trusted(until) => said(TRUSTED, &shared(until).to_le_bytes()),
            Self::Watch(command) => said(WATCH, &Pid::as_raw(Some(command)).to_le_bytes()),
            Self::Done => said(DONE, &[]),
            Self::Kill => said(KILL, &[]),
        }
    }

    /// The end, and what cannot be understood, are errors.
    pub(super) fn read(from: &mut impl Read) -> io::Result<Self> {
        match number(from)? {
            [TRUSTED] => Ok(Self::Trusted(own(u64::from_le_bytes(number(from)?)))),
            [WATCH] => {
                let command = Pid::from_raw(i32::from_le_bytes(number(from)?));
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
    fn what_is_said_is_what_is_heard_and_no_later() {
        let until = Instant::now() + Duration::from_secs(7);
        let near = |heard: Instant| {
            heard <= until + Duration::from_millis(1) && heard + Duration::from_secs(5) > until
        };
        for (grace, trust_until) in [(Duration::ZERO, None), (Duration::from_secs(90 * 86_400), Some(until))]
        {
            let terms = Terms { grace, trust_until, within_trust: true, terminal_to: Pid::from_raw(7) };
            let heard = Terms::read(&mut terms.encoded().as_slice()).expect("whole");
            assert_eq!(Terms { trust_until, ..heard }, terms);
            assert_eq!(heard.trust_until.is_some_and(near), trust_until.is_some());
        }
        for word in [Word::Done, Word::Kill, Word::Watch(Pid::from_raw(41).expect("a number"))] {
            assert_eq!(Word::read(&mut word.encoded().as_slice()).expect("whole"), word);
        }
        let heard = Word::read(&mut Word::Trusted(until).encoded().as_slice()).expect("whole");
        assert!(matches!(heard, Word::Trusted(heard) if near(heard)), "{heard:?}");
        assert!(Word::read(&mut [].as_slice()).is_err() && Word::read(&mut b"x".as_slice()).is_err());
    }
}
