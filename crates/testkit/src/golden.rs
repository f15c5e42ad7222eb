//! Generated files that are committed: a test fails when one is stale, `make docs` writes them again.

use std::fs;
use std::path::Path;

/// Compares a committed file with its generated content, or writes it if `ADE_UPDATE_DOCS` is set.
pub fn assert_fresh(file: &Path, expected: &str) -> Result<(), String> {
    #[expect(clippy::disallowed_methods, reason = "`make docs` sets this variable to update the files")]
    let update = std::env::var_os("ADE_UPDATE_DOCS").is_some();
    if update {
        return fs::write(file, expected)
            .map_err(|error| format!("cannot write {}: {error}", file.display()));
    }
    let committed = fs::read_to_string(file).unwrap_or_default();
    if committed == expected {
        return Ok(());
    }
    let equal_lines = committed.lines().zip(expected.lines()).take_while(|(old, new)| old == new).count();
    let line_of = |text: &str| text.lines().nth(equal_lines).unwrap_or("(the end)").to_owned();
    Err(format!(
        "{} is stale from line {} on; run `make docs`\n  committed: {}\n  generated: {}",
        file.display(),
        equal_lines + 1,
        line_of(&committed),
        line_of(expected)
    ))
}
