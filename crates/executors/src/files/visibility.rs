//! Which existing files a preview shows, and to whom. A diff contains what is in a file now, which the author of a task may have no
//! right to read. Of the others a preview tells the name, the size, and a keyed hash, which changes with the content and allows
//! nobody without the key to check a guess.

use std::sync::Arc;

use ade_domain::glob;

use super::tree::ExistingFile;

/// Read permission for the group or for all.
const READABLE_BY_OTHERS: u32 = 0o044;

/// Which existing files previews show. Globs match whole paths relative to the root; `*` also matches `/`, and `**/` matches any
/// directories, or none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Visibility {
    /// To authors and agents. By default all files that others on the machine can read, except those whose path has a name that
    /// begins with a dot.
    pub show: Option<Vec<String>>,
    /// To reviewers and administrators. By default all files.
    pub show_reviewers: Option<Vec<String>>,
}

/// Who sees the content of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Audience {
    Everybody,
    Reviewers,
    Nobody,
}

impl Visibility {
    pub(super) fn audience(&self, path: &str, file: &ExistingFile) -> Audience {
        let is_shown = match &self.show {
            Some(patterns) => matches_any(patterns, path),
            None => file.mode & READABLE_BY_OTHERS != 0 && !path.split('/').any(|name| name.starts_with('.')),
        };
        let is_shown_to_reviewers =
            self.show_reviewers.as_ref().is_none_or(|patterns| matches_any(patterns, path));
        match (is_shown, is_shown_to_reviewers) {
            (true, _) => Audience::Everybody,
            (false, true) => Audience::Reviewers,
            (false, false) => Audience::Nobody,
        }
    }
}

fn matches_any(patterns: &[String], path: &str) -> bool {
    let matches = |pattern: &String| {
        let below_root = pattern.strip_prefix("**/");
        glob::matches_exactly(pattern, path)
            || below_root.is_some_and(|rest| glob::matches_exactly(rest, path))
    };
    patterns.iter().any(matches)
}

type HashFunction = dyn Fn(&[u8]) -> String + Send + Sync;

/// A hash that depends on a secret key, as text. All processes that preview or apply the tasks of a root must use the same key:
/// with another one, a task that changes a hidden file goes back to review.
#[derive(Clone)]
pub struct KeyedHash(Arc<HashFunction>);

impl std::fmt::Debug for KeyedHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyedHash")
    }
}

impl KeyedHash {
    pub fn new(hash: impl Fn(&[u8]) -> String + Send + Sync + 'static) -> Self {
        Self(Arc::new(hash))
    }

    #[cfg(test)]
    pub(super) fn for_tests(key: &'static str) -> Self {
        use ade_domain::task::Digest;
        Self::new(move |bytes| Digest::of_bytes(&[key.as_bytes(), bytes].concat()).to_string())
    }

    /// The hash of a file. It depends on the path, so that equal contents of two files are not recognized.
    pub(super) fn of_file(&self, root: &str, path: &str, content: &[u8]) -> String {
        (self.0)(&[root.as_bytes(), b"\0", path.as_bytes(), b"\0", content].concat())
    }
}

#[cfg(test)]
mod tests {
    use ade_domain::task::Digest;

    use super::*;

    fn audience(visibility: &Visibility, path: &str, mode: u32) -> Audience {
        let file = ExistingFile {
            hash: Digest::of_bytes(b""),
            mode,
            owner: 0,
            group: 0,
            bytes: 0,
            content: Vec::new(),
            has_hard_links: false,
        };
        visibility.audience(path, &file)
    }

    #[test]
    fn default_hides_dotfiles_and_private_files_from_authors() {
        let default = Visibility::default();
        for (path, mode, expected) in [
            ("app.conf", 0o644, Audience::Everybody),
            ("a/app.conf", 0o640, Audience::Everybody),
            ("app.conf", 0o604, Audience::Everybody),
            ("app.conf", 0o600, Audience::Reviewers),
            ("app.conf", 0o711, Audience::Reviewers),
            (".env", 0o644, Audience::Reviewers),
            (".git/config", 0o644, Audience::Reviewers),
            ("a.b/c.d", 0o444, Audience::Everybody),
        ] {
            assert_eq!(audience(&default, path, mode), expected, "{path} {mode:o}");
        }
    }

    #[test]
    fn globs_replace_the_default() {
        let patterns =
            |patterns: &[&str]| Some(patterns.iter().map(|pattern| (*pattern).to_owned()).collect());
        let documents =
            Visibility { show: patterns(&["**/*.md"]), show_reviewers: patterns(&["*.md", "*.conf"]) };
        for (path, expected) in [
            ("readme.md", Audience::Everybody),
            ("a/b/.hidden.md", Audience::Everybody),
            ("app.conf", Audience::Reviewers),
            ("a/app.conf", Audience::Reviewers),
            ("key.pem", Audience::Nobody),
            ("README.MD", Audience::Nobody),
        ] {
            assert_eq!(audience(&documents, path, 0o600), expected, "{path}");
        }
        let nothing = Visibility { show: patterns(&[]), show_reviewers: None };
        assert_eq!(audience(&nothing, "readme.md", 0o644), Audience::Reviewers);
    }

    #[test]
    fn keyed_hash_depends_on_key_root_path_and_content() {
        let [one, other] = ["key", "other"].map(KeyedHash::for_tests);
        let hash = one.of_file("/srv", "a", b"x");
        assert_eq!(one.of_file("/srv", "a", b"x"), hash);
        let others = [
            one.of_file("/srv", "a", b"y"),
            one.of_file("/srv", "b", b"x"),
            one.of_file("/etc", "a", b"x"),
            other.of_file("/srv", "a", b"x"),
        ];
        assert!(!others.contains(&hash), "{others:?}");
    }
}
