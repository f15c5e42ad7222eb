//! A mail server that accepts messages, or refuses them as a test says. It knows as much of SMTP as that needs, and no encryption.

#![expect(clippy::expect_used, reason = "helpers of tests fail like tests")]

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

/// A message that was accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedMail {
    /// The commands `MAIL` and `RCPT`.
    pub envelope: Vec<String>,
    /// Headers and body, with `\n` at the end of each line.
    pub data: String,
}

impl ReceivedMail {
    /// The value of a header on one line; empty without it.
    #[must_use]
    pub fn header(&self, name: &str) -> String {
        let head = self.data.split("\n\n").next().unwrap_or_default().replace("\n ", " ");
        let prefix = format!("{name}: ");
        head.lines().find_map(|line| line.strip_prefix(&prefix)).unwrap_or_default().to_owned()
    }

    /// The names of all headers.
    #[must_use]
    pub fn header_names(&self) -> Vec<String> {
        let head = self.data.split("\n\n").next().unwrap_or_default();
        let names =
            head.lines().filter(|line| !line.starts_with(' ')).filter_map(|line| line.split_once(':'));
        names.map(|(name, _)| name.to_owned()).collect()
    }
}

/// It stops with its test.
#[derive(Debug)]
pub struct MailReceiver {
    port: u16,
    refusal: watch::Sender<Option<String>>,
    mails: mpsc::UnboundedReceiver<ReceivedMail>,
}

impl MailReceiver {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let (refusal, refusals) = watch::channel(None);
        let (received, mails) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (refusals, received) = (refusals.clone(), received.clone());
                tokio::spawn(async move {
                    // The client may have gone away, or the test may have ended.
                    let _ = serve(stream, refusals, received).await;
                });
            }
        });
        Self { port, refusal, mails }
    }

    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Answers to recipients with this line, such as `451 later`; `None` accepts them.
    pub fn refuse_with(&self, line: Option<&str>) {
        self.refusal.send_replace(line.map(str::to_owned));
    }

    pub async fn next_mail(&mut self) -> ReceivedMail {
        self.mails.recv().await.expect("the receiver runs")
    }

    /// A message that has arrived already.
    pub fn received(&mut self) -> Option<ReceivedMail> {
        self.mails.try_recv().ok()
    }
}

async fn serve(
    stream: TcpStream,
    refusals: watch::Receiver<Option<String>>,
    received: mpsc::UnboundedSender<ReceivedMail>,
) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut envelope = Vec::new();
    stream.write_all(b"220 test\r\n").await?;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Ok(());
        }
        let command = line.trim_end().to_owned();
        let answer = match command.split([' ', ':']).next().unwrap_or_default() {
            "EHLO" => "250 test".to_owned(),
            "MAIL" => {
                envelope = vec![command];
                "250 ok".to_owned()
            }
            "RCPT" => {
                envelope.push(command);
                refusals.borrow().clone().unwrap_or_else(|| "250 ok".to_owned())
            }
            "DATA" => {
                stream.write_all(b"354 go on\r\n").await?;
                let data = read_data(&mut stream).await?;
                // Its test may have ended.
                let _ = received.send(ReceivedMail { envelope: envelope.clone(), data });
                "250 accepted".to_owned()
            }
            "QUIT" => "221 bye".to_owned(),
            _ => "502 unknown".to_owned(),
        };
        stream.write_all(format!("{answer}\r\n").as_bytes()).await?;
    }
}

async fn read_data(stream: &mut BufReader<TcpStream>) -> std::io::Result<String> {
    let mut data = String::new();
    loop {
        let mut line = String::new();
        let read = stream.read_line(&mut line).await?;
        let line = line.trim_end_matches(['\r', '\n']);
        if read == 0 || line == "." {
            return Ok(data);
        }
        // A dot at the beginning of a line is doubled.
        data.push_str(line.strip_prefix('.').unwrap_or(line));
        data.push('\n');
    }
}
