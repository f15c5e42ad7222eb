//! The sample proposals of the demo.

use ade_domain::lock::LockMode;
use ade_domain::task::{ChangeKind, PreviewChange, Resource, RollbackStrategy};
use serde_json::{Map, Value, json};

use crate::tasks::{DeclaredPreview, Proposal};

pub(super) fn resource(resource_type: &str, id: &str) -> Resource {
    Resource { resource_type: resource_type.to_owned(), id: id.to_owned(), mode: LockMode::Exclusive }
}

fn change(kind: ChangeKind, what: &str, diff: &str) -> PreviewChange {
    PreviewChange {
        kind,
        what: what.to_owned(),
        before: None,
        after: None,
        diff: Some(diff.to_owned()).filter(|diff| !diff.is_empty()),
    }
}

pub(super) fn parameters(value: Value) -> Option<Map<String, Value>> {
    match value {
        Value::Object(parameters) => Some(parameters),
        _ => None,
    }
}

pub(super) fn migration() -> Proposal {
    let diff = "+ALTER TABLE orders ADD COLUMN refunded_at timestamptz;\n\
                +CREATE INDEX CONCURRENTLY orders_refunded ON orders (refunded_at);\n";
    Proposal {
        task_type: Some("migration".to_owned()),
        description: Some("Add refunded_at to orders, with an index".to_owned()),
        parameters: parameters(json!({ "database": "prod-orders", "statements": 2 })),
        resources: Some(vec![resource("database", "prod-orders")]),
        ticket_ref: Some(Some("PAY-481".to_owned())),
        tags: Some(vec!["payments".to_owned(), "schema".to_owned()]),
        preview: Some(DeclaredPreview {
            changes: vec![change(ChangeKind::Update, "table orders", diff)],
            warnings: vec!["the index takes about four minutes to build".to_owned()],
            errors: Vec::new(),
        }),
        ..Proposal::default()
    }
}

pub(super) fn load_balancer() -> Proposal {
    Proposal {
        task_type: Some("infrastructure".to_owned()),
        description: Some("Drain the old load balancer and send its traffic to the new one".to_owned()),
        parameters: parameters(json!({ "from": "lb-1", "to": "lb-2", "percent_per_minute": 10 })),
        resources: Some(vec![resource("service", "prod-lb")]),
        rollback_strategy: Some(RollbackStrategy::Manual),
        tags: Some(vec!["network".to_owned()]),
        ..Proposal::default()
    }
}

pub(super) fn cleanup() -> Proposal {
    let deletion = |table: &str| change(ChangeKind::Delete, &format!("rows of {table} older than a day"), "");
    Proposal {
        task_type: Some("cleanup".to_owned()),
        description: Some("Delete stale sessions and carts in staging".to_owned()),
        parameters: parameters(json!({ "older_than_hours": 24 })),
        resources: Some(vec![resource("database", "staging-web")]),
        preview: Some(DeclaredPreview {
            changes: vec![deletion("sessions"), deletion("carts")],
            ..DeclaredPreview::default()
        }),
        ..Proposal::default()
    }
}

pub(super) fn rollout(service: &str, version: &str) -> Proposal {
    let diff = format!("-image: {service}:previous\n+image: {service}:{version}\n");
    Proposal {
        task_type: Some("rollout".to_owned()),
        description: Some(format!("Roll out {service} {version}")),
        parameters: parameters(json!({ "service": service, "version": version })),
        resources: Some(vec![resource("service", service)]),
        tags: Some(vec!["release".to_owned()]),
        preview: Some(DeclaredPreview {
            changes: vec![change(ChangeKind::Update, &format!("deployment {service}"), &diff)],
            ..DeclaredPreview::default()
        }),
        ..Proposal::default()
    }
}

pub(super) fn documentation() -> Proposal {
    Proposal {
        task_type: Some("docs".to_owned()),
        description: Some("Describe in the handbook how refunds are booked".to_owned()),
        resources: Some(vec![resource("docs", "handbook")]),
        preview: Some(DeclaredPreview {
            changes: vec![change(
                ChangeKind::Update,
                "handbook/refunds.md",
                "+Refunds are booked within a day.\n",
            )],
            ..DeclaredPreview::default()
        }),
        ..Proposal::default()
    }
}
