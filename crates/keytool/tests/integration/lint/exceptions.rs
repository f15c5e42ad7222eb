//! Allow comments.

use super::brief;

#[test]
fn exceptions_hold_until_their_date_on_their_line_or_the_next() {
    let found = brief(
        "a.py",
        "
a = 'ade:nope:1'  # ade-lint: allow unknown-key until 2026-11-19: moves with the next release
# ade-lint: allow unknown-key until 2027-01-01: moves with the next release
b = 'ade:nope:2'
# ade-lint: allow unknown-key until 2027-01-01: two rules, first
# ade-lint: allow inline-key until 2027-01-01: two rules, second
c = 'ade:nope:3'
d = 'ade:nope:4'
",
    );
    assert_eq!(found, ["8 unknown-key ade:nope:4"]);
}

#[test]
fn an_exception_is_for_one_rule() {
    let found = brief(
        "a.go",
        "package a\n// ade-lint: allow inline-key until 2027-01-01: soon\nconst a = \"ade:nope:1\"\n",
    );
    assert_eq!(found, ["3 unknown-key ade:nope:1"]);
}

#[test]
fn expired_exceptions_are_findings_and_allow_nothing() {
    let found =
        brief("a.rs", "const A: &str = \"ade:nope:1\"; // ade-lint: allow unknown-key until 2026-11-18: old");
    assert_eq!(
        found,
        ["1 unknown-key ade:nope:1", "1 expired-allow allow unknown-key until 2026-11-18: old"]
    );
}

#[test]
fn exceptions_need_rule_date_and_reason() {
    for (comment, fault) in [
        ("allow", "the word allow is missing"),
        ("deny unknown-key", "the word allow is missing"),
        ("allow unknown-key", "the date is missing"),
        ("allow unknown-keys until 2027-01-01: x", "there is no rule"),
        ("allow unknown-key for ever: x", "the word until is missing"),
        ("allow unknown-key until 2027-01-01", "the reason is missing"),
        ("allow unknown-key until 2027-01-01:  ", "the reason is missing"),
        ("allow unknown-key until tomorrow: x", "is not a date"),
        ("allow unknown-key until 2027-02-30: x", "is not a date"),
    ] {
        let findings = super::check("a.ts", &format!("/* ade-lint: {comment} */\nconst a = 'ade:nope:1';\n"));
        let messages: Vec<&str> = findings.iter().map(|found| found.message.as_str()).collect();
        assert!(messages.len() == 2 && messages[0].contains(fault), "{comment}: {messages:?}");
    }
}

#[test]
fn text_about_exceptions_is_none() {
    assert!(brief("a.rs", "/// Write `ade-lint: allow RULE until DATE: reason`.\nfn a() {}\n").is_empty());
    assert!(brief("a.sh", "echo '# ade-lint: allow nothing'\n").is_empty());
}

#[test]
fn all_languages_have_exceptions() {
    for (path, start, end) in [
        ("a.rs", "const A: &str = \"ade:nope\"; //", ""),
        ("a.sh", "key=ade:nope #", ""),
        ("a.py", "a = 'ade:nope' #", ""),
        ("a.js", "const a = 'ade:nope' //", ""),
        ("a.tsx", "const a = 'ade:nope' /*", " */"),
        ("a.go", "package a; const a = `ade:nope` //", ""),
        ("a.lua", "local a = 'ade:nope' --", ""),
    ] {
        assert_eq!(brief(path, &format!("{start}{end}")).len(), 1, "{path}");
        let allowed = format!("{start} ade-lint: allow unknown-key until 2027-01-01: soon{end}");
        assert_eq!(brief(path, &allowed), Vec::<String>::new(), "{path}");
    }
}
