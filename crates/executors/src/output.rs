//! What a run says: the beginning is kept in memory, all of it in a file up to a limit, and secrets in neither.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes that the record keeps.
pub(crate) const KEPT: usize = 65_536;
/// Bytes that are kept at all; what comes after is counted, and dropped.
pub(crate) const MOST: u64 = 64 * 1_048_576;
/// Bytes of new output that wait to be taken by whoever follows; older ones are in the file.
const FOLLOWED: usize = 262_144;
const HIDDEN: &[u8] = b"***";

/// Texts that must never be seen.
#[derive(Clone, Default)]
pub struct Secrets(Arc<Vec<String>>);

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} secrets", self.0.len())
    }
}

impl Secrets {
    /// These. Empty ones are left out; longer ones are looked for first, so that none hides a part of another.
    #[must_use]
    pub fn new(secrets: impl IntoIterator<Item = String>) -> Self {
        let mut secrets: Vec<String> = secrets.into_iter().filter(|secret| !secret.is_empty()).collect();
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        secrets.dedup();
        Self(Arc::new(secrets))
    }

    /// A text without them.
    #[must_use]
    pub fn hide(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), "***"))
    }

    /// The first of them at the beginning of some bytes.
    fn at(&self, bytes: &[u8]) -> Option<usize> {
        self.0.iter().find(|secret| bytes.starts_with(secret.as_bytes())).map(String::len)
    }

    /// Whether more bytes could make these one of them, also if another is already complete: the longer one is to be hidden.
    fn may_become_one(&self, bytes: &[u8]) -> bool {
        self.0.iter().any(|secret| secret.len() > bytes.len() && secret.as_bytes().starts_with(bytes))
    }

    /// Moves out of `waiting` what certainly is no part of a secret; all of it at the end.
    fn pass(&self, waiting: &mut Vec<u8>, end: bool) -> Vec<u8> {
        let mut passed = Vec::with_capacity(waiting.len());
        let mut at = 0;
        while let Some(rest) = waiting.get(at..).filter(|rest| !rest.is_empty()) {
            if !end && self.may_become_one(rest) {
                break;
            }
            if let Some(long) = self.at(rest) {
                passed.extend_from_slice(HIDDEN);
                at += long;
            } else {
                passed.extend(rest.first());
                at += 1;
            }
        }
        waiting.drain(..at);
        passed
    }
}

/// What a run says; clones are the same one.
#[derive(Debug, Clone)]
pub struct Output(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    secrets: Secrets,
    /// What may be the beginning of a secret.
    waiting: Vec<u8>,
    kept: Vec<u8>,
    new: Vec<u8>,
    bytes: u64,
    /// Where all of it is to be kept, and the file once there is more than memory keeps.
    whole: Option<PathBuf>,
    file: Option<File>,
    broken: Option<String>,
}

impl Output {
    /// In memory, and as soon as that is more than is kept there, all of it in a new file, if one is named.
    #[must_use]
    pub fn new(secrets: Secrets, whole: Option<&Path>) -> Self {
        let (waiting, kept, new) = (Vec::new(), Vec::new(), Vec::new());
        let (whole, file, broken) = (whole.map(Path::to_owned), None, None);
        Self(Arc::new(Mutex::new(Inner { secrets, waiting, kept, new, bytes: 0, whole, file, broken })))
    }

    /// Says something. Never blocks for long, never fails: what cannot be written is missing in the file, and the end says so.
    pub fn say(&self, bytes: &[u8]) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.waiting.extend_from_slice(bytes);
        inner.pass(false);
    }

    /// What was said since this was asked last, for whoever follows.
    #[must_use]
    pub fn take_new(&self) -> String {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let new = std::mem::take(&mut inner.new);
        // A character that is not complete stays for the next time.
        let whole = match std::str::from_utf8(&new) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            _ => new.len(),
        };
        let (whole, rest) = new.split_at(whole);
        inner.new = rest.to_vec();
        String::from_utf8_lossy(whole).into_owned()
    }

    /// Nothing more is said: the beginning, how many bytes there were, and the file with all of them, if that was more.
    pub fn finish(&self) -> io::Result<(String, u64, Option<PathBuf>)> {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.pass(true);
        if let Some(file) = &mut inner.file {
            file.sync_all()?;
        }
        if let Some(broken) = &inner.broken {
            return Err(io::Error::other(broken.clone()));
        }
        let file = inner.whole.clone().filter(|_| inner.file.is_some());
        Ok((String::from_utf8_lossy(&inner.kept).into_owned(), inner.bytes, file))
    }
}

impl Inner {
    fn pass(&mut self, end: bool) {
        let mut waiting = std::mem::take(&mut self.waiting);
        let passed = self.secrets.pass(&mut waiting, end);
        self.waiting = waiting;
        let room = KEPT.saturating_sub(self.kept.len()).min(passed.len());
        if room < passed.len() && self.broken.is_none() && self.file.is_none() {
            let begun = self.whole.as_ref().map(|path| {
                let mut file = File::create_new(path)?;
                file.write_all(&self.kept).map(|()| file)
            });
            match begun.transpose() {
                Ok(file) => self.file = file,
                Err(error) => self.broken = Some(error.to_string()),
            }
        }
        self.kept.extend_from_slice(passed.get(..room).unwrap_or_default());
        self.new.extend_from_slice(&passed);
        let over = self.new.len().saturating_sub(FOLLOWED);
        self.new.drain(..over);
        let room = usize::try_from(MOST.saturating_sub(self.bytes)).unwrap_or(usize::MAX).min(passed.len());
        if let (Some(file), None) = (&mut self.file, &self.broken)
            && let Err(error) = file.write_all(passed.get(..room).unwrap_or_default())
        {
            self.broken = Some(error.to_string());
        }
        self.bytes += passed.len() as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_hidden_wherever_they_are_cut() {
        let text = "a secret-one and secret-one-more, sec";
        let secrets = Secrets::new(["secret-one".to_owned(), "secret-one-more".to_owned(), String::new()]);
        for size in 1..text.len() {
            let output = Output::new(secrets.clone(), None);
            text.as_bytes().chunks(size).for_each(|part| output.say(part));
            let (kept, bytes, _) = output.finish().expect("no file");
            assert_eq!(kept, "a *** and ***, sec");
            assert_eq!(bytes, kept.len() as u64);
        }
        assert_eq!(secrets.hide(text), "a *** and ***, sec");
    }

    #[test]
    fn what_is_too_long_is_cut_and_counted() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("whole");
        let output = Output::new(Secrets::default(), Some(&path));
        for _ in 0..3 {
            output.say(&[b'x'; KEPT]);
        }
        let (kept, bytes, _) = output.finish().expect("written");
        assert_eq!((kept.len(), bytes), (KEPT, 3 * KEPT as u64));
        assert_eq!(std::fs::metadata(&path).expect("there").len(), bytes);
        let another = Output::new(Secrets::default(), Some(&path));
        another.say(&[b'y'; KEPT + 1]);
        assert!(another.finish().is_err(), "nothing is written over");
        let short = Output::new(Secrets::default(), Some(&folder.path().join("short")));
        short.say(b"short");
        assert_eq!(short.finish().expect("kept"), ("short".to_owned(), 5, None));
    }
}
