//! The records of the journal: a build that reads or writes them differently fails here, before it meets the journal of an installation.

use std::path::Path;

use ade_domain::Moment;
use ade_domain::lock::{LockChange, TableChange};
use ade_testkit::every_variant;
use ade_testkit::formats::{RoundTrip, assert_formats};
use serde_json::Value;

use super::journal::{Journal, JournalError, checked_json, push_line};
use super::state::{JournalRecord, StateChange};

/// As a journal is read and written: a line with a checksum, whose JSON has no tag for the kind of record.
fn round_trip_in_line(record: &Value) -> Value {
    let mut line = Vec::new();
    push_line(&mut line, record).expect("written");
    let json = checked_json(&line).expect("a valid line");
    let record = JournalRecord::parse(json).expect("a known record");
    serde_json::to_value(record).expect("plain")
}

#[test]
fn journal_records_keep_their_formats() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/embedded/journal_format.json");
    let formats: [(&str, RoundTrip); 3] = [
        every_variant!(LockChange {
            CountersAdvanced,
            Queued,
            WaitRenewed,
            WaitEnded,
            Granted,
            Promoted,
            RequestJoined,
            RequestDetached,
            Claimed,
            Extended,
            Downgraded,
            HoldEnded,
            TombstoneAdded,
            ServerRemoved,
            ServerHeartbeat,
            RefusalCounted
        }),
        every_variant!(StateChange {
            RequestRegistered,
            RequestForgotten,
            Agent,
            AgentHeartbeat,
            AgentRemoved,
            TaskClaimed,
            TaskReleased,
            DeadlockUnreported,
            DeadlocksReported
        }),
        every_variant!(TableChange { Lock, VictimAge }),
    ];
    assert_formats(&file, &formats, &[]).expect("unchanged");
    let text = std::fs::read(&file).expect("readable");
    let fixture: Value = serde_json::from_slice(&text).expect("JSON");
    for format in ["StateChange", "TableChange"] {
        for record in fixture[format].as_array().expect("examples") {
            assert_eq!(round_trip_in_line(record), *record);
        }
    }
}

#[test]
fn journal_lines_keep_their_format() {
    let line = b"89fad041 {\"at\":1794922117560555}\n";
    let mut written = Vec::new();
    push_line(&mut written, &JournalRecord::At(Moment::from_micros(1_794_922_117_560_555))).expect("written");
    assert_eq!(written, line);
    let record = JournalRecord::parse(checked_json(line).expect("a valid line")).expect("a known record");
    assert!(matches!(record, JournalRecord::At(at) if at.micros() == 1_794_922_117_560_555));
}

#[test]
fn refuses_records_of_other_versions_and_keeps_them() {
    let folder = tempfile::tempdir().expect("folder");
    let open = || Journal::open(folder.path(), |json| JournalRecord::parse(json).map(drop));
    let unknown = serde_json::json!({ "of_another_version": 1 });
    open().expect("empty").append(&[unknown]).expect("written");
    for _ in 0..2 {
        let refused = open().expect_err("an unknown record");
        assert!(matches!(refused, JournalError::UnknownRecord { line: 1, .. }), "{refused}");
        assert!(refused.to_string().ends_with("start that version instead"), "{refused}");
    }
}
