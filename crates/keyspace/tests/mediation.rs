//! The rules of the mediation keyspace (INFRA-004), over whatever its catalog lists: who owns a key stands in it, raw
//! strings do not, what must expire does, and values travel in envelopes that end with their key.

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
fn raw_user_strings_never_stand_in_a_key() {
    for kind in &mediation().expect("shipped").ids {
        if let IdForm::Text(rules) = &kind.form {
            assert!(rules.hashed, "{} would be written as it comes", kind.name);
        }
    }
}

#[test]
fn the_third_segment_is_the_owner() {
    let catalog = mediation().expect("shipped");
    for entry in &catalog.entries {
        let key = catalog.example(entry, Layout::Plain);
        assert_eq!(key.split(':').nth(2), Some(entry.owner.as_str()), "{key}");
    }
}

#[test]
fn what_must_expire_does_and_every_value_is_an_envelope() {
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
    assert!(checked > 0, "some must expire");
}

#[test]
fn a_tenant_is_written_as_its_hash_only() {
    let catalog = mediation().expect("shipped");
    let tenant = catalog.ids.iter().find(|kind| kind.name == "tenant").expect("tenants are identifiers");
    let written = tenant.write("Secret Customer").expect("not empty");
    assert_eq!(written, format!("~{}", ade_catalog::ident::digest("Secret Customer")));
}

#[test]
fn an_envelope_ends_with_its_key() {
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
fn an_envelope_needs_an_end() {
    static LASTING: Template = Template { name: "test.lasting", plain: &[], cluster: &[] };
    let lasting = Key::from_builder(&LASTING, [""; MAX_IDS], Unbounded).writable();
    let refused = Envelope::seal(&lasting, Timestamp::UNIX_EPOCH, 1, 7, ()).expect_err("no end");
    assert_eq!(refused.to_string(), "test.lasting does not expire: an envelope needs a key with a ttl");
    let endless = Key::from_builder(&LASTING, [""; MAX_IDS], Fixed { ttl: Duration::MAX }).writable();
    let refused = Envelope::seal(&endless, Timestamp::UNIX_EPOCH, 1, 7, ()).expect_err("too far");
    assert!(matches!(refused, EnvelopeError::OutOfRange { .. }));
}

#[test]
fn what_is_no_envelope_is_refused_with_a_reason() {
    let now = Timestamp::UNIX_EPOCH;
    let reason = |json: &str| Envelope::<u32>::open(json, now).expect_err("refused").to_string();
    assert!(reason("7").starts_with("not an envelope"));
    let complete = r#"{"createdAt":"2026-03-18T15:30:00Z","expiresAt":"2026-03-18T15:32:00Z","version":1,"payload":7,"meta":{}}"#;
    Envelope::<u32>::open(complete, now).expect("complete");
    for field in ["createdAt", "expiresAt", "version", "payload", "meta"] {
        assert!(reason(&complete.replace(field, "other")).starts_with("not an envelope"), "{field}");
    }
    assert!(reason(&complete.replace("15:32", "15:29")).contains("before it was created"));
    assert!(reason(&complete.replace(":7", ":\"seven\"")).starts_with("not an envelope"));
}
