//! Proposals: the optional fields of a request that creates or changes a task, validated and merged into a draft.

use ade_domain::InvalidField;
use ade_domain::permission::Scope;
use ade_domain::task::{
    AGENT_EXECUTOR, Config, Digest, Lineage, Metadata, NOOP_EXECUTOR, Preview, PreviewChange, Resource,
    RollbackStrategy,
};
use ade_store::database::StoredTask;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::preview::{PreviewRequest, is_declared};
use super::{TaskDraft, TaskService};
use crate::error::require_valid;
use crate::{Caller, Error, Result, Settings, set};

const MAX_TAGS: usize = 50;
const MAX_TEXT_LEN: usize = 256;
const MAX_PREVIEW_CHANGES: usize = 1_000;
const MAX_PREVIEW_BYTES: usize = 262_144;
/// Warnings or errors of a preview.
const MAX_NOTES: usize = 100;
const MAX_NOTE_LEN: usize = 4_096;
const DEFAULT_PRIORITY: u8 = 50;

/// A missing field keeps its value in a task, and has its default in a new one. `Some(None)` clears a field.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Proposal {
    pub task_type: Option<String>,
    pub version: Option<String>,
    pub description: Option<String>,
    pub executor: Option<String>,
    pub parameters: Option<Map<String, Value>>,
    pub resources: Option<Vec<Resource>>,
    pub rollback_strategy: Option<RollbackStrategy>,
    pub timeout_seconds: Option<u32>,
    /// From 0 to 100.
    pub priority: Option<u8>,
    pub team: Option<Option<String>>,
    pub ticket_ref: Option<Option<String>>,
    pub tags: Option<Vec<String>>,
    pub lineage: Option<Lineage>,
    /// Only for the executor `agent`.
    pub preview: Option<DeclaredPreview>,
}

/// The preview that an agent declares for its own task.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeclaredPreview {
    pub changes: Vec<PreviewChange>,
    pub warnings: Vec<String>,
    pub errors: Vec<String>,
}

impl DeclaredPreview {
    fn to_preview(&self) -> Preview {
        let fingerprint = Digest::of(self);
        let Self { changes, warnings, errors } = self.clone();
        Preview { changes, warnings, errors, fingerprint, unverifiable: true, ..Preview::ready() }
    }
}

impl Proposal {
    fn to_draft(&self, settings: &Settings, caller: &Caller) -> Result<TaskDraft> {
        let required = [("type", &self.task_type), ("description", &self.description)];
        let missing = required.into_iter().filter(|(_, value)| value.is_none());
        let missing: Vec<InvalidField> =
            missing.map(|(path, _)| InvalidField::at(path, "is required")).collect();
        require_valid(missing)?;
        let default = TaskDraft {
            config: Config {
                task_type: String::new(),
                version: "1".to_owned(),
                description: String::new(),
                executor: AGENT_EXECUTOR.to_owned(),
                parameters: Map::new(),
                resources: Vec::new(),
                rollback_strategy: RollbackStrategy::default(),
                timeout_seconds: u32::try_from(settings.task_default_timeout).unwrap_or(u32::MAX),
                priority: DEFAULT_PRIORITY,
            },
            metadata: Metadata {
                author_name: caller.user.as_ref().map(|user| user.name.clone()).unwrap_or_default(),
                team: caller.user.as_ref().and_then(|user| user.team.clone()),
                ..Metadata::default()
            },
            preview: Preview::none(),
        };
        self.merge_into(default)
    }

    /// The changed config, metadata and preview of a task.
    pub fn change(&self, task: &StoredTask) -> Result<TaskDraft> {
        self.merge_into(TaskDraft::of(task))
    }

    fn merge_into(&self, mut draft: TaskDraft) -> Result<TaskDraft> {
        require_valid(self.faults())?;
        let TaskDraft { config, metadata, preview } = &mut draft;
        let before = config.clone();
        set(&mut config.task_type, &self.task_type);
        set(&mut config.version, &self.version);
        set(&mut config.description, &self.description);
        set(&mut config.executor, &self.executor);
        set(&mut config.parameters, &self.parameters);
        set(&mut config.resources, &self.resources);
        set(&mut config.rollback_strategy, &self.rollback_strategy);
        set(&mut config.timeout_seconds, &self.timeout_seconds);
        set(&mut config.priority, &self.priority);
        set(&mut metadata.team, &self.team);
        set(&mut metadata.ticket_ref, &self.ticket_ref);
        set(&mut metadata.tags, &self.tags);
        set(&mut metadata.lineage, &self.lineage);
        *preview = match (config.executor.as_str(), &self.preview) {
            (AGENT_EXECUTOR, Some(declared)) => declared.to_preview(),
            // A preview of another config is worthless.
            (AGENT_EXECUTOR, None) if *config != before => Preview::none(),
            (AGENT_EXECUTOR, None) => preview.clone(),
            (NOOP_EXECUTOR, None) => ade_executors::ready_preview(Vec::new(), Vec::new(), Vec::new()),
            (_, Some(_)) => {
                let detail = "is only allowed for the executor agent; the service computes all others";
                return Err(Error::invalid("preview", detail));
            }
            (_, None) => Preview::pending(),
        };
        Ok(draft)
    }

    fn faults(&self) -> Vec<InvalidField> {
        let mut faults = Vec::new();
        let mut check = |is_valid: bool, path: &str, detail: String| {
            if !is_valid {
                faults.push(InvalidField::at(path, detail));
            }
        };
        let is_text =
            |text: &String| (1..=MAX_TEXT_LEN).contains(&text.len()) && !text.chars().any(char::is_control);
        let text = format!("must be 1 to {MAX_TEXT_LEN} bytes without control characters");
        for (path, value) in [("team", &self.team), ("ticket_ref", &self.ticket_ref)] {
            check(value.iter().flatten().all(is_text), path, text.clone());
        }
        if let Some(tags) = &self.tags {
            let is_valid = tags.len() <= MAX_TAGS && tags.iter().all(is_text);
            check(
                is_valid,
                "tags",
                format!("must be at most {MAX_TAGS} tags of 1 to {MAX_TEXT_LEN} bytes each"),
            );
        }
        if let Some(Lineage { agent_id, parent_agent_id, sponsor_id }) = &self.lineage {
            let sponsor = sponsor_id.as_ref().map(ToString::to_string);
            let is_valid = [agent_id, parent_agent_id, &sponsor].into_iter().flatten().all(is_text);
            check(is_valid, "lineage", text);
        }
        if let Some(preview) = &self.preview {
            let is_valid = preview.changes.len() <= MAX_PREVIEW_CHANGES;
            check(is_valid, "preview.changes", format!("must have at most {MAX_PREVIEW_CHANGES} entries"));
            let size =
                |change: &PreviewChange| change.what.len() + change.diff.as_ref().map_or(0, String::len);
            let bytes: usize = preview.changes.iter().map(size).sum();
            check(
                bytes <= MAX_PREVIEW_BYTES,
                "preview.changes",
                format!("must have at most {MAX_PREVIEW_BYTES} bytes"),
            );
            for (path, notes) in
                [("preview.warnings", &preview.warnings), ("preview.errors", &preview.errors)]
            {
                let is_valid =
                    notes.len() <= MAX_NOTES && notes.iter().all(|note| note.len() <= MAX_NOTE_LEN);
                let detail =
                    format!("must be at most {MAX_NOTES} texts of at most {MAX_NOTE_LEN} bytes each");
                check(is_valid, path, detail);
            }
        }
        faults
    }
}

impl TaskService {
    /// Creates a draft from a proposal.
    pub async fn propose(&self, proposal: Proposal, caller: &Caller) -> Result<StoredTask> {
        let planner = self.planner(proposal.task_type.as_deref().unwrap_or_default()).await?;
        let draft = proposal.to_draft(planner.settings(), caller)?;
        self.create_with(planner, draft, caller).await
    }

    /// The draft that a proposal would create, with its preview; nothing is stored. A preview that has to be computed is only for
    /// callers who could create the task.
    pub async fn draft_for_simulation(&self, proposal: Proposal, caller: &Caller) -> Result<TaskDraft> {
        caller.require_scope(Scope::Read)?;
        let planner = self.planner(proposal.task_type.as_deref().unwrap_or_default()).await?;
        let mut draft = proposal.to_draft(planner.settings(), caller)?;
        planner.scope_for(&draft.config, caller)?;
        if !is_declared(&draft.config) {
            caller.require_scope(Scope::Propose)?;
            caller.actor().authorize_simulated_preview()?;
        }
        let request = PreviewRequest { caller, task_id: None };
        draft.preview = self.compute_preview(&draft.config, draft.preview, request).await?;
        Ok(draft)
    }
}
