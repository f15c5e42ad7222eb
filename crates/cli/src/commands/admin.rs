//! `ade admin`: what only the operator of a server can do, on its data folder or database.

use std::path::PathBuf;

use clap::{Args as ClapArgs, Subcommand};

use super::config::{self, ConfigFile};
use super::serve::start_failure;
use crate::connect::block_on_all_cores;
use crate::failure::{Failure, Result};
use crate::output::{self, safe};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Replace the admin token of a data folder; a running server uses the new one at once
    RotateToken(FolderArgs),
    /// Disable the admin token of a data folder; a running server refuses it at once
    DisableToken(FolderArgs),
    /// Invite an administrator when no active one is left; stop the server of a data folder first
    Recover {
        /// Id of the administrator: an existing user, or a new one
        user: String,
        #[command(flatten)]
        folder: FolderArgs,
        /// PostgreSQL of the servers. A URL with a password belongs in ADE_SERVER_POSTGRES
        #[arg(long, value_name = "URL")]
        postgres: Option<String>,
    },
}

#[derive(Debug, ClapArgs)]
pub(crate) struct FolderArgs {
    #[command(flatten)]
    file: ConfigFile,
    /// Data folder of the server [default: ./ade-data]
    #[arg(long, value_name = "FOLDER")]
    data: Option<PathBuf>,
}

impl FolderArgs {
    fn load(&self, postgres: Option<String>) -> Result<ade_config::Config> {
        let data = self.data.as_ref().map(|data| data.to_string_lossy().into_owned());
        config::load(&self.file, [("server.data", "data", data), ("server.postgres", "postgres", postgres)])
    }

    /// The data folder, if there is one.
    fn existing(&self) -> Result<PathBuf> {
        let data = self.load(None)?.data;
        if data.is_dir() {
            return Ok(data);
        }
        Err(Failure::invalid(format!("there is no data folder {}", data.display()))
            .hint("name the folder of the server with --data"))
    }
}

pub(crate) fn run(command: Command) -> Result {
    match command {
        Command::RotateToken(args) => {
            let data = args.existing()?;
            let file = ade_server::rotate_bootstrap_token(&data)
                .map_err(|error| Failure::cannot("write the admin token", error))?;
            report(&format!("the new admin token is in {}; the old one is refused", file.display()))
        }
        Command::DisableToken(args) => {
            let data = args.existing()?;
            ade_server::disable_bootstrap_token(&data)
                .map_err(|error| Failure::cannot("disable the admin token", error))?;
            report("the admin token is disabled; enable it again with ade admin rotate-token")
        }
        Command::Recover { user, folder, postgres } => {
            let config = folder.load(postgres)?;
            if config.postgres.is_none() {
                folder.existing()?;
            }
            block_on_all_cores(async {
                let invited =
                    ade_server::recover_admin(&config, &user).await.map_err(|error| start_failure(&error))?;
                // Only the code goes to standard output, so that it can be piped.
                output::line(safe(&invited.code))?;
                output::note(&format!(
                    "start the server, then set the password of {} with ade join CODE, within 72 hours",
                    safe(&user)
                ));
                Ok(())
            })
        }
    }
}

/// A token from the environment takes precedence over the one in the data folder.
fn report(text: &str) -> Result {
    output::line(text)?;
    output::note(
        "a server that was started with ADE_ADMIN_TOKEN ignores the file; change the variable and restart it",
    );
    Ok(())
}
