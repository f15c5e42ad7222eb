//! What Slack sends when somebody presses a button or enters a command: the signature (version v0), and who wants what. Nothing of a
//! request is to be believed before its signature is verified.

use std::collections::BTreeMap;

use ring::hmac;
use serde::{Deserialize, Serialize};

use super::signature::{SignatureError, parse_recent};
use crate::approval::DecisionKind;
use crate::task::{Digest, Task};
use crate::{InvalidField, Moment};

/// The actions of buttons, and of the text field for a reason.
pub(super) const APPROVE: &str = "ade_approve";
pub(super) const REJECT: &str = "ade_reject";
pub(super) const REASON: &str = "ade_reason";
/// Characters of a reason.
pub(super) const MAX_REASON_CHARS: usize = 500;

const VERSION: &str = "v0";
const MAX_ID_LEN: usize = 64;
const SECRET_SIZES: std::ops::RangeInclusive<usize> = 16..=128;

/// Checks the signing secret of a Slack app.
pub fn check_signing_secret(path: &str, text: &str) -> Result<(), InvalidField> {
    let is_valid =
        SECRET_SIZES.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let detail = "must be the signing secret of a Slack app: 16 to 128 letters and digits";
    if is_valid { Ok(()) } else { Err(InvalidField::at(path, detail)) }
}

/// The headers of a request of Slack, and its body.
#[derive(Debug, Clone, Copy)]
pub struct SignedSlackRequest<'a> {
    /// Seconds since the Unix epoch, as text.
    pub timestamp: &'a str,
    pub signature: &'a str,
    pub body: &'a [u8],
}

impl SignedSlackRequest<'_> {
    fn message(seconds: u64, body: &[u8]) -> Vec<u8> {
        [format!("{VERSION}:{seconds}:").as_bytes(), body].concat()
    }

    /// Verifies that the secret signed the request, and that it is recent. Returns the signature in the one form by which a replay is
    /// recognized: hexadecimal digits could be written in both cases.
    pub fn verify(&self, secret: &str, now: Moment) -> Result<String, SignatureError> {
        let seconds = parse_recent(self.timestamp, now).ok_or(SignatureError::Timestamp)?;
        let digits = self.signature.strip_prefix(VERSION).and_then(|rest| rest.strip_prefix('='));
        let tag = digits.and_then(|digits| hex::decode(digits).ok()).ok_or(SignatureError::Signature)?;
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        let verified = hmac::verify(&key, &Self::message(seconds, self.body), &tag);
        verified.map_err(|_| SignatureError::Signature)?;
        Ok(format!("{VERSION}={}", hex::encode(tag)))
    }
}

/// An account of Slack.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlackIdentity {
    /// The workspace.
    pub team_id: String,
    pub user_id: String,
}

impl SlackIdentity {
    fn new(team_id: &str, user_id: &str) -> Result<Self, InvalidField> {
        let is_id = |text: &str| {
            (1..=MAX_ID_LEN).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
        };
        if is_id(team_id) && is_id(user_id) {
            return Ok(Self { team_id: team_id.to_owned(), user_id: user_id.to_owned() });
        }
        Err(InvalidField::at("", "must name a workspace and a user of Slack"))
    }
}

/// How a message of Slack is stored: its channel and its time, which identify it.
pub fn message_ref(channel: &str, ts: &str) -> Option<String> {
    let is_plain = |text: &str| {
        (1..=MAX_ID_LEN).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
    };
    (is_plain(channel) && is_plain(ts)).then(|| format!("{channel} {ts}"))
}

/// What the buttons of a message decide about: exactly what the message shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ButtonContent {
    pub task_id: String,
    pub digest: Digest,
    pub scope_digest: Option<Digest>,
    /// The fingerprint of the preview, if there was one.
    pub fingerprint: Option<String>,
}

impl ButtonContent {
    pub fn of(task: &Task) -> Self {
        let Task { task_id, digest, scope_digest, fingerprint, .. } = task.clone();
        Self { task_id, digest, scope_digest, fingerprint }
    }
}

/// What somebody wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlackAction {
    /// A button was pressed.
    Decide {
        kind: DecisionKind,
        content: ButtonContent,
        reason: Option<String>,
        /// Channel and time of the message with the button, which identify it.
        message_ref: Option<String>,
    },
    /// The command `link CODE`.
    Link { code: String },
    /// The command `unlink`.
    Unlink,
    /// Any other command.
    Help,
    /// A button that only opens a page.
    Nothing,
}

/// A request of Slack whose signature is verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlackRequest {
    pub who: SlackIdentity,
    pub action: SlackAction,
    /// Where an answer can be sent.
    pub response_url: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Payload {
    #[serde(rename = "type")]
    kind: String,
    team: Named,
    user: Named,
    #[serde(default)]
    actions: Vec<PressedButton>,
    #[serde(default)]
    container: Container,
    #[serde(default)]
    state: Inputs,
    #[serde(default)]
    response_url: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Named {
    id: String,
}

/// Where a button is.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Container {
    channel_id: String,
    message_ts: String,
}

#[derive(Debug, Deserialize)]
struct PressedButton {
    action_id: String,
    #[serde(default)]
    value: Option<String>,
}

/// The text fields of a message, by block and action.
#[derive(Debug, Default, Deserialize)]
struct Inputs {
    #[serde(default)]
    values: BTreeMap<String, BTreeMap<String, Input>>,
}

#[derive(Debug, Deserialize)]
struct Input {
    #[serde(default)]
    value: Option<String>,
}

impl SlackRequest {
    /// Parses the fields of a form: `payload` of a button, or those of a command.
    pub fn parse(fields: &BTreeMap<String, String>) -> Result<Self, InvalidField> {
        if fields.values().any(|value| value.contains('\0')) {
            return Err(InvalidField::at("", "must not contain NUL"));
        }
        let field = |name: &str| fields.get(name).map(String::as_str).unwrap_or_default();
        if let Some(payload) = fields.get("payload") {
            return Self::parse_payload(payload);
        }
        if !fields.contains_key("command") {
            return Err(InvalidField::at(
                "",
                "must have the field payload of a button, or that of a command",
            ));
        }
        let who = SlackIdentity::new(field("team_id"), field("user_id"))?;
        let words: Vec<&str> = field("text").split_whitespace().collect();
        let action = match words.as_slice() {
            ["link", code] => SlackAction::Link { code: (*code).to_owned() },
            ["unlink"] => SlackAction::Unlink,
            _ => SlackAction::Help,
        };
        // A command is answered in its response.
        Ok(Self { who, action, response_url: None })
    }

    fn parse_payload(text: &str) -> Result<Self, InvalidField> {
        let invalid = |error: serde_json::Error| InvalidField::at("payload", format!("is invalid: {error}"));
        let payload: Payload = serde_json::from_str(text).map_err(invalid)?;
        let who = SlackIdentity::new(&payload.team.id, &payload.user.id)?;
        let pressed = payload.actions.first().filter(|_| payload.kind == "block_actions");
        let kind = match pressed.map(|button| button.action_id.as_str()) {
            Some(APPROVE) => DecisionKind::Approve,
            Some(REJECT) => DecisionKind::Reject,
            _ => return Ok(Self { who, action: SlackAction::Nothing, response_url: None }),
        };
        let value = pressed.and_then(|button| button.value.as_deref()).unwrap_or_default();
        let content: ButtonContent = serde_json::from_str(value).map_err(invalid)?;
        if content.task_id.contains('\0') {
            return Err(InvalidField::at("payload", "must not contain NUL"));
        }
        let inputs = payload.state.values.into_values().flatten();
        let typed = inputs.filter(|(action, _)| action == REASON).find_map(|(_, input)| input.value);
        let reason = typed.map(|text| text.trim().chars().take(MAX_REASON_CHARS).collect::<String>());
        let reason = reason.filter(|reason| !reason.is_empty() && !reason.contains('\0'));
        let message_ref = message_ref(&payload.container.channel_id, &payload.container.message_ts);
        let action = SlackAction::Decide { kind, content, reason, message_ref };
        Ok(Self { who, action, response_url: payload.response_url })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Signed with another program, as Slack documents it.
    const SECRET: &str = "0123456789abcdef0123456789abcdef";
    const BODY: &str = "team_id=T1&user_id=U1&command=%2Fade&text=unlink";
    const SIGNATURE: &str = "v0=e23799b8d77c140056f1bb526c71303c8df49c81d1d4a31716bf24935e1505db";
    const SENT_AT: u64 = 1_794_744_000;

    fn signed<'a>(timestamp: &'a str, signature: &'a str, body: &'a str) -> SignedSlackRequest<'a> {
        SignedSlackRequest { timestamp, signature, body: body.as_bytes() }
    }

    #[test]
    fn verifies_signatures_of_another_program() {
        let now = |seconds: u64| Moment::from_micros(seconds * 1_000_000);
        let timestamp = SENT_AT.to_string();
        let valid = signed(&timestamp, SIGNATURE, BODY);
        assert_eq!(valid.verify(SECRET, now(SENT_AT)).as_deref(), Ok(SIGNATURE));
        let upper = format!("v0={}", SIGNATURE[3..].to_uppercase());
        let same = signed(&timestamp, &upper, BODY).verify(SECRET, now(SENT_AT));
        assert_eq!(same.as_deref(), Ok(SIGNATURE), "one form for a replay");
        for late in [SENT_AT - 301, SENT_AT + 301] {
            assert_eq!(valid.verify(SECRET, now(late)), Err(SignatureError::Timestamp));
        }
        for (what, timestamp, signature, body, secret) in [
            ("body", "1794744000", SIGNATURE, "token=x", SECRET),
            ("time", "1794744001", SIGNATURE, BODY, SECRET),
            ("secret", "1794744000", SIGNATURE, BODY, "0123456789abcdef0123456789abcdee"),
            ("empty", "1794744000", "v0=", BODY, SECRET),
            ("version", "1794744000", &SIGNATURE[3..], BODY, SECRET),
            ("cut", "1794744000", &SIGNATURE[..65], BODY, SECRET),
        ] {
            let verified = signed(timestamp, signature, body).verify(secret, now(SENT_AT));
            assert_eq!(verified, Err(SignatureError::Signature), "{what}");
        }
    }

    fn form(fields: &[(&str, &str)]) -> BTreeMap<String, String> {
        fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn press(action_id: &str, value: &str, reason: &str) -> BTreeMap<String, String> {
        let payload = json!({
            "type": "block_actions", "team": { "id": "T1" }, "user": { "id": "U1", "name": "rex" },
            "actions": [{ "action_id": action_id, "value": value }], "response_url": "https://hooks.slack.com/x",
            "container": { "type": "message", "message_ts": "1.2", "channel_id": "C1" },
            "state": { "values": { "b": { "ade_reason": { "type": "plain_text_input", "value": reason } } } },
        });
        form(&[("payload", &payload.to_string())])
    }

    #[test]
    fn parses_buttons_and_commands() {
        let digest = Digest::of_bytes(b"config");
        let fingerprint = Some("ab12".to_owned());
        let content =
            ButtonContent { task_id: "t1".to_owned(), digest, scope_digest: Some(digest), fingerprint };
        let value = serde_json::to_string(&content).expect("JSON");
        let request = SlackRequest::parse(&press(REJECT, &value, " too early ")).expect("valid");
        let reason = Some("too early".to_owned());
        let (kind, message_ref) = (DecisionKind::Reject, Some("C1 1.2".to_owned()));
        assert_eq!(request.action, SlackAction::Decide { kind, content, reason, message_ref });
        assert_eq!((request.who.team_id.as_str(), request.who.user_id.as_str()), ("T1", "U1"));
        assert_eq!(
            SlackRequest::parse(&press("ade_open", "", "")).expect("valid").action,
            SlackAction::Nothing
        );
        for value in ["", "{}", r#"{"task_id":"t1","scope_digest":null}"#, &value.replace("t1", "\\u0000")] {
            assert!(SlackRequest::parse(&press(APPROVE, value, "")).is_err(), "{value}");
        }
        let command =
            |text| form(&[("command", "/ade"), ("team_id", "T1"), ("user_id", "U1"), ("text", text)]);
        for (text, action) in [
            ("link  rex:adel_1", SlackAction::Link { code: "rex:adel_1".to_owned() }),
            ("unlink", SlackAction::Unlink),
            ("", SlackAction::Help),
        ] {
            assert_eq!(SlackRequest::parse(&command(text)).expect("valid").action, action);
        }
        assert!(
            SlackRequest::parse(&form(&[("command", "/ade"), ("team_id", "T 1"), ("user_id", "U1")]))
                .is_err()
        );
        assert!(SlackRequest::parse(&form(&[("text", "unlink")])).is_err());
    }
}
