//! Generates the typed builders of every catalog in `catalogs/`, and the list of catalogs.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

use ade_catalog::{Catalog, builders};

#[expect(clippy::disallowed_methods, reason = "cargo passes its settings in the environment")]
fn main() -> Result<(), String> {
    let manifest = env::var_os("CARGO_MANIFEST_DIR").ok_or("cargo sets CARGO_MANIFEST_DIR")?;
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    let folder = Path::new(&manifest).join("catalogs");
    println!("cargo::rerun-if-changed={}", folder.display());

    let mut files: Vec<PathBuf> = fs::read_dir(&folder)
        .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
        .map_err(|error| format!("{}: {error}", folder.display()))?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "toml"));
    files.sort();

    let (mut modules, mut shipped, mut checks) = (String::new(), String::new(), String::new());
    for file in &files {
        let source = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
        let catalog =
            Catalog::parse(&file.display().to_string(), &source).map_err(|error| error.to_string())?;
        let name = &catalog.name;
        let generated = out.join(format!("{name}.rs"));
        fs::write(&generated, builders::generate(&catalog)).map_err(|error| format!("{name}: {error}"))?;
        // Writing to a String never fails.
        let _ = write!(
            modules,
            "/// Builders of the catalog `{name}`.\npub mod {name} {{\n    include!({generated:?});\n}}\n"
        );
        let _ = writeln!(shipped, "    ({name:?}, include_str!({file:?})),");
        let _ = writeln!(checks, "    ({name:?}, {name}::__every_builder),");
    }
    let list = format!(
        "{modules}\nconst SHIPPED: &[(&str, &str)] = &[\n{shipped}];\n\
         #[doc(hidden)]\npub const __EVERY_BUILDER: &[(&str, EveryBuilder)] = &[\n{checks}];\n"
    );
    fs::write(out.join("catalogs.rs"), list).map_err(|error| error.to_string())
}
