//! The demo: a data folder that is served only as a demo, because its passwords are public, and files for its tasks to
//! change.

use std::io::{self, Write};
use std::path::PathBuf;

use ade_app::demo::CHECK_TEMPLATE;
use ade_config::{CommandTemplate, Config, FilesRoot};
use ade_domain::people::AUTHOR;
use ade_domain::people_selector::PeopleSelector;
use ade_domain::task::{AllowedAuthor, Binding};
use ade_store::{Database, FolderError, create_private_folder, private_file};

use super::error::StartError;

/// Marks a data folder as that of a demo.
const MARKER_FILE: &str = "demo";
const APP_CONFIG: &str = "# The app of the demo reads this.\nlisten 127.0.0.1:8080\nworkers 2\n";

/// Refuses a demo outside of its own folder and loopback address, and a demo folder without `--demo`.
pub(super) fn check_folder(config: &Config) -> Result<(), StartError> {
    let (marker, data) = (config.data.join(MARKER_FILE), config.data.display());
    let refuse = |reason: String| Err(StartError::DemoNotAllowed(reason));
    let is_demo_folder = marker.exists();
    if !config.demo {
        return if is_demo_folder {
            refuse(format!(
                "{data} is the folder of a demo; serve it with --demo, or choose another with --data"
            ))
        } else {
            Ok(())
        };
    }
    if !config.listen.ip().is_loopback() {
        return refuse(format!("a demo may only listen on a loopback address, not on {}", config.listen));
    }
    if is_demo_folder {
        return Ok(());
    }
    let is_in_use = std::fs::read_dir(&config.data).is_ok_and(|mut files| files.next().is_some());
    if is_in_use {
        return refuse(format!(
            "{data} is not empty and is not the folder of a demo; choose another with --data"
        ));
    }
    let created = create_private_folder(&config.data)
        .and_then(|()| private_file().truncate(true).open(&marker))
        .and_then(|mut file| file.write_all(b"served with --demo only\n"));
    created.map_err(|source| StartError::Folder(FolderError::Unusable { path: marker, source }))
}

/// Refuses a demo in a database that others use, and a demo database without `--demo`: all its servers know its passwords.
pub(super) async fn check_database(config: &Config, database: &Database) -> Result<(), StartError> {
    let refuse = |reason: &str| Err(StartError::DemoNotAllowed(reason.to_owned()));
    let is_demo_database = database.has_marker(MARKER_FILE).await?;
    if is_demo_database == config.demo {
        return Ok(());
    }
    if !config.demo {
        return refuse(
            "this is the database of a demo; serve it with --demo, or choose another with --postgres",
        );
    }
    // Marked before anything is created: a demo that is interrupted stays one.
    if database.users(None, 1).await?.is_empty() {
        return Ok(database.put_marker(MARKER_FILE).await?);
    }
    refuse("this database is not empty and is not that of a demo; choose another with --postgres")
}

/// Creates the folders of files that demo tasks change, and allows the executors to use them: a playground whose changes are
/// reviewed, and a handbook whose pages may change without a reviewer.
pub(super) fn set_up_folders(config: &mut Config) -> Result<(), StartError> {
    if !config.demo {
        return Ok(());
    }
    let create = || -> io::Result<[PathBuf; 2]> {
        let folders = ["playground", "handbook"].map(|name| config.data.join(name));
        let mut absolute = [PathBuf::new(), PathBuf::new()];
        for (folder, absolute) in folders.iter().zip(&mut absolute) {
            std::fs::create_dir_all(folder)?;
            *absolute = std::path::absolute(folder)?;
        }
        let [playground, _] = &absolute;
        let file = playground.join("app.conf");
        if !file.exists() {
            std::fs::write(&file, APP_CONFIG)?;
        }
        Ok(absolute)
    };
    let [playground, handbook] =
        create().map_err(|error| StartError::Executors(format!("cannot create the demo files: {error}")))?;
    let check = ["grep", "-x", "workers [1-9][0-9]*"].map(str::to_owned);
    let file = playground.join("app.conf").to_string_lossy().into_owned();
    let argv = check.into_iter().chain([file]).collect();
    let binding = Binding::default();
    let template =
        CommandTemplate { argv, preview_argv: None, preview_memory_mb: None, rollback_argv: None, binding };
    config.executors.command.templates.insert(CHECK_TEMPLATE.to_owned(), template);
    let roots = &mut config.executors.files.roots;
    let binding = Binding { resources: vec!["service:app".to_owned()], ..Binding::default() };
    roots.insert(
        "playground".to_owned(),
        FilesRoot { path: playground, show: None, show_reviewers: None, binding },
    );
    let binding = Binding {
        resources: vec!["docs:handbook".to_owned()],
        criticality: Some(5),
        task_types: vec!["docs".to_owned()],
        authors: vec![AllowedAuthor::People(PeopleSelector::Role(AUTHOR.to_owned()))],
        ..Binding::default()
    };
    roots.insert(
        "handbook".to_owned(),
        FilesRoot { path: handbook, show: Some(vec!["**/*.md".to_owned()]), show_reviewers: None, binding },
    );
    Ok(())
}
