//! The output of a run: the beginning is kept in memory, all of it in a file up to a limit. Secrets are redacted in both.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes that are kept in memory, for the database.
const MAX_HEAD_BYTES: usize = 65_536;
/// Bytes that are written to the file. Output beyond this is counted and dropped.
const MAX_FILE_BYTES: u64 = 64 * 1_048_576;
/// Bytes that wait for [`RunOutput::take_unread`]. Older ones are only in the file.
const MAX_UNREAD_BYTES: usize = 262_144;
const REDACTED: &str = "***";

/// Texts that must not appear in any output or message.
#[derive(Clone, Default)]
pub struct Secrets(Arc<Vec<String>>);

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} secrets", self.0.len())
    }
}

impl Secrets {
    /// Ignores empty texts. Longer secrets are matched first, so that a secret inside another one does not leave a part visible.
    #[must_use]
    pub fn new(secrets: impl IntoIterator<Item = String>) -> Self {
        let mut secrets: Vec<String> = secrets.into_iter().filter(|secret| !secret.is_empty()).collect();
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        secrets.dedup();
        Self(Arc::new(secrets))
    }

    pub(crate) fn texts(&self) -> &[String] {
        &self.0
    }

    #[must_use]
    pub fn redact(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), REDACTED))
    }

    /// Moves out of `pending` what cannot be part of a secret any more; everything if this `is_end`.
    fn take_redacted(&self, pending: &mut Vec<u8>, is_end: bool) -> Vec<u8> {
        let mut redacted = Vec::with_capacity(pending.len());
        let mut position = 0;
        while let Some(rest) = pending.get(position..).filter(|rest| !rest.is_empty()) {
            // The beginning of a longer secret counts even if it contains a complete shorter one: the longer one must be redacted.
            let continues =
                |secret: &String| secret.len() > rest.len() && secret.as_bytes().starts_with(rest);
            if !is_end && self.0.iter().any(continues) {
                break;
            }
            if let Some(secret) = self.0.iter().find(|secret| rest.starts_with(secret.as_bytes())) {
                redacted.extend_from_slice(REDACTED.as_bytes());
                position += secret.len();
            } else {
                redacted.extend(rest.first());
                position += 1;
            }
        }
        pending.drain(..position);
        redacted
    }
}

/// The output of a run. Clones share it.
#[derive(Debug, Clone)]
pub struct RunOutput(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    secrets: Secrets,
    /// Bytes that may be the beginning of a secret.
    pending: Vec<u8>,
    head: Vec<u8>,
    unread: Vec<u8>,
    total_bytes: u64,
    path: Option<PathBuf>,
    /// Created once the output exceeds what is kept in memory. Not written after an error.
    file: Option<io::Result<File>>,
}

impl RunOutput {
    /// Output in memory. As soon as it exceeds the limit there, all of it is written to a new file at `path`, if one is given.
    #[must_use]
    pub fn new(secrets: Secrets, path: Option<&Path>) -> Self {
        let path = path.map(Path::to_owned);
        Self(Arc::new(Mutex::new(Inner { secrets, path, ..Inner::default() })))
    }

    /// Appends output. An I/O error of the file is reported by [`Self::finish`].
    pub fn write(&self, bytes: &[u8]) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.pending.extend_from_slice(bytes);
        inner.flush(false);
    }

    /// Takes the output since the last call, for those who follow the run.
    #[must_use]
    pub fn take_unread(&self) -> String {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let unread = std::mem::take(&mut inner.unread);
        // An incomplete UTF-8 character is left for the next call.
        let complete = match std::str::from_utf8(&unread) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            _ => unread.len(),
        };
        let (complete, rest) = unread.split_at(complete);
        inner.unread = rest.to_vec();
        String::from_utf8_lossy(complete).into_owned()
    }

    /// Ends the output. Returns its beginning, its length in bytes, and the file with all of it if it is longer than the beginning.
    pub fn finish(&self) -> io::Result<(String, u64, Option<PathBuf>)> {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.flush(true);
        match &inner.file {
            Some(Ok(file)) => file.sync_all()?,
            Some(Err(error)) => return Err(io::Error::new(error.kind(), error.to_string())),
            None => {}
        }
        let file = inner.path.clone().filter(|_| inner.file.is_some());
        Ok((String::from_utf8_lossy(&inner.head).into_owned(), inner.total_bytes, file))
    }
}

impl Inner {
    fn flush(&mut self, is_end: bool) {
        let mut pending = std::mem::take(&mut self.pending);
        let redacted = self.secrets.take_redacted(&mut pending, is_end);
        self.pending = pending;
        let head_len = MAX_HEAD_BYTES.saturating_sub(self.head.len()).min(redacted.len());
        if head_len < redacted.len() && self.file.is_none() {
            self.file = self.path.as_ref().map(|path| {
                let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
                file.write_all(&self.head).map(|()| file)
            });
        }
        self.head.extend_from_slice(redacted.get(..head_len).unwrap_or_default());
        self.unread.extend_from_slice(&redacted);
        let excess = self.unread.len().saturating_sub(MAX_UNREAD_BYTES);
        self.unread.drain(..excess);
        let remaining = usize::try_from(MAX_FILE_BYTES.saturating_sub(self.total_bytes));
        let file_len = remaining.unwrap_or(usize::MAX).min(redacted.len());
        if let Some(Ok(file)) = &mut self.file
            && let Err(error) = file.write_all(redacted.get(..file_len).unwrap_or_default())
        {
            self.file = Some(Err(error));
        }
        self.total_bytes += redacted.len() as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redacts_secrets_that_span_chunks() {
        let text = "a secret-one and secret-one-more, sec";
        let secrets = Secrets::new(["secret-one".to_owned(), "secret-one-more".to_owned(), String::new()]);
        for size in 1..text.len() {
            let output = RunOutput::new(secrets.clone(), None);
            text.as_bytes().chunks(size).for_each(|chunk| output.write(chunk));
            let (head, total_bytes, _) = output.finish().expect("no file");
            assert_eq!(head, "a *** and ***, sec");
            assert_eq!(total_bytes, head.len() as u64);
        }
        assert_eq!(secrets.redact(text), "a *** and ***, sec");
    }

    #[test]
    fn keeps_head_in_memory_and_everything_in_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("output");
        let output = RunOutput::new(Secrets::default(), Some(&path));
        for _ in 0..3 {
            output.write(&[b'x'; MAX_HEAD_BYTES]);
        }
        let (head, total_bytes, _) = output.finish().expect("written");
        assert_eq!((head.len(), total_bytes), (MAX_HEAD_BYTES, 3 * MAX_HEAD_BYTES as u64));
        assert_eq!(std::fs::metadata(&path).expect("exists").len(), total_bytes);
        let same_path = RunOutput::new(Secrets::default(), Some(&path));
        same_path.write(&[b'y'; MAX_HEAD_BYTES + 1]);
        assert!(same_path.finish().is_err(), "an existing file is not overwritten");
        let short = RunOutput::new(Secrets::default(), Some(&dir.path().join("short")));
        short.write(b"short");
        assert_eq!(short.finish().expect("no file"), ("short".to_owned(), 5, None));
    }
}
