//! Creating, changing and deactivating users. A user who leaves is signed out, and the open approval requests are reassigned
//! in the same transaction.

use std::collections::BTreeSet;

use ade_domain::approval::assignment::RuleChange;
use ade_domain::approval::policy::PolicyVersions;
use ade_domain::audit::Trigger;
use ade_domain::dual_control::changes_who_decides;
use ade_domain::independence::{AccountActKind, AccountHistory, granted_roles};
use ade_domain::people::{ADMIN, AUTHOR, REVIEWER, User, UserId};
use ade_domain::permission::Scope;
use ade_domain::webhook::slack_account::SlackAccount;
use ade_domain::{InvalidField, Moment};
use ade_store::DatabaseError;
use ade_store::database::{Commit, Document, Password, StoredUser, Versioned, Write};
use serde_json::json;

use super::acts::record_acts;
use super::user_change::{UserChange, UserDraft, UserProposal, faults};
use super::{AccountService, random_secrets};
use crate::error::require_valid;
use crate::events::AuditedAction;
use crate::idempotency::stored_response;
use crate::retry::{MAX_ATTEMPTS, retry_on_conflict};
use crate::{Caller, Context, Error, Outcome, Result, new_id};

/// Characters of the first administrator's password: 96 bits.
const FIRST_PASSWORD_LEN: usize = 24;

impl AccountService {
    /// Creates a user. A password that is given with it is temporary: it only leads to setting an own one.
    pub async fn create_user(&self, draft: UserDraft, caller: &Caller) -> Result<StoredUser> {
        self.add_user(draft, true, caller).await
    }

    /// Creates a user of the demo, whose password counts as its own.
    pub(crate) async fn create_demo_user(&self, draft: UserDraft, caller: &Caller) -> Result<StoredUser> {
        self.add_user(draft, false, caller).await
    }

    async fn add_user(&self, draft: UserDraft, is_temporary: bool, caller: &Caller) -> Result<StoredUser> {
        caller.require_admin()?;
        let UserDraft { user_id, change } = draft;
        let mut user = User {
            name: user_id.clone(),
            user_id: UserId::new(user_id),
            roles: BTreeSet::from([AUTHOR.to_owned()]),
            manager_id: None,
            team: None,
            email: None,
            active: true,
            history: AccountHistory::default(),
        };
        let nobody = user.clone();
        change.apply(&mut user);
        self.validate(&user).await?;
        self.refuse_agent_name(user.user_id.as_str()).await?;
        self.refuse_new_decision_maker(&nobody, &user, caller).await?;
        let (people, now) = (self.context.database.people().await?, self.context.now());
        record_acts(&mut user, [AccountActKind::Created], &people, caller, now);
        let password = self.hash_new(&change).await?.map(|hash| Password { hash, is_temporary });
        let stored = StoredUser { user, revision: 1, password, invitation: None };
        let action = AuditedAction {
            revision: Some(1),
            details: change.details(),
            notify: people.administrators(),
            ..AuditedAction::new("user.create", stored.user.user_id.as_str())
        };
        let writes = vec![Write::User { user: Box::new(stored.clone()), expected: None }];
        let mut commit = action.commit(writes, caller, now);
        let outcome = |_| Outcome::User { user: stored.user.clone(), revision: stored.revision };
        commit.response = stored_response(caller, outcome)?;
        match self.context.database.commit(commit).await {
            Err(DatabaseError::AlreadyExists { .. }) => {
                Err(Error::Exists(format!("user {}", stored.user.user_id)))
            }
            committed => Ok(committed.map(|()| stored)?),
        }
    }

    /// Creates the first administrator and returns the password, which is shown now and never again; `None` if there are
    /// users already.
    pub async fn create_first_admin(&self) -> Result<Option<String>> {
        if !self.context.database.users(None, 1).await?.is_empty() {
            return Ok(None);
        }
        let password = random_secrets::new("")?.chars().take(FIRST_PASSWORD_LEN).collect::<String>();
        let hash = self.passwords.hash(password.clone()).await?;
        let stored = Some(Password { hash, is_temporary: false });
        let user = User {
            user_id: UserId::new("admin"),
            name: "Administrator".to_owned(),
            roles: BTreeSet::from([ADMIN.to_owned()]),
            manager_id: None,
            team: None,
            email: None,
            active: true,
            history: AccountHistory { was_admin: true, ..AccountHistory::default() },
        };
        let user = Box::new(StoredUser { user, revision: 1, password: stored, invitation: None });
        let action = AuditedAction::new("user.create", "admin").with_revision(1);
        let (by, writes) =
            (self.context.service("accounts", Trigger::Start), vec![Write::User { user, expected: None }]);
        let commit = action.commit_as(by, writes, self.context.now());
        match self.context.database.commit(commit).await {
            Ok(()) => Ok(Some(password)),
            // Another server was first.
            Err(DatabaseError::AlreadyExists { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) async fn validate(&self, user: &User) -> Result<()> {
        let mut faults = faults(user);
        if faults.is_empty()
            && let Some(manager) = &user.manager_id
            && self.context.database.user(manager).await?.is_none()
        {
            faults.push(InvalidField::at("manager_id", format!("user {manager} does not exist")));
        }
        require_valid(faults)
    }

    /// Roles for which an active policy asks, or which it trusts.
    async fn policy_roles(&self) -> Result<BTreeSet<String>> {
        let policies = self.context.database.documents::<PolicyVersions>().await?;
        let active = policies.iter().filter_map(|policy| policy.value.active());
        let roles = active.flat_map(|policy| {
            let trusted = policy.auto_approve_if.iter().flat_map(|conditions| &conditions.author_has_role);
            policy.required_roles.iter().chain(&policy.escalation_role).chain(trusted)
        });
        Ok(roles.cloned().collect())
    }

    /// Locks and work belong to names: a user must not get those of an agent.
    pub(super) async fn refuse_agent_name(&self, user_id: &str) -> Result<()> {
        let Context { database, coordination, .. } = &self.context;
        let is_agent = database.agent(user_id).await?.is_some()
            || coordination.agent(user_id.to_owned()).await?.is_some();
        if is_agent {
            return Err(Error::invalid(
                "user_id",
                format!("{user_id} is an agent; choose another id for the user"),
            ));
        }
        Ok(())
    }

    /// With dual control, a new account cannot decide from the start: the grant of a role waits, the account need not.
    pub(super) async fn refuse_new_decision_maker(
        &self,
        before: &User,
        after: &User,
        caller: &Caller,
    ) -> Result<()> {
        let policy_roles = self.policy_roles().await?;
        if changes_who_decides(before, after, &[], &policy_roles)
            && self.context.needs_second_admin(caller).await?
        {
            let detail = format!(
                "{ADMIN}, {REVIEWER} and roles of policies need a second administrator: leave them out now, and grant them afterwards with \
                 ade user set {} --add-role ROLE. While there is only one administrator, the bootstrap token grants them alone",
                after.user_id
            );
            return Err(Error::invalid("roles", detail));
        }
        Ok(())
    }

    /// The hash of a new password.
    async fn hash_new(&self, change: &UserChange) -> Result<Option<String>> {
        match change.password.clone() {
            Some(password) => self.passwords.hash(password).await.map(Some),
            None => Ok(None),
        }
    }

    /// Changes a user. Users change their own password in a session, with the present one, and their own address for e-mail;
    /// everything else needs an administrator, who can never do without the present password for the own account.
    pub async fn update_user(&self, id: &str, change: &UserChange, caller: &Caller) -> Result<StoredUser> {
        let is_own_password = caller.is_user(id) && change.password.is_some();
        let verified = match is_own_password {
            true => Some(self.verify_own_password_change(id, change, caller).await?),
            false => {
                if caller.is_user(id) && change.is_email_only() {
                    require_own_session(caller)?;
                } else {
                    caller.require_admin()?;
                }
                None
            }
        };
        let password_hash = self.hash_new(change).await?;
        let proposal = UserProposal { change: change.clone(), password_hash, waits: None };
        self.make_user_change(id, &proposal, verified.as_ref(), caller).await
    }

    /// Makes a change of a user, if the caller needs nobody else for it. `verified` is the present password that the caller gave.
    pub(crate) async fn make_user_change(
        &self,
        id: &str,
        proposal: &UserProposal,
        verified: Option<&Password>,
        caller: &Caller,
    ) -> Result<StoredUser> {
        let UserProposal { change, password_hash, .. } = proposal;
        let attempt = async |reassign: bool| {
            let before = self.load_user(id).await?;
            caller.check_revision(before.revision)?;
            if let Some(confirmed) = &caller.confirms
                && proposal.is_outdated(&before.user, confirmed.value.proposed_at)
            {
                return Err(Error::ChangeOutdated);
            }
            // Somebody else may have set another password meanwhile.
            if verified.is_some() && verified != before.password.as_ref() {
                return Err(Error::WrongPassword);
            }
            let mut after = before.clone();
            proposal.apply(&mut after.user);
            self.validate(&after.user).await?;
            after.revision += 1;
            if change.active == Some(false) {
                after.invitation = None;
            }
            let (people, now) = (self.context.database.people().await?, self.context.now());
            let policy_roles = self.policy_roles().await?;
            let mut acts = granted_roles(&before.user, &after.user, &policy_roles);
            if let Some(hash) = password_hash.clone() {
                after.password = Some(Password { hash, is_temporary: verified.is_none() });
                after.invitation = None;
                acts.extend(verified.is_none().then_some(AccountActKind::Reset));
            }
            let is_act = !acts.is_empty();
            let mut details = proposal.details();
            if proposal.waits.is_some() && after.user.roles != before.user.roles {
                details.insert("roles".to_owned(), json!(after.user.roles));
            }
            let action = AuditedAction {
                revision: Some(after.revision),
                details,
                notify: if is_act { people.administrators() } else { Vec::new() },
                ..AuditedAction::new("user.update", id)
            };
            if changes_who_decides(&before.user, &after.user, &acts, &policy_roles)
                && self.context.needs_second_admin(caller).await?
            {
                let (waiting, details) = proposal.waiting(&before.user);
                let action = AuditedAction { details, ..action };
                return Err(self.context.propose(&action, None, json!(waiting), caller).await?);
            }
            record_acts(&mut after.user, acts, &people, caller, now);
            let (user, expected) = (Box::new(after.clone()), Some(before.revision));
            let mut commit = Commit { writes: vec![Write::User { user, expected }], ..Commit::default() };
            commit.writes.extend(self.rule_changes(&before.user, &after.user, caller, now).await?);
            let leaves = before.user.active && !after.user.active;
            let user_id = after.user.user_id.clone();
            self.end_credentials(&mut commit, id, proposal, caller, leaves, now).await?;
            // The requests of somebody who lost a role move as those of a leaver.
            let loses_role = before.user.active && !before.user.roles.is_subset(&after.user.roles);
            if (leaves || loses_role) && reassign {
                self.tasks.reassign_approvals_of(&mut commit, &after.user).await?;
            }
            action.add_for(&mut commit, caller, now);
            commit.response = stored_response(caller, |_| Outcome::Done)?;
            let is_committed = self.tasks.commit(commit).await?;
            if is_committed && (leaves || loses_role) {
                self.tasks.subscriptions().schedule_reassignment(&user_id);
            }
            Ok(is_committed.then_some(after))
        };
        let mut attempts = 0;
        retry_on_conflict(|| {
            attempts += 1;
            // If the tasks of a leaver keep changing, the user is deactivated anyway, and the requests are reassigned later.
            attempt(attempts <= MAX_ATTEMPTS / 2)
        })
        .await
    }

    /// Granting a role for which a policy approves automatically is a change of the rules by who grants it.
    async fn rule_changes(
        &self,
        before: &User,
        after: &User,
        caller: &Caller,
        now: Moment,
    ) -> Result<Vec<Write>> {
        let granted: Vec<&String> = after.roles.difference(&before.roles).collect();
        if granted.is_empty() {
            return Ok(Vec::new());
        }
        let policies = self.context.database.documents::<PolicyVersions>().await?;
        let conditions = policies.iter().filter_map(|policy| policy.value.active()?.auto_approve_if.as_ref());
        let mut named = conditions.flat_map(|conditions| &conditions.author_has_role);
        let Some(role) = named.find(|role| granted.contains(role)) else { return Ok(Vec::new()) };
        let what = format!("granted {} the role {role}", after.user_id);
        let change = |by: &UserId| {
            let value = RuleChange { what: what.clone(), by: by.clone(), at: now };
            Write::document(&Versioned { id: new_id(), revision: 1, value }, None)
        };
        Ok(caller.makers().map(change).collect())
    }

    /// The present password of a user, if the user may replace it: alone, in a session, and by giving it.
    async fn verify_own_password_change(
        &self,
        id: &str,
        change: &UserChange,
        caller: &Caller,
    ) -> Result<Password> {
        if !change.is_password_only() {
            caller.require_admin()?;
            return Err(Error::invalid("password", "must be changed alone, without other fields"));
        }
        if caller.audit_actor.session_id.is_none() {
            return Err(Error::forbidden(
                "a token cannot change a password; sign in with the present password",
            ));
        }
        let missing =
            || Error::invalid("current_password", "is required: a new password needs the present one");
        let current = change.current_password.clone().ok_or_else(missing)?;
        // Otherwise a password that somebody else chose would become an own one.
        if caller.password_change_required && change.password.as_ref() == Some(&current) {
            return Err(Error::invalid("password", "must differ from the present one"));
        }
        self.require_password(id, current).await
    }

    /// Ends what was authenticated with an old password: other sessions, and tokens that decide or administer. Everything ends
    /// for a leaver.
    async fn end_credentials(
        &self,
        commit: &mut Commit,
        id: &str,
        proposal: &UserProposal,
        caller: &Caller,
        leaves: bool,
        now: Moment,
    ) -> Result<()> {
        if !leaves && proposal.password_hash.is_none() {
            return Ok(());
        }
        let user_id = UserId::new(id);
        commit.writes.push(match &caller.session_hash {
            Some(kept_hash) if caller.is_user(id) && !leaves => {
                Write::DeleteOtherSessions { user_id: id.to_owned(), kept_hash: kept_hash.clone() }
            }
            _ => Write::DeleteSessions { session_hash: None, user_id: id.to_owned() },
        });
        if leaves && let Some(linked) = self.context.database.document::<SlackAccount>(id).await? {
            let (kind, id, expected) = (SlackAccount::KIND, linked.id, linked.revision);
            commit.writes.push(Write::DeleteDocument { kind, id, expected });
        }
        if leaves || proposal.change.revoke_tokens == Some(true) {
            commit.writes.push(Write::RevokeTokens { user_id, at: now });
            return Ok(());
        }
        let is_privileged = |scope: &Scope| matches!(scope, Scope::Decide | Scope::Admin);
        for mut token in self.context.database.user_tokens(&user_id).await? {
            if token.revoked_at.is_none() && token.scopes.iter().any(is_privileged) {
                token.revoked_at = Some(now);
                commit.writes.push(Write::Token(token));
            }
        }
        Ok(())
    }
}

/// Fails unless the person is signed in, or is an administrator: a stolen token must not lead notifications elsewhere.
fn require_own_session(caller: &Caller) -> Result<()> {
    caller.require_scope(Scope::Propose)?;
    if caller.audit_actor.session_id.is_some() || caller.is_admin() {
        return Ok(());
    }
    Err(Error::forbidden("a token cannot change your e-mail address; sign in with your password"))
}
