//! Where lifecycles are measured: a server process with new data and no other tasks, and an organisation in which each client
//! has an author and a reviewer, made over HTTP.
//!
//! Limits that protect a server from too many requests are as high as they can be: they are not what is measured.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use ade_client::wire::{PolicyRequest, UserRequest};
use ade_store::database::Bare;
use tempfile::TempDir;

use super::Sizes;
use super::client::Deed;
use crate::approvals::{CHECKPOINT_SECONDS, Distributed, REQUESTS_PER_MINUTE, away};
use crate::error::BenchError;
use crate::link;
use crate::subject::{FOLDER, Subject};

/// Who sees everything and decides nothing.
pub(super) const LOOKS: &str = "auditor";
/// A worker is one agent, and takes the locks of all its tasks.
const ACQUISITIONS_PER_MINUTE: &str = "10000000";

pub(super) fn author(number: usize) -> String {
    format!("author-{number:03}")
}

pub(super) fn reviewer(number: usize) -> String {
    format!("reviewer-{number:03}")
}

/// The type of the tasks of one client, which its reviewer alone decides.
pub(super) fn kind(number: usize) -> String {
    format!("measured-{number:03}")
}

/// What is measured.
#[derive(Debug)]
pub(super) struct Place {
    // Ends before its folder goes.
    pub(super) subject: Subject,
    pub(super) bare: Bare,
    /// Below which tasks write their files.
    pub(super) root: PathBuf,
    folder: TempDir,
    on: Option<(Distributed, usize)>,
}

impl Place {
    pub(super) async fn make(
        parent: &Path,
        on: Option<&Distributed>,
        number: usize,
        deed: Deed,
        sizes: &Sizes,
    ) -> Result<Self, BenchError> {
        let folder = tempfile::Builder::new().prefix(FOLDER).tempdir_in(parent)?;
        // Tasks name the root exactly as the configuration does, and neither may be a symbolic link.
        let root = folder.path().canonicalize()?.join("files");
        std::fs::create_dir(&root)?;
        if deed == Deed::Files {
            // Only the file says what workers may do. The server starts in this folder and finds it.
            let roots = serde_json::to_string(&[&root]).map_err(std::io::Error::from)?;
            std::fs::write(folder.path().join("ade.toml"), format!("[executors.files]\nroots = {roots}\n"))?;
        }
        let url = match on {
            Some(on) => Some(on.postgres.make(number).await.map_err(away)?),
            None => None,
        };
        let slots = sizes.slots.to_string();
        let mut settings = vec![
            ("ADE_LIMIT_REQUESTS_PER_MINUTE", REQUESTS_PER_MINUTE),
            ("ADE_LOCK_ACQUISITIONS_PER_MINUTE", ACQUISITIONS_PER_MINUTE),
            ("ADE_AUDIT_CHECKPOINT_SECONDS", CHECKPOINT_SECONDS),
            ("ADE_WORKER_SLOTS", slots.as_str()),
        ];
        settings.extend(url.as_deref().map(|url| ("ADE_SERVER_POSTGRES", url)));
        let subject = Subject::start_in(folder.path(), on.map(|on| &on.redis), &settings)?;
        let bare = match &url {
            Some(url) => Bare::on_postgres(url, u32::try_from(sizes.clients).unwrap_or(u32::MAX)).await,
            None => Bare::in_folder(folder.path()).await,
        };
        let place =
            Self { subject, bare: bare.map_err(away)?, root, folder, on: on.map(|on| (on.clone(), number)) };
        place.people(sizes.clients).await?;
        Ok(place)
    }

    async fn people(&self, clients: usize) -> Result<(), BenchError> {
        let mut link = self.subject.target.link().await?;
        let each =
            (0..clients).flat_map(|number| [(author(number), "author"), (reviewer(number), "reviewer")]);
        for (user_id, role) in each.chain([(LOOKS.to_owned(), "auditor")]) {
            let roles = Some(BTreeSet::from([role.to_owned()]));
            let user = UserRequest { user_id, roles, ..UserRequest::default() };
            link.post("/api/v1/users", link::body(&user)?).await?.expect(201)?;
        }
        for number in 0..clients {
            let policy = PolicyRequest {
                name: Some(format!("{} is reviewed", kind(number))),
                task_types: Some(vec![kind(number)]),
                reviewers: Some(vec![reviewer(number)]),
                active: Some(true),
                ..PolicyRequest::default()
            };
            link.post("/api/v1/policies", link::body(&policy)?).await?.expect(201)?;
        }
        Ok(())
    }

    /// Ends the server and removes everything.
    pub(super) async fn clear(self) -> Result<(), BenchError> {
        let Self { subject, bare, folder, on, .. } = self;
        drop(subject);
        bare.close().await;
        folder.close()?;
        if let Some((on, number)) = on {
            on.postgres.remove(number).await.map_err(away)?;
            on.redis.clear().await?;
        }
        Ok(())
    }
}
