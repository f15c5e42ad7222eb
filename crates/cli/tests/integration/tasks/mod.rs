//! Tasks and approvals over HTTP: permissions, lifecycle, rules, concurrency and the audit log.

mod account_security;
mod agent_identity;
mod audit_tampering;
mod author_set;
mod delegation;
mod dual_control;
mod evidence;
mod friction;
mod independence;
mod invalid_input;
mod lifecycle;
mod lists;
mod model;
mod permission_matrix;
mod previews;
mod races;
mod random_commands;
mod record_fields;
mod request_checks;
mod role_changes;
mod route_access;
mod rules;
mod scope;

use ade_testkit::ApiClient;
use ade_testkit::api::encode_segment;
use serde_json::Value;

/// The id of no task, approval request or policy.
const UNKNOWN_ID: &str = "00000000-0000-7000-8000-000000000000";

/// All items of a list, read page by page.
async fn all_pages(api: &ApiClient, path: &str, limit: usize) -> Vec<Value> {
    let (mut found, mut cursor) = (Vec::new(), String::new());
    let separator = if path.contains('?') { '&' } else { '?' };
    loop {
        let page_path = format!("{path}{separator}limit={limit}&cursor={}", encode_segment(&cursor));
        let page = api.get(&page_path).await.expect_status(200);
        let items = page["items"].as_array().expect("items");
        assert!(items.len() <= limit, "{page_path}: more items than requested");
        found.extend(items.iter().cloned());
        match page["next_cursor"].as_str() {
            Some(next) => next.clone_into(&mut cursor),
            None => return found,
        }
    }
}
