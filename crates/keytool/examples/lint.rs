//! scratch
fn main() {
    let source = ["ade", "mediation", "mesh"].map(|n| {
        let p = format!("{}/../keyspace/catalogs/{n}.toml", env!("CARGO_MANIFEST_DIR"));
        ade_catalog::Catalog::parse(&p, &std::fs::read_to_string(&p).unwrap()).unwrap()
    });
    let linter = ade_keytool::lint::Linter::new(&source, jiff::civil::date(2026, 11, 19));
    let paths: Vec<_> = std::env::args().skip(1).map(Into::into).collect();
    let report = linter.check_paths(&paths);
    for f in &report.findings {
        println!("{}:{}: {} {}: {}", f.path, f.line, f.rule, f.key, f.message);
    }
    for e in &report.errors {
        println!("ERROR {e}");
    }
    println!("{} findings, {} files", report.findings.len(), report.files);
}
