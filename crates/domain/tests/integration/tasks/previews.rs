//! Who may have a preview computed, and who sees all of it. Searched for every state, command and kind of actor.

use ade_domain::people::{ADMIN, AUDITOR, AUTHOR, REVIEWER};
use ade_domain::task::{Actor, Refusal, TRANSITIONS, Task, TaskCommand, TaskState};

use crate::tasks::fixture::{Fixture, config, id, user};

fn fixture() -> Fixture {
    Fixture::new(vec![
        user("ann", &[AUTHOR], None),
        user("ben", &[AUTHOR], None),
        user("rob", &[REVIEWER], None),
        user("rae", &[REVIEWER, AUTHOR], None),
        user("eve", &[ADMIN], None),
        user("aud", &[AUDITOR], None),
        user("nil", &[], None),
    ])
}

fn actors(fixture: &Fixture) -> Vec<Actor> {
    let people = ["ann", "ben", "rob", "rae", "eve", "aud", "nil"].map(|name| fixture.actor(name));
    let without_scope = people.iter().map(|actor| Actor { has_admin_scope: false, ..actor.clone() });
    let agents = people.iter().map(|actor| Actor { agent_id: Some("bot".to_owned()), ..actor.clone() });
    without_scope.chain(agents).chain(people.iter().cloned()).chain([Actor::system()]).collect()
}

/// A refusal that does not depend on what the preview shows.
fn is_refused_beforehand(refusal: &Refusal) -> bool {
    matches!(refusal, Refusal::Forbidden | Refusal::InvalidTransition(_))
}

#[test]
fn previews_are_authorized_exactly_like_the_commands_that_need_them() {
    let mut fixture = fixture();
    let mut authorized = 0;
    for state in TRANSITIONS.iter().map(|(state, _, _)| *state) {
        for actor in actors(&fixture) {
            let task = Task { state, ..fixture.draft("ann", config("schema", &[])) };
            for command in [TaskCommand::Submit, TaskCommand::Modify, TaskCommand::Resubmit] {
                let mut changed = task.clone();
                let plain = task.config.clone();
                let result = fixture.with_plan(&task, &plain, |plan, now| match command {
                    TaskCommand::Submit => changed.submit(plan, &actor, now),
                    TaskCommand::Modify => changed.modify(plain.clone(), task.digest, plan, &actor, now),
                    _ => changed.resubmit(&actor, now).map(drop),
                });
                let checked = task.authorize_preview(command, &actor);
                match (checked, result) {
                    (Err(checked), result) => assert_eq!(Err(checked), result, "{state} {command} {actor:?}"),
                    (Ok(()), Err(refusal)) => {
                        assert!(!is_refused_beforehand(&refusal), "{state} {command} {actor:?}: {refusal}");
                    }
                    (Ok(()), Ok(())) => authorized += 1,
                }
            }
        }
    }
    assert!(authorized > 10, "{authorized}");
}

#[test]
fn only_people_who_may_create_tasks_simulate_previews() {
    let fixture = fixture();
    for (name, expected) in
        [("ann", true), ("eve", true), ("rae", true), ("rob", false), ("aud", false), ("nil", false)]
    {
        assert_eq!(fixture.actor(name).authorize_simulated_preview().is_ok(), expected, "{name}");
    }
}

#[test]
fn authors_and_agents_never_see_what_is_for_reviewers() {
    let mut fixture = fixture();
    let mut task = fixture.draft("ann", config("schema", &[]));
    fixture.submit(&mut task, "ann").expect("submitted");
    assert_eq!(task.state, TaskState::Reviewing);
    let reviewer = task.approvals[0].reviewer_id.clone();
    for mut actor in actors(&fixture) {
        for sees_all_tasks in [false, true] {
            let is_author = actor.user.as_ref().is_some_and(|user| task.author_set.contains(user));
            let is_reviewer = actor.user.as_ref().is_some_and(|user| task.was_reviewer(user));
            let expected = !actor.is_agent() && !is_author && (sees_all_tasks || is_reviewer);
            assert_eq!(task.shows_full_preview(&actor, sees_all_tasks), expected, "{actor:?}");
        }
        actor.user = Some(id("ann"));
        assert!(!task.shows_full_preview(&actor, true), "{actor:?}");
    }
    assert!(task.shows_full_preview(&fixture.actor(reviewer.as_str()), false));
}
