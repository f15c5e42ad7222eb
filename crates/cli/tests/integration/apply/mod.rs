//! Integration tests of applying approved tasks with real workers: the whole path from proposal to effect, failures on the
//! way, crashes and recovery.

mod agent_executor;
mod agent_policies;
mod agent_rights;
mod archives;
mod background_jobs;
mod blob_folder;
mod cli_wait;
mod execution_failures;
mod external_effects;
mod outages;
mod readme_walkthrough;
mod secret;
mod worker_crashes;
