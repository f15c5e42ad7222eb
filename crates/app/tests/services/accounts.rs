//! Accounts over time: invitations expire, sessions slide and end, and decide only for a while after the password was given.

use std::time::Duration;

use ade_app::accounts::{
    InvitationDraft, TokenDraft, UserChange, csrf_token, matches_csrf_token, recover_admin,
};
use ade_app::agents::AgentService;
use ade_app::{AccountService, ChangeService, Context, Error, RuleService};
use ade_domain::audit::AuditActor;
use ade_domain::people::{ADMIN, AUTHOR, REVIEWER, UserId};
use ade_domain::permission::Scope;

use crate::fixture::{Fixture, caller, on_both_databases};

on_both_databases!(
    invitations_expire_and_are_replaced,
    sessions_slide_and_end_and_decide_for_eight_hours,
    recovery_needs_that_no_administrator_is_left,
    changes_wait_for_three_days_at_most,
);

const HOUR: Duration = Duration::from_secs(3_600);
const PASSWORD: &str = "correct horse battery staple";

fn accounts(fixture: &Fixture) -> AccountService {
    AccountService::new(fixture.context(), fixture.service())
}

fn draft(user: &str) -> InvitationDraft {
    InvitationDraft { user_id: user.to_owned(), ..InvitationDraft::default() }
}

fn nobody() -> AuditActor {
    AuditActor::default()
}

async fn invitations_expire_and_are_replaced(fixture: Fixture) {
    fixture.add_user("max", &[ADMIN]).await;
    let (accounts, max) = (accounts(&fixture), caller("max", &[ADMIN]));
    let accept = async |code: &str| {
        accounts.accept_invitation(code, PASSWORD.to_owned(), nobody()).await.map(|user| user.user.active)
    };
    let late = accounts.invite(&draft("ann"), &max).await.expect("invited");
    fixture.clock.advance(72 * HOUR);
    assert_eq!(accept(&late.code).await, Err(Error::InvalidInvitation));
    let first = accounts.invite(&draft("ann"), &max).await.expect("invited again");
    // Deactivating the account withdraws the invitation.
    let leave = UserChange { active: Some(false), ..UserChange::default() };
    accounts.update_user("ann", &leave, &max).await.expect("deactivated");
    assert_eq!(accept(&first.code).await, Err(Error::InvalidInvitation), "withdrawn");
    let first = accounts.invite(&draft("ann"), &max).await.expect("and again");
    let second = accounts.invite(&draft("ann"), &max).await.expect("and again");
    fixture.clock.advance(72 * HOUR - Duration::from_secs(1));
    assert_eq!(accept(&first.code).await, Err(Error::InvalidInvitation), "replaced");
    // Of two people with the same code, one joins.
    let (one, other) = tokio::join!(accept(&second.code), accept(&second.code));
    assert_eq!([&one, &other].iter().filter(|joined| ***joined == Ok(true)).count(), 1, "{one:?} {other:?}");
    let stored = fixture.database.user(&UserId::new("ann")).await.expect("read").expect("exists");
    assert!(stored.invitation.is_none() && stored.password.is_some_and(|password| !password.is_temporary));
}

async fn sessions_slide_and_end_and_decide_for_eight_hours(fixture: Fixture) {
    fixture.add_user("max", &[ADMIN]).await;
    let (accounts, max) = (accounts(&fixture), caller("max", &[ADMIN]));
    let invited = accounts.invite(&draft("ann"), &max).await.expect("invited");
    accounts.accept_invitation(&invited.code, PASSWORD.to_owned(), nobody()).await.expect("joined");
    let signed_in = accounts.sign_in("ann", PASSWORD.to_owned(), nobody()).await.expect("signed in");
    let secret = signed_in.secret.as_str();
    assert_eq!(signed_in.csrf_token, csrf_token(secret));
    assert!(
        matches_csrf_token(secret, &signed_in.csrf_token)
            && !matches_csrf_token("other", &signed_in.csrf_token)
    );
    let session = async || accounts.authenticate_session(secret, nobody()).await;
    // It decides for eight hours; then the password is needed again, also for tokens that decide.
    fixture.clock.advance(8 * HOUR - Duration::from_secs(1));
    let usage = session().await.expect("valid");
    assert!(usage.is_renewed && usage.caller.require_scope(Scope::Decide).is_ok());
    let deciding =
        TokenDraft { name: "t".to_owned(), scopes: Some([Scope::Decide].into()), ttl_seconds: Some(3_600) };
    let token = accounts.create_token("ann", &deciding, &usage.caller).await.expect("created");
    assert_eq!(Some(token.token.expires_at), usage.caller.decides_until, "not an hour");
    fixture.clock.advance(Duration::from_secs(1));
    let usage = session().await.expect("valid");
    assert_eq!(usage.caller.require_scope(Scope::Decide), Err(Error::Reauthenticate));
    assert_eq!(usage.caller.require_scope(Scope::Propose), Ok(()));
    let refused = accounts.create_token("ann", &deciding, &usage.caller).await;
    assert_eq!(refused.map(|_| ()), Err(Error::Reauthenticate));
    assert!(
        accounts.authenticate_token(&token.secret, nobody()).await.is_err(),
        "it ended with the session's"
    );
    let wrong = accounts.reauthenticate(secret, "wrong password".to_owned(), &usage.caller).await;
    assert_eq!(wrong.map(|_| ()), Err(Error::WrongPassword));
    let usage = accounts.reauthenticate(secret, PASSWORD.to_owned(), &usage.caller).await.expect("right");
    assert_eq!(usage.caller.require_scope(Scope::Decide), Ok(()));
    // It slides by a day with each use, and ends after a week.
    for _ in 0..6 {
        fixture.clock.advance(23 * HOUR);
        session().await.expect("used within a day");
    }
    let usage = session().await.expect("valid");
    assert_eq!(usage.session.expires_at, usage.session.created_at.plus_ms(7 * 86_400_000));
    fixture.clock.advance(22 * HOUR);
    assert!(matches!(session().await, Err(Error::Unauthenticated(_))), "a week is over");
    let other = accounts.sign_in("ann", PASSWORD.to_owned(), nobody()).await.expect("signed in");
    fixture.clock.advance(24 * HOUR);
    let unused = accounts.authenticate_session(&other.secret, nobody()).await;
    assert!(matches!(unused, Err(Error::Unauthenticated(_))), "unused for a day");
}

async fn recovery_needs_that_no_administrator_is_left(fixture: Fixture) {
    fixture.add_user("ann", &[AUTHOR]).await;
    let read = TokenDraft { name: "t".to_owned(), scopes: Some([Scope::Read].into()), ttl_seconds: None };
    let old =
        accounts(&fixture).create_token("ann", &read, &caller("ann", &[AUTHOR])).await.expect("created");
    let now = || fixture.context().clock.now();
    let invited = recover_admin(&fixture.database, "ann", now()).await.expect("nobody is an administrator");
    let joined = accounts(&fixture)
        .accept_invitation(&invited.code, PASSWORD.to_owned(), nobody())
        .await
        .expect("joined");
    assert!(joined.user.has_role(ADMIN) && joined.user.has_role(AUTHOR) && joined.user.active);
    let old = accounts(&fixture).authenticate_token(&old.secret, nobody()).await;
    assert!(
        matches!(old, Err(Error::Unauthenticated(_))),
        "a token from before does not administer: {old:?}"
    );
    let refused = recover_admin(&fixture.database, "eve", now()).await;
    assert!(matches!(refused, Err(Error::Forbidden(_))), "{refused:?}");
    let actions = fixture.audit_actions(None).await;
    assert!(actions.contains(&"user.recover".to_owned()), "{actions:?}");
}

async fn changes_wait_for_three_days_at_most(fixture: Fixture) {
    for (name, roles) in [("max", &[ADMIN][..]), ("mia", &[ADMIN]), ("ann", &[AUTHOR])] {
        fixture.add_user(name, roles).await;
    }
    let context = Context { dual_control: true, ..fixture.context() };
    let changes = ChangeService {
        accounts: AccountService::new(context.clone(), fixture.service()),
        agents: AgentService::new(context.clone()),
        rules: RuleService::new(context.clone()),
        context,
    };
    let [max, mia] = ["max", "mia"].map(|name| caller(name, &[ADMIN]));
    let grant = UserChange { roles: Some([REVIEWER.to_owned()].into()), ..UserChange::default() };
    let propose = async || {
        let waits = changes.accounts.update_user("ann", &grant, &max).await.expect_err("it waits");
        if let Error::AwaitsConfirmation { change_id, .. } = waits { change_id } else { waits.to_string() }
    };
    let late = propose().await;
    fixture.clock.advance(72 * HOUR);
    assert!(matches!(changes.confirm(&late, &mia).await, Err(Error::NotFound(_))));
    assert!(changes.list(&mia).await.expect("read").is_empty());
    let in_time = propose().await;
    fixture.clock.advance(72 * HOUR - Duration::from_secs(1));
    changes.confirm(&in_time, &mia).await.expect("confirmed");
    let ann = fixture.database.user(&UserId::new("ann")).await.expect("read").expect("exists");
    assert_eq!(ann.user.roles, [REVIEWER.to_owned()].into());
}
