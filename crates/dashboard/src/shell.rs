//! What every page has around its content: navigation, who is signed in, the CSRF token of forms, a notice about what was just
//! done, and what the script follows.

use ade_client::wire::Time;
use jiff::Timestamp;

use crate::{Markup, assets_version, format};

/// A part of the dashboard with an entry in the navigation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    Inbox,
    Tasks,
    Locks,
    Agents,
    Policies,
    Delegations,
    Activity,
    Audit,
    Keyspace,
    Settings,
    /// Pages outside of the navigation, such as the sign-in.
    None,
}

impl Section {
    /// The section whose pages are below a path.
    #[must_use]
    pub fn of_path(path: &str) -> Self {
        let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
        let entry = NAVIGATION.iter().find(|entry| entry.path.trim_start_matches('/') == first);
        entry.map_or(Self::None, |entry| entry.section)
    }
}

/// An entry of the navigation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NavigationEntry {
    pub(crate) section: Section,
    pub(crate) path: &'static str,
    pub(crate) label: &'static str,
    /// The letter that opens it after G.
    pub(crate) key: &'static str,
    /// Where it is behind "More": never (empty), on narrow screens (`secondary`), or on all but wide ones (`rare`).
    pub(crate) class: &'static str,
}

const NAVIGATION: [NavigationEntry; 10] = {
    const fn entry(
        section: Section,
        path: &'static str,
        label: &'static str,
        key: &'static str,
        class: &'static str,
    ) -> NavigationEntry {
        NavigationEntry { section, path, label, key, class }
    }
    [
        entry(Section::Inbox, "/inbox", "Inbox", "i", ""),
        entry(Section::Tasks, "/tasks", "Tasks", "t", ""),
        entry(Section::Locks, "/locks", "Locks", "l", ""),
        entry(Section::Agents, "/agents", "Agents", "a", ""),
        entry(Section::Policies, "/policies", "Policies", "p", "secondary"),
        entry(Section::Delegations, "/delegations", "Delegations", "d", "rare"),
        entry(Section::Activity, "/activity", "Activity", "y", "secondary"),
        entry(Section::Audit, "/audit", "Audit", "u", "secondary"),
        entry(Section::Keyspace, "/keyspace", "Keyspace", "k", "rare"),
        entry(Section::Settings, "/settings", "Settings", "s", "secondary"),
    ]
};

/// Who is signed in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Viewer {
    /// Empty for the bootstrap token.
    pub user_id: String,
    pub name: String,
    pub roles: Vec<String>,
    /// Whether the session decides nothing until the password is given again.
    pub must_reauthenticate: bool,
}

impl Viewer {
    #[must_use]
    pub fn has_role(&self, role: &str) -> bool {
        self.roles.iter().any(|own| own == role)
    }

    #[must_use]
    pub fn is_admin(&self) -> bool {
        self.has_role("admin")
    }

    fn initials(&self) -> String {
        let letters = self.name.split_whitespace().filter_map(|word| word.chars().next());
        letters.take(2).flat_map(char::to_uppercase).collect()
    }
}

/// What was just done. It travels in the URL, so it is one of a fixed set of sentences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Notice(&'static str);

const NOTICES: &[(&str, &str)] = &[
    ("approved", "Your approval was recorded."),
    ("rejected", "The task was rejected."),
    ("changes", "The author was asked for changes."),
    ("delegated", "The approval request was delegated."),
    ("batch", "All selected requests were decided."),
    ("commented", "The comment was added."),
    ("revoked", "The approval was revoked. Nothing will be applied."),
    ("cancelled", "The task was cancelled."),
    ("stopping", "The worker was asked to stop."),
    ("rollback", "The rollback was requested."),
    ("resubmitted", "A new draft was created. Submit it for review."),
    ("submitted", "The task was submitted for review."),
    ("override", "The override was requested. A second administrator must confirm it."),
    ("overridden", "The override was confirmed."),
    ("forced", "The task is applied before all others."),
    ("broken", "The lock was broken. Its holders were notified."),
    ("created", "It was created."),
    ("saved", "The change was saved."),
    ("deleted", "It was deleted."),
    ("activated", "The policy is active."),
    ("deactivated", "It is no longer active."),
    ("draining", "The agent is draining: it gets no new tasks."),
    ("resumed", "The agent takes tasks again."),
    ("token_revoked", "The token was revoked. Nobody can use it any more."),
    ("confirmation", "The change waits for a second administrator."),
    ("confirmed", "The change was confirmed and is effective."),
    ("refused", "The change was rejected."),
    ("sent", "It was sent again."),
    ("tested", "A test message is being sent. Its delivery is listed below."),
    ("password", "Your password was changed. Other sessions were ended."),
    ("reauthenticated", "Thank you. You can decide for another 8 hours."),
];

impl Notice {
    /// The notice with this name in a URL.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        NOTICES.iter().find(|(known, _)| *known == name).map(|(_, text)| Self(text))
    }

    pub(crate) const fn text(self) -> &'static str {
        self.0
    }
}

/// The frame of a page.
#[derive(Debug, Clone)]
pub struct Shell {
    /// Absent on pages for people who are not signed in.
    pub viewer: Option<Viewer>,
    pub section: Section,
    pub title: String,
    /// Empty for tokens, which need none.
    pub csrf: String,
    /// A key for each of the forms, so that sending one again does nothing twice.
    pub form_key: String,
    pub now: Timestamp,
    pub notice: Option<Notice>,
    /// Approval requests that wait for the viewer, and whether there are more.
    pub waiting: (usize, bool),
    /// Topics of events, or names such as `lock:broken`, after which the page is fetched again, separated by commas. Empty for pages that
    /// do not change.
    pub topics: &'static str,
    /// Only events of this task concern the page.
    pub task_id: Option<String>,
}

impl Shell {
    /// The frame of a page for somebody who is not signed in.
    #[must_use]
    pub fn anonymous(title: &str, now: Timestamp) -> Self {
        Self {
            viewer: None,
            section: Section::None,
            title: title.to_owned(),
            csrf: String::new(),
            form_key: String::new(),
            now,
            notice: None,
            waiting: (0, false),
            topics: "",
            task_id: None,
        }
    }

    /// Sets title, section and the topics of events that the page shows.
    #[must_use]
    pub fn page(mut self, section: Section, title: impl Into<String>, topics: &'static str) -> Self {
        (self.section, self.title, self.topics) = (section, title.into(), topics);
        self
    }

    /// The title may begin with a text of somebody else.
    pub(crate) fn shown_title(&self) -> String {
        format::visible(&self.title)
    }

    pub(crate) fn version(&self) -> &'static str {
        assets_version()
    }

    pub(crate) const fn navigation(&self) -> &'static [NavigationEntry] {
        &NAVIGATION
    }

    pub(crate) fn is_current(&self, entry: &NavigationEntry) -> bool {
        self.section == entry.section
    }

    /// The list that the page belongs to, with the label of a link to it.
    pub(crate) fn list(&self) -> Option<(&'static str, String)> {
        let entry = NAVIGATION.iter().find(|entry| self.is_current(entry))?;
        Some((entry.path, format!("Back to {}", entry.label)))
    }

    pub(crate) fn is_inbox(&self) -> bool {
        self.section == Section::Inbox
    }

    pub(crate) fn is_admin(&self) -> bool {
        self.viewer.as_ref().is_some_and(Viewer::is_admin)
    }

    /// Whether an administrator sees fewer commands than after giving the password again.
    pub(crate) fn must_reauthenticate(&self) -> bool {
        self.viewer.as_ref().is_some_and(|viewer| viewer.is_admin() && viewer.must_reauthenticate)
    }

    pub(crate) fn initials(&self) -> String {
        self.viewer.as_ref().map_or_else(String::new, Viewer::initials)
    }

    /// The number beside "Inbox"; empty if nothing waits.
    pub(crate) fn waiting_text(&self) -> String {
        match self.waiting {
            (0, _) => String::new(),
            (number, true) => format!("{number}+"),
            (number, false) => number.to_string(),
        }
    }

    /// `3 min ago`.
    pub(crate) fn ago(&self, time: &Time) -> Markup {
        format::relative(*time, self.now)
    }

    /// What remains until then.
    pub(crate) fn countdown(&self, time: &Time) -> Markup {
        format::countdown(*time, self.now)
    }
}
