//! HTTP: a task is one call to a host that an operator listed, and its way back is another.
//!
//! What the other side does with a call nobody here knows: there is no fence but the token that is sent along. It is said that
//! nothing was changed only if nothing was sent, or if the other side refused it (4xx).

pub mod call;
mod request;

use std::collections::BTreeMap;
use std::time::Duration;

use ade_domain::Invalid;
use ade_domain::task::{ChangeKind, Preview, PreviewChange};
use bytes::Bytes;
use hyper::Method;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde_json::json;
use sha2::{Digest, Sha256};
use url::Url;

use self::call::{Answer, CallError, Caller};
use self::request::Wanted;
use crate::guard::{Guard, Listed};
use crate::{Changed, Executor, Failure, Fence, Halt, Parameters, Run, Secrets, Settled, Work, preview_of};

/// How long a preview may take.
const PREVIEW_WITHIN: Duration = Duration::from_secs(15);
/// Refused, but not for good: too early, too many.
const LATER: [u16; 2] = [425, 429];
/// Too slow, says the other side, or somebody on the way who does not know what became of it.
const TOO_SLOW: u16 = 408;

/// What is shorter is a word that may stand anywhere.
const SHORTEST_TOKEN: usize = 6;

/// A secret, and the host that it is for.
#[derive(Clone)]
struct Secret {
    host: Listed,
    value: HeaderValue,
}

/// Calls to hosts that are listed.
#[derive(Clone)]
pub struct Http {
    guard: Guard,
    caller: Caller,
    secrets: BTreeMap<String, Secret>,
    hidden: Secrets,
    texts: Vec<String>,
}

impl std::fmt::Debug for Http {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<_> = self.secrets.keys().collect();
        f.debug_struct("Http").field("guard", &self.guard).field("secrets", &names).finish_non_exhaustive()
    }
}

impl Http {
    /// Where tasks for it are carried out.
    pub const PLACE: &str = "http";

    /// Calls where a guard lets them go. A secret is a whole value of a header, as `Bearer …`, under a name, with the host that
    /// it is bound to, as hosts are listed: `[("NAME", "HOST", "VALUE")]`.
    pub fn new<'a>(
        guard: Guard,
        secrets: impl IntoIterator<Item = (&'a str, &'a str, &'a str)>,
    ) -> Result<Self, Invalid> {
        let (mut by_name, mut texts) = (BTreeMap::new(), Vec::new());
        for (name, host, text) in secrets {
            let wrong = |field: &str, detail: String| Invalid::at(format!("/secrets/{name}/{field}"), detail);
            let host = Listed::read(host).map_err(|why| wrong("host", why))?;
            let value = HeaderValue::from_str(text).ok().filter(|value| !value.is_empty());
            let mut value = value.ok_or_else(|| {
                wrong("value", "must be one line of text without control characters".to_owned())
            })?;
            value.set_sensitive(true);
            texts.push(text.to_owned());
            // The other side may repeat it without its scheme.
            let token = text.split_once(' ').map(|(_, token)| token.trim().to_owned());
            texts.extend(token.filter(|token| token.len() >= SHORTEST_TOKEN));
            by_name.insert(name.to_owned(), Secret { host, value });
        }
        let hidden = Secrets::new(texts.iter().cloned());
        Ok(Self { guard, caller: Caller::default(), secrets: by_name, hidden, texts })
    }

    /// The same, with calls made by somebody who trusts other certificates.
    #[must_use]
    pub fn calling_by(self, caller: Caller) -> Self {
        Self { caller, ..self }
    }

    /// What must never be seen.
    #[must_use]
    pub fn secrets(&self) -> Vec<String> {
        self.texts.clone()
    }

    fn read(&self, parameters: &Parameters) -> Result<Wanted, Vec<Invalid>> {
        Wanted::read(parameters, &self.guard, &self.secrets)
    }

    /// The same where they were checked long ago.
    fn read_again(&self, parameters: &Parameters) -> Result<Wanted, Failure> {
        self.read(parameters).map_err(|faults| {
            let each = faults.iter().map(|fault| format!("{} {}", fault.pointer, fault.detail));
            Failure::refused(each.collect::<Vec<_>>().join("; "))
        })
    }

    async fn connect(&self, url: &Url) -> Result<call::Open, Failure> {
        let pinned = self.guard.resolve(url.as_str()).await;
        let pinned = pinned
            .map_err(|refusal| Failure { again: refusal.again, ..Failure::refused(refusal.message) })?;
        self.caller.open(pinned).await.map_err(|error| Failure::not_now(error.to_string()))
    }

    /// Calls, says what was answered, and what that means. `sent` is what was changed if nobody knows what came of it.
    async fn call(
        &self,
        run: &Run,
        (method, url): (Method, &Url),
        headers: HeaderMap,
        body: Bytes,
        sent: Changed,
    ) -> Result<(), Failure> {
        let ended = |halt: Halt, changed: Changed| Failure {
            halted: Some(halt),
            again: halt == Halt::Lost && changed == Changed::Nothing,
            ..Failure::after(changed, halt.message(None))
        };
        let open = run.halted.or(self.connect(url)).await;
        let open = open.map_err(|halt| ended(halt, Changed::Nothing))??;
        let (title, is_repeatable) = (format!("{method} {url}"), method.is_idempotent());
        let begun = run.halted.or(open.send(method, headers, body)).await;
        let begun = match begun.map_err(|halt| ended(halt, sent))? {
            Ok(begun) => begun,
            Err(CallError::NotSent(why)) => return Err(Failure::not_now(why)),
            Err(CallError::Sent(why)) => {
                return Err(Failure::after(sent, format!("{title} was sent and not answered: {why}")));
            }
        };
        // How it went is known: a halt only ends what is said about it.
        let status = begun.status;
        let halted = |halt: Halt| Answer { status, body: Vec::new(), cut: Some(halt.message(None)) };
        let answer = run.halted.or(begun.read()).await.unwrap_or_else(halted);
        self.say(run, &title, &answer);
        if status.is_success() {
            return Ok(());
        }
        let is_known = status.as_u16() != TOO_SLOW || is_repeatable;
        if status.is_client_error() && is_known {
            let again = status.as_u16() == TOO_SLOW || LATER.contains(&status.as_u16());
            return Err(Failure { again, ..Failure::refused(format!("{title} was answered with {status}")) });
        }
        let hint = if status.is_redirection() { ": redirects are not followed" } else { "" };
        Err(Failure::after(sent, format!("{title} was answered with {status}{hint}")))
    }

    fn say(&self, run: &Run, title: &str, answer: &Answer) {
        let body = self.hidden.hide(&String::from_utf8_lossy(&answer.body));
        let end = if body.is_empty() || body.ends_with('\n') { "" } else { "\n" };
        let cut = answer.cut.as_ref().map(|why| format!("({why})\n")).unwrap_or_default();
        run.output.say(format!("{title}: {}\n{body}{end}{cut}", answer.status).as_bytes());
    }

    async fn look(&self, parameters: &Parameters) -> Result<Preview, Failure> {
        let wanted = self.read_again(parameters)?;
        let Some(url) = &wanted.preview_url else { return Ok(Preview::none()) };
        // Nobody has approved it yet: it is asked without secrets.
        let mut headers = wanted.plain;
        headers.remove(CONTENT_TYPE);
        let answer = self.connect(url).await?.send(Method::GET, headers, Bytes::new()).await;
        let answer = answer.map_err(|error| Failure::not_now(format!("GET {url}: {error}")))?.read().await;
        if !answer.status.is_success() {
            let error = format!("GET {url} was answered with {}", answer.status);
            return Ok(preview_of(Vec::new(), Vec::new(), vec![error]));
        }
        let hash: String = Sha256::digest(&answer.body).iter().map(|byte| format!("{byte:02x}")).collect();
        let change = PreviewChange {
            kind: ChangeKind::Update,
            what: format!("{} {}", wanted.method, wanted.url),
            before: Some(hash),
            after: None,
            diff: Some(self.hidden.hide(&String::from_utf8_lossy(&answer.body))),
        };
        Ok(preview_of(vec![change], answer.cut.into_iter().collect(), Vec::new()))
    }
}

/// What is sent along so that the other side can tell calls apart, and old ones from new ones.
fn marked(mut headers: HeaderMap, run: &Run, suffix: &str) -> Result<HeaderMap, Failure> {
    let token = run.tokens.iter().map(|(_, token)| *token).max();
    // An attempt is made again only if nothing came of the one before: to the other side it is the same call.
    let key = format!("ade-{}{suffix}", run.task_id);
    for (name, value) in [
        ("idempotency-key", Some(key)),
        ("ade-task-id", Some(run.task_id.clone())),
        ("ade-attempt", Some(run.attempt.to_string())),
        ("ade-fencing-token", token.map(|token| token.to_string())),
    ] {
        let Some(value) = value else { continue };
        let value = HeaderValue::from_str(&value).map_err(|error| Failure::refused(error.to_string()))?;
        headers.insert(HeaderName::from_static(name), value);
    }
    Ok(headers)
}

impl Executor for Http {
    fn check(&self, parameters: &Parameters) -> Result<(), Vec<Invalid>> {
        self.read(parameters).map(drop)
    }

    fn preview<'a>(&'a self, parameters: &'a Parameters) -> Work<'a, Result<Preview, Failure>> {
        Box::pin(async move {
            let seconds = PREVIEW_WITHIN.as_secs();
            let late = |_| Err(Failure::not_now(format!("finding out took longer than {seconds} s")));
            tokio::time::timeout(PREVIEW_WITHIN, self.look(parameters)).await.unwrap_or_else(late)
        })
    }

    /// All that is needed is in the parameters; that there is something says that there is a way back.
    fn stash<'a>(&'a self, run: &'a Run) -> Work<'a, Result<Vec<u8>, Failure>> {
        Box::pin(async move {
            let back = self.read_again(&run.parameters)?.rollback_url;
            Ok(back
                .map(|url| json!({ "rollback_url": url.as_str() }).to_string().into_bytes())
                .unwrap_or_default())
        })
    }

    fn apply<'a>(&'a self, run: &'a Run, _: &'a [u8]) -> Work<'a, Result<(), Failure>> {
        Box::pin(async move {
            let wanted = self.read_again(&run.parameters)?;
            let headers = marked(wanted.headers, run, "")?;
            let undoable = wanted.rollback_url.is_some();
            let sent = if undoable { Changed::Something } else { Changed::Unknown };
            self.call(run, (wanted.method, &wanted.url), headers, wanted.body, sent).await
        })
    }

    fn roll_back<'a>(&'a self, run: &'a Run, _: &'a [u8]) -> Work<'a, Result<(), Failure>> {
        Box::pin(async move {
            let stays = |failure: Failure| Failure { changed: Changed::Something, ..failure };
            let wanted = self.read_again(&run.parameters).map_err(stays)?;
            let Some(url) = &wanted.rollback_url else {
                return Err(stays(Failure::refused("there is no way back: the task has no rollback_url")));
            };
            let mut headers = marked(wanted.headers, run, "-undo").map_err(stays)?;
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            let body = json!({ "task_id": run.task_id, "attempt": run.attempt }).to_string().into();
            self.call(run, (Method::POST, url), headers, body, Changed::Something).await.map_err(stays)
        })
    }

    fn settle<'a>(&'a self, _: &'a Run, _: &'a [u8]) -> Work<'a, Result<Settled, Failure>> {
        Box::pin(async {
            let message = "nobody here knows what came of a call: ask whoever was called";
            Err(Failure::after(Changed::Unknown, message))
        })
    }

    fn fence(&self) -> Fence {
        Fence::Open
    }

    fn can_roll_back(&self, parameters: &Parameters) -> bool {
        self.read(parameters).is_ok_and(|wanted| wanted.rollback_url.is_some())
    }
}
