//! What somebody wants to be done, as it was said: what is not said stays as it was, or is as it usually is.

use ade_domain::Invalid;
use ade_domain::task::{
    AGENT, Config, Digest, Lineage, Metadata, NOOP, Preview, PreviewChange, Resource, RollbackStrategy,
};
use ade_store::database::StoredTask;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::tasks::Draft;
use crate::{Caller, Error, TaskService};

const MOST_TAGS: usize = 50;
const LONGEST_TEXT: usize = 256;
const MOST_CHANGES: usize = 1_000;
/// Bytes of what would change.
const LONGEST_PREVIEW: usize = 262_144;
const MOST_NOTES: usize = 100;
const LONGEST_NOTE: usize = 4_096;
const USUAL_PRIORITY: u8 = 50;

/// What somebody wants; every part may be missing.
#[derive(Debug, Clone, Default)]
pub struct Proposal {
    /// What kind of task.
    pub task_type: Option<String>,
    /// Which version of that kind.
    pub version: Option<String>,
    /// What it is, for people.
    pub description: Option<String>,
    /// Who carries it out.
    pub executor: Option<String>,
    /// What the executor needs to know.
    pub parameters: Option<Map<String, Value>>,
    /// What it touches.
    pub resources: Option<Vec<Resource>>,
    /// What happens when it fails.
    pub rollback_strategy: Option<RollbackStrategy>,
    /// How long carrying it out may take.
    pub timeout_seconds: Option<u32>,
    /// 0 to 100.
    pub priority: Option<u8>,
    /// For which team.
    pub team: Option<Option<String>>,
    /// For which ticket.
    pub ticket_ref: Option<Option<String>>,
    /// Words to find it by.
    pub tags: Option<Vec<String>>,
    /// Through whom it came.
    pub lineage: Option<Lineage>,
    /// What it would change, as its agent says.
    pub preview: Option<SaidPreview>,
}

/// What an agent says that its task would change.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct SaidPreview {
    /// What would change.
    pub changes: Vec<PreviewChange>,
    /// What to look at twice.
    pub warnings: Vec<String>,
    /// What would go wrong.
    pub errors: Vec<String>,
}

impl SaidPreview {
    fn preview(self) -> Preview {
        let fingerprint = Digest::of(&self);
        let Self { changes, warnings, errors } = self;
        Preview { changes, warnings, errors, fingerprint, unverifiable: true, ..Preview::ready() }
    }
}

impl Proposal {
    /// A new draft of it.
    pub fn draft(self, usual_timeout_seconds: u32, caller: &Caller) -> Result<Draft, Error> {
        let mut missing = Vec::new();
        for (pointer, said) in [("/type", &self.task_type), ("/description", &self.description)] {
            if said.is_none() {
                missing.push(Invalid::at(pointer, "is needed"));
            }
        }
        if !missing.is_empty() {
            return Err(Error::Invalid(missing));
        }
        let nothing = Draft {
            config: Config {
                task_type: String::new(),
                version: "1".to_owned(),
                description: String::new(),
                executor: AGENT.to_owned(),
                parameters: Map::new(),
                resources: Vec::new(),
                rollback_strategy: RollbackStrategy::default(),
                timeout_seconds: usual_timeout_seconds,
                priority: USUAL_PRIORITY,
            },
            metadata: Metadata {
                author_name: caller.user.as_ref().map(|user| user.name.clone()).unwrap_or_default(),
                team: caller.user.as_ref().and_then(|user| user.team.clone()),
                ..Metadata::default()
            },
            preview: Preview::none(),
            predecessor: None,
        };
        self.over(nothing, caller)
    }

    /// What it makes of a task that is there.
    pub fn change(&self, before: &StoredTask, caller: &Caller) -> Result<(Config, Metadata, Preview), Error> {
        let before = Draft {
            config: before.config.clone(),
            metadata: before.metadata.clone(),
            preview: before.preview.clone(),
            predecessor: None,
        };
        let Draft { config, metadata, preview, .. } = self.clone().over(before, caller)?;
        Ok((config, metadata, preview))
    }

    fn over(self, mut draft: Draft, caller: &Caller) -> Result<Draft, Error> {
        let faults = self.faults();
        if !faults.is_empty() {
            return Err(Error::Invalid(faults));
        }
        let Draft { config, metadata, preview, .. } = &mut draft;
        let before = config.clone();
        fn put<T>(place: &mut T, said: Option<T>) {
            if let Some(said) = said {
                *place = said;
            }
        }
        put(&mut config.task_type, self.task_type);
        put(&mut config.version, self.version);
        put(&mut config.description, self.description);
        put(&mut config.executor, self.executor);
        put(&mut config.parameters, self.parameters);
        put(&mut config.resources, self.resources);
        put(&mut config.rollback_strategy, self.rollback_strategy);
        put(&mut config.timeout_seconds, self.timeout_seconds);
        put(&mut config.priority, self.priority);
        put(&mut metadata.team, self.team);
        put(&mut metadata.ticket_ref, self.ticket_ref);
        put(&mut metadata.tags, self.tags);
        put(&mut metadata.lineage, self.lineage);
        // An agent cannot say that it was somebody else, nor that somebody else answers for it.
        if let (Some(agent), Some(sponsor)) = (&caller.agent_id, &caller.user) {
            metadata.lineage.agent_id = Some(agent.clone());
            metadata.lineage.sponsor_id = Some(sponsor.user_id.clone());
        }
        *preview = match (config.executor.as_str(), self.preview) {
            (AGENT, Some(said)) => said.preview(),
            // What was said about something else says nothing about this.
            (AGENT, None) if *config != before => Preview::none(),
            (AGENT, None) => preview.clone(),
            (NOOP, None) => ade_executors::preview_of(Vec::new(), Vec::new(), Vec::new()),
            // What can be found out is not said.
            (_, Some(_)) => return Err(Error::invalid("/preview", "is said for the executor agent alone")),
            (_, None) => Preview::pending(),
        };
        Ok(draft)
    }

    fn faults(&self) -> Vec<Invalid> {
        let mut faults = Vec::new();
        let mut check = |holds: bool, pointer: &str, detail: String| {
            if !holds {
                faults.push(Invalid::at(pointer, detail));
            }
        };
        let plain =
            |text: &String| (1..=LONGEST_TEXT).contains(&text.len()) && !text.chars().any(char::is_control);
        let text = format!("must be 1 to {LONGEST_TEXT} bytes without control characters");
        for (pointer, said) in [("/team", &self.team), ("/ticket_ref", &self.ticket_ref)] {
            let fits = said.iter().flatten().all(plain);
            check(fits, pointer, text.clone());
        }
        if let Some(tags) = &self.tags {
            let fits = tags.len() <= MOST_TAGS && tags.iter().all(plain);
            check(fits, "/tags", format!("may be at most {MOST_TAGS}, each of 1 to {LONGEST_TEXT} bytes"));
        }
        if let Some(Lineage { agent_id, parent_agent_id, sponsor_id }) = &self.lineage {
            let sponsor = sponsor_id.as_ref().map(ToString::to_string);
            let fits = [agent_id, parent_agent_id, &sponsor].into_iter().flatten().all(plain);
            check(fits, "/lineage", text);
        }
        if let Some(said) = &self.preview {
            let fits = said.changes.len() <= MOST_CHANGES;
            check(fits, "/preview/changes", format!("may be at most {MOST_CHANGES}"));
            let bytes: usize = said
                .changes
                .iter()
                .map(|one| one.what.len() + one.diff.as_ref().map_or(0, String::len))
                .sum();
            check(
                bytes <= LONGEST_PREVIEW,
                "/preview/changes",
                format!("may have at most {LONGEST_PREVIEW} bytes"),
            );
            for (pointer, notes) in [("/preview/warnings", &said.warnings), ("/preview/errors", &said.errors)]
            {
                let fits = notes.len() <= MOST_NOTES && notes.iter().all(|note| note.len() <= LONGEST_NOTE);
                check(fits, pointer, format!("may be at most {MOST_NOTES}, each of {LONGEST_NOTE} bytes"));
            }
        }
        faults
    }
}

impl TaskService {
    /// A new draft of what somebody wants.
    pub async fn propose(&self, proposal: Proposal, caller: &Caller) -> Result<StoredTask, Error> {
        let facts = self.facts(proposal.task_type.as_deref().unwrap_or_default()).await?;
        let usual = facts.settings().task_default_timeout;
        let draft = proposal.draft(u32::try_from(usual).unwrap_or(u32::MAX), caller)?;
        self.create_by(&facts, draft, caller).await
    }

    /// The same draft, only imagined.
    pub async fn imagine(&self, proposal: Proposal, caller: &Caller) -> Result<Draft, Error> {
        let mut draft = self.drafted(proposal, caller).await?;
        draft.preview = self.look_ahead(&draft.config, draft.preview).await?;
        Ok(draft)
    }

    async fn drafted(&self, proposal: Proposal, caller: &Caller) -> Result<Draft, Error> {
        let usual = self.settings().await?.task_default_timeout;
        proposal.draft(u32::try_from(usual).unwrap_or(u32::MAX), caller)
    }
}
