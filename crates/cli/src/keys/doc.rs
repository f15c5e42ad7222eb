//! `ade keys doc`: the Markdown reference, written or checked.

use std::path::Path;
use std::{fs, io};

use ade_catalog::{Catalog, reference};

use crate::failure::{Failure, Kind};
use crate::output;

pub(super) fn run(
    catalogs: &[Catalog],
    choice: Option<&str>,
    file: Option<&Path>,
    check: Option<&Path>,
) -> Result<(), Failure> {
    let markdown = reference::markdown(catalogs);
    let unusable = |file: &Path, error: &io::Error| {
        Failure::new(Kind::Unavailable, format!("cannot use {}: {error}", file.display()))
    };
    match (file, check) {
        (Some(file), _) => fs::write(file, markdown).map_err(|error| unusable(file, &error)),
        (None, Some(file)) => {
            let present = match fs::read_to_string(file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(unusable(file, &error)),
                present => present.unwrap_or_default(),
            };
            if present == markdown {
                return Ok(());
            }
            let same = present.lines().zip(markdown.lines()).take_while(|(old, new)| old == new).count();
            let catalog = choice.map_or_else(String::new, |choice| format!("--catalog {choice} "));
            let anew = format!("ade keys doc {catalog}--output {}", file.display());
            Err(Failure::new(Kind::No, format!("{} is stale from line {} on", file.display(), same + 1))
                .hint(format!("write it anew with `{anew}`")))
        }
        (None, None) => output::text(&markdown),
    }
}
