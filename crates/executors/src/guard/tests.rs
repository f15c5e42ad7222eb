//! What is refused, however it is written, and that nothing else is called than what was looked at.

use std::sync::Mutex;

use super::*;

/// Answers one after the other, and the last one again and again.
struct Answers(Mutex<Vec<Vec<IpAddr>>>);

impl Resolve for Answers {
    fn resolve<'a>(&'a self, _: &'a str) -> Work<'a, io::Result<Vec<IpAddr>>> {
        let mut answers = self.0.lock().expect("nobody failed");
        let answer = if answers.len() > 1 { answers.remove(0) } else { answers[0].clone() };
        Box::pin(async move { Ok(answer) })
    }
}

fn guard(hosts: &[&str], answers: &[&str]) -> Guard {
    let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
    let addresses =
        |answer: &&str| answer.split_whitespace().map(|one| one.parse().expect("an address")).collect();
    let answers = Answers(Mutex::new(answers.iter().map(addresses).collect()));
    Guard::new(&hosts).expect("readable").resolved_by(Arc::new(answers))
}

fn allows(guard: &Guard, url: &str) -> bool {
    guard.read(url).is_ok()
}

#[test]
fn only_listed_hosts_and_ports_are_called() {
    let guard = guard(
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
        assert!(allows(&guard, url), "{url}");
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
        assert!(!allows(&guard, url), "{url}");
    }
    assert!(!allows(&guard, &format!("https://api.example.com/{}", "a".repeat(LONGEST_URL))));
    for host in ["https://a.test", "a.test/path", "ann@a.test", "a.test:70000", "*.a.test", "", "+private"] {
        assert!(Guard::new(&[host.to_owned()]).is_err(), "{host}");
    }
}

#[tokio::test]
async fn this_machine_is_not_called_however_it_is_written() {
    let everyone = guard(&[], &["1.1.1.1"]).and_everyone_public();
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
        let refusal = everyone.resolve(url).await.expect_err(url);
        assert!(!refusal.again && refusal.message.contains("not public"), "{url}: {refusal}");
    }
    let pinned = everyone.resolve("https://a.test:8443/").await.expect("public");
    assert_eq!(pinned.addresses(), ["1.1.1.1:8443".parse().expect("an address")]);
}

#[tokio::test]
async fn names_lead_to_public_addresses_only_unless_it_is_said() {
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
        let resolved = guard(&[hosts], &[addresses]).resolve("https://a.test/").await;
        assert_eq!(resolved.is_ok(), allowed, "{hosts} at {addresses}: {resolved:?}");
    }
}

#[tokio::test]
async fn localhost_is_not_asked_for() {
    let listed = guard(&["localhost:9000"], &["1.1.1.1"]);
    let pinned = listed.resolve("http://localhost:9000/").await.expect("listed");
    assert!(pinned.addresses().iter().all(|address| address.ip().is_loopback()));
    let everyone = guard(&[], &["127.0.0.1"]).and_everyone_public();
    assert!(everyone.resolve("http://localhost/").await.is_err());
}

#[tokio::test]
async fn what_was_looked_at_stays_when_the_name_moves() {
    let guard = guard(&["a.test"], &["1.1.1.1", "127.0.0.1"]);
    let pinned = guard.resolve("https://a.test/").await.expect("public");
    assert!(guard.resolve("https://a.test/").await.is_err(), "it has moved");
    assert_eq!(pinned.addresses(), ["1.1.1.1:443".parse().expect("an address")]);
}
