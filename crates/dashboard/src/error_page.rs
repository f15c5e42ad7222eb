//! The page for what cannot be shown: what failed, why, and where to go next.

use ade_client::wire::Problem;
use askama::Template;

use crate::Shell;
use crate::format::{capitalized, visible};

#[derive(Debug, Clone, Template)]
#[template(path = "error.html")]
pub struct ErrorPage {
    pub shell: Shell,
    pub problem: Problem,
}

impl ErrorPage {
    /// Whether something failed. That there is no such page, or not for this visitor, is an answer.
    fn is_fault(&self) -> bool {
        !matches!(self.problem.status, 401 | 403 | 404)
    }

    fn detail(&self) -> String {
        capitalized(&visible(&self.problem.detail))
    }

    fn heading(&self) -> &'static str {
        match self.problem.status {
            401 => "Sign in to see this page",
            403 => "You may not see this page",
            404 => "Not found",
            429 => "Too many requests",
            503 => "ADE is unavailable at the moment",
            _ => "The request failed",
        }
    }
}
