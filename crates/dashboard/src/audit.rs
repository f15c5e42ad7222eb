//! The audit log: a search whose filters are in the URL, entries as sentences, and the result of a verification.

use std::collections::BTreeMap;

use ade_client::wire::{AuditActor, AuditEntry, AuditStatus, AuditVerification, Problem};
use askama::Template;
use serde_json::Value;

use crate::format::{self, short_id, visible};
use crate::json_fields::{self, FieldChange};
use crate::{Shell, words};

/// Filters of the search, as in its URL.
#[derive(Debug, Clone, Default)]
pub struct AuditFilters {
    pub task: String,
    pub actor: String,
    pub action: String,
    pub object: String,
    /// In UTC, as a browser writes a local time: `2026-11-18T10:00`.
    pub from: String,
    pub to: String,
}

impl AuditFilters {
    fn chosen(&self) -> usize {
        let Self { task, actor, action, object, from, to } = self;
        format::chosen(&[task, actor, action, object, from, to])
    }

    fn is_empty(&self) -> bool {
        self.chosen() == 0
    }
}

#[derive(Debug, Clone, Template)]
#[template(path = "audit.html")]
pub struct AuditPage {
    pub shell: Shell,
    pub filters: AuditFilters,
    pub entries: Vec<AuditEntry>,
    /// Titles of tasks among their objects, by id, as far as the visitor may see them.
    pub titles: BTreeMap<String, String>,
    /// The URL of the next page.
    pub next: Option<String>,
    /// URLs of the export in both formats.
    pub export_lines: String,
    pub export_csv: String,
    /// The URL of this page with a verification.
    pub verify: String,
    pub verification: Option<AuditVerification>,
    pub problem: Option<Problem>,
}

/// The result of a verification in words.
struct Verdict {
    class: &'static str,
    sign: &'static str,
    heading: String,
    text: String,
}

fn entries(number: u64) -> String {
    if number == 1 { "1 entry".to_owned() } else { format!("{number} entries") }
}

fn verdict(result: &AuditVerification) -> Verdict {
    let AuditVerification { status, entries: count, checkpoint, first_bad, .. } = result;
    match status {
        AuditStatus::Valid => {
            let signed = checkpoint.unwrap_or(0);
            let text = match count.saturating_sub(signed) {
                0 => format!("No entry was changed, removed or reordered. All are signed, up to entry {signed}."),
                unsigned => format!(
                    "No entry was changed, removed or reordered. The log is signed up to entry {signed}. The {} after it wait for \
                     the next signature: until then their order is not proven, and some may be missing at the end.",
                    entries(unsigned)
                ),
            };
            Verdict { class: "ok", sign: "✓", heading: format!("Valid: {} verified", entries(*count)), text }
        }
        AuditStatus::Unverified => Verdict {
            class: "warn",
            sign: "!",
            heading: format!("Unverified: {} are consistent, but nothing is signed", entries(*count)),
            text: "The log is intact in itself, but it contains no signed checkpoint: entries may be missing at its end."
                .to_owned(),
        },
        AuditStatus::Invalid => Verdict {
            class: "danger",
            sign: "✗",
            heading: match first_bad {
                Some(bad) => format!("Invalid: the first bad entry is number {}", bad.number),
                None => "Invalid".to_owned(),
            },
            text: match first_bad {
                Some(bad) => format!("{} {}.", entries_before(bad.number), visible(&bad.reason)),
                None => String::new(),
            },
        },
    }
}

fn entries_before(number: u64) -> String {
    match number {
        0 | 1 => "It".to_owned(),
        number => format!("The {} before it are intact. Entry {number}", entries(number - 1)),
    }
}

/// Who acted, in words.
pub(crate) fn actor(who: &AuditActor) -> String {
    let text = match who {
        AuditActor { user_id: Some(user), agent_id: Some(agent), .. } => format!("{agent} for {user}"),
        AuditActor { user_id: Some(one), .. } | AuditActor { agent_id: Some(one), .. } => one.clone(),
        AuditActor { trigger: Some(trigger), .. } => format!("ADE ({})", words::trigger(trigger)),
        AuditActor { token_id: Some(token), .. } => format!("the token {token}"),
        _ => "somebody who is not signed in".to_owned(),
    };
    visible(&text)
}

/// The task to whose page an entry leads: the object, or what an object without a page of its own is about.
#[must_use]
pub fn linked_task(entry: &AuditEntry) -> Option<&str> {
    match entry.object_type.as_str() {
        "task" => Some(&entry.object_id),
        "agent" | "user" | "webhook" => None,
        _ => entry.task_id.as_deref(),
    }
}

impl AuditPage {
    fn verdict(&self, result: &AuditVerification) -> Verdict {
        verdict(result)
    }

    fn sees_all(&self) -> bool {
        let viewer = self.shell.viewer.as_ref();
        viewer.is_some_and(|viewer| viewer.is_admin() || viewer.has_role("auditor"))
    }

    fn actor(&self, entry: &AuditEntry) -> String {
        actor(&entry.who)
    }

    fn phrase(&self, entry: &AuditEntry) -> String {
        visible(words::done(&entry.action))
    }

    /// Ids of sessions and tokens tell a reader nothing; they are among the details.
    fn names_object(&self, entry: &AuditEntry) -> bool {
        !matches!(entry.object_type.as_str(), "session" | "token")
    }

    fn object(&self, entry: &AuditEntry) -> String {
        visible(&entry.object_id)
    }

    fn short_object(&self, entry: &AuditEntry) -> String {
        visible(short_id(&entry.object_id))
    }

    /// The title of the task that the link leads to, if the visitor may see it.
    fn task_title(&self, entry: &AuditEntry) -> Option<String> {
        self.titles.get(linked_task(entry)?).map(|text| format::title(text))
    }

    /// The page of the object, where there is one.
    fn link(&self, entry: &AuditEntry) -> String {
        let id = percent_encoded(&entry.object_id);
        match entry.object_type.as_str() {
            "agent" => format!("/agents/{id}"),
            "user" => format!("/settings/users/{id}"),
            "webhook" => format!("/settings/webhooks/{id}"),
            _ => linked_task(entry)
                .map_or_else(String::new, |task| format!("/tasks/{}", percent_encoded(task))),
        }
    }

    fn shown(&self, text: &str) -> String {
        visible(text)
    }

    fn states(&self, entry: &AuditEntry) -> String {
        match (entry.from, entry.to) {
            (Some(from), Some(to)) if from != to => format!("{from} → {to}"),
            _ => String::new(),
        }
    }

    /// What changed, if the entry has both versions of an object.
    fn changes(&self, entry: &AuditEntry) -> Vec<FieldChange> {
        match (entry.details.get("before"), entry.details.get("after")) {
            (None, None) => Vec::new(),
            (before, after) => {
                json_fields::changed(before.unwrap_or(&Value::Null), after.unwrap_or(&Value::Null))
            }
        }
    }

    /// Names and values of everything else that the entry says.
    fn facts(&self, entry: &AuditEntry) -> Vec<(String, String)> {
        let who = &entry.who;
        let number = entry.number.map(|number| number.to_string());
        let object = format!("{} {}", entry.object_type, entry.object_id);
        let revision = entry.revision.map(|revision| revision.to_string());
        let reviewed = entry.reviewed.as_ref();
        let facts = [
            ("entry", number),
            ("action", Some(entry.action.clone())),
            ("object", Some(object)),
            ("task", entry.task_id.clone()),
            ("revision", revision),
            ("user", who.user_id.clone()),
            ("agent", who.agent_id.clone()),
            ("token", who.token_id.clone()),
            ("session", who.session_id.clone()),
            ("address", who.ip.clone()),
            ("program", who.user_agent.clone()),
            ("service", who.service.clone()),
            ("process", who.instance.clone()),
            ("trigger", who.trigger.clone()),
            ("configuration digest", entry.digest.clone()),
            ("preview digest", reviewed.and_then(|reviewed| reviewed.preview.clone())),
            ("fingerprint", reviewed.and_then(|reviewed| reviewed.fingerprint.clone())),
            ("scope digest", reviewed.and_then(|reviewed| reviewed.scope.clone())),
            ("requirements digest", reviewed.map(|reviewed| reviewed.requirements.clone())),
            ("previous hash", entry.previous_hash.clone()),
            ("hash", entry.entry_hash.clone()),
        ];
        let facts = facts.into_iter().filter_map(|(name, value)| Some((name.to_owned(), visible(&value?))));
        let mut details = entry.details.clone();
        details.remove("before");
        details.remove("after");
        facts.chain(json_fields::fields(&Value::Object(details))).collect()
    }
}

/// A segment of a path.
pub(crate) fn percent_encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use ade_client::wire::InvalidAuditEntry;
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::Viewer;

    fn page(entries: Value) -> AuditPage {
        let mut shell = Shell::anonymous("Audit log", Timestamp::UNIX_EPOCH);
        shell.viewer = Some(Viewer { roles: vec!["auditor".to_owned()], ..Viewer::default() });
        AuditPage {
            shell,
            filters: AuditFilters::default(),
            entries: serde_json::from_value(entries).expect("entries"),
            titles: BTreeMap::new(),
            next: None,
            export_lines: String::new(),
            export_csv: String::new(),
            verify: String::new(),
            verification: None,
            problem: None,
        }
    }

    fn entry(action: &str, who: &Value, fields: &Value) -> Value {
        let mut actor = json!({
            "user_id": null, "agent_id": null, "session_id": null, "token_id": null, "ip": null, "user_agent": null, "service": null,
        });
        actor.as_object_mut().expect("object").extend(who.as_object().expect("object").clone());
        let mut entry = json!({
            "number": 1, "entry_id": "e", "at": "2026-11-18T10:00:00Z", "who": actor, "action": action, "object_type": "lock",
            "object_id": "resource:a", "task_id": null, "from": null, "to": null, "revision": null, "digest": null, "reason": null,
            "ticket": null, "details": {}, "previous_hash": null, "entry_hash": "beef",
        });
        entry.as_object_mut().expect("object").extend(fields.as_object().expect("object").clone());
        entry
    }

    #[test]
    fn names_who_acted() {
        let page = page(json!([
            entry("lock.break", &json!({ "user_id": "ann" }), &json!({})),
            entry("lock.break", &json!({ "user_id": "ann", "agent_id": "bot" }), &json!({})),
            entry("lock.break", &json!({ "service": "ade", "trigger": "job archive" }), &json!({})),
            entry("lock.break", &json!({ "token_id": "bootstrap" }), &json!({})),
            entry("session.refuse", &json!({}), &json!({})),
        ]));
        let actors: Vec<String> = page.entries.iter().map(|entry| page.actor(entry)).collect();
        let expected = [
            "ann",
            "bot for ann",
            "ADE (job archive)",
            "the token bootstrap",
            "somebody who is not signed in",
        ];
        assert_eq!(actors, expected);
    }

    #[test]
    fn texts_of_entries_stay_text() {
        let evil = "<script>alert(\"1\")</script>\u{202e}'";
        let html = page(json!([entry(
            evil,
            &json!({ "user_id": evil, "user_agent": evil }),
            &json!({ "reason": evil, "ticket": evil, "object_id": evil, "object_type": evil, "task_id": evil, "details": {
                evil: evil, "before": { evil: 1 }, "after": { "name": evil },
            } })
        )]))
        .render()
        .expect("rendered");
        assert!(!html.contains("<script>alert") && !html.contains('\u{202e}'), "{html}");
        assert!(html.matches("⟦U+202E⟧").count() >= 8, "{html}");
    }

    #[test]
    fn verdicts_say_what_is_proven() {
        let result = |status, checkpoint, first_bad| {
            verdict(&AuditVerification {
                valid: status == AuditStatus::Valid,
                status,
                entries: 10,
                head: None,
                checkpoint,
                quarantined: 0,
                first_bad,
            })
        };
        let valid = result(AuditStatus::Valid, Some(8), None);
        assert_eq!(valid.heading, "Valid: 10 entries verified");
        assert!(valid.text.contains("signed up to entry 8. The 2 entries after it"), "{}", valid.text);
        let bad = InvalidAuditEntry { number: 4, reason: "was changed".to_owned() };
        let invalid = result(AuditStatus::Invalid, None, Some(bad));
        assert_eq!(invalid.heading, "Invalid: the first bad entry is number 4");
        assert_eq!(invalid.text, "The 3 entries before it are intact. Entry 4 was changed.");
        assert_eq!(result(AuditStatus::Unverified, None, None).class, "warn");
    }
}
