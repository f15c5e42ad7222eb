//! Changes that wait for a second administrator, shown on the settings and beside the rules. Whether the viewer may confirm one is
//! answered by the API; here the buttons are left out only where they cannot work.

use ade_client::wire::{Change, Problem};
use askama::Template;
use serde_json::Value;

use crate::format::{capitalized, visible};
use crate::json_fields::{self, FieldChange};
use crate::settings::Tabs;
use crate::{Shell, Viewer, words};

/// The changes, for the macro `pending` of `changes.html`.
#[derive(Debug, Clone)]
pub struct PendingChanges {
    pub changes: Vec<Change>,
    pub viewer: Viewer,
    /// The page to open after a decision: a path of the dashboard.
    pub next: &'static str,
}

impl PendingChanges {
    /// What the change does, as an order: `change the policy "production"`.
    pub(crate) fn heading(&self, change: &Change) -> String {
        let place = |name: &str| change.details.get(name).and_then(|value| value.get("name"));
        let name = place("after").or_else(|| place("before")).or_else(|| change.details.get("name"));
        let name = name.and_then(Value::as_str).unwrap_or(&change.object_id);
        format!("{} {}", capitalized(&words::proposed(&change.action)), visible(name))
    }

    pub(crate) fn fields(&self, change: &Change) -> Vec<FieldChange> {
        let mut after = change.details.clone();
        let before = after.remove("before").unwrap_or_default();
        let after = after.remove("after").unwrap_or(Value::Object(after));
        json_fields::changed(&before, &after)
    }

    pub(crate) fn proposer(&self, change: &Change) -> String {
        change.proposed_by.as_ref().map_or_else(|| "the operator".to_owned(), visible)
    }

    pub(crate) fn is_own(&self, change: &Change) -> bool {
        change.proposed_by.as_ref() == Some(&self.viewer.user_id)
    }

    /// Whether the change is about the viewer's own account, which others decide.
    pub(crate) fn is_about_viewer(&self, change: &Change) -> bool {
        change.object_type == "user" && change.object_id == self.viewer.user_id
    }
}

/// The page of all changes that wait.
#[derive(Debug, Clone, Template)]
#[template(path = "settings_changes.html")]
pub struct ChangesPage {
    pub shell: Shell,
    pub tabs: Tabs,
    pub pending: PendingChanges,
    pub next_cursor: Option<String>,
    pub problem: Option<Problem>,
}

#[cfg(test)]
mod tests {
    use ade_client::wire::Time;
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;

    fn change(details: &Value) -> Change {
        let time = Time(Timestamp::UNIX_EPOCH);
        Change {
            change_id: "0".to_owned(),
            action: "policy.update".to_owned(),
            object_type: "policy".to_owned(),
            object_id: "019a".to_owned(),
            proposed_by: Some("bob".to_owned()),
            proposed_at: time,
            expires_at: time,
            details: details.as_object().cloned().unwrap_or_default(),
        }
    }

    fn pending(changes: Vec<Change>, viewer: &str) -> PendingChanges {
        let viewer = Viewer {
            user_id: viewer.to_owned(),
            name: viewer.to_owned(),
            roles: vec!["admin".to_owned()],
            ..Viewer::default()
        };
        PendingChanges { changes, viewer, next: "/settings/changes" }
    }

    #[test]
    fn names_the_object_and_what_changes() {
        let details =
            json!({ "before": { "name": "prod", "quorum": 1 }, "after": { "name": "prod", "quorum": 2 } });
        let (change, pending) = (change(&details), pending(Vec::new(), "erin"));
        assert_eq!(pending.heading(&change), "Change the policy prod");
        let expected =
            FieldChange { name: "quorum".to_owned(), before: "1".to_owned(), after: "2".to_owned() };
        assert_eq!(pending.fields(&change), [expected]);
    }

    #[test]
    fn who_proposed_a_change_cannot_confirm_it() {
        let page = |viewer: &str| {
            let details = json!({ "after": { "name": "<script>alert(1)</script>\u{202e}" } });
            let mut shell = Shell::anonymous("Changes", Timestamp::UNIX_EPOCH);
            let pending = pending(vec![change(&details)], viewer);
            shell.viewer = Some(pending.viewer.clone());
            let tabs = Tabs::new("/settings/changes", &pending.viewer);
            ChangesPage { shell, tabs, pending, next_cursor: None, problem: None }.render().expect("rendered")
        };
        let (own, other) = (page("bob"), page("erin"));
        assert!(!own.contains("/confirm\"") && own.contains("Withdraw"), "{own}");
        assert!(other.contains("/confirm\"") && !other.contains("Withdraw"), "{other}");
        assert!(!other.contains("<script>alert") && other.contains("⟦U+202E⟧"), "{other}");
    }
}
