//! scratch
fn main() {
    let source = ["ade"].map(|n| {
        let p = format!("{}/../keyspace/catalogs/{n}.toml", env!("CARGO_MANIFEST_DIR"));
        ade_catalog::Catalog::parse(&p, &std::fs::read_to_string(&p).unwrap()).unwrap()
    });
    let linter = ade_keytool::lint::Linter::new(&source, jiff::civil::date(2026, 11, 19));
    let depth: usize = std::env::args().nth(1).unwrap().parse().unwrap();
    for (name, open, close) in [
        ("a.rs", "(", ")"),
        ("a.py", "[", "]"),
        ("a.js", "{a:", "}"),
        ("a.ts", "(", ")"),
        ("a.go", "(", ")"),
        ("a.lua", "{", "}"),
        ("a.sh", "$(", ")"),
    ] {
        let a = format!("redis = {}'ade:nope'{}", open.repeat(depth), close.repeat(depth));
        let b = format!("redis = 'ade:'{}", " + 'x'".repeat(depth));
        let c = format!("redis{}", ".get('ade:nope')".repeat(depth / 10));
        for s in [a, b, c] {
            let t = std::time::Instant::now();
            let r = linter.check_source(std::path::Path::new(name), &s);
            println!("{name} {:?} {:?}", t.elapsed(), r.map(|r| r.len()).map_err(|e| e.to_string()));
        }
    }
}
