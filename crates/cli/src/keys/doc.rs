//! `ade keys doc`

use std::fs;
use std::path::Path;

use ade_catalog::{Catalog, reference};

use crate::failure::{Failure, Kind};
use crate::output;

pub(super) fn run(catalogs: &[Catalog], file: Option<&Path>, check: Option<&Path>) -> Result<(), Failure> {
    let markdown = reference::markdown(catalogs);
    let unusable = |file: &Path, error: std::io::Error| {
        Failure::new(Kind::Unavailable, format!("cannot use {}: {error}", file.display()))
    };
    match (file, check) {
        (Some(file), _) => fs::write(file, markdown).map_err(|error| unusable(file, error)),
        (None, Some(file)) => {
            let present = fs::read_to_string(file).map_err(|error| unusable(file, error))?;
            if present == markdown {
                return Ok(());
            }
            let same = present.lines().zip(markdown.lines()).take_while(|(old, new)| old == new).count();
            Err(Failure::new(Kind::No, format!("{} is stale from line {} on", file.display(), same + 1))
                .hint(format!("write it anew with `ade keys doc --output {}`", file.display())))
        }
        (None, None) => output::text(&markdown),
    }
}
