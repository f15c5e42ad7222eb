//! Users: the list with invitations, one user, and the code of an invitation, which is shown once.

use ade_client::wire::{AccountAct, Invitation, Problem, User};
use askama::Template;

use super::Tabs;
use crate::Shell;
use crate::audit::percent_encoded;
use crate::format::visible;

/// Roles that ADE itself knows.
const ROLES: [(&str, &str); 4] = [
    ("author", "proposes tasks and sponsors agents"),
    ("reviewer", "decides about tasks"),
    ("admin", "manages people, rules and settings"),
    ("auditor", "sees everything, changes nothing"),
];

/// A role with a check box.
struct RoleBox {
    name: &'static str,
    about: &'static str,
    is_checked: bool,
}

fn role_boxes(has_role: impl Fn(&str) -> bool) -> Vec<RoleBox> {
    let boxes = ROLES.iter().map(|(name, about)| RoleBox { name, about, is_checked: has_role(name) });
    boxes.collect()
}

/// An invitation as it was typed.
#[derive(Debug, Clone, Default)]
pub struct TypedInvitation {
    pub user_id: String,
    pub name: String,
    pub roles: Vec<String>,
    pub other_roles: String,
    pub manager_id: String,
    pub team: String,
}

#[derive(Debug, Clone, Template)]
#[template(path = "settings_users.html")]
pub struct UsersPage {
    pub shell: Shell,
    pub tabs: Tabs,
    pub users: Vec<User>,
    pub next_cursor: Option<String>,
    pub typed: TypedInvitation,
    pub problem: Option<Problem>,
}

/// What an administrator did to an account, in words.
pub(crate) fn act_text(act: &AccountAct) -> String {
    let done = match act.kind.as_str() {
        "created" => "created the account",
        "invited" => "invited the person",
        "reset" => "reset the password",
        "granted_admin" => "granted the role admin",
        "granted_reviewer" => "granted the role reviewer",
        "granted_policy_role" => "granted a role that policies ask for",
        "linked_identity" => "set up the link with another service",
        other => other,
    };
    format!("{} {done}", visible(&act.by))
}

impl UsersPage {
    fn boxes(&self) -> Vec<RoleBox> {
        role_boxes(|role| self.typed.roles.iter().any(|typed| typed == role))
    }

    /// Administrators on whom the user still depends, once each.
    fn depends_on<'a>(&self, user: &'a User) -> Vec<&'a AccountAct> {
        let mut latest: Vec<&AccountAct> = Vec::new();
        let now = self.shell.now;
        let counting = user.acts.iter().filter(|act| act.counts_until.is_some_and(|until| until.0 > now));
        for act in counting {
            match latest.iter_mut().find(|found| found.by == act.by) {
                Some(found) if found.counts_until < act.counts_until => *found = act,
                Some(_) => {}
                None => latest.push(act),
            }
        }
        latest
    }

    fn link(&self, user: &User) -> String {
        format!("/settings/users/{}", percent_encoded(&user.user_id))
    }

    fn text(&self, text: &str) -> String {
        visible(text)
    }
}

/// One user.
#[derive(Debug, Clone, Template)]
#[template(path = "settings_user.html")]
pub struct UserPage {
    pub shell: Shell,
    pub tabs: Tabs,
    pub user: User,
    pub problem: Option<Problem>,
}

impl UserPage {
    fn is_own(&self) -> bool {
        self.shell.viewer.as_ref().is_some_and(|viewer| viewer.user_id == self.user.user_id)
    }

    fn path(&self) -> String {
        format!("/settings/users/{}", percent_encoded(&self.user.user_id))
    }

    fn boxes(&self) -> Vec<RoleBox> {
        role_boxes(|role| self.user.roles.contains(role))
    }

    /// Roles that only policies ask for.
    fn other_roles(&self) -> String {
        let others = self.user.roles.iter().filter(|role| ROLES.iter().all(|(name, _)| role != name));
        others.map(String::as_str).collect::<Vec<_>>().join(", ")
    }

    fn act_text(&self, act: &AccountAct) -> String {
        act_text(act)
    }

    fn counts(&self, act: &AccountAct) -> bool {
        act.counts_until.is_some_and(|until| until.0 > self.shell.now)
    }

    fn is_dependent(&self) -> bool {
        self.user.acts.iter().any(|act| act.counts_until.is_some())
    }

    fn text(&self, text: &str) -> String {
        visible(text)
    }
}

/// The code of an invitation.
#[derive(Debug, Clone, Template)]
#[template(path = "settings_invited.html")]
pub struct InvitedPage {
    pub shell: Shell,
    pub tabs: Tabs,
    pub invitation: Invitation,
    /// The address of this server, as the visitor reaches it.
    pub origin: String,
}

impl InvitedPage {
    /// The link that opens the page to join with the code.
    fn link(&self) -> String {
        let code = self.invitation.code.as_deref().unwrap_or_default();
        format!("{}/join?code={}", self.origin, percent_encoded(code))
    }
}

#[cfg(test)]
mod tests {
    use ade_client::wire::Time;
    use jiff::Timestamp;

    use super::*;
    use crate::Viewer;

    fn user() -> User {
        let evil = "<script>alert(1)</script>\u{202e}".to_owned();
        let day = |number: i64| Some(Time(Timestamp::from_second(number * 86_400).expect("a time")));
        let act = |by: &str, until: Option<Time>| AccountAct {
            kind: "created".to_owned(),
            by: by.to_owned(),
            at: Time(Timestamp::UNIX_EPOCH),
            counts_until: until,
            exempt: false,
            lifted_at: None,
            lifted_by: None,
        };
        User {
            user_id: "eve".to_owned(),
            name: evil.clone(),
            roles: ["author".to_owned(), "dba".to_owned()].into(),
            manager_id: None,
            team: Some(evil),
            email: None,
            active: true,
            acts: vec![act("ann", day(5)), act("bob", day(1)), act("ann", day(7)), act("carl", None)],
            revision: 3,
        }
    }

    fn shell(roles: &[&str]) -> Shell {
        let now = Timestamp::from_second(3 * 86_400).expect("a time");
        let mut shell = Shell::anonymous("Users", now);
        let roles = roles.iter().map(|role| (*role).to_owned()).collect();
        shell.viewer =
            Some(Viewer { user_id: "ann".to_owned(), name: "Ann".to_owned(), roles, ..Viewer::default() });
        shell
    }

    fn tabs(shell: &Shell) -> Tabs {
        Tabs::new("/settings/users", shell.viewer.as_ref().expect("viewer"))
    }

    #[test]
    fn lists_on_whom_a_user_depends_until_when() {
        let shell = shell(&["admin"]);
        let (tabs, typed) = (tabs(&shell), TypedInvitation::default());
        let page = UsersPage { shell, tabs, users: vec![user()], next_cursor: None, typed, problem: None };
        let user = user();
        let found = page.depends_on(&user);
        let found: Vec<_> = found.iter().map(|act| (act.by.as_str(), act.counts_until)).collect();
        assert_eq!(found, [("ann", user.acts[2].counts_until)]);
        let html = page.render().expect("rendered");
        assert!(!html.contains("<script>alert") && !html.contains('\u{202e}'), "{html}");
    }

    #[test]
    fn only_administrators_get_forms() {
        let page = |roles: &[&str]| {
            let shell = shell(roles);
            UserPage { tabs: tabs(&shell), shell, user: user(), problem: None }
        };
        let (admin, author) = (page(&["admin"]), page(&["author"]));
        assert_eq!(admin.other_roles(), "dba");
        let [admin, author] = [admin, author].map(|page| page.render().expect("rendered"));
        assert!(admin.contains("action=\"/settings/users/eve/deactivate\""), "{admin}");
        assert!(!author.contains("action=\"/settings/users/eve"), "{author}");
        assert!(!admin.contains("<script>alert"), "{admin}");
    }
}
