//! Files that are committed and compared with what a build makes: generated references, which `make docs` writes again, and fixtures of
//! stored formats, which change only on purpose.

use std::fs;
use std::path::Path;

/// Compares a committed file with its generated content, or writes it if `ADE_UPDATE_DOCS` is set.
pub fn assert_fresh(file: &Path, expected: &str) -> Result<(), String> {
    compare_or_update(file, expected)
        .map_err(|difference| format!("{} is stale; run `make docs`\n{difference}", file.display()))
}

/// Compares the fixture of a stored format with what this build stores, or writes it if `ADE_UPDATE_DOCS` is set. `make docs` leaves it
/// alone.
pub fn assert_format_unchanged(format: &str, file: &Path, stored: &str) -> Result<(), String> {
    compare_or_update(file, stored).map_err(|difference| format_changed(format, file, &difference))
}

pub(crate) fn format_changed(format: &str, file: &Path, difference: &str) -> String {
    format!(
        "the stored format of {format} has changed: existing installations must still be readable; add a migration \
         (crates/store/src/database/schema) or accept the former form, then update {} (set ADE_UPDATE_DOCS=1 for this test)\n\
         {difference}",
        file.display()
    )
}

/// The error is the first line that differs.
fn compare_or_update(file: &Path, expected: &str) -> Result<(), String> {
    #[expect(clippy::disallowed_methods, reason = "this variable is set to update the files")]
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
        "line {}\n  committed: {}\n  generated: {}",
        equal_lines + 1,
        line_of(&committed),
        line_of(expected)
    ))
}
