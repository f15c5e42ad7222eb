//! Forbidden destinations are rejected in every notation, and only checked addresses are called.

use std::sync::Mutex;

use super::*;

/// Returns the given answers in order, and then the last one repeatedly.
#[derive(Debug)]
struct FixedResolver(Mutex<Vec<Vec<IpAddr>>>);

#[async_trait]
impl Resolver for FixedResolver {
    async fn resolve(&self, _: &str) -> io::Result<Vec<IpAddr>> {
        let mut answers = self.0.lock().expect("not poisoned");
        Ok(if answers.len() > 1 { answers.remove(0) } else { answers[0].clone() })
    }
}

fn policy(hosts: &[&str], answers: &[&str]) -> EgressPolicy {
    let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
    let parse = |answer: &&str| {
        answer.split_whitespace().map(|address| address.parse().expect("an address")).collect()
    };
    let resolver = FixedResolver(Mutex::new(answers.iter().map(parse).collect()));
    EgressPolicy::new(&hosts).expect("valid").with_resolver(Arc::new(resolver))
}

fn allows(policy: &EgressPolicy, url: &str) -> bool {
    policy.check(url).is_ok()
}

#[test]
fn allows_only_listed_hosts_and_ports() {
    let policy = policy(
        &["api.example.com", "other.example.com:8443", "10.0.0.5:8443", "[fd00::5]", "localhost:9000"],
        &[],
    );
    for url in [
        "https://api.example.com/a?b#c",
        "http://API.example.com",
        "https://api.example.com:443/",
        "https://other.example.com:8443/",
        "http://10.0.0.5:8443/",
        "http://167772165:8443/",
        "https://[fd00:0::5]/",
        "http://localhost:9000/",
    ] {
        assert!(allows(&policy, url), "{url}");
    }
    for url in [
        "https://api.example.com:8443/",
        "http://api.example.com:443/",
        "https://other.example.com/",
        "https://api.example.com.evil.test/",
        "https://api.example.com./",
        "https://evil.test/api.example.com",
        "https://evil.test#@api.example.com/",
        "https://evil.test\\@api.example.com/",
        "https://api.example.com@evil.test/",
        "https://ann:pass@api.example.com/",
        "https://ann@api.example.com/",
        "http://10.0.0.5/",
        "http://10.0.0.6:8443/",
        "http://[::ffff:10.0.0.5]:8443/",
        "http://127.0.0.1:9000/",
        "ftp://api.example.com/",
        "file:///etc/passwd",
        "//api.example.com/",
        "api.example.com",
        "https://api.example.com/a b",
        "https://api.example.com/a\r\nb",
        " https://api.example.com/",
        "https://xn--/",
    ] {
        assert!(!allows(&policy, url), "{url}");
    }
    assert!(!allows(&policy, &format!("https://api.example.com/{}", "a".repeat(MAX_URL_BYTES))));
    for host in ["https://a.test", "a.test/path", "ann@a.test", "a.test:70000", "*.a.test", "", "+private"] {
        assert!(EgressPolicy::new(&[host.to_owned()]).is_err(), "{host}");
    }
    // Otherwise the order of the names would decide which binding applies.
    for other in ["api.test", "api.test:443", "API.test:80", "api.test+private"] {
        assert!(EgressPolicy::new(&["api.test".to_owned(), other.to_owned()]).is_err(), "{other}");
    }
    let ports = ["api.test".to_owned(), "api.test:8443".to_owned(), "other.test:443".to_owned()];
    assert!(EgressPolicy::new(&ports).is_ok());
}

#[tokio::test]
async fn rejects_local_addresses_in_every_notation() {
    let public = policy(&[], &["1.1.1.1"]).allow_all_public();
    for url in [
        "http://127.0.0.1/",
        "http://127.1/",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://0x7f000001/",
        "http://0177.0.0.1/",
        "http://0/",
        "http://[::1]/",
        "http://[::]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[::ffff:7f00:1]/",
        "http://[64:ff9b::7f00:1]/",
        "http://[2002:7f00:1::]/",
        "http://①②⑦.0.0.1/",
        "http://169.254.169.254/latest/meta-data",
    ] {
        let error = public.resolve(url).await.expect_err(url);
        assert!(!error.is_retryable && error.message.contains("not public"), "{url}: {error}");
    }
    let pinned = public.resolve("https://a.test:8443/").await.expect("public");
    assert_eq!(pinned.addresses, ["1.1.1.1:8443".parse().expect("an address")]);
}

#[tokio::test]
async fn names_need_public_addresses_unless_marked_private() {
    for (hosts, addresses, allowed) in [
        ("a.test", "1.1.1.1 2606:4700::1111", true),
        ("a.test", "10.0.0.1", false),
        ("a.test", "1.1.1.1 127.0.0.1", false),
        ("a.test", "::ffff:127.0.0.1", false),
        ("a.test+private", "10.0.0.1", true),
        ("a.test+private", "127.0.0.1", true),
        ("a.test+private", "1.1.1.1", true),
        ("a.test+private", "169.254.169.254", false),
        ("a.test+private", "10.0.0.1 fe80::1", false),
        ("a.test+private", "0.0.0.0", false),
        ("a.test", "", false),
    ] {
        let resolved = policy(&[hosts], &[addresses]).resolve("https://a.test/").await;
        assert_eq!(resolved.is_ok(), allowed, "{hosts} at {addresses}: {resolved:?}");
    }
}

#[tokio::test]
async fn does_not_resolve_localhost() {
    let listed = policy(&["localhost:9000"], &["1.1.1.1"]);
    let pinned = listed.resolve("http://localhost:9000/").await.expect("listed");
    assert!(pinned.addresses.iter().all(|address| address.ip().is_loopback()));
    let public = policy(&[], &["127.0.0.1"]).allow_all_public();
    assert!(public.resolve("http://localhost/").await.is_err());
}

#[tokio::test]
async fn keeps_checked_addresses_when_dns_changes() {
    let policy = policy(&["a.test"], &["1.1.1.1", "127.0.0.1"]);
    let pinned = policy.resolve("https://a.test/").await.expect("public");
    assert!(policy.resolve("https://a.test/").await.is_err(), "the name resolves differently now");
    assert_eq!(pinned.addresses, ["1.1.1.1:443".parse().expect("an address")]);
}
