//! What would happen if: the same functions on a draft or an imagined task, at an imagined time, with drafted policies. Changes
//! nothing, and says what submitting would do.

use std::collections::BTreeMap;

use ade_domain::Moment;
use ade_domain::approval::assignment::{Assignment, QuorumUnreachable};
use ade_domain::approval::policy::Policy;
use ade_domain::approval::quorum::least;
use ade_domain::people::{AuthorSet, UserId};
use ade_domain::permission::Scope;
use ade_domain::risk::Risk;
use ade_domain::task::Task;
use ade_domain::task::{Config, LockPreview, Metadata, Preview, State};
use ade_store::database::{StoredTask, TaskFilter};

use crate::{Caller, Error};

use super::facts::Seen;
use super::use_cases::checked;
use super::{Draft, TaskService};

/// How many past tasks a replay looks at.
const MOST_REPLAYED: usize = 10_000;
/// How many at once.
const PAGE: u32 = 200;

/// A task that somebody imagines.
#[derive(Debug, Clone)]
pub struct Imagined {
    /// What is to be done.
    pub config: Config,
    /// What is said about it besides.
    pub metadata: Metadata,
    /// What it would change.
    pub preview: Preview,
    /// Whose it is, if it is not the caller's: its author, and who can never decide about it.
    pub authors: Option<(UserId, AuthorSet)>,
    /// When; now, if nothing is said.
    pub at: Option<Moment>,
    /// Policies as if they were in force; each takes the place of the one with its name.
    pub policies: Vec<Policy>,
}

impl Imagined {
    /// A draft that is only imagined.
    #[must_use]
    pub fn new(draft: Draft, at: Option<Moment>, policies: Vec<Policy>) -> Self {
        let Draft { config, metadata, preview, .. } = draft;
        Self { config, metadata, preview, authors: None, at, policies }
    }

    /// A task that is there, as if it were submitted as it is.
    #[must_use]
    pub fn of(task: &StoredTask, at: Option<Moment>, policies: Vec<Policy>) -> Self {
        Self {
            config: task.config.clone(),
            metadata: task.metadata.clone(),
            preview: task.preview.clone(),
            authors: Some((task.author_id.clone(), task.author_set.clone())),
            at,
            policies,
        }
    }
}

/// What would happen.
#[derive(Debug, Clone, PartialEq)]
pub struct Simulated {
    /// How dangerous it is.
    pub risk: Risk,
    /// Who would be asked, and why; or why nobody could decide.
    pub assignment: Result<Assignment, QuorumUnreachable>,
    /// How many must agree, at least.
    pub required_count: u32,
    /// The locks of its resources that carrying it out would need, as they are now.
    pub locks: Vec<LockPreview>,
}

/// A past task that would have gone another way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Differs {
    /// Which.
    pub task_id: String,
    /// What was asked for then, in a sentence.
    pub was: String,
    /// What would be asked for.
    pub would_be: String,
}

impl TaskService {
    /// What submitting would do.
    pub async fn simulate(&self, imagined: &Imagined, caller: &Caller) -> Result<Simulated, Error> {
        caller.require(Scope::Read)?;
        let digest = checked(&imagined.config)?;
        let now = imagined.at.unwrap_or_else(|| self.clock.now());
        let facts = self.facts(&imagined.config.task_type).await?.with(&imagined.policies);
        let (author, authors) = match imagined.authors.clone() {
            Some(of_task) => of_task,
            // The bootstrap token counts as nobody: what it imagines has no author.
            None => {
                let author = caller.actor().user.unwrap_or_else(|| UserId::new("nobody"));
                (author, self.authors(&imagined.metadata.lineage, caller).await?)
            }
        };
        let mut review = Task::draft("imagined", imagined.config.clone(), digest, author, authors, now);
        review.by_agent = caller.agent_id.is_some() || imagined.metadata.lineage.agent_id.is_some();
        let risk = facts.risk(&imagined.config, &imagined.preview);
        let assignment =
            facts.assign(&review, &imagined.config, Seen::of(risk.score, &imagined.preview), now);
        let required_count = assignment.as_ref().map_or(0, |assignment| least(&assignment.requirements));
        let locks = self.lock_preview(&imagined.config, None).await;
        Ok(Simulated { risk, assignment, required_count, locks })
    }

    /// The past tasks that would have gone another way with a drafted policy: each is looked at as it was submitted, at the
    /// time at which it was, by the people and the other rules of today; once without the draft, and once with it.
    pub async fn replay(&self, drafted: &Policy, caller: &Caller) -> Result<Vec<Differs>, Error> {
        caller.require(Scope::Read)?;
        let (mut differs, mut before, mut seen) = (Vec::new(), None::<String>, 0);
        // By the type of the tasks.
        let mut known = BTreeMap::new();
        loop {
            let page = self.record.tasks(&TaskFilter::default(), before.as_deref(), PAGE).await?;
            for task in &page {
                let review = &task.task;
                let Some(at) = review.since.get(&State::Submitted).copied() else { continue };
                let of = &review.config.task_type;
                if !known.contains_key(of) {
                    let facts = self.facts(of).await?;
                    let with = facts.with(std::slice::from_ref(drafted));
                    known.insert(of.clone(), (facts, with));
                }
                let Some((facts, with)) = known.get(of) else { continue };
                let seen = Seen::of(review.risk_score(), &task.preview);
                let was = said(&facts.assign(review, &review.config, seen, at));
                let would_be = said(&with.assign(review, &review.config, seen, at));
                if was != would_be {
                    differs.push(Differs { task_id: review.task_id.clone(), was, would_be });
                }
            }
            seen += page.len();
            before = page.last().map(|task| task.task_id.clone());
            if page.len() < PAGE as usize || seen >= MOST_REPLAYED {
                return Ok(differs);
            }
        }
    }
}

/// What is asked for, in a sentence: who must agree, not why.
fn said(assignment: &Result<Assignment, QuorumUnreachable>) -> String {
    match assignment {
        Err(refused) => refused.to_string(),
        Ok(Assignment { auto_approved: Some(_), .. }) => "nobody is asked".to_owned(),
        Ok(assignment) => {
            let of = |one: &ade_domain::approval::quorum::Requirement| {
                let people: Vec<&str> = one.reviewers.keys().map(|who| who.as_str()).collect();
                format!("{} of {} for {}", one.min_approvers, people.join(", "), one.policy)
            };
            assignment.requirements.iter().map(of).collect::<Vec<_>>().join("; ")
        }
    }
}
