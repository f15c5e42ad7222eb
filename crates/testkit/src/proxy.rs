//! A line to a PostgreSQL that can be cut: for good, for a while, or at the very COMMIT whose answer somebody waits for.

#![expect(clippy::expect_used, reason = "helpers of tests fail like tests")]

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

const BUFFER: usize = 65_536;
/// How a simple query that commits looks on the wire.
const COMMIT: &[u8] = b"COMMIT\0";

/// What happens to the next COMMIT that comes along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// It arrives, and its answer does not.
    Answer,
    /// It does not arrive.
    Question,
}

/// How the line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Line {
    /// Nobody gets through.
    is_away: bool,
    /// What happens to the next COMMIT.
    cut: Option<Cut>,
    /// Nobody gets through after that.
    for_long: bool,
    /// Its owner does not need it any more.
    is_gone: bool,
}

/// The line; it is gone when this is dropped.
#[derive(Debug)]
pub struct Proxy {
    url: String,
    line: watch::Sender<Line>,
}

impl Proxy {
    /// A line to the server and the database of a URL.
    pub async fn start(url: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let (head, rest) = url.split_once("127.0.0.1:").expect("an address");
        let (server, database) = rest.split_once('/').expect("a database");
        let url = format!("{head}127.0.0.1:{port}/{database}");
        let server = format!("127.0.0.1:{server}");
        let (line, _) = watch::channel(Line { is_away: false, cut: None, for_long: false, is_gone: false });
        let accepting = line.clone();
        tokio::spawn(async move {
            let accept = async {
                while let Ok((client, _)) = listener.accept().await {
                    if !accepting.borrow().is_away {
                        tokio::spawn(pass(client, server.clone(), accepting.clone()));
                    }
                }
            };
            let mut gone = accepting.subscribe();
            tokio::select! {
                () = accept => {}
                _ = gone.wait_for(|line| line.is_gone) => {}
            }
        });
        Self { url, line }
    }

    /// The URL of the same database by this line.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Cuts the next COMMIT; `for_long`: nobody gets through afterwards.
    pub fn cut(&self, cut: Cut, for_long: bool) {
        self.line.send_modify(|line| (line.cut, line.for_long) = (Some(cut), for_long));
    }

    /// Waits until the COMMIT that was to be cut has been.
    pub async fn was_cut(&self) {
        let mut line = self.line.subscribe();
        line.wait_for(|line| line.cut.is_none()).await.expect("the line is there");
    }

    /// Nobody gets through any more.
    pub fn go_away(&self) {
        self.line.send_modify(|line| line.is_away = true);
    }

    /// Everybody gets through again.
    pub fn come_back(&self) {
        self.line.send_modify(|line| line.is_away = false);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.line.send_modify(|line| (line.is_away, line.is_gone) = (true, true));
    }
}

/// One connection, until somebody hangs up or it is cut.
async fn pass(client: TcpStream, server: String, line: watch::Sender<Line>) {
    let mut away = line.subscribe();
    tokio::select! {
        // Whoever hangs up needs no reason.
        _ = both_ways(client, &server, &line) => {}
        _ = away.wait_for(|line| line.is_away) => {}
    }
}

async fn both_ways(mut client: TcpStream, server: &str, line: &watch::Sender<Line>) -> io::Result<()> {
    let mut server = TcpStream::connect(server).await?;
    let (mut asked, mut answered) = (vec![0; BUFFER], vec![0; BUFFER]);
    loop {
        tokio::select! {
            read = client.read(&mut asked) => {
                let asked = asked.get(..read?).unwrap_or_default();
                if asked.is_empty() {
                    return Ok(());
                }
                let is_commit = asked.windows(COMMIT.len()).any(|bytes| bytes == COMMIT);
                let cut = line.borrow().cut.filter(|_| is_commit);
                if cut != Some(Cut::Question) {
                    server.write_all(asked).await?;
                }
                if cut == Some(Cut::Answer) && server.read(&mut answered).await? == 0 {
                    return Ok(());
                }
                if cut.is_some() {
                    line.send_modify(|line| (line.cut, line.is_away) = (None, line.for_long));
                    return Ok(());
                }
            }
            read = server.read(&mut answered) => {
                let answered = answered.get(..read?).unwrap_or_default();
                if answered.is_empty() {
                    return Ok(());
                }
                client.write_all(answered).await?;
            }
        }
    }
}
