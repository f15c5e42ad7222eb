//! The visitor's own tokens, and a new one, whose secret is shown once.

use ade_client::wire::{Problem, Scope, Token};
use askama::Template;

use super::Tabs;
use crate::Shell;
use crate::format::visible;

/// Scopes of tokens, and what they permit.
const SCOPES: [(Scope, &str); 5] = [
    (Scope::Read, "read everything that your roles permit"),
    (Scope::Propose, "create and submit tasks"),
    (Scope::Lock, "use locks and agents"),
    (Scope::Decide, "decide about tasks; for 8 hours at most"),
    (Scope::Admin, "all other commands of administrators"),
];

/// Lifetimes of tokens in seconds. The first is that of the API.
const LIFETIMES: [(&str, &str); 7] = [
    ("", "as usual: 30 days, or 8 hours with decide"),
    ("3600", "1 hour"),
    ("28800", "8 hours"),
    ("86400", "1 day"),
    ("2592000", "30 days"),
    ("7776000", "90 days"),
    ("31536000", "1 year"),
];

/// A token as it was typed.
#[derive(Debug, Clone, Default)]
pub struct TypedToken {
    pub name: String,
    pub scopes: Vec<String>,
    pub ttl_seconds: String,
}

#[derive(Debug, Clone, Template)]
#[template(path = "settings_tokens.html")]
pub struct TokensPage {
    pub shell: Shell,
    pub tabs: Tabs,
    pub tokens: Vec<Token>,
    pub typed: TypedToken,
    pub problem: Option<Problem>,
}

impl TokensPage {
    fn scopes(&self) -> Vec<(String, &'static str, bool)> {
        let typed = &self.typed.scopes;
        let is_checked = |scope: Scope, name: &str| {
            if typed.is_empty() {
                matches!(scope, Scope::Read | Scope::Propose | Scope::Lock)
            } else {
                typed.iter().any(|one| one == name)
            }
        };
        SCOPES
            .into_iter()
            .map(|(scope, about)| {
                let name = scope.to_string();
                let is_checked = is_checked(scope, &name);
                (name, about, is_checked)
            })
            .collect()
    }

    const fn lifetimes(&self) -> [(&'static str, &'static str); 7] {
        LIFETIMES
    }

    fn text(&self, text: &str) -> String {
        visible(text)
    }
}

/// A new token.
#[derive(Debug, Clone, Template)]
#[template(path = "settings_token.html")]
pub struct TokenPage {
    pub shell: Shell,
    pub token: Token,
    pub origin: String,
}

impl TokenPage {
    fn text(&self, text: &str) -> String {
        visible(text)
    }
}
