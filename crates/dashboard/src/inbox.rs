//! The inbox: the approval requests that wait for the viewer, by score, and the one that is open beside them.

use ade_client::wire::{Approval, ApprovalStatus, PreviewChange, Problem, RiskLevel};
use askama::Template;

use crate::drawing::{counted_level, is_decided_alone, level_name};
use crate::format::{count, names, visible};
use crate::review::Review;
use crate::{Markup, Shell};

/// Bytes of a preview that is read among others.
const MAX_PREVIEW_LEN: usize = 16 << 10;

/// Reviewers that a row names; the others are counted.
const MAX_NAMES: usize = 2;

/// Which requests are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InboxView {
    /// Those that wait for the viewer.
    #[default]
    Mine,
    /// Those that wait for others.
    Others,
    /// Those that the viewer decided.
    Decided,
}

impl InboxView {
    #[must_use]
    pub fn named(name: &str) -> Self {
        match name {
            "others" => Self::Others,
            "decided" => Self::Decided,
            _ => Self::Mine,
        }
    }

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mine => "mine",
            Self::Others => "others",
            Self::Decided => "decided",
        }
    }
}

#[derive(Debug, Clone, Template)]
#[template(path = "inbox.html")]
pub struct InboxPage {
    pub shell: Shell,
    pub view: InboxView,
    pub requests: Vec<Approval>,
    pub next_cursor: Option<String>,
    /// How many tasks wait for others, if none waits for the viewer.
    pub waiting_for_others: usize,
    /// The open request, with its id.
    pub review: Option<Review>,
    pub at: String,
    /// Whether the request was chosen: on a phone, the list is shown otherwise.
    pub is_chosen: bool,
    /// Why the chosen request cannot be shown.
    pub problem: Option<Problem>,
}

pub(crate) struct InboxRow<'a> {
    pub(crate) request: &'a Approval,
    pub(crate) title: String,
    pub(crate) by: String,
    pub(crate) level: &'static str,
    pub(crate) when: Markup,
    pub(crate) is_open: bool,
    pub(crate) item: String,
    /// Why it cannot be among others.
    pub(crate) obstacle: Option<String>,
}

impl InboxPage {
    /// One row for each task: several reviewers are asked about the same.
    fn rows(&self) -> Vec<InboxRow<'_>> {
        let mut tasks: Vec<Vec<&Approval>> = Vec::new();
        for request in &self.requests {
            let same = |group: &&mut Vec<&Approval>| {
                self.view == InboxView::Others
                    && group.first().is_some_and(|first| first.task_id == request.task_id)
            };
            match tasks.iter_mut().find(same) {
                Some(group) => group.push(request),
                None => tasks.push(vec![request]),
            }
        }
        tasks.iter().filter_map(|requests| self.row(requests)).collect()
    }

    fn row<'a>(&self, requests: &[&'a Approval]) -> Option<InboxRow<'a>> {
        let request = *requests.first()?;
        let author = request.task_author.as_deref().unwrap_or_default();
        let by = match &request.task_agent_id {
            Some(agent) => format!("agent {}", visible(agent)),
            None => visible(author),
        };
        let by = match self.view {
            InboxView::Others => {
                let reviewers: Vec<String> =
                    requests.iter().map(|request| visible(&request.reviewer_name)).collect();
                format!("waits for {} · {by}", names(&reviewers, MAX_NAMES, "or"))
            }
            InboxView::Decided => format!("{by} · {}", decided_word(request.status)),
            InboxView::Mine => by,
        };
        let level = counted_level(request.task_risk_level);
        Some(InboxRow {
            request,
            title: visible(&request.task_description),
            by,
            level: level_name(level),
            when: self.shell.ago(&request.responded_at.unwrap_or(request.created_at)),
            is_open: requests.iter().any(|request| request.approval_id == self.at),
            item: request_item(request),
            obstacle: is_decided_alone(level).then(|| format!("{} is decided on its own", level_name(level))),
        })
    }

    /// Whether there are two that can be decided together.
    fn is_batchable(&self) -> bool {
        let free = self.rows().into_iter().filter(|row| row.obstacle.is_none());
        self.view == InboxView::Mine && free.count() > 1
    }

    fn empty_text(&self) -> String {
        match (self.view, self.waiting_for_others) {
            (InboxView::Mine, 0) => "No task waits for a decision. Requests appear here as soon as a task that you may review is submitted."
                .to_owned(),
            (InboxView::Mine, 1) => "1 task waits for somebody else.".to_owned(),
            (InboxView::Mine, others) => format!("{} wait for others.", count(others, "task")),
            (InboxView::Others, _) => "No task that you may see waits for somebody else.".to_owned(),
            (InboxView::Decided, _) => "You have not decided about a task yet.".to_owned(),
        }
    }
}

const fn decided_word(status: ApprovalStatus) -> &'static str {
    match status {
        ApprovalStatus::Approved => "you approved",
        ApprovalStatus::Rejected => "you rejected",
        ApprovalStatus::ChangesRequested => "you requested changes",
        ApprovalStatus::Delegated => "you delegated",
        ApprovalStatus::Pending => "waits",
        ApprovalStatus::Invalidated => "the task changed",
        ApprovalStatus::Closed => "not needed any more",
    }
}

/// A request in a form of many: what is decided, and about which version.
fn request_item(request: &Approval) -> String {
    let scope = request.scope_digest.as_deref().unwrap_or_default();
    format!("{} {} {scope}", request.approval_id, request.digest)
}

/// The same decision about several requests, before it is made: what can be decided together, and why the rest cannot.
#[derive(Debug, Clone, Template)]
#[template(path = "batch.html")]
pub struct BatchPage {
    pub shell: Shell,
    pub items: Vec<BatchReview>,
    pub reason: String,
    pub problem: Option<Problem>,
}

/// One request of a batch with its task, if it can be shown.
#[derive(Debug, Clone)]
pub struct BatchReview {
    pub item: String,
    pub approval_id: String,
    pub review: Result<Review, Problem>,
}

impl BatchReview {
    fn title(&self) -> String {
        self.review.as_ref().map_or_else(|problem| visible(&problem.detail), Review::title)
    }

    fn level(&self) -> &'static str {
        self.review.as_ref().map_or("", Review::counted_level)
    }

    /// Bytes of what its preview shows.
    fn preview_len(&self) -> usize {
        let changes = self.review.as_ref().map(|review| review.task.preview.changes.as_slice());
        let len = |change: &PreviewChange| change.what.len() + change.diff.as_ref().map_or(0, String::len);
        changes.unwrap_or_default().iter().map(len).sum()
    }

    fn effect(&self) -> String {
        self.review.as_ref().map_or_else(|_| String::new(), Review::effect)
    }

    fn by(&self) -> String {
        self.review.as_ref().map_or_else(|_| String::new(), Review::proposer)
    }

    /// Why it cannot be among others. The server refuses it for the same reason.
    fn obstacle(&self) -> Option<String> {
        let review = match &self.review {
            Err(problem) => return Some(visible(&problem.detail)),
            Ok(review) => review,
        };
        let level = counted_level(review.task.risk.as_ref().map(|risk| risk.level));
        if is_decided_alone(level) {
            return Some(format!("{} must be decided on its own", level_name(level)));
        }
        if self.preview_len() > MAX_PREVIEW_LEN {
            return Some("its preview is too long to be read among others".to_owned());
        }
        if review.can_decide() {
            return None;
        }
        Some(
            review
                .why_not()
                .unwrap_or_else(|| format!("it is {} already", review.state().word.to_lowercase())),
        )
    }
}

/// Whether ADE found the same changes in two tasks, which do the same with the same things.
fn has_same_effects(one: &Review, other: &Review) -> bool {
    let (one, other) = (&one.task, &other.task);
    !one.preview.changes.is_empty()
        && !one.preview.unverifiable
        && one.preview.fingerprint.is_some()
        && one.preview.fingerprint == other.preview.fingerprint
        && one.scope_digest == other.scope_digest
        && (&one.config.executor, &one.config.parameters)
            == (&other.config.executor, &other.config.parameters)
}

impl BatchPage {
    /// The highest level among those that can be decided together.
    fn level(&self) -> &'static str {
        let is_medium = self.eligible().iter().any(|item| item.level() != level_name(RiskLevel::Low));
        level_name(if is_medium { RiskLevel::Medium } else { RiskLevel::Low })
    }

    fn eligible(&self) -> Vec<&BatchReview> {
        self.items.iter().filter(|item| item.obstacle().is_none()).collect()
    }

    /// Tasks with equal effects together, the most frequent first. What an author declares is not compared: equal previews of different
    /// parameters would be shown as one.
    fn groups(&self) -> Vec<Vec<(&BatchReview, &Review)>> {
        let mut groups: Vec<Vec<(&BatchReview, &Review)>> = Vec::new();
        let eligible =
            self.eligible().into_iter().filter_map(|item| Some((item, item.review.as_ref().ok()?)));
        for (item, review) in eligible {
            let same = |group: &&mut Vec<(&BatchReview, &Review)>| {
                group.first().is_some_and(|(_, first)| has_same_effects(first, review))
            };
            match groups.iter_mut().find(same) {
                Some(group) => group.push((item, review)),
                None => groups.push(vec![(item, review)]),
            }
        }
        groups.sort_by_key(|group| std::cmp::Reverse(group.len()));
        groups
    }

    fn ineligible(&self) -> Vec<(&BatchReview, String)> {
        self.items.iter().filter_map(|item| Some((item, item.obstacle()?))).collect()
    }

    /// What the server said about single requests.
    fn failures(&self) -> Vec<String> {
        let results: Option<Vec<serde_json::Value>> =
            self.problem.as_ref().and_then(|problem| problem.extension("items"));
        let text = |result: &serde_json::Value, name| {
            result.get(name).and_then(serde_json::Value::as_str).unwrap_or_default().to_owned()
        };
        let failure = |result: &serde_json::Value| {
            let id = text(result, "approval_id");
            let title =
                self.items.iter().find(|item| item.approval_id == id).map_or(id.clone(), BatchReview::title);
            let detail = text(result, "detail");
            (!detail.is_empty()).then(|| format!("{title}: {}", visible(&detail)))
        };
        results.unwrap_or_default().iter().filter_map(failure).collect()
    }

    fn heading(&self) -> String {
        let eligible = count(self.eligible().len(), "request");
        match self.ineligible().len() {
            0 => format!("Decide {} together", count(self.items.len(), "request")),
            1 => format!("Decide {eligible} together, 1 must be decided on its own"),
            left => format!("Decide {eligible} together, {left} must be decided one by one"),
        }
    }
}
