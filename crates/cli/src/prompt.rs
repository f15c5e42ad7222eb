//! Prompts on the terminal, and passwords from standard input.
//!
//! The settings of the terminal are restored however a prompt ends, also by a signal.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};

use rustix::process::Signal;
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};
use tokio::sync::oneshot;

use crate::failure::{Failure, Result};
use crate::signals::Signals;

/// Longest line that is read, in bytes.
const MAX_LINE_LEN: u64 = 4_096;

/// Prompts for a line that is shown while it is typed. The hint says how to do without a terminal.
pub(crate) fn line(prompt: &str, hint: &str) -> Result<String> {
    let mut terminal = open_terminal(prompt, hint)?;
    terminal.write_all(prompt.as_bytes())?;
    let mut line = String::new();
    BufReader::new(terminal.take(MAX_LINE_LEN)).read_line(&mut line)?;
    match line.trim() {
        "" => Err(nothing_entered()),
        line => Ok(line.to_owned()),
    }
}

/// Prompts for a password without showing it.
async fn password(prompt: &str) -> Result<String> {
    let mut terminal = open_terminal(prompt, "pass the password with --password-stdin")?;
    let settings = tcgetattr(&terminal).map_err(unreadable)?;
    let mut signals = Signals::listen(&[Signal::INT, Signal::TERM, Signal::HUP])?;
    let (sender, typed) = oneshot::channel();
    let prompt = prompt.to_owned();
    // After a signal the thread is abandoned: the process ends.
    std::thread::spawn(move || sender.send(rpassword::prompt_password(prompt)));
    let typed = tokio::select! {
        typed = typed => typed.ok(),
        _ = signals.next() => None,
    };
    match typed {
        Some(Ok(password)) if !password.is_empty() => Ok(password),
        Some(Err(error)) if !matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::UnexpectedEof) => {
            Err(unreadable(error))
        }
        Some(_) => Err(nothing_entered()),
        None => {
            // rpassword restores the terminal only when it returns.
            tcsetattr(&terminal, OptionalActions::Flush, &settings).map_err(unreadable)?;
            terminal.write_all(b"\n")?;
            Err(nothing_entered())
        }
    }
}

/// Reads a password from standard input, or else prompts for it.
pub(crate) async fn password_from(stdin: bool, prompt: &str) -> Result<String> {
    if stdin { password_from_stdin() } else { password(prompt).await }
}

/// Reads a new password from standard input, or else prompts for it twice.
pub(crate) async fn new_password(stdin: bool, user_id: &str) -> Result<String> {
    if stdin {
        return password_from_stdin();
    }
    let typed = password(&format!("New password of {user_id}: ")).await?;
    if password("Repeat the new password: ").await? == typed {
        return Ok(typed);
    }
    Err(Failure::invalid("the passwords differ").hint("nothing was changed; try again"))
}

/// Reads a password from the next line of standard input.
fn password_from_stdin() -> Result<String> {
    let mut line = String::new();
    io::stdin().lock().take(MAX_LINE_LEN).read_line(&mut line).map_err(unreadable)?;
    let line = line.strip_suffix('\n').unwrap_or(&line);
    let line = line.strip_suffix('\r').unwrap_or(line);
    if line.is_empty() {
        return Err(Failure::invalid("there is no password on standard input"));
    }
    Ok(line.to_owned())
}

fn open_terminal(prompt: &str, hint: &str) -> Result<File> {
    File::options().read(true).write(true).open("/dev/tty").map_err(|_| {
        let what = prompt.trim_end_matches([' ', ':']).to_lowercase();
        Failure::invalid(format!("there is no terminal to prompt for the {what}")).hint(hint)
    })
}

fn nothing_entered() -> Failure {
    Failure::invalid("nothing was entered")
}

fn unreadable(error: impl Display) -> Failure {
    Failure::cannot("read a password", error)
}
