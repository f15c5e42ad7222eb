//! The author set of a task: who proposes and changes it, and therefore never decides on it.

use super::{Actor, Lineage, Task, TaskState};
use crate::InvalidField;
use crate::people::{AuthorReason, AuthorSet, Sponsors};

impl Actor {
    /// The author set of what this actor proposes, without the sponsors that its lineage adds.
    pub fn author_set(&self) -> AuthorSet {
        let mut authors = AuthorSet::default();
        if let Some(user) = &self.user {
            let reason = if self.is_agent { AuthorReason::SponsorsAgent } else { AuthorReason::Author };
            authors.add(user.clone(), reason);
        }
        if let Some(issuer) = &self.token_issuer {
            authors.add(issuer.clone(), AuthorReason::TokenIssuer);
        }
        authors
    }
}

impl Task {
    /// The author set once this actor has changed the task to this lineage. Earlier authors remain; only sponsors of a
    /// replaced lineage leave, and the lineage of a submitted task is fixed: naming one sponsor after the other would let the
    /// author choose who decides.
    pub fn author_set_after_edit(
        &self,
        lineage: &Lineage,
        sponsors: &Sponsors,
        actor: &Actor,
    ) -> Result<AuthorSet, InvalidField> {
        let mut authors = self.author_set.clone();
        if *lineage != self.metadata.lineage {
            if self.state != TaskState::Draft {
                return Err(InvalidField::at("lineage", "cannot be changed once the task was submitted"));
            }
            authors.remove_lineage();
        }
        let mut editors = AuthorSet::default();
        if let Some(user) = actor.user.as_ref().filter(|user| !actor.is_agent && **user != self.author_id) {
            editors.add(user.clone(), AuthorReason::Editor);
        }
        editors.merge(actor.author_set());
        editors.add_lineage(lineage, sponsors);
        authors.merge(editors);
        Ok(authors)
    }

    /// The author set of a draft that this actor makes of this task: nobody who could not decide on this one decides on the
    /// draft.
    pub fn author_set_for_resubmission(&self, sponsors: &Sponsors, actor: &Actor) -> AuthorSet {
        let mut authors = actor.author_set();
        for user in self.author_set.iter() {
            let reason = AuthorReason::PredecessorAuthor { task_id: self.task_id.clone() };
            authors.add(user.clone(), reason);
        }
        authors.add_lineage(&self.metadata.lineage, sponsors);
        authors
    }
}
