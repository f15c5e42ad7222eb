//! scratch
fn main() {
    let path = std::env::args().nth(1).unwrap();
    let src = std::fs::read_to_string(&path).unwrap();
    let lang: tree_sitter::Language = match path.rsplit('.').next().unwrap() {
        "rs" => tree_sitter_rust::LANGUAGE.into(), "sh" => tree_sitter_bash::LANGUAGE.into(), "py" => tree_sitter_python::LANGUAGE.into(),
        "js" => tree_sitter_javascript::LANGUAGE.into(), "ts" => tree_sitter_typescript::LANGUAGE_TYPESCRIPT.into(), "go" => tree_sitter_go::LANGUAGE.into(), _ => tree_sitter_lua::LANGUAGE.into() };
    let mut p = tree_sitter::Parser::new(); p.set_language(&lang).unwrap();
    let t = p.parse(&src, None).unwrap();
    println!("{}", tree_sitter::Parser::new().included_ranges().len());
    fn show(n: tree_sitter::Node, src: &str, d: usize, f: Option<&str>) { let t: String = src[n.byte_range()].chars().take(40).collect(); println!("{}{}{} {:?}", "  ".repeat(d), f.map(|f| format!("{f}: ")).unwrap_or_default(), n.kind(), t); for i in 0..n.child_count() { if n.child(i).unwrap().is_named() { show(n.child(i).unwrap(), src, d+1, n.field_name_for_child(i)); } } }
    show(t.root_node(), &src, 0, None);
}
