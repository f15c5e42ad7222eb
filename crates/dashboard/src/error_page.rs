//! The page for what cannot be shown: what failed, why, and where to go next.

use ade_client::wire::Problem;
use askama::Template;

use crate::Shell;

#[derive(Debug, Clone, Template)]
#[template(path = "error.html")]
pub struct ErrorPage {
    pub shell: Shell,
    pub problem: Problem,
}

impl ErrorPage {
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
