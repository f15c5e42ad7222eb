//! The settings: tabs by path, of which everybody sees those that their roles permit.

mod operations;
mod tokens;
mod users;
mod webhooks;

pub use operations::{ConfigurationPage, FeaturesPage, JobsPage};
pub use tokens::{TokenPage, TokensPage, TypedToken};
pub use users::{InvitedPage, TypedInvitation, UserPage, UsersPage};
pub use webhooks::{
    HookPage, NewHookPage, NewWebhookPage, SecretPage, TypedWebhook, WebhookPage, WebhooksPage,
};

use crate::Viewer;

/// A tab of the settings.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tab {
    pub(crate) path: &'static str,
    pub(crate) label: &'static str,
    /// Whether only administrators and auditors may see it.
    is_restricted: bool,
}

const TABS: [Tab; 7] = {
    const fn tab(path: &'static str, label: &'static str, is_restricted: bool) -> Tab {
        Tab { path, label, is_restricted }
    }
    [
        tab("/settings/users", "Users", false),
        tab("/settings/tokens", "Your tokens", false),
        tab("/settings/webhooks", "Webhooks", true),
        tab("/settings/configuration", "Configuration", false),
        tab("/settings/features", "Feature flags", false),
        tab("/settings/jobs", "Jobs", true),
        tab("/settings/changes", "Waiting changes", true),
    ]
};

/// The tabs that a viewer may see.
#[derive(Debug, Clone)]
pub struct Tabs {
    pub(crate) shown: Vec<Tab>,
    pub(crate) current: &'static str,
}

impl Tabs {
    #[must_use]
    pub fn new(current: &'static str, viewer: &Viewer) -> Self {
        let sees_all = viewer.is_admin() || viewer.has_role("auditor");
        let shown = TABS.into_iter().filter(|tab| {
            let is_hidden =
                tab.is_restricted && !sees_all || tab.path == "/settings/tokens" && viewer.user_id.is_empty();
            !is_hidden
        });
        Self { shown: shown.collect(), current }
    }

    /// The path that the settings open with.
    #[must_use]
    pub fn first(&self) -> &'static str {
        self.shown.first().map_or("/settings/users", |tab| tab.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tabs_follow_roles() {
        let shown = |roles: &[&str]| {
            let roles = roles.iter().map(|role| (*role).to_owned()).collect();
            let viewer =
                Viewer { user_id: "ann".to_owned(), name: "Ann".to_owned(), roles, ..Viewer::default() };
            Tabs::new("/settings/users", &viewer).shown.len()
        };
        assert_eq!((shown(&["author"]), shown(&["auditor"]), shown(&["admin"])), (4, 7, 7));
        let operator = Viewer { roles: vec!["admin".to_owned()], ..Viewer::default() };
        assert_eq!(Tabs::new("/settings/users", &operator).shown.len(), 6);
    }
}
