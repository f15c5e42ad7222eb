//! Actions of the audit log in words: `policy.update` is "update the policy" where it is proposed, and "updated the policy" where it
//! was done. An action without words of its own is shown by its name.

use crate::format::short_id;

/// Verbs of actions, as proposed and as done.
const VERBS: &[(&str, &str, &str)] = &[
    ("activate", "activate", "activated"),
    ("approve", "approve", "approved"),
    ("archive", "archive", "archived"),
    ("cancel", "cancel", "cancelled"),
    ("comment", "comment on", "commented on"),
    ("complete", "complete", "completed"),
    ("confirm", "confirm", "confirmed"),
    ("create", "create", "created"),
    ("delete", "delete", "deleted"),
    ("disable", "disable", "disabled"),
    ("expire", "expire", "expired"),
    ("invite", "invite", "invited"),
    ("modify", "change", "changed"),
    ("propose", "propose", "proposed"),
    ("raise", "raise the priority of", "raised the priority of"),
    ("recover", "recover", "recovered"),
    ("reject", "reject", "rejected"),
    ("resolve", "resolve", "resolved"),
    ("restore", "restore", "restored"),
    ("resubmit", "resubmit", "resubmitted"),
    ("revoke", "revoke", "revoked"),
    ("rotate", "replace the secret of", "replaced the secret of"),
    ("set", "change", "changed"),
    ("submit", "submit", "submitted"),
    ("test", "test", "tested"),
    ("update", "change", "changed"),
    ("verify", "verify", "verified"),
];

/// Nouns of actions.
const NOUNS: &[(&str, &str)] = &[
    ("agent", "the agent"),
    ("approval", "the approval request"),
    ("archive", "the archive"),
    ("audit", "the audit log"),
    ("change", "a change"),
    ("config", "the setting"),
    ("delegation", "the delegation"),
    ("feature", "the feature flag"),
    ("hook", "the inbound hook"),
    ("lock", "the lock"),
    ("policy", "the policy"),
    ("resource", "the resource"),
    ("session", "a session"),
    ("task", "the task"),
    ("token", "a token"),
    ("user", "the user"),
    ("webhook", "the webhook"),
];

/// What was done, where verb and noun do not say it.
const PHRASES: &[(&str, &str)] = &[
    ("approval.approve", "approved the request"),
    ("approval.delegate", "delegated the approval request"),
    ("approval.escalate", "escalated the approval request"),
    ("approval.follow", "followed another decision on the approval request"),
    ("approval.lapse", "let the approval request lapse"),
    ("approval.reassign", "assigned the approval request to somebody else"),
    ("approval.reject", "rejected the request"),
    ("approval.request", "asked for approval"),
    ("approval.request_changes", "requested changes"),
    ("approval.resolve", "closed the approval request"),
    ("approval.unanswered", "closed the approval request unanswered"),
    ("audit.mismatch", "found a contradiction in the audit log"),
    ("audit.quarantine", "quarantined rows that ADE did not write"),
    ("lock.break", "broke the lock"),
    ("lock.deadlock", "resolved a deadlock at the lock"),
    ("lock.queue_full", "refused a waiter: the queue of the lock is full"),
    ("session.create", "signed in"),
    ("session.end", "signed out"),
    ("session.reauthenticate", "gave the password again"),
    ("session.refuse", "failed to sign in"),
    ("change.expire", "let a change expire unconfirmed"),
    ("task.begin_apply", "began to apply the task"),
    ("task.fail", "ended the task as failed"),
    ("task.force_apply", "put the task before all others"),
    ("task.go_stale", "found that the preview of the task changed"),
    ("task.retry", "began to apply the task again"),
    ("task.stop", "asked to stop the task"),
    ("task.submit", "submitted the task for review"),
    ("task.assign", "assigned reviewers to the task"),
    ("task.confirm_override", "confirmed the override"),
    ("task.override", "requested an override"),
    ("task.preview", "asked for a preview"),
    ("task.previewed", "previewed the task"),
    ("task.roll_back", "asked to roll back the task"),
    ("task.rollback_failed", "could not roll back the task"),
    ("task.rolled_back", "rolled back the task"),
    ("task.rolling_back", "began to roll back the task"),
    ("task.started", "started the executor of the task"),
    ("user.confirm", "confirmed that another person uses the account"),
    ("user.join", "joined with an invitation"),
    ("user.slack_code", "created a code to link Slack"),
    ("user.slack_link", "linked Slack"),
    ("user.slack_unlink", "ended the link with Slack"),
    ("webhook.redeliver", "sent a delivery of the webhook again"),
];

/// Why the service acted by itself, with short ids.
pub(crate) fn trigger(trigger: &str) -> String {
    // No policy is named if none has conditions that the task met: the default approves.
    let trigger = trigger.trim_end();
    let trigger = trigger.strip_suffix(" by policy").unwrap_or(trigger);
    let words: Vec<&str> = trigger.split(' ').map(short_id).collect();
    words.join(" ")
}

fn parts(action: &str) -> Option<(&'static str, &'static str, &'static str)> {
    let (noun, verb) = action.split_once('.')?;
    let (_, noun) = NOUNS.iter().find(|(name, _)| *name == noun)?;
    let (_, proposed, done) = VERBS.iter().find(|(name, ..)| *name == verb)?;
    Some((noun, proposed, done))
}

/// `policy.update` as `change the policy`.
pub(crate) fn proposed(action: &str) -> String {
    parts(action).map_or_else(|| action.to_owned(), |(noun, proposed, _)| format!("{proposed} {noun}"))
}

/// `policy.update` as `changed the policy`.
pub(crate) fn done(action: &str) -> String {
    if let Some((_, phrase)) = PHRASES.iter().find(|(name, _)| *name == action) {
        return (*phrase).to_owned();
    }
    parts(action).map_or_else(|| action.to_owned(), |(noun, _, done)| format!("{done} {noun}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn triggers_name_what_there_is() {
        assert_eq!(trigger("automatic approval by policy "), "automatic approval");
        assert_eq!(trigger("automatic approval by policy night"), "automatic approval by policy night");
        assert_eq!(trigger("decision 019a9d1e-3c4f-7a10-8f00-1234567890ab"), "decision 019a9d1e-3c4f");
    }

    #[test]
    fn actions_are_phrases() {
        assert_eq!(proposed("policy.update"), "change the policy");
        assert_eq!(done("policy.update"), "changed the policy");
        assert_eq!(done("lock.break"), "broke the lock");
        assert_eq!(done("new.thing"), "new.thing");
        assert_eq!(proposed("new.thing"), "new.thing");
    }
}
