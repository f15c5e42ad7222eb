//! Configuration, feature flags and background jobs.

use ade_client::wire::{Feature, Job, Problem, Setting};
use askama::Template;
use serde_json::Value;

use super::Tabs;
use crate::Shell;
use crate::format::{self, visible};

#[derive(Debug, Clone, Template)]
#[template(path = "settings_configuration.html")]
pub struct ConfigurationPage {
    pub shell: Shell,
    pub tabs: Tabs,
    pub settings: Vec<Setting>,
    pub problem: Option<Problem>,
    /// The setting that was refused, and what was typed for it.
    pub typed: Option<(String, String)>,
}

/// A value as people type it: a text without quotes, everything else as JSON.
fn typed_value(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Object(_) | Value::Array(_) => serde_json::to_string_pretty(value).unwrap_or_default(),
        value => value.to_string(),
    }
}

impl ConfigurationPage {
    fn shown(&self, setting: &Setting) -> String {
        visible(typed_value(&setting.value))
    }

    fn is_long(&self, setting: &Setting) -> bool {
        setting.value.is_object() || setting.value.is_array()
    }

    fn is_number(&self, setting: &Setting) -> bool {
        setting.value.is_number()
    }

    fn is_bool(&self, setting: &Setting) -> bool {
        setting.value.is_boolean()
    }

    /// A number of seconds in words, by the convention of the descriptions.
    fn in_words(&self, setting: &Setting) -> String {
        let seconds = setting.value.as_u64().filter(|seconds| *seconds >= 60);
        let seconds = seconds.filter(|_| setting.description.contains("second"));
        seconds.map_or_else(String::new, format::duration)
    }

    /// What is in the field: what was typed and refused, or the value.
    fn field(&self, setting: &Setting) -> String {
        match &self.typed {
            Some((name, text)) if *name == setting.name => text.clone(),
            _ => typed_value(&setting.value),
        }
    }

    fn is_refused(&self, setting: &Setting) -> bool {
        self.typed.as_ref().is_some_and(|(name, _)| *name == setting.name)
    }
}

#[derive(Debug, Clone, Template)]
#[template(path = "settings_features.html")]
pub struct FeaturesPage {
    pub shell: Shell,
    pub tabs: Tabs,
    pub features: Vec<Feature>,
    pub problem: Option<Problem>,
}

#[derive(Debug, Clone, Template)]
#[template(path = "settings_jobs.html")]
pub struct JobsPage {
    pub shell: Shell,
    pub tabs: Tabs,
    pub jobs: Vec<Job>,
}

impl JobsPage {
    fn chip(&self, job: &Job) -> (&'static str, &'static str, String) {
        let (class, sign) = match job.status.as_str() {
            "ok" => ("ok", "✓"),
            "running" => ("info", "…"),
            "failing" => ("danger", "✗"),
            _ => ("", "○"),
        };
        (class, sign, visible(&job.status))
    }

    fn interval(&self, job: &Job) -> String {
        format::duration(job.interval_seconds)
    }

    /// How long the last run took.
    fn took(&self, job: &Job) -> String {
        match (job.started_at, job.ended_at) {
            (Some(start), Some(end)) if end >= start => {
                let milliseconds = end.0.duration_since(start.0).as_millis();
                match u64::try_from(milliseconds) {
                    Ok(milliseconds) if milliseconds >= 10_000 => format::duration(milliseconds / 1_000),
                    Ok(milliseconds) => format!("{milliseconds} ms"),
                    Err(_) => String::new(),
                }
            }
            _ => String::new(),
        }
    }

    /// The server that ran a job; the page has the whole id as a title.
    fn server(&self, id: &str) -> String {
        format::short_machine_id(id)
    }

    fn failing(&self) -> usize {
        self.jobs.iter().filter(|job| job.failures > 0).count()
    }

    fn text(&self, text: &str) -> String {
        visible(text)
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::Viewer;

    fn page(typed: Option<(String, String)>) -> ConfigurationPage {
        let setting = |name: &str, value: Value, read_only| Setting {
            name: name.to_owned(),
            value,
            description: "seconds until it ends".to_owned(),
            is_default: true,
            read_only,
            revision: 0,
        };
        let settings = vec![
            setting("approval:validity", json!(604_800), false),
            setting("risk:weights", json!({ "a": 1 }), false),
            setting("lock:max_queue", json!(10), true),
            setting("text", json!("plain"), false),
        ];
        let mut shell = Shell::anonymous("Configuration", Timestamp::UNIX_EPOCH);
        let viewer = Viewer { roles: vec!["admin".to_owned()], ..Viewer::default() };
        let tabs = Tabs::new("/settings/configuration", &viewer);
        shell.viewer = Some(viewer);
        ConfigurationPage { shell, tabs, settings, problem: None, typed }
    }

    #[test]
    fn values_are_typed_as_they_are_shown() {
        let page = page(None);
        let shown: Vec<String> = page.settings.iter().map(|setting| page.field(setting)).collect();
        assert_eq!(shown, ["604800", "{\n  \"a\": 1\n}", "10", "plain"]);
        assert_eq!(page.in_words(&page.settings[0]), "7 d");
    }

    #[test]
    fn refused_values_are_kept_and_read_only_settings_have_no_form() {
        let typed = "\"><script>alert(1)</script>".to_owned();
        let html = page(Some(("approval:validity".to_owned(), typed))).render().expect("rendered");
        assert!(!html.contains("<script>alert"), "{html}");
        assert!(html.contains("&#34;&#62;&#60;script&#62;alert(1)"), "{html}");
        assert_eq!(html.matches("method=\"post\" action=\"/settings/configuration\"").count(), 3, "{html}");
    }
}
