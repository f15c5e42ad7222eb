//! The rules of the mediation keyspace (INFRA-004) for all entries of its catalog: keys name their owner, contain no raw user
//! input and expire where required; values are envelopes that expire with their key.

use std::time::Duration;

use ade_catalog::Catalog;
use ade_catalog::key::lifetime::{Fixed, Unbounded};
use ade_catalog::key::{Key, MAX_IDS, Template};
use ade_catalog::model::{EntryKind, Format, IdForm};
use ade_keyspace::Layout;
use ade_keyspace::envelope::{Envelope, EnvelopeError};
use ade_testkit::ManualClock;
use jiff::Timestamp;

fn mediation() -> Option<&'static Catalog> {
    ade_keyspace::catalogs().iter().find(|catalog| catalog.name == "mediation")
}

#[test]
fn keys_never_contain_raw_user_input() {
    for kind in &mediation().expect("shipped").ids {
        if let IdForm::Text(rules) = &kind.form {
            assert!(rules.hashed, "{} would not be hashed", kind.name);
        }
    }
}

#[test]
fn third_segment_is_the_owner() {
    let catalog = mediation().expect("shipped");
    for entry in &catalog.entries {
        let key = catalog.example(entry, Layout::Plain);
        assert_eq!(key.split(':').nth(2), Some(entry.owner.as_str()), "{key}");
    }
}

#[test]
fn keys_of_expiring_families_expire_and_hold_envelopes() {
    let catalog = mediation().expect("shipped");
    let mut checked = 0;
    for entry in &catalog.entries {
        let EntryKind::Key(shape) = &entry.kind else { continue };
        let example = catalog.example(entry, Layout::Plain);
        if catalog.families_of(&example).any(|family| family.must_expire) {
            assert!(shape.ttl.rule.expires(), "{}", entry.name);
            assert_eq!(shape.format, Format::Envelope, "{}", entry.name);
            checked += 1;
        }
    }
    assert!(checked > 0, "no key was checked");
}

#[test]
fn tenant_is_always_hashed() {
    let catalog = mediation().expect("shipped");
    let tenant = catalog.ids.iter().find(|kind| kind.name == "tenant").expect("tenants are identifiers");
    let written = tenant.encode("Secret Customer").expect("not empty");
    assert_eq!(written, format!("~{}", ade_catalog::ident::digest("Secret Customer")));
}

#[test]
fn envelope_expires_with_its_key() {
    let clock = ManualClock::new("2026-03-18T15:30:00Z".parse().expect("valid"));
    static WINDOW: Template = Template { name: "test.window", plain: &[], cluster: &[] };
    let writable =
        Key::from_builder(&WINDOW, [""; MAX_IDS], Fixed { ttl: Duration::from_secs(120) }).writable();
    let sealed = Envelope::seal(&writable, clock.now(), 1, "overheated".to_owned(), serde_json::Map::new());
    let stored = sealed.expect("it expires").to_json().expect("serialisable");
    assert_eq!(
        stored,
        r#"{"createdAt":"2026-03-18T15:30:00Z","expiresAt":"2026-03-18T15:32:00Z","version":1,"payload":"overheated","meta":{}}"#
    );

    let open = |now| Envelope::<String>::open(&stored, now);
    clock.advance(Duration::from_secs(119));
    assert_eq!(open(clock.now()).expect("still valid").payload, "overheated");
    clock.advance(Duration::from_secs(1));
    assert!(matches!(open(clock.now()), Err(EnvelopeError::Expired { .. })));
}

#[test]
fn envelope_requires_a_ttl() {
    static LASTING: Template = Template { name: "test.lasting", plain: &[], cluster: &[] };
    let lasting = Key::from_builder(&LASTING, [""; MAX_IDS], Unbounded).writable();
    let error = Envelope::seal(&lasting, Timestamp::UNIX_EPOCH, 1, 7, ()).expect_err("no ttl");
    assert_eq!(error.to_string(), "test.lasting does not expire: an envelope needs a key with a ttl");
    let endless = Key::from_builder(&LASTING, [""; MAX_IDS], Fixed { ttl: Duration::MAX }).writable();
    let error = Envelope::seal(&endless, Timestamp::UNIX_EPOCH, 1, 7, ()).expect_err("too far");
    assert!(matches!(error, EnvelopeError::OutOfRange { .. }));
}

#[test]
fn rejects_malformed_envelopes_with_a_reason() {
    let now = Timestamp::UNIX_EPOCH;
    let reason = |json: &str| Envelope::<u32>::open(json, now).expect_err("rejected").to_string();
    assert!(reason("7").starts_with("not an envelope"));
    let complete = r#"{"createdAt":"2026-03-18T15:30:00Z","expiresAt":"2026-03-18T15:32:00Z","version":1,"payload":7,"meta":{}}"#;
    Envelope::<u32>::open(complete, now).expect("complete");
    for field in ["createdAt", "expiresAt", "version", "payload", "meta"] {
        assert!(reason(&complete.replace(field, "other")).starts_with("not an envelope"), "{field}");
    }
    assert!(reason(&complete.replace("15:32", "15:29")).contains("before it was created"));
    assert!(reason(&complete.replace(":7", ":\"seven\"")).starts_with("not an envelope"));
}
