//! Pages of users: the list, invitations, and one user with what administrators change.

use std::collections::BTreeSet;

use ade_client::wire;
use ade_dashboard::Section;
use ade_dashboard::settings::{InvitedPage, Tabs, TypedInvitation, UserPage, UsersPage};
use axum::Router;
use axum::extract::Path;
use axum::http::Method;
use axum::routing::{get, post};
use serde_json::{Map, Value};

use super::{PAGE_LIMIT, elsewhere, no_such_form};
use crate::api::AppState;
use crate::pages::form::Form;
use crate::pages::respond::secret;
use crate::pages::visit::{PageResult, Visit, path, with_query};

const PATH: &str = "/settings/users";

pub(super) fn routes() -> Router<AppState> {
    Router::new()
        .route(PATH, get(list))
        .route("/settings/users/invite", post(invite))
        .route("/settings/users/{id}", get(show))
        .route("/settings/users/{id}/{action}", post(act))
}

async fn load(visit: &Visit) -> PageResult<UsersPage> {
    let api = with_query("/users", &[("cursor", visit.param("cursor")), ("limit", PAGE_LIMIT)]);
    let (shell, users) = tokio::join!(
        visit.shell(Section::Settings, "Users", "user"),
        visit.get::<wire::Page<wire::User>>(&api)
    );
    let users = users?;
    Ok(UsersPage {
        shell: shell?,
        tabs: Tabs::new(PATH, visit.viewer()),
        users: users.items,
        next_cursor: users.next_cursor,
        typed: TypedInvitation { roles: vec!["author".to_owned()], ..TypedInvitation::default() },
        problem: None,
    })
}

async fn list(visit: Visit) -> PageResult {
    let page = load(&visit).await?;
    Ok(visit.render(&page, &page.shell))
}

fn roles(form: &Form) -> BTreeSet<String> {
    let boxes = form.all("roles").into_iter().map(str::to_owned);
    boxes.chain(form.words("other_roles")).collect()
}

async fn invite(visit: Visit, form: Form) -> PageResult {
    let roles = roles(&form);
    let request = wire::InvitationRequest {
        user_id: form.get("user_id").to_owned(),
        name: form.optional("name"),
        roles: Some(roles.clone()),
        manager_id: form.optional("manager_id"),
        team: form.optional("team"),
    };
    match visit.send::<wire::Invitation>(Method::POST, "/users/invitations", &form, &request).await {
        Ok(invitation) => {
            let shell = visit.shell(Section::Settings, "Invitation", "").await?;
            let tabs = Tabs::new(PATH, visit.viewer());
            Ok(secret(&InvitedPage { shell, tabs, invitation, origin: visit.address().to_owned() }))
        }
        Err(problem) => match elsewhere(&visit, &problem, PATH) {
            Some(response) => Ok(response),
            None => {
                let typed = TypedInvitation {
                    user_id: request.user_id,
                    name: form.get("name").to_owned(),
                    roles: roles.into_iter().collect(),
                    other_roles: form.get("other_roles").to_owned(),
                    manager_id: form.get("manager_id").to_owned(),
                    team: form.get("team").to_owned(),
                };
                let page = UsersPage { typed, problem: Some(problem.clone()), ..load(&visit).await? };
                Ok(visit.refused(&page, &problem))
            }
        },
    }
}

async fn load_user(visit: &Visit, id: &str) -> PageResult<UserPage> {
    let api = path(&["users", id]);
    let (shell, user) =
        tokio::join!(visit.shell(Section::Settings, "User", "user"), visit.get::<wire::User>(&api));
    let (mut shell, user) = (shell?, user?);
    shell.title.clone_from(&user.name);
    Ok(UserPage { shell, tabs: Tabs::new(PATH, visit.viewer()), user, problem: None })
}

async fn show(visit: Visit, Path(id): Path<String>) -> PageResult {
    let page = load_user(&visit, &id).await?;
    Ok(visit.render(&page, &page.shell))
}

/// The fields that differ from those of the user: a change of who decides waits for a second administrator, and must not be one that
/// nobody made.
fn patch(form: &Form, user: &wire::User) -> wire::UserPatch {
    let nullable = |name: &str, present: &Option<String>| {
        let new = form.optional(name);
        (new != *present).then_some(new)
    };
    let roles = roles(form);
    wire::UserPatch {
        name: form.optional("name").filter(|name| *name != user.name),
        roles: (roles != user.roles).then_some(roles),
        manager_id: nullable("manager_id", &user.manager_id),
        team: nullable("team", &user.team),
        email: nullable("email", &user.email),
        ..wire::UserPatch::default()
    }
}

async fn act(visit: Visit, Path((id, action)): Path<(String, String)>, form: Form) -> PageResult {
    let (user, page) = (path(&["users", &id]), path(&["settings", "users", &id]));
    let set_active = |active: bool| wire::UserPatch { active: Some(active), ..wire::UserPatch::default() };
    let patch = match action.as_str() {
        "update" => patch(&form, &visit.get::<wire::User>(&user).await?),
        "password" => {
            let password = Some(form.verbatim("new_password").to_owned());
            wire::UserPatch { password, ..wire::UserPatch::default() }
        }
        "deactivate" => set_active(false),
        "activate" => set_active(true),
        "confirm" => wire::UserPatch::default(),
        _ => return no_such_form(),
    };
    let changed = if action == "confirm" {
        visit.post(&format!("{user}/confirm"), &form, &Map::<String, Value>::new()).await
    } else {
        visit.send::<Value>(Method::PATCH, &user, &form, &patch).await
    };
    match changed {
        Ok(_) => Ok(visit.done(&page, "saved")),
        Err(problem) => match elsewhere(&visit, &problem, &page) {
            Some(response) => Ok(response),
            None => {
                let page = UserPage { problem: Some(problem.clone()), ..load_user(&visit, &id).await? };
                Ok(visit.refused(&page, &problem))
            }
        },
    }
}
