//! What the lock protects: two counters in one file, one fenced and one not.
//!
//! A single reading or writing is atomic (flock); between them stands only the lock. The fenced counter remembers the
//! greatest token that it has seen, at readings too: otherwise an old holder could still write between the reading and the
//! writing of a new one. It notes every increment that it accepts, in the order of acceptance.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::PathBuf;

/// An increment that the fenced counter accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Accepted {
    pub(crate) worker: u64,
    pub(crate) token: u64,
    pub(crate) value: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct State {
    token: u64,
    fenced: u64,
    unfenced: u64,
}

/// The counters in a folder.
#[derive(Debug, Clone)]
pub(crate) struct Counter {
    folder: PathBuf,
}

impl Counter {
    /// New counters if there are none.
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// The value, unless somebody with a greater token was here.
    pub(crate) fn read(&self, token: u64) -> Option<u64> {
        self.change(|state, _| {
            (token >= state.token).then(|| {
                state.token = token;
                state.fenced
            })
        })
    }

    /// Whether it was accepted: not if somebody with a greater token was here.
    pub(crate) fn write(&self, accepted: Accepted) -> bool {
        self.change(|state, folder| {
            if accepted.token < state.token {
                return false;
            }
            *state = State { token: accepted.token, fenced: accepted.value, ..*state };
            let mut notes = appended(folder.join("accepted"));
            let Accepted { worker, token, value } = accepted;
            writeln!(notes, "{worker} {token} {value}").expect("writable");
            true
        })
    }

    pub(crate) fn read_unfenced(&self) -> u64 {
        self.change(|state, _| state.unfenced)
    }

    pub(crate) fn write_unfenced(&self, value: u64) {
        self.change(|state, _| state.unfenced = value);
    }

    /// Both values: fenced and not.
    pub(crate) fn values(&self) -> (u64, u64) {
        self.change(|state, _| (state.fenced, state.unfenced))
    }

    /// What was accepted, in this order.
    pub(crate) fn accepted(&self) -> Vec<Accepted> {
        let notes = std::fs::read_to_string(self.folder.join("accepted")).unwrap_or_default();
        let read = |line: &str| match *numbers(line) {
            [worker, token, value] => Accepted { worker, token, value },
            _ => panic!("{line:?}"),
        };
        notes.lines().map(read).collect()
    }

    fn change<T>(&self, act: impl FnOnce(&mut State, &PathBuf) -> T) -> T {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let mut file = options.open(self.folder.join("counters")).expect("opened");
        file.lock().expect("locked");
        let mut text = String::new();
        file.read_to_string(&mut text).expect("readable");
        let before = match *numbers(&text) {
            [] => State::default(),
            [token, fenced, unfenced] => State { token, fenced, unfenced },
            _ => panic!("{text:?}"),
        };
        let mut after = before;
        let answer = act(&mut after, &self.folder);
        if after != before {
            file.set_len(0).and_then(|()| file.rewind()).expect("emptied");
            let State { token, fenced, unfenced } = after;
            file.write_all(format!("{token} {fenced} {unfenced}\n").as_bytes()).expect("written");
        }
        answer
    }
}

/// A file of notes.
pub(crate) fn appended(path: PathBuf) -> File {
    OpenOptions::new().create(true).append(true).open(path).expect("opened")
}

pub(crate) fn numbers(text: &str) -> Vec<u64> {
    text.split_whitespace().map(|number| number.parse().expect("a number")).collect()
}
