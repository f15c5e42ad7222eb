//! Parameters that cannot be: where they lead, what they send, and which secrets they name.

use ade_executors::guard::Guard;
use ade_executors::{Executor, Http};
use serde_json::{Value, json};

use crate::{http, run, with_secrets};

/// Where faults are.
fn faults(http: &Http, parameters: Value) -> Vec<String> {
    let (_halt, run) = run(parameters);
    let faults = http.check(&run.parameters).err().unwrap_or_default();
    faults.into_iter().map(|fault| fault.pointer).collect()
}

#[test]
fn every_fault_is_named() {
    let http = http(&["api.test"]);
    assert_eq!(faults(&http, json!({ "method": "POST", "url": "https://api.test/" })), Vec::<String>::new());
    assert_eq!(faults(&http, json!({})), ["/method", "/url"]);
    let wrong = json!({
        "method": "post",
        "url": "https://other.test/",
        "preview_url": "http://127.0.0.1/",
        "rollback_url": 3,
        "heders": {},
        "body": "x".repeat(131_073),
    });
    assert_eq!(
        faults(&http, wrong),
        ["/heders", "/method", "/url", "/preview_url", "/rollback_url", "/body"]
    );
    let body = json!({ "method": "GET", "url": "https://api.test/", "body": 1 });
    assert_eq!(faults(&http, body), ["/body"]);
}

#[test]
fn no_url_leads_past_the_list() {
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
        assert_eq!(faults(&http, json!({ "method": "POST", "url": url })), ["/url"], "{url}");
    }
}

#[test]
fn no_header_changes_the_request() {
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
        ("Ade-Fencing-Token", json!("99")),
        ("Authorization", json!("Bearer written")),
        ("Cookie", json!("a=b")),
        ("X-A", json!(3)),
        ("X-A", json!({ "secret": "unknown" })),
        ("X-A", json!({ "secret": "a", "more": 1 })),
        ("X-A", json!("a".repeat(8_193))),
    ] {
        let parameters = json!({ "method": "POST", "url": "https://api.test/", "headers": { name: value } });
        assert_eq!(faults(&http, parameters).len(), 1, "{name:?}");
    }
    let twice =
        json!({ "method": "POST", "url": "https://api.test/", "headers": { "X-A": "1", "x-a": "2" } });
    assert_eq!(faults(&http, twice).len(), 1);
}

#[test]
fn secrets_go_only_to_their_host_and_encrypted() {
    let hosts = ["api.test", "api.test:8443", "other.test", "inside.test:80+private", "1.1.1.1", "10.0.0.5"];
    let secrets = [
        ("key", "api.test", "Bearer s3cret"),
        ("inner", "inside.test:80", "s3cret-too"),
        ("far", "1.1.1.1", "s3cret"),
        ("near", "10.0.0.5", "s3cret"),
    ];
    let http = with_secrets(&hosts, &secrets);
    let asks = |url: &str, back: Option<&str>, secret: &str| {
        let headers = json!({ "Authorization": { "secret": secret } });
        let mut parameters = json!({ "method": "POST", "url": url, "headers": headers });
        if let Some(back) = back {
            parameters["rollback_url"] = back.into();
        }
        faults(&http, parameters)
    };
    assert_eq!(asks("https://api.test/", Some("https://api.test/back"), "key"), Vec::<String>::new());
    assert_eq!(asks("http://inside.test/", None, "inner"), Vec::<String>::new());
    assert_eq!(asks("http://10.0.0.5/", None, "near"), Vec::<String>::new());
    for (url, back, secret) in [
        ("https://other.test/", None, "key"),
        ("https://api.test:8443/", None, "key"),
        ("http://api.test/", None, "key"),
        ("https://api.test/", Some("https://other.test/"), "key"),
        ("https://api.test/", None, "inner"),
        ("http://1.1.1.1/", None, "far"),
    ] {
        assert_eq!(asks(url, back, secret), ["/headers/Authorization"], "{url} {back:?} {secret}");
    }
    let (_halt, run) = run(json!({
        "method": "POST", "url": "https://other.test/", "headers": { "X-A": { "secret": "key" } }
    }));
    assert!(!format!("{:?} {http:?}", http.check(&run.parameters)).contains("s3cret"));
    for value in ["", "two\r\nlines"] {
        let guard = Guard::new(&[]).expect("readable");
        let invalid = Http::new(guard, [("key", "api.test", value)]).expect_err("unusable");
        assert_eq!(invalid.pointer, "/secrets/key/value");
    }
}
