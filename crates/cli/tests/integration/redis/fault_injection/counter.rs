//! The data protected by the lock: two counters in one file, one with fencing and one without.
//!
//! A single read or write is atomic (flock); only the lock protects a read followed by a write. The fenced counter stores
//! the greatest token of reads as well as writes: otherwise an old holder could write between the read and the write of a
//! new one. It logs every accepted increment in order.

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

#[derive(Debug, Clone)]
pub(crate) struct Counter {
    folder: PathBuf,
}

impl Counter {
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// `None` if a greater token was seen.
    pub(crate) fn read(&self, token: u64) -> Option<u64> {
        self.update(|state, _| {
            (token >= state.token).then(|| {
                state.token = token;
                state.fenced
            })
        })
    }

    /// Returns whether the write is accepted: not if a greater token was seen.
    pub(crate) fn write(&self, accepted: Accepted) -> bool {
        self.update(|state, folder| {
            if accepted.token < state.token {
                return false;
            }
            *state = State { token: accepted.token, fenced: accepted.value, ..*state };
            let mut log = open_log(folder.join("accepted"));
            let Accepted { worker, token, value } = accepted;
            writeln!(log, "{worker} {token} {value}").expect("writable");
            true
        })
    }

    pub(crate) fn read_unfenced(&self) -> u64 {
        self.update(|state, _| state.unfenced)
    }

    pub(crate) fn write_unfenced(&self, value: u64) {
        self.update(|state, _| state.unfenced = value);
    }

    /// The fenced and the unfenced value.
    pub(crate) fn values(&self) -> (u64, u64) {
        self.update(|state, _| (state.fenced, state.unfenced))
    }

    /// Accepted increments in order.
    pub(crate) fn accepted(&self) -> Vec<Accepted> {
        let log = std::fs::read_to_string(self.folder.join("accepted")).unwrap_or_default();
        let parse = |line: &str| match *numbers(line) {
            [worker, token, value] => Accepted { worker, token, value },
            _ => panic!("{line:?}"),
        };
        log.lines().map(parse).collect()
    }

    fn update<T>(&self, operation: impl FnOnce(&mut State, &PathBuf) -> T) -> T {
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
        let result = operation(&mut after, &self.folder);
        if after != before {
            file.set_len(0).and_then(|()| file.rewind()).expect("emptied");
            let State { token, fenced, unfenced } = after;
            file.write_all(format!("{token} {fenced} {unfenced}\n").as_bytes()).expect("written");
        }
        result
    }
}

fn open_log(path: PathBuf) -> File {
    OpenOptions::new().create(true).append(true).open(path).expect("opened")
}

fn numbers(text: &str) -> Vec<u64> {
    text.split_whitespace().map(|number| number.parse().expect("a number")).collect()
}
