//! The stored formats: a build that reads or writes them differently fails here, before it meets the data of an installation.

mod redis_keys;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use ade_domain::agent::RemovedAgent;
use ade_domain::approval::assignment::RuleChange;
use ade_domain::approval::delegation::{Delegation, DelegationKind};
use ade_domain::approval::policy::{PolicyVersions, Priority};
use ade_domain::approval::quorum::{Admission, RequirementStatus};
use ade_domain::approval::window::Weekday;
use ade_domain::approval::{Approval, ApprovalStatus, DecisionKind};
use ade_domain::audit::{AuditBody, Principal, Trigger};
use ade_domain::capability::GrantScope;
use ade_domain::dual_control::ProposedChange;
use ade_domain::event::Event;
use ade_domain::independence::AccountActKind;
use ade_domain::lock::{EndReason, LockMode, WaitPolicy};
use ade_domain::people::{AuthorReason, User};
use ade_domain::people_selector::PeopleSelector;
use ade_domain::permission::Scope;
use ade_domain::risk::{RegisteredPattern, RiskLevel};
use ade_domain::task::{
    AllowedAuthor, ArchivedApprovals, BindingLock, ChangeKind, Digest, ExecutionResult, FailureCode, Phase,
    PreviewStatus, PublishedBinding, RemainingEffects, RollbackStrategy, TaskCommand, TaskState,
};
use ade_domain::webhook::chat_secret::ChatSecret;
use ade_domain::webhook::inbound::InboundHook;
use ade_domain::webhook::slack_account::SlackAccount;
use ade_domain::webhook::{Webhook, WebhookFormat};
use ade_store::database::{
    Archive, ArchiveKind, ArchivedTask, Comment, DailyStats, Delivery, DeliveryStatus, Document,
    DocumentKind, FeatureFlag, InboxMessage, Invitation, JobOutcome, Password, Session, Setting, StoredAgent,
    StoredLockCommand, StoredResponse, StoredTask, StoredToken,
};
use ade_testkit::every_variant;
use ade_testkit::formats::{RoundTrip, assert_formats, round_trip};
use ade_testkit::golden::assert_format_unchanged;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/integration/formats").join(name)
}

/// The names under which documents are stored and their round trips. It does not compile unless all kinds are listed.
macro_rules! every_document {
    ($($kind:ident: $type:ty),+ $(,)?) => {{
        let name = |kind| match kind { $(DocumentKind::$kind => DocumentKind::$kind.as_str()),+ };
        [$((name(<$type>::KIND), round_trip::<$type> as RoundTrip)),+]
    }};
}

#[test]
fn documents_keep_their_formats() {
    let rows: [(&str, RoundTrip); 20] = [
        ("agent", round_trip::<StoredAgent>),
        ("approval", round_trip::<Approval>),
        ("archive", round_trip::<Archive>),
        ("archived_approvals", round_trip::<ArchivedApprovals>),
        ("archived_task", round_trip::<ArchivedTask>),
        ("audit_entry", round_trip::<AuditBody>),
        ("comment", round_trip::<Comment>),
        ("daily_stats", round_trip::<DailyStats>),
        ("event", round_trip::<Event>),
        ("inbox_message", round_trip::<InboxMessage>),
        ("invitation", round_trip::<Invitation>),
        ("job_outcome", round_trip::<JobOutcome>),
        ("password", round_trip::<Password>),
        ("session", round_trip::<Session>),
        ("stored_lock_command", round_trip::<StoredLockCommand>),
        ("stored_response", round_trip::<StoredResponse>),
        ("task", round_trip::<StoredTask>),
        ("token", round_trip::<StoredToken>),
        ("user", round_trip::<User>),
        ("webhook_delivery", round_trip::<Delivery>),
    ];
    let documents = every_document! {
        Policy: PolicyVersions,
        Delegation: Delegation,
        Resource: RegisteredPattern,
        Setting: Setting,
        Feature: FeatureFlag,
        Binding: PublishedBinding,
        RuleChange: RuleChange,
        Change: ProposedChange,
        RemovedAgent: RemovedAgent,
        Webhook: Webhook,
        InboundHook: InboundHook,
        SlackAccount: SlackAccount,
        ChatSecret: ChatSecret,
    };
    // A policy without an active version.
    let empty = ["/policy/1/active"];
    assert_formats(&fixture("documents.json"), &[&rows[..], &documents].concat(), &empty).expect("unchanged");
}

#[test]
fn enums_in_documents_and_journals_keep_their_formats() {
    let enums: [(&str, RoundTrip); 32] = [
        every_variant!(AccountActKind {
            Created,
            Invited,
            Reset,
            GrantedAdmin,
            GrantedReviewer,
            GrantedPolicyRole,
            LinkedIdentity
        }),
        every_variant!(Admission { AsReviewer, WithoutRole }),
        every_variant!(AllowedAuthor { People, Agent }),
        every_variant!(ApprovalStatus {
            Pending,
            Approved,
            Rejected,
            Delegated,
            ChangesRequested,
            Invalidated,
            Closed
        }),
        every_variant!(ArchiveKind { Approvals, Tasks }),
        every_variant!(AuthorReason {
            Author,
            SponsorsAgent,
            TokenIssuer,
            Lineage,
            Editor,
            Submitter,
            PredecessorAuthor
        }),
        every_variant!(BindingLock { Default, Exclusive, Shared, None }),
        every_variant!(ChangeKind { Create, Update, Delete }),
        every_variant!(DecisionKind { Approve, Reject, RequestChanges }),
        every_variant!(DelegationKind { Delegate, Follow }),
        every_variant!(EndReason {
            Released,
            Expired,
            Unclaimed,
            Broken,
            Cancelled,
            Disconnected,
            Refused,
            TimedOut,
            Superseded,
            ServerLost,
            AgentOffline,
            Deadlock
        }),
        every_variant!(ExecutionResult { Success, Failure, Timeout, Cancelled }),
        every_variant!(FailureCode {
            ExecutionFailed,
            TimedOut,
            Stopped,
            LocksLost,
            WorkerLost,
            OutcomeUnknown,
            DigestMismatch,
            UnprovenApproval
        }),
        every_variant!(GrantScope { Sponsor, Accepted }),
        every_variant!(LockMode { Shared, Exclusive }),
        every_variant!(PeopleSelector { User, Role, Team }),
        every_variant!(Phase { Prepared, Started, RollingBack, Ended }),
        every_variant!(PreviewStatus { None, Pending, Ready, Failed }),
        every_variant!(Principal { Caller, Service }),
        every_variant!(Priority { Low, Normal, High, Urgent }),
        every_variant!(RemainingEffects { None, RolledBack, Reversible, Irreversible, Unknown }),
        every_variant!(RequirementStatus { NotApplicable, Satisfied, Unsatisfied, Overridden }),
        every_variant!(RiskLevel { Low, Medium, High, Critical }),
        every_variant!(RollbackStrategy { Automatic, Manual, None }),
        every_variant!(Scope { Read, Propose, Lock, Decide, Admin }),
        every_variant!(TaskCommand {
            Modify,
            Delete,
            Submit,
            Assign,
            Approve,
            Reject,
            Revoke,
            GoStale,
            Expire,
            Override,
            ConfirmOverride,
            ForceApply,
            BeginApply,
            Complete,
            Fail,
            Retry,
            Stop,
            RollBack,
            Cancel,
            Resubmit,
            Archive,
            Comment
        }),
        every_variant!(TaskState {
            Draft,
            Submitted,
            Reviewing,
            Approved,
            Applying,
            Completed,
            Failed,
            Rejected,
            Cancelled
        }),
        every_variant!(Trigger {
            Attempt,
            Job,
            AutomaticApproval,
            Policies,
            Decision,
            Followed,
            Command,
            Start
        }),
        every_variant!(WebhookFormat { Standard, Slack, Pagerduty, Servicenow, Email }),
        every_variant!(DeliveryStatus { Pending, Delivered, Failed }),
        every_variant!(WaitPolicy { NoWait, LongPoll, Ticket }),
        every_variant!(Weekday { Mon, Tue, Wed, Thu, Fri, Sat, Sun }),
    ];
    assert_formats(&fixture("enums.json"), &enums, &[]).expect("unchanged");
}

/// SQLite does not apply a migration again that has changed, and PostgreSQL refuses it.
#[test]
fn migrations_do_not_change() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/database/schema");
    let mut digests = BTreeSet::new();
    for file in fs::read_dir(folder).expect("readable") {
        let file = file.expect("readable");
        let digest = Digest::of_bytes(&fs::read(file.path()).expect("readable"));
        digests.insert(format!("{digest}  {}\n", file.file_name().display()));
    }
    let digests = String::from_iter(digests);
    assert_format_unchanged("tables", &fixture("migrations.txt"), &digests).expect("unchanged");
}
