//! Committed references that are generated: a test fails when one is stale, `make docs` writes them anew.

use std::fs;
use std::path::Path;

/// Compares a committed file with what it should be, or writes it if `ADE_UPDATE_DOCS` is set.
pub fn assert_fresh(file: &Path, expected: &str) -> Result<(), String> {
    #[expect(
        clippy::disallowed_methods,
        reason = "the test kit is an edge: `make docs` speaks to it by this variable"
    )]
    let update = std::env::var_os("ADE_UPDATE_DOCS").is_some();
    if update {
        return fs::write(file, expected)
            .map_err(|error| format!("cannot write {}: {error}", file.display()));
    }
    let present = fs::read_to_string(file).unwrap_or_default();
    if present == expected {
        return Ok(());
    }
    let same = present.lines().zip(expected.lines()).take_while(|(old, new)| old == new).count();
    let show = |text: &str| text.lines().nth(same).unwrap_or("(the end)").to_owned();
    Err(format!(
        "{} is stale from line {} on; run `make docs`\n  committed: {}\n  generated: {}",
        file.display(),
        same + 1,
        show(&present),
        show(expected)
    ))
}
