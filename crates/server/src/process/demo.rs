//! The demo: a data folder that is served only as a demo, because its passwords are public, and files for its tasks to
//! change.

use std::io;

use ade_app::demo::CHECK_TEMPLATE;
use ade_config::{CommandTemplate, Config};
use ade_store::{FolderError, create_private_folder};

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
    if config.postgres.is_some() {
        return refuse("a demo keeps its database in its data folder; remove --postgres".to_owned());
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
        .and_then(|()| std::fs::write(&marker, "served with --demo only\n"));
    created.map_err(|source| StartError::Folder(FolderError::Unusable { path: marker, source }))
}

/// Creates the folder of files that demo tasks change, and allows the executors to use it. Returns its path for a demo.
pub(super) fn set_up_playground(config: &mut Config) -> Result<Option<String>, StartError> {
    if !config.demo {
        return Ok(None);
    }
    let create = || -> io::Result<String> {
        let folder = std::path::absolute(&config.data)?.join("playground");
        std::fs::create_dir_all(&folder)?;
        let file = folder.join("app.conf");
        if !file.exists() {
            std::fs::write(&file, APP_CONFIG)?;
        }
        Ok(folder.to_string_lossy().into_owned())
    };
    let folder =
        create().map_err(|error| StartError::Executors(format!("cannot create the demo files: {error}")))?;
    let check = ["grep", "-x", "workers [1-9][0-9]*"].map(str::to_owned);
    let argv = check.into_iter().chain([format!("{folder}/app.conf")]).collect();
    let template = CommandTemplate { argv, preview_argv: None, rollback_argv: None };
    config.executors.command.templates.insert(CHECK_TEMPLATE.to_owned(), template);
    config.executors.files.roots.push(folder.clone().into());
    Ok(Some(folder))
}
