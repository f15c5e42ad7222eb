//! Asking on the terminal, for passwords without showing them.
//!
//! The terminal is as it was before on every way out: also when keys or signals end the question.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};

use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use crate::failure::{Failure, Kind};

/// More than any password has.
const LONGEST: u64 = 4_096;

/// One line that may be seen.
pub(crate) fn line(question: &str) -> Result<String, Failure> {
    let mut terminal = terminal(question)?;
    terminal.write_all(question.as_bytes())?;
    let mut answer = String::new();
    BufReader::new(terminal.take(LONGEST)).read_line(&mut answer)?;
    match answer.trim() {
        "" => Err(given_up()),
        answer => Ok(answer.to_owned()),
    }
}

/// A password that is typed.
pub(crate) async fn password(question: &str) -> Result<String, Failure> {
    let terminal = terminal(question)?;
    let quiet = Quiet::begin(&terminal)
        .map_err(|error| Failure::new(Kind::Unavailable, format!("cannot hide what is typed: {error}")))?;
    (&terminal).write_all(question.as_bytes())?;
    let typed = typed(terminal.try_clone()?).await;
    drop(quiet);
    // The line that was ended unseen.
    (&terminal).write_all(b"\n")?;
    typed
}

/// A new password, typed twice.
pub(crate) async fn new_password(whose: &str) -> Result<String, Failure> {
    let typed = password(&format!("New password of {whose}: ")).await?;
    if password("Repeat the new password: ").await? == typed {
        return Ok(typed);
    }
    Err(Failure::new(Kind::Input, "these were two different passwords")
        .hint("nothing was changed; try again"))
}

/// The first line of standard input.
pub(crate) fn password_from_stdin() -> Result<String, Failure> {
    let mut line = String::new();
    io::stdin().lock().take(LONGEST).read_line(&mut line).map_err(|error| {
        Failure::new(Kind::Unavailable, format!("cannot read a password from standard input: {error}"))
    })?;
    let line = line.strip_suffix('\n').unwrap_or(&line);
    let line = line.strip_suffix('\r').unwrap_or(line);
    if line.is_empty() {
        return Err(Failure::new(Kind::Input, "there is no password on standard input"));
    }
    Ok(line.to_owned())
}

fn terminal(question: &str) -> Result<File, Failure> {
    File::options().read(true).write(true).open("/dev/tty").map_err(|_| {
        let question = question.trim_end_matches([' ', ':']).to_lowercase();
        Failure::new(Kind::Input, format!("there is no terminal to ask on for the {question}"))
            .hint("name the user as an argument, and give its password with --password-stdin")
    })
}

fn given_up() -> Failure {
    Failure::new(Kind::Input, "nothing was entered")
}

/// Waits for the end of the line or a signal. Whatever reads is left behind with a signal: the process ends.
async fn typed(terminal: File) -> Result<String, Failure> {
    let mut signals = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal);
    let (done, typed) = oneshot::channel();
    std::thread::spawn(move || done.send(read(terminal)));
    let [interrupt, terminate, hangup] = &mut signals;
    tokio::select! {
        line = typed => line.unwrap_or_else(|_| Err(given_up())),
        () = heard(interrupt) => Err(given_up()),
        () = heard(terminate) => Err(given_up()),
        () = heard(hangup) => Err(given_up()),
    }
}

async fn heard(signal: &mut io::Result<tokio::signal::unix::Signal>) {
    match signal {
        Ok(signal) => drop(signal.recv().await),
        Err(_) => std::future::pending().await,
    }
}

/// Key by key: what is typed after the line belongs to whoever reads next.
fn read(mut terminal: impl Read) -> Result<String, Failure> {
    let (mut line, mut byte) = (Vec::new(), [0]);
    while terminal.read(&mut byte)? == 1 {
        let [pressed] = byte;
        match key(&mut line, pressed) {
            Key::More => {}
            Key::Done if line.is_empty() => break,
            Key::Done => {
                return String::from_utf8(line)
                    .map_err(|_| Failure::new(Kind::Input, "the password is not text in UTF-8"));
            }
            Key::GivenUp => break,
        }
    }
    Err(given_up())
}

#[derive(Debug, PartialEq, Eq)]
enum Key {
    More,
    Done,
    GivenUp,
}

/// The terminal hands over single keys: lines are edited here.
fn key(line: &mut Vec<u8>, byte: u8) -> Key {
    match byte {
        b'\n' | b'\r' => return Key::Done,
        // Ctrl-C, Ctrl-\; Ctrl-D on an empty line.
        0x03 | 0x1c => return Key::GivenUp,
        0x04 if line.is_empty() => return Key::GivenUp,
        // Backspace takes a whole character.
        0x08 | 0x7f => while line.pop().is_some_and(|byte| byte & 0xc0 == 0x80) {},
        // Ctrl-U takes all.
        0x15 => line.clear(),
        0..0x20 => {}
        _ if line.len() as u64 >= LONGEST => {}
        _ => line.push(byte),
    }
    Key::More
}

/// A terminal that shows nothing of what is typed, as long as this lives.
struct Quiet<'a> {
    terminal: &'a File,
    before: Termios,
}

impl<'a> Quiet<'a> {
    fn begin(terminal: &'a File) -> io::Result<Self> {
        let before = tcgetattr(terminal)?;
        let mut quiet = before.clone();
        // Keys that end the process would leave the terminal as it is: they come as what they are instead.
        quiet
            .local_modes
            .remove(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG | LocalModes::IEXTEN);
        quiet.special_codes[SpecialCodeIndex::VMIN] = 1;
        quiet.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(terminal, OptionalActions::Flush, &quiet)?;
        Ok(Self { terminal, before })
    }
}

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        // Nothing is left to be tried if this fails.
        let _ = tcsetattr(self.terminal, OptionalActions::Flush, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_edited_as_terminals_do() {
        let typed = |keys: &[u8]| read(keys).ok();
        assert_eq!(typed(b"secret\n").as_deref(), Some("secret"));
        assert_eq!(typed(b"secrex\x7ft\r").as_deref(), Some("secret"));
        assert_eq!(typed("ä\x7fb\n".as_bytes()).as_deref(), Some("b"));
        assert_eq!(typed(b"\x7f\x7fwrong\x15right\n").as_deref(), Some("right"));
        for given_up in [&b"half\x03\n"[..], b"\x04", b"\n", b"unfinished", b"\xff\n"] {
            assert_eq!(typed(given_up), None, "{given_up:?}");
        }
    }
}
