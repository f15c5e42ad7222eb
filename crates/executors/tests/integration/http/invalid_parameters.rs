//! Rejected parameters: forbidden URLs, headers and secrets.

use ade_executors::egress::EgressPolicy;
use ade_executors::{Executor, HttpExecutor};
use serde_json::{Value, json};

use crate::http::{http, run, with_secrets};

/// The paths of all violations.
fn violations(http: &HttpExecutor, parameters: Value) -> Vec<String> {
    let (_stop, run) = run(parameters);
    let violations = http.validate(&run.parameters).err().unwrap_or_default();
    violations.into_iter().map(|violation| violation.path.to_string()).collect()
}

#[test]
fn reports_every_violation() {
    let http = http(&["api.test"]);
    assert_eq!(
        violations(&http, json!({ "method": "POST", "url": "https://api.test/" })),
        Vec::<String>::new()
    );
    assert_eq!(violations(&http, json!({})), ["method", "url"]);
    let invalid = json!({
        "method": "post",
        "url": "https://other.test/",
        "preview_url": "http://127.0.0.1/",
        "rollback_url": 3,
        "heders": {},
        "body": "x".repeat(131_073),
    });
    assert_eq!(
        violations(&http, invalid),
        ["heders", "method", "url", "preview_url", "rollback_url", "body"]
    );
    let body = json!({ "method": "GET", "url": "https://api.test/", "body": 1 });
    assert_eq!(violations(&http, body), ["body"]);
}

#[test]
fn rejects_urls_of_unlisted_hosts() {
    let http = http(&["api.test"]);
    for url in [
        "http://2130706433/",
        "http://0x7f.1/",
        "http://0177.0.0.1/",
        "http://[::ffff:127.0.0.1]/",
        "http://localhost/",
        "https://api.test:8443/",
        "https://ann:pass@api.test/",
        "https://api.test@127.0.0.1/",
        "https://api.test/\r\nX-Other: a",
        "file:///etc/passwd",
        "gopher://api.test/",
    ] {
        assert_eq!(violations(&http, json!({ "method": "POST", "url": url })), ["url"], "{url}");
    }
}

#[test]
fn rejects_reserved_and_malformed_headers() {
    let http = http(&["api.test"]);
    for (name, value) in [
        ("X-A", json!("a\r\nX-B: b")),
        ("X-A", json!("a\nb")),
        ("X-A\r\nX-B", json!("a")),
        ("X-A: b", json!("a")),
        ("", json!("a")),
        ("Host", json!("other.test")),
        ("content-LENGTH", json!("0")),
        ("Transfer-Encoding", json!("chunked")),
        ("Connection", json!("Authorization")),
        ("Upgrade", json!("h2c")),
        ("Idempotency-Key", json!("mine")),
        ("X-HTTP-Method-Override", json!("DELETE")),
        ("X-HTTP-Method", json!("DELETE")),
        ("X-Method-Override", json!("DELETE")),
        ("X-Original-URL", json!("/admin")),
        ("X-Rewrite-URL", json!("/admin")),
        ("Ade-Fencing-Token", json!("99")),
        ("Authorization", json!("Bearer written")),
        ("Cookie", json!("a=b")),
        ("X-A", json!(3)),
        ("X-A", json!({ "secret": "unknown" })),
        ("X-A", json!({ "secret": "a", "more": 1 })),
        ("X-A", json!("a".repeat(8_193))),
    ] {
        let parameters = json!({ "method": "POST", "url": "https://api.test/", "headers": { name: value } });
        assert_eq!(violations(&http, parameters).len(), 1, "{name:?}");
    }
    let twice =
        json!({ "method": "POST", "url": "https://api.test/", "headers": { "X-A": "1", "x-a": "2" } });
    assert_eq!(violations(&http, twice).len(), 1);
}

#[test]
fn restricts_secrets_to_their_host_and_https() {
    let hosts = ["api.test", "api.test:8443", "other.test", "inside.test:80+private", "1.1.1.1", "10.0.0.5"];
    let secrets = [
        ("key", "api.test", "Bearer s3cret"),
        ("inner", "inside.test:80", "s3cret-too"),
        ("far", "1.1.1.1", "s3cret"),
        ("near", "10.0.0.5", "s3cret"),
    ];
    let http = with_secrets(&hosts, &secrets);
    let check = |url: &str, rollback_url: Option<&str>, secret: &str| {
        let headers = json!({ "Authorization": { "secret": secret } });
        let mut parameters = json!({ "method": "POST", "url": url, "headers": headers });
        if let Some(rollback_url) = rollback_url {
            parameters["rollback_url"] = rollback_url.into();
        }
        violations(&http, parameters)
    };
    assert_eq!(check("https://api.test/", Some("https://api.test/back"), "key"), Vec::<String>::new());
    assert_eq!(check("http://inside.test/", None, "inner"), Vec::<String>::new());
    assert_eq!(check("http://10.0.0.5/", None, "near"), Vec::<String>::new());
    for (url, rollback_url, secret) in [
        ("https://other.test/", None, "key"),
        ("https://api.test:8443/", None, "key"),
        ("http://api.test/", None, "key"),
        ("https://api.test/", Some("https://other.test/"), "key"),
        ("https://api.test/", None, "inner"),
        ("http://1.1.1.1/", None, "far"),
    ] {
        assert_eq!(
            check(url, rollback_url, secret),
            ["headers.Authorization"],
            "{url} {rollback_url:?} {secret}"
        );
    }
    let (_stop, run) = run(json!({
        "method": "POST", "url": "https://other.test/", "headers": { "X-A": { "secret": "key" } }
    }));
    assert!(!format!("{:?} {http:?}", http.validate(&run.parameters)).contains("s3cret"));
    for value in ["", "two\r\nlines"] {
        let egress = EgressPolicy::new(&[]).expect("valid");
        let violation = HttpExecutor::new(egress, [("key", "api.test", value)]).expect_err("invalid");
        assert_eq!(violation.path.to_string(), "secrets.key.value");
    }
}
