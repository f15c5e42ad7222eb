//! Drives real Chromium, for tests of pages: a chromedriver per test, windows with separate cookies and profiles, and everything
//! that went wrong in a page ([`Page::problems`]). Chromium reaches this machine only.
//!
//! The methods of pages fail like tests: with the command, the page and its log. Nothing waits on time: [`Page::wait_for`] and
//! [`Page::wait_until`] observe the document.

#![expect(clippy::expect_used, clippy::panic, reason = "helpers of tests fail like tests")]

mod accessibility;
mod driver;
pub mod keys;
mod page;
mod pictures;
mod problems;
mod waiting;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

pub use accessibility::Violation;
pub use driver::DriverError;
pub use page::Page;
pub use problems::{Problem, ProblemKind};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::error::StartError;
use crate::guard::{GuardedProcess, ProcessSpec};
use crate::ports::Port;
use crate::process::program;
use driver::Session;

const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Tests of one program that have a browser at the same time; others wait for their turn.
const MAX_BROWSERS: usize = 2;
/// Open windows of one browser. Each costs about 200 MB.
const MAX_WINDOWS: usize = 8;

static BROWSERS: Semaphore = Semaphore::const_new(MAX_BROWSERS);

/// A chromedriver. It stops with all its windows when this value and its pages are dropped, or its test dies.
#[derive(Debug, Clone)]
pub struct Browser {
    driver: Arc<Driver>,
}

#[derive(Debug)]
struct Driver {
    process: GuardedProcess,
    port: Port,
    chromium: String,
    windows: AtomicUsize,
    /// Released last, when nothing runs any more.
    _turn: SemaphorePermit<'static>,
}

/// What a window is like. A page keeps this through navigation.
#[derive(Debug, Clone)]
pub struct WindowOptions {
    /// Of the viewport.
    pub width: u32,
    pub height: u32,
    /// Whether the user prefers dark pages.
    pub is_dark: bool,
    /// Whether it is a phone: coarse pointer, no hovering, clicks are taps.
    pub is_phone: bool,
    pub has_javascript: bool,
    /// Names that lead to this machine, such as `other.test` for requests across sites. All others lead nowhere.
    pub hosts: Vec<String>,
    /// Origins that pages may send requests to, besides those that the test opens with [`Page::goto`].
    pub allowed_origins: Vec<String>,
}

impl Default for WindowOptions {
    fn default() -> Self {
        Self {
            width: 1280,
            height: 800,
            is_dark: false,
            is_phone: false,
            has_javascript: true,
            hosts: Vec::new(),
            allowed_origins: Vec::new(),
        }
    }
}

impl WindowOptions {
    /// A small phone.
    #[must_use]
    pub fn phone() -> Self {
        Self { width: 360, height: 740, is_phone: true, ..Self::default() }
    }
}

impl Browser {
    /// Starts chromedriver, which starts a Chromium for each window. Waits while other tests of this program have browsers: a
    /// test starts one, or tests could wait for each other.
    pub async fn start() -> Result<Self, StartError> {
        let turn = BROWSERS.acquire().await.expect("it is never closed");
        let port = Port::claim()?;
        let number = port.number();
        // Profiles, caches and crash reports stay in the folder that the guardian removes.
        let variables = "export TMPDIR=\"$PWD\" HOME=\"$PWD\" TZ=UTC LANG=C.UTF-8 LANGUAGE=en; \
                         unset XDG_CONFIG_HOME XDG_CACHE_HOME XDG_RUNTIME_DIR DISPLAY WAYLAND_DISPLAY\n";
        let script = format!("{variables}{}", include_str!("driver.sh"));
        let chromedriver = program("chromedriver", "chromium-driver", &[])?;
        let mut argv: Vec<String> =
            ["sh", "-c", &script, "ade-chromedriver", &chromedriver].map(str::to_owned).into();
        argv.push(format!("--port={number}"));
        let process = GuardedProcess::start(ProcessSpec {
            name: format!("chromedriver on port {number}"),
            files: Vec::new(),
            preparation: String::new(),
            argv,
            stop_signal: "TERM",
            owner: None,
        })?;
        process.wait_for_log_line_after(0, "started successfully", START_TIMEOUT)?;
        let chromium = program("chromium", "chromium", &[])?;
        let windows = AtomicUsize::new(0);
        Ok(Self { driver: Arc::new(Driver { process, port, chromium, windows, _turn: turn }) })
    }

    /// Opens a window with an own empty profile.
    pub async fn window(&self, options: WindowOptions) -> Page {
        let driver = &self.driver;
        let open = driver.windows.fetch_add(1, Ordering::Relaxed);
        assert!(open < MAX_WINDOWS, "more than {MAX_WINDOWS} windows: close some with Page::close");
        let session = Session::open(&self.url(), &chromium_options(&driver.chromium, &options)).await;
        let session = session.unwrap_or_else(|error| {
            panic!("{error}\nlog of chromedriver:\n{}", driver.process.log_lines_with("").join("\n"))
        });
        Page::new(Arc::clone(driver), session, options).await
    }

    /// Where chromedriver listens.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.driver.port.number())
    }

    /// chromedriver, for its log and folder.
    #[must_use]
    pub fn process(&self) -> &GuardedProcess {
        &self.driver.process
    }
}

fn chromium_options(binary: &str, options: &WindowOptions) -> Value {
    let fixed = [
        "--headless",
        // Chromium exits when its driver does.
        "--remote-debugging-pipe",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-default-apps",
        // Containers have little shared memory.
        "--disable-dev-shm-usage",
        "--disable-extensions",
        "--disable-gpu",
        "--disable-quic",
        "--disable-sync",
        "--hide-scrollbars",
        "--force-color-profile=srgb",
        "--lang=en-US",
        "--no-default-browser-check",
        "--no-first-run",
        "--no-pings",
    ];
    let mut arguments: Vec<String> = fixed.map(str::to_owned).into();
    if rustix::process::geteuid().is_root() {
        arguments.push("--no-sandbox".to_owned());
    }
    let hosts: String = options.hosts.iter().map(|host| format!("MAP {host} 127.0.0.1, ")).collect();
    let rules = format!("{hosts}MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost");
    arguments.push(format!("--host-resolver-rules={rules}"));
    json!({ "binary": binary, "args": arguments })
}
